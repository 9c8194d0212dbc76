package main

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
)

// mainEnv makes the test binary the program itself.
const mainEnv = "NOTIFYD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// output may be read while it is written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// notifyd runs a command line in this process, with environ as its environment.
func notifyd(t *testing.T, environ []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs output
	p := &program{out: &out, err: &errs, environ: environ, setStandardLogger: func(*slog.Logger) {}, getenv: func(name string) string {
		for _, kv := range slices.Backward(environ) {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v
			}
		}
		return ""
	}}
	root := newRoot(p)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(t.Context())
	err = addAdvice(c, err)
	if err != nil {
		term.Report(p.err, err, "")
	}
	return out.String(), errs.String(), term.ExitCode(err)
}

func TestCommands(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("api: {listne: 'a:1'}\nlogging: {level: loud}"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(code int, out, errs string, args ...string) {
		t.Helper()
		stdout, stderr, got := notifyd(t, []string{"HOME=/nowhere", "NOTIFYD__LOG__LINGER=7ms"}, args...)
		if got != code || !regexp.MustCompile(out).MatchString(stdout) || !regexp.MustCompile(errs).MatchString(stderr) {
			t.Errorf("notifyd %v: exit %d, want %d\nstdout %q, want %s\nstderr %q, want %s", args, got, code, stdout, out, stderr, errs)
		}
	}
	f(0, `^notifyd \S+\n  go +go1\.(.|\n)*franz-go`, `^$`, "version")
	f(0, `^notifyd \S+\n$`, `^$`, "--version")
	short := filepath.Join(t.TempDir(), "short.key")
	if err := os.WriteFile(short, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(1, `^$`, regexp.QuoteMeta(short)+`: the file is neither a PEM`, "token", "--key", short, "--caller", "x")
	f(0, `^configuration is good\n$`, `^$`, "config", "check", "--set", "auth.key_file=k.pem")
	f(2, `^$`, `auth: set one of auth.key_file`, "config", "check", "--set", "api.rate=5")
	f(2, `^$`, `did you mean "api.listen"\?(.|\n)*logging.level(.|\n)*next:  notifyd config example`, "config", "check", "--config", bad)
	f(2, `^$`, `--set "api.rate" is not key=value`, "config", "check", "--set", "api.rate")
	f(2, `^$`, `/no/such/file`, "config", "print", "--config", "/no/such/file")
	f(0, `(?m)^log\.linger: +7ms$`, `^$`, "config", "print")
	f(0, `(?m)^log\.linger: +7ms +# NOTIFYD__LOG__LINGER$`, `^$`, "config", "print", "--origin")
	f(0, `(?m)^api\.listen: +"h:1" +# flag$`, `^$`, "config", "print", "--origin", "--set", "api.listen=h:1")
	f(0, `(?m)^  # address of the API$`, `^$`, "config", "example")
	f(0, `nothing to migrate`, `^$`, "migrate", "status")
	f(2, `^$`, `unknown command "chek" for "notifyd config"; did you mean check\?`, "config", "chek")
	f(2, `^$`, `unknown flag: --ephemral; did you mean --ephemeral\?`, "dev", "--ephemral")
	f(2, `^$`, `"boss" is not a role; the roles are all, api, worker, scheduler, dispatcher, operator`, "serve", "--role", "boss")
	f(2, `^$`, `roles: is worker, but with engines: embedded one process has all roles`, "serve", "--role", "worker")
	f(2, `^$`, `token needs --key and --caller\n  next:  notifyd token --help`, "token")
	f(2, `^$`, `--port 70000: use 0, or 1 to 65531.*\n  next:  notifyd dev --help`, "dev", "--port", "70000")
	f(2, `^$`, `error: invalid argument "abc" for "--port" flag: invalid syntax\n`, "dev", "--port", "abc")
	f(2, `^$`, `--seed "foo": use demo or none`, "dev", "--seed", "foo")
	restored := t.TempDir()
	if err := os.Mkdir(filepath.Join(restored, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	f(2, `^$`, `contains the data of notifyd serve or of a restored backup(.|\n)*next:  notifyd restore FILE --data-dir NEW/data`, "dev", "--data-dir", restored)
	f(2, `^$`, `--taken "yesterday" is not a time; give the time when`, "restore-servers", "--taken", "yesterday")
	f(2, `^$`, `engines: is embedded: use notifyd restore FILE`, "restore-servers", "--taken", "2026-11-24T03:00:00Z")
	f(2, `^$`, `leave out --fresh`, "dev", "--ephemeral", "--fresh")
	f(1, `^$`, `providers.apns.key_file: stat /no/such.p8(.|\n)*next: (.|\n)*LoadCredential`, "serve", "--data-dir", t.TempDir(),
		"--set", "providers.apns.key_file=/no/such.p8", "--set", "log.listen=127.0.0.1:0", "--set", "api.listen=127.0.0.1:0", "--set", "api.admin=")
	f(2, `^$`, `set one of auth.key_file,`, "serve", "--data-dir", t.TempDir(), "--set", "log.listen=127.0.0.1:0", "--set", "api.listen=127.0.0.1:0", "--set", "api.admin=")
}

// TestUnreadableConfig: a file that only root can read stops the service's user.
func TestUnreadableConfig(t *testing.T) {
	t.Parallel()
	err := errors.Join(&fs.PathError{Op: "open", Path: "notifyd.yaml", Err: syscall.EACCES}) // as app.Load returns it; a test of root reads every file
	if got := configNext(err); !strings.HasPrefix(got, "chmod 0644") {
		t.Errorf("%q", got)
	}
}

// TestUnwritableFolder: dev and serve say the same about it, and exit with the
// same code.
func TestUnwritableFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file") // no folder can be made below it, whoever runs this
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(file, "data")
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := writeSigningKey(key); err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, args := range [][]string{
		{"dev", "--port", "0", "--context", "", "--data-dir", dir},
		{"serve", "--data-dir", dir, "--set", "auth.key_file=" + key, "--set", "log.listen=127.0.0.1:0", "--set", "api.listen=127.0.0.1:0", "--set", "api.admin="},
	} {
		_, errs, code := notifyd(t, environment(t.TempDir()), args...)
		if code != term.ExitUnavailable || !strings.Contains(errs, "cannot write to the data folder "+dir) || !strings.Contains(errs, "code:  data_dir") {
			t.Errorf("%s: exit %d, %s", args[0], code, errs)
		}
		said[errs] = true
	}
	if len(said) != 1 {
		t.Errorf("not the same: %v", said)
	}
}

// TestExampleFileIsGood: what config example prints, serve takes.
func TestExampleFileIsGood(t *testing.T) {
	t.Parallel()
	text, _, _ := notifyd(t, nil, "config", "example")
	file := filepath.Join(t.TempDir(), "notifyd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := notifyd(t, nil, "config", "check", "--config", file, "--set", "auth.hs256_file=token-key"); code != 0 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	ready := true
	var mu sync.Mutex
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != "/readyz" || !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer ts.Close()
	f := func(want int, server string) {
		t.Helper()
		if out, errs, code := notifyd(t, nil, "healthcheck", "--server", server); code != want {
			t.Errorf("exit %d, want %d: %s%s", code, want, out, errs)
		}
	}
	f(term.ExitOK, ts.URL)
	f(term.ExitOK, ts.URL+"/")
	mu.Lock()
	ready = false
	mu.Unlock()
	f(term.ExitUnavailable, ts.URL)
	ts.Close()
	f(term.ExitUnavailable, ts.URL)
	f(term.ExitUsage, "http://\x7f")
}

// TestToken: a token made with a fresh key is what a server with that key takes.
func TestToken(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key.pem")
	first, errs, code := notifyd(t, nil, "token", "--key", key, "--caller", "shop", "--scope", "send,users")
	if code != 0 || !strings.Contains(errs, "made a new key in "+key) {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	second, errs, code := notifyd(t, nil, "token", "--key", key, "--caller", "bank")
	if code != 0 || errs != "" {
		t.Fatalf("the key is there: exit %d, %s", code, errs)
	}
	d := app.Default()
	v, err := server.NewVerifier(server.AuthConfig{Issuer: d.Auth.Issuer, Audience: d.Auth.Audience, KeyFile: key})
	if err != nil {
		t.Fatal(err)
	}
	f := func(token, caller string, has, hasNot string) {
		t.Helper()
		id, err := v.Verify(t.Context(), strings.TrimSpace(token))
		if err != nil {
			t.Error(err)
			return
		}
		if id.Caller != caller || !id.Has(has) || id.Has(hasNot) {
			t.Errorf("%+v, want %s with %s and without %s", id, caller, has, hasNot)
		}
	}
	f(first, "shop", api.ScopeUsers, api.ScopeRead)
	f(second, "bank", api.ScopeRead, api.ScopeOperate)
	if _, errs, code := notifyd(t, nil, "token", "--key", key, "--caller", "x", "--ttl", "10000h"); code == 0 {
		t.Errorf("a token for longer than servers take was made: %s", errs)
	}
}
