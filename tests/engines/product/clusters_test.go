package product

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/term"
)

// TestClustersOfTheirOwn configures a separate Cassandra address and keyspace for each of status,
// timers and triggers. It checks that the rows of each are in its own keyspace only.
func TestClustersOfTheirOwn(t *testing.T) {
	e := servers(t)
	const name = "apart"
	if err := e.sql("CREATE DATABASE " + name + " OWNER " + e.postgresRole); err != nil {
		t.Fatal(err)
	}
	v := e.installation(name)
	_, port, _ := strings.Cut(e.at("cassandra", 0), ":")
	for part, host := range map[string]string{"status": "localhost:", "timers": "127.0.0.1:", "triggers": "localhost:"} {
		v["cassandra."+part+".hosts"], v["cassandra."+part+".keyspace"] = []string{host + port}, name+"_"+part
	}
	f := e.fleet(t, v, "all")
	whole(t, load(t, f, name, briefly(t)), "clusters")
	e.healthy(t, f)
	for table, in := range map[string]string{"notifications": "_status", "timer_shards": "_timers", "triggers": "_triggers", "jobs": ""} {
		for _, part := range []string{"", "_status", "_timers", "_triggers"} {
			n := e.rows(t, name+part+"."+table)
			switch {
			case part == in && table != "jobs" && n == 0:
				t.Errorf("%s has no %s", name+part, table)
			case part != in && n != 0:
				t.Errorf("%s has %d of %s", name+part, n, table)
			}
		}
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// rows returns the number of rows of a table, or 0 if the table does not exist.
func (e *estate) rows(t *testing.T, table string) (n int) {
	t.Helper()
	s, err := e.session()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Query("SELECT count(*) FROM " + table).Scan(&n); err != nil && !strings.Contains(err.Error(), "does not exist") {
		t.Fatal(err)
	}
	return n
}

// TestMigrateDownAndUp checks that "migrate down" deletes the data only with --yes, and that
// "migrate up" creates the tables again.
func TestMigrateDownAndUp(t *testing.T) {
	e := servers(t)
	v := e.main(t)
	f := e.fleet(t, v, "all")
	whole(t, load(t, f, "before", briefly(t)), "migrate-before")
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	migrate := func(exit int, args ...string) string {
		t.Helper()
		out, err := f.Command(t.Context(), nil, append(append([]string{"migrate"}, args...), "--config", f.Engines())...)
		if got := exitOf(err); got != exit {
			t.Fatalf("migrate %v: exit %d, want %d\n%s", args, got, exit, out)
		}
		return out
	}
	triggers := e.rows(t, "product.triggers")
	if out := migrate(term.ExitUsage, "down"); !strings.Contains(out, "--yes") {
		t.Errorf("down does not say what it asks for:\n%s", out)
	}
	if n := e.rows(t, "product.triggers"); n != triggers || n == 0 {
		t.Fatalf("down without a confirmation left %d of %d triggers", n, triggers)
	}
	if out := migrate(0, "status"); strings.Contains(out, "missing") {
		t.Errorf("status:\n%s", out)
	}
	migrate(0, "down", "--yes")
	if n := e.rows(t, "product.triggers"); n != 0 {
		t.Errorf("down left %d triggers", n)
	}
	if out := migrate(term.ExitUnavailable, "status"); !strings.Contains(out, "missing") {
		t.Errorf("status after down:\n%s", out)
	}
	if out, err := f.Command(t.Context(), nil, "serve", "--config", f.Engines(), "--config", f.Beside(), "--role", "worker", "--set", "api.listen=127.0.0.1:0", "--set", "api.admin="); err == nil || !strings.Contains(out, "migrate up") {
		t.Errorf("serve without tables: %v\n%s", err, out)
	}
	migrate(0, "down", "--yes") // a second time, without tables
	migrate(0, "up")
	if out := migrate(0, "status"); strings.Contains(out, "missing") {
		t.Errorf("status after up:\n%s", out)
	}
	again := e.fleet(t, v, "all")
	whole(t, load(t, again, "after", briefly(t)), "migrate-after")
	if err := again.Stop(); err != nil {
		t.Error(err)
	}
}

func exitOf(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}
