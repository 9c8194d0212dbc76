package cassandra

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
)

func find(fs []engine.Finding, check string) engine.Finding {
	i := slices.IndexFunc(fs, func(f engine.Finding) bool { return f.Check == check })
	if i < 0 {
		return engine.Finding{}
	}
	return fs[i]
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	fs, err := Doctor(t.Context(), s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []string{"reachable", "version", "schema", "consistency", "commit log", "paxos", "clock"} {
		if f := find(fs, check); f.Level != "ok" || f.Detail == "" {
			t.Errorf("%s: %+v", check, f)
		}
	}
	cfg := s.cfg
	cfg.Keyspace = "nobody_made_this"
	if fs, err = Doctor(t.Context(), cfg); err != nil || find(fs, "schema").Level != "fail" || !strings.Contains(find(fs, "schema").Repair, "migrate up") {
		t.Errorf("no keyspace: %+v, %v", fs, err)
	}
	cfg = s.cfg
	cfg.LocalDC = "nowhere"
	if fs, err = Doctor(t.Context(), cfg); err != nil {
		t.Errorf("no data centre: %+v, %v", fs, err)
	}
	well := !slices.ContainsFunc(fs, func(f engine.Finding) bool { return f.Level == "fail" })
	if well {
		t.Errorf("no data centre: all is well: %+v", fs)
	}
}

func TestOneReplicaMustSync(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode     string
		replicas int
		level    string
	}{{"periodic", 1, "fail"}, {"batch", 1, "ok"}, {"group", 1, "ok"}, {"periodic", 3, "ok"}} {
		var d doctor
		d.addSync("127.0.0.1:9042", c.mode, c.replicas)
		f := d.Findings[0]
		if f.Level != c.level || (f.Level == "fail") != strings.Contains(f.Repair, "batch") {
			t.Errorf("%s with %d replicas: %+v", c.mode, c.replicas, f)
		}
	}
}

func TestPaxosMustBeV2(t *testing.T) {
	t.Parallel()
	for variant, level := range map[string]string{"v2": "ok", "v1": "fail", "v2_without_linearizable_reads": "fail", "": "fail"} {
		var d doctor
		d.addPaxos("127.0.0.1:9042", variant)
		if f := d.Findings[0]; f.Level != level || (f.Repair == "") != (level == "ok") {
			t.Errorf("%q: %+v", variant, f)
		}
	}
}

// One data centre is taken for the local one; of several the operator names it.
func TestDataCentre(t *testing.T) {
	t.Parallel()
	var c Config
	if err := c.learnDC([]string{"b", "a", "b"}); notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("two data centres: %v", err)
	}
	if err := c.learnDC([]string{"b", "b"}); err != nil || c.LocalDC != "b" {
		t.Errorf("one data centre: %q, %v", c.LocalDC, err)
	}
	if err := c.learnDC([]string{"a", "b"}); err != nil || c.LocalDC != "b" {
		t.Errorf("a named one: %q, %v", c.LocalDC, err)
	}
	s := shared.take(t)
	defer shared.give(s)
	if s.cfg.LocalDC == "" {
		t.Error("the data centre of the cluster was not found out")
	}
	var replication map[string]string
	if _, err := s.get(t.Context(), `SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?`, []any{s.cfg.Keyspace}, &replication); err != nil || replication[s.cfg.LocalDC] == "" {
		t.Errorf("replicas: %v, %v", replication, err)
	}
}

// ownNode is a server for one test. It uses the script that starts the servers of all tests,
// and the files that this script has installed.
type ownNode struct {
	t                  *testing.T
	script, dir        string
	port, storage, jmx int
}

