package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestBadConfigs(t *testing.T) {
	t.Parallel()
	file := func(content string) string {
		name := filepath.Join(t.TempDir(), "f")
		must(t, os.WriteFile(name, []byte(content), 0o600))
		return name
	}
	const local = "postgres://notifyd:hidden-word@127.0.0.1:1/x?sslmode=disable"
	for want, cfg := range map[string]Config{
		"dsn: the DSN is empty":       {},
		"dsn: failed to parse as URL": {DSN: "postgres://u:hidden-word@[::1:5432/x"},
		"dsn: ":                       {DSN: "postgres://u:hidden-word@127.0.0.1:port/x"},
		"max_conns: 1001 is not between 1 and 1000":   {DSN: local, MaxConns: 1001},
		"timeout: 1ms is not between 10ms and 1m":     {DSN: local, Timeout: time.Millisecond},
		"password_file: the file cannot be read":      {DSN: local, PasswordFile: filepath.Join(t.TempDir(), "none")},
		"is empty":                                    {DSN: local, PasswordFile: file("\n")},
		"connection to db.example would not":          {DSN: "postgres://u:hidden-word@127.0.0.1,db.example/x?sslmode=prefer"},
		"connection to 10.0.0.1 would not be":         {DSN: "host=10.0.0.1 user=u sslmode=require"},
		"connection to 10.0.0.2 would not be":         {DSN: "host=10.0.0.2 user=u sslmode=disable"},
		"connection to 10.0.0.3 would not be":         {DSN: "host=10.0.0.3 user=u sslmode=verify-ca"},
		"unable to read CA file":                      {DSN: local, CAFile: filepath.Join(t.TempDir(), "none")},
		"unable to add CA to cert pool":               {DSN: "host=db.example", CAFile: file("no certificate")},
		"dsn: unknown target_session_attrs value: xx": {DSN: "host=127.0.0.1 target_session_attrs=xx"},
	} {
		_, err := Open(t.Context(), cfg)
		if notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden-word") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, cfg := range []Config{
		{DSN: "host=db.example user=u sslmode=verify-full"},
		{DSN: "host=db.example user=u", Plaintext: true},
		{DSN: local},
	} {
		s, err := Open(t.Context(), cfg) // of servers that are not there
		must(t, err)
		must(t, s.Close())
	}
}

func TestAbsentServer(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{DSN: "postgres://u:hidden-word@127.0.0.1:1,127.0.0.1:2/x?sslmode=disable", Timeout: time.Second})
	_, _, err := s.Prefs().Get(t.Context(), "ann")
	wantCode(t, err, notify.KindUnavailable, "store")
	_, err = s.Prefs().Put(t.Context(), engine.Profile{User: "ann"})
	wantCode(t, err, notify.KindUnavailable, "store")
	if notify.RetryAfterOf(err) <= 0 || strings.Contains(err.Error(), "hidden-word") {
		t.Errorf("retry after %v: %v", notify.RetryAfterOf(err), err)
	}
	wantCode(t, s.Check(t.Context()), notify.KindUnavailable, "store")
	fs := s.Doctor(t.Context())
	if len(fs) != 1 || fs[0].Level != "fail" || fs[0].Repair == "" || !strings.Contains(fs[0].Detail, "127.0.0.1:1, 127.0.0.1:2") {
		t.Errorf("findings %+v", fs)
	}
}

// withUser is a DSN of another role.
func withUser(t testing.TB, dsn, user, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	u.User = url.User(user)
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

func TestPasswordFromFile(t *testing.T) {
	t.Parallel()
	s, dsn := migrated(t)
	role := "r_" + strings.ToLower(rand.Text())
	exec := func(format string, args ...any) {
		t.Helper()
		_, err := s.pool.Exec(t.Context(), fmt.Sprintf(format, args...))
		must(t, err)
	}
	exec("CREATE ROLE %s LOGIN PASSWORD 'one'", role)
	t.Cleanup(func() {
		c := mustOpen(t, Config{DSN: enginetest.Server(t, enginetest.PostgresEnv)})
		_, _ = c.pool.Exec(context.Background(), "DROP ROLE "+role)
	})
	t.Cleanup(func() { _, _ = s.pool.Exec(context.Background(), "DROP OWNED BY "+role) })
	exec("GRANT SELECT ON ALL TABLES IN SCHEMA public TO %s", role)
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte("one\n"), 0o600))
	other := mustOpen(t, Config{DSN: withUser(t, dsn, role, "wrong"), PasswordFile: file})
	must(t, other.Check(t.Context()))
	exec("ALTER ROLE %s PASSWORD 'two'", role)
	must(t, os.WriteFile(file, []byte("two"), 0o600))
	other.pool.Reset()
	must(t, other.Check(t.Context()))
	must(t, os.WriteFile(file, []byte("three"), 0o600))
	other.pool.Reset()
	wantCode(t, other.Check(t.Context()), notify.KindUnavailable, "store_refused")
	must(t, os.WriteFile(file, []byte("two"), 0o600))
	_, err := other.Prefs().Put(t.Context(), engine.Profile{User: "ann"}) // may read only
	if notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("error %v of a role that may not write", err)
	}
}

func TestTextThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	for _, user := range []string{"a\x00b", "a\xffb"} {
		_, err := s.Prefs().Put(t.Context(), engine.Profile{User: user})
		wantCode(t, err, notify.KindInvalid, "bad_utf8")
		wantCode(t, s.Prefs().PutMany(t.Context(), []engine.Profile{{User: "ok"}, {User: user}}), notify.KindInvalid, "bad_utf8")
		_, _, err = s.Prefs().Get(t.Context(), user)
		wantCode(t, err, notify.KindInvalid, "bad_utf8")
	}
	if _, ok, err := s.Prefs().Get(t.Context(), "ok"); ok || err != nil {
		t.Errorf("half of it is stored, error %v", err)
	}
}

func TestClockOffset(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	offset, took, err := s.ClockOffset(t.Context())
	if err != nil || took <= 0 || offset.Abs() > took+100*time.Millisecond {
		t.Errorf("the clock of this machine is off by %v in %v: %v", offset, took, err)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	find := func(check string) engine.Finding {
		t.Helper()
		fs := s.Doctor(t.Context())
		i := slices.IndexFunc(fs, func(f engine.Finding) bool { return f.Check == check })
		if i < 0 {
			t.Fatalf("no %s in %+v", check, fs)
		}
		if f := fs[i]; (f.Level == "ok") != (f.Repair == "") || f.Detail == "" {
			t.Errorf("finding %+v", f)
		}
		return fs[i]
	}
	for check, level := range map[string]string{"postgres": "ok", "postgres schema": "ok", "postgres durability": "ok", "postgres standbys": "warn", "postgres clock": "ok", "postgres pool": "ok"} {
		if f := find(check); f.Level != level {
			t.Errorf("%+v, want %s", f, level)
		}
	}
	_, err := s.Migrate(t.Context(), engine.Down)
	must(t, err)
	if f := find("postgres schema"); f.Level != "fail" || !strings.Contains(f.Repair, "notifyd migrate up") {
		t.Errorf("%+v", f)
	}
	var name string
	must(t, s.pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&name))
	_, err = s.pool.Exec(t.Context(), "ALTER DATABASE "+name+" SET synchronous_commit = off")
	must(t, err)
	s.pool.Reset()
	if f := find("postgres durability"); f.Level != "fail" {
		t.Errorf("%+v", f)
	}
}
