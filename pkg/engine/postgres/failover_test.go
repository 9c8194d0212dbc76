package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// server is one that a test starts for itself, by the script that make engines
// uses.
type server struct {
	t    *testing.T
	env  []string
	port int
}

// servers gives a test servers with a folder of their own. It needs what the
// script needs: a machine where the other tests have their server, too.
func servers(t *testing.T) func(name string, env ...string) *server {
	t.Helper()
	enginetest.Server(t, enginetest.PostgresEnv)
	// Not t.TempDir, which the user that PostgreSQL runs as cannot enter.
	dir, err := os.MkdirTemp("", "notifyd-postgres-") //nolint:usetesting // see above
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return func(name string, env ...string) *server {
		port, err := freeport.Find(1)
		must(t, err)
		s := &server{t: t, port: port, env: append(env, "NOTIFY_ENGINES_DIR="+dir, "POSTGRES_NAME="+name, "NOTIFY_POSTGRES_PORT="+strconv.Itoa(port))}
		t.Cleanup(func() { s.do("stop") })
		s.do("start")
		return s
	}
}

func (s *server) do(command string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "..", "scripts", "engines", "postgres.sh"), command)
	cmd.Env = append(os.Environ(), s.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("postgres.sh %s: %v\n%s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

// A primary with a synchronous standby is killed under load, and the standby is promoted.
// Every acknowledged write must be there, once. The pool, whose DSN names both hosts, must
// go on by itself.
func TestFailoverKeepsWhatWasAnswered(t *testing.T) {
	t.Parallel()
	start := servers(t)
	one := start("one")
	two := start("two", "POSTGRES_STANDBY_OF=one", "POSTGRES_SYNC=1")
	dsn := fmt.Sprintf("postgres://notifyd@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", one.port, two.port)
	s := mustOpen(t, Config{DSN: dsn, Timeout: 2 * time.Second})
	_, err := s.Migrate(t.Context(), engine.Up)
	must(t, err)
	p := s.Prefs()

	var mu sync.Mutex
	answered := map[string]uint64{} // user -> version
	var refused, promoted atomic.Int64
	var resumed atomic.Int64 // ns since 1970 of the first answer after the kill
	var killed atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				user := fmt.Sprintf("w%d-%d", w, i)
				v, err := p.Put(context.Background(), engine.Profile{User: user, OptOut: []string{"push"}})
				if err != nil {
					if notify.KindOf(err) != notify.KindUnavailable {
						t.Errorf("error %v", err)
					}
					refused.Add(1)
					time.Sleep(10 * time.Millisecond)
					continue
				}
				mu.Lock()
				answered[user] = v
				mu.Unlock()
				if promoted.Load() != 0 {
					resumed.CompareAndSwap(0, time.Now().UnixNano())
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(answered)
	}
	until(t, "writes", func() bool { return count() > 200 })
	killed.Store(time.Now().UnixNano())
	one.do("kill")
	until(t, "refused writes", func() bool { return refused.Load() > 0 })
	before := count()
	two.do("promote")
	promoted.Store(time.Now().UnixNano())
	until(t, "writes at the new primary", func() bool { return count() > before+200 })
	cancel()
	writers.Wait()

	stored := map[string]uint64{}
	must(t, p.Scan(t.Context(), nil, func(pr *engine.Profile) error {
		stored[pr.User] = pr.Version
		return nil
	}))
	lost := 0
	versions := map[uint64]bool{}
	for user, v := range answered {
		if stored[user] != v {
			lost++
		}
		if versions[v] {
			t.Errorf("version %d was given twice", v)
		}
		versions[v] = true
	}
	if lost > 0 {
		t.Errorf("%d of %d answered writes are lost", lost, len(answered))
	}
	if _, err := p.Changes(t.Context(), 0, 1); err != nil {
		t.Errorf("nothing was lost, and following says %v", err)
	}
	ms := func(from, to int64) time.Duration { return time.Duration(to - from).Round(time.Millisecond) }
	t.Logf("failover: answered %d, refused %d, lost %d; promoted %v after the kill, first answer %v after that", len(answered), refused.Load(), lost, ms(killed.Load(), promoted.Load()), ms(promoted.Load(), resumed.Load()))
}

// A primary becomes a standby of the other server, as orchestrators do. The pool must drop
// its connections although they still work.
func TestReadsComeFromThePrimary(t *testing.T) {
	t.Parallel()
	start := servers(t)
	one := start("one")
	two := start("two", "POSTGRES_STANDBY_OF=one", "POSTGRES_SYNC=1")
	s := mustOpen(t, Config{DSN: one.do("dsn")})
	_, err := s.Migrate(t.Context(), engine.Up)
	must(t, err)
	for _, f := range s.Doctor(t.Context()) {
		if f.Check == "postgres standbys" && (f.Level != "ok" || !strings.Contains(f.Detail, "1 of them synchronous")) {
			t.Errorf("%+v", f)
		}
	}
	// The standby first: it is passed over.
	both := mustOpen(t, Config{DSN: fmt.Sprintf("postgres://notifyd@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=any", two.port, one.port)})
	_, err = both.Prefs().Put(t.Context(), engine.Profile{User: "ann"})
	must(t, err)
	only := mustOpen(t, Config{DSN: two.do("dsn"), Timeout: 2 * time.Second})
	_, _, err = only.Prefs().Get(t.Context(), "ann")
	wantCode(t, err, notify.KindUnavailable, "store")
	// The error of a demoted primary on a connection from before.
	readOnly := func(on string) {
		t.Helper()
		_, err := s.pool.Exec(t.Context(), "ALTER SYSTEM SET default_transaction_read_only = "+on)
		must(t, err)
		_, err = s.pool.Exec(t.Context(), "SELECT pg_reload_conf()")
		must(t, err)
	}
	first, err := both.pool.Acquire(t.Context())
	must(t, err)
	pid := first.Conn().PgConn().PID()
	first.Release()
	readOnly("on")
	until(t, "read-only", func() bool {
		err := both.Prefs().PutMany(t.Context(), []engine.Profile{{User: "ann"}})
		return err != nil
	})
	c, err := pgx.Connect(t.Context(), one.do("dsn"))
	must(t, err)
	defer c.Close(context.Background())
	until(t, "the connection is given up", func() bool {
		var n int
		must(t, c.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&n))
		return n == 0
	})
}

// If a primary hangs, calls end in time.
func TestFrozenPrimary(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close() // never accepts
	s := mustOpen(t, Config{DSN: fmt.Sprintf("postgres://u@%s/x?sslmode=disable", l.Addr()), Timeout: 100 * time.Millisecond})
	begun := time.Now()
	_, _, err = s.Prefs().Get(t.Context(), "ann")
	wantCode(t, err, notify.KindUnavailable, "store")
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("answered after %v", d)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	one := servers(t)("tls", "POSTGRES_TLS=1")
	whole := one.do("dsn")
	plain := fmt.Sprintf("postgres://notifyd@127.0.0.1:%d/postgres", one.port)
	dir := filepath.Join(one.dir(), "tls", "tls")
	ca, crt, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	for name, c := range map[string]struct {
		cfg Config
		ok  bool
	}{
		"DSN with all of it":       {Config{DSN: whole}, true},
		"files":                    {Config{DSN: plain, CAFile: ca, CertFile: crt, KeyFile: key}, true},
		"files, key=value":         {Config{DSN: fmt.Sprintf("host=127.0.0.1 port=%d user=notifyd dbname=postgres sslmode=disable", one.port), CAFile: ca, CertFile: crt, KeyFile: key}, true},
		"by a name it has":         {Config{DSN: strings.Replace(plain, "127.0.0.1", "localhost", 1), CAFile: ca, CertFile: crt, KeyFile: key}, true},
		"no client certificate":    {Config{DSN: plain, CAFile: ca}, false},
		"the system's authorities": {Config{DSN: plain + "?sslmode=verify-full", CertFile: crt, KeyFile: key}, false},
		"another authority":        {Config{DSN: plain, CAFile: filepath.Join(dir, "other-ca.pem"), CertFile: crt, KeyFile: key}, false},
		"another's certificate":    {Config{DSN: plain, CAFile: ca, CertFile: filepath.Join(dir, "other-client.pem"), KeyFile: filepath.Join(dir, "other-client.key")}, false},
		"without TLS":              {Config{DSN: plain + "?sslmode=disable"}, false},
	} {
		s := mustOpen(t, c.cfg)
		err := s.Check(t.Context())
		reached := notify.KindOf(err) == notify.KindConflict // it has no tables
		if reached != c.ok || err == nil {
			t.Errorf("%s: error %v", name, err)
		}
		if e := (*notify.Error)(nil); !errors.As(err, &e) {
			t.Errorf("%s: error %v is foreign", name, err)
		}
	}
	// The server answers, but its certificate is for another name.
	pc, err := setting.Fill(Config{DSN: strings.Replace(plain, "127.0.0.1", "db.example", 1), CAFile: ca, CertFile: crt, KeyFile: key}).poolConfig()
	must(t, err)
	pc.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	_, err = pgx.ConnectConfig(t.Context(), pc.ConnConfig)
	if err == nil || !strings.Contains(err.Error(), "certificate is valid for localhost, not db.example") {
		t.Errorf("a name it does not have: error %v", err)
	}
}

func (s *server) dir() string {
	for _, kv := range s.env {
		if dir, ok := strings.CutPrefix(kv, "NOTIFY_ENGINES_DIR="); ok {
			return dir
		}
	}
	return ""
}