func newNode(t *testing.T) *ownNode {
	t.Helper()
	enginetest.Server(t, enginetest.CassandraEnv) // where there is none, nothing is installed either
	if testing.Short() {
		t.Skip("starts a server")
	}
	repo, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	n := &ownNode{t: t, script: filepath.Join(repo, "scripts", "engines", "cassandra.sh"), dir: t.TempDir()}
	if n.port, err = freeport.Find(3); err != nil {
		t.Fatal(err)
	}
	n.storage, n.jmx = n.port+1, n.port+2
	t.Cleanup(func() { n.run("stop") })
	return n
}

func (n *ownNode) run(command string) {
	n.t.Helper()
	c := exec.Command(n.script, command)
	c.Env = append(os.Environ(),
		"NODES=1", "CASSANDRA_TLS=1", "CASSANDRA_HEAP=512M", "CASSANDRA_DIR="+n.dir,
		fmt.Sprint("CASSANDRA_PORT=", n.port), fmt.Sprint("CASSANDRA_STORAGE_PORT=", n.storage), fmt.Sprint("CASSANDRA_JMX_PORT=", n.jmx))
	if out, err := c.CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// A node that asks for certificates, is killed, and comes back.
func TestNodeOfItsOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.run("start")
	pem := func(name string) string { return filepath.Join(n.dir, "tls", name) }
	cfg := Config{
		Hosts: []string{fmt.Sprintf("127.0.0.1:%d", n.port)}, Keyspace: "own", Replication: 1, Timeout: 20 * time.Second,
		TLS: secrets.TLS{Enabled: true, CAFile: pem("ca.pem"), CertFile: pem("client.pem"), KeyFile: pem("client.key")},
	}
	ctx := t.Context()
	for name, change := range map[string]func(*Config){
		"without TLS":               func(c *Config) { c.TLS.Enabled = false },
		"without a certificate":     func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" },
		"with a CA that is not its": func(c *Config) { c.TLS.CAFile = pem("client.pem") },
	} {
		bad := cfg
		bad.Timeout = 2 * time.Second
		change(&bad)
		if _, err := Migrate(ctx, bad, engine.Up); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Migrate(ctx, cfg, engine.Up); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	// Acknowledged writes must survive a kill.
	var kept []engine.Trigger
	for range 50 {
		x := trigger("shop")
		if _, err := s.Triggers().Create(ctx, []engine.Trigger{x}); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, x)
	}
	n.kill()
	if _, err := s.Triggers().Get(ctx, []string{kept[0].ID}); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("while the node is gone: %v", err)
	}
	if fs, err := Doctor(ctx, cfg); err != nil || find(fs, "reachable").Level != "fail" {
		t.Errorf("doctor while the node is gone: %+v, %v", fs, err)
	}
	n.run("start")
	eventually(t, "the node is back", func() bool {
		_, err := s.Triggers().Get(ctx, []string{kept[0].ID})
		return err == nil
	})
	for _, x := range kept {
		if got, err := s.Triggers().Get(ctx, []string{x.ID}); err != nil || got[0].ID != x.ID {
			t.Fatalf("%s is lost: %v", x.ID, err)
		}
	}
	if rows, err := s.Triggers().List(ctx, "shop", engine.TriggerPending, engine.TriggerCursor{}, 100); err != nil || len(rows) != len(kept) {
		t.Errorf("%d of %d are listed, %v", len(rows), len(kept), err)
	}
}

// kill ends the node as a loss of its process would.
func (n *ownNode) kill() {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.dir, "node1", "pid"))
	if err != nil {
		n.t.Fatal(err)
	}
	pid := strings.TrimSpace(string(b))
	if out, err := exec.Command("kill", "-9", pid).CombinedOutput(); err != nil {
		n.t.Fatalf("kill: %v %s", err, out)
	}
	eventually(n.t, "the node is gone", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	})
}

func TestClockOffset(t *testing.T) {
	t.Parallel()
	s := shared.take(t)
	defer shared.give(s)
	offset, took, err := s.ClockOffset(t.Context())
	if err != nil || took <= 0 || offset.Abs() > took+100*time.Millisecond {
		t.Errorf("the clock of this machine is off by %v in %v: %v", offset, took, err)
	}
}
