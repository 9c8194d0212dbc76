package cassandra

import (
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/setting"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := Config{Hosts: []string{"127.0.0.1"}, Keyspace: "notify"}
	if _, err := good.withDefaults(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"keyspace":    func(c *Config) { c.Keyspace = "a; DROP KEYSPACE b" },
		"replication": func(c *Config) { c.Replication = 17 },
		"consistency": func(c *Config) { c.Consistency = "one" },
		"timeout":     func(c *Config) { c.Timeout = time.Hour },
		"num_conns":   func(c *Config) { c.NumConns = -1 },
		"status_ttl":  func(c *Config) { c.StatusTTL = time.Second },
		"timer_grace": func(c *Config) { c.TimerGrace = time.Second },
		"tls":         func(c *Config) { c.TLS = secrets.TLS{Enabled: true, CertFile: "cert.pem"} },
		"tls.ca_file": func(c *Config) { c.TLS = secrets.TLS{Enabled: true, CAFile: "/nonexistent"} },
	} {
		c := good
		change(&c)
		_, err := Open(t.Context(), c)
		if e, ok := err.(*notify.Error); !ok || e.Kind != notify.KindInvalid || e.Field != "cassandra."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	ctx := t.Context()
	t.Cleanup(func() {
		if s, err := connect(t.Context(), setting.Fill(cfg), ""); err == nil {
			s.Query(`DROP KEYSPACE IF EXISTS ` + cfg.Keyspace).Exec()
			s.Close()
		}
	})
	applied := func(ms []engine.Migration) (n int) {
		for _, m := range ms {
			if !m.Applied.IsZero() {
				n++
			}
		}
		return n
	}
	all, err := Migrate(ctx, cfg, engine.Look)
	if err != nil || applied(all) != 0 || len(all) < 3 {
		t.Fatalf("before: %v, %v", all, err)
	}
	if _, err := Open(ctx, cfg); notify.KindOf(err) != notify.KindConflict {
		t.Fatalf("a keyspace that is missing: %v", err)
	}
	// Two at a time: each step once, and both say that all are done.
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if all, err := Migrate(ctx, cfg, engine.Up); err != nil || applied(all) != len(all) {
				t.Errorf("up: %v, %v", all, err)
			}
		})
	}
	wg.Wait()
	was, err := Migrate(ctx, cfg, engine.Look)
	if err != nil || applied(was) != len(was) {
		t.Fatalf("after: %v, %v", was, err)
	}
	if again, err := Migrate(ctx, cfg, engine.Up); err != nil || !again[0].Applied.Equal(was[0].Applied) {
		t.Fatalf("up again: %v, %v; was %v", again, err, was)
	}
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Meta().PutMeta(ctx, "a", []byte("b")); err != nil {
		t.Fatal(err)
	}
	// A newer release's keyspace is refused.
	if err := s.session.Query(`INSERT INTO schema_migrations (version, name, applied) VALUES (9999, 'future', 1)`).Exec(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, cfg); notify.KindOf(err) != notify.KindConflict {
		t.Fatalf("a newer keyspace: %v", err)
	}
	// One whose tables work with builds of this one is not, and is not undone.
	for with, fits := range map[int]bool{len(migrations): true, len(migrations) + 1: false} {
		if err := s.session.Query(`UPDATE schema_migrations SET works_with = ? WHERE version = 9999`, with).Exec(); err != nil {
			t.Fatal(err)
		}
		again, err := Open(ctx, cfg)
		if (err == nil) != fits {
			t.Errorf("works with %d: %v", with, err)
		}
		if err == nil {
			again.Close()
			if all, err := Migrate(ctx, cfg, engine.Up); err != nil || applied(all) != len(migrations) {
				t.Errorf("up below a newer release: %v, %v", all, err)
			}
		}
		if _, err := Migrate(ctx, cfg, engine.Down); notify.KindOf(err) != notify.KindConflict {
			t.Errorf("down below a newer release: %v", err)
		}
	}
	// A release before the column has made the table.
	if err := s.session.Query(`DELETE FROM schema_migrations WHERE version = 9999`).Exec(); err != nil {
		t.Fatal(err)
	}
	if err := s.session.Query(`ALTER TABLE schema_migrations DROP works_with`).Exec(); err != nil {
		t.Fatal(err)
	}
	if old, err := Open(ctx, cfg); err != nil {
		t.Errorf("without the column: %v", err)
	} else {
		old.Close()
	}
	if all, err := Migrate(ctx, cfg, engine.Up); err != nil || applied(all) != len(migrations) {
		t.Errorf("up without the column: %v, %v", all, err)
	}
	if err := s.session.Query(`UPDATE schema_migrations SET works_with = 1 WHERE version = 9999`).Exec(); err != nil { // it is there again
		t.Fatal(err)
	}
	if err := s.session.Query(`DELETE FROM schema_migrations WHERE version = 9999`).Exec(); err != nil {
		t.Fatal(err)
	}
	if all, err := Migrate(ctx, cfg, engine.Down); err != nil || applied(all) != 0 {
		t.Fatalf("down: %v, %v", all, err)
	}
	if _, err := Open(ctx, cfg); notify.KindOf(err) != notify.KindConflict {
		t.Fatalf("a keyspace without tables: %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	cfg := Config{Hosts: []string{"127.0.0.1:1"}, Keyspace: "notify", Timeout: time.Second}
	start := time.Now()
	_, err := Open(t.Context(), cfg)
	if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) == 0 {
		t.Fatalf("open: %v", err)
	}
	fs, err := Doctor(t.Context(), cfg)
	if err != nil || len(fs) != 1 || fs[0].Check != "reachable" || fs[0].Level != "fail" || fs[0].Repair == "" {
		t.Fatalf("doctor: %+v, %v", fs, err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

func TestTimesOfTriggersRiseWithIDs(t *testing.T) {
	t.Parallel()
	ids := []string{"", "a", "trg", "trg_", "trg_!", "trg_01", "trg_01J", "trg_01JI", "trg_01JL", "trg_7ZZZZZZZZZ", "trg_7ZZZZZZZZZZ", "trg_Z", "trg_a", "trg_\xff", "trga", "x"}
	last := int64(-2)
	for _, id := range ids {
		ms := msOfTrigger(id)
		if ms < last {
			t.Errorf("%q is of %d, behind one of %d", id, ms, last)
		}
		last = ms
	}
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	if ms := msOfTrigger("trg_" + notify.NewBase(at).String()); ms != at.UnixMilli() {
		t.Errorf("%d, want %d", ms, at.UnixMilli())
	}
}

func TestDoctorCountsNodes(t *testing.T) {
	t.Parallel()
	for up, want := range map[int]string{3: "ok", 2: "warn", 1: "fail", 0: "fail"} {
		d := doctor{nodes: make([]*gocql.HostInfo, 3), replicas: 3}
		d.consistency(up)
		if f := find(d.Findings, "consistency"); f.Level != want || (f.Repair == "") != (want == "ok") {
			t.Errorf("%d of 3 nodes up: %+v, want %s", up, f, want)
		}
	}
}
