// Package deploy holds what runs notifyd elsewhere than on a developer's machine. Its
// tests read every file strictly, and hold what it says of notifyd to the product:
// commands, flags, roles, keys, ports and times.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/app"
	duties "github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/server"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return b
}

// strictly decodes one YAML document; a key that v does not know is an error.
func strictly(b []byte, v any) error {
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		return err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("more than one document")
	}
	return nil
}

// programs are notifyd and notifyctl, built once.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "notifyd-deploy-")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "../cmd/notifyd", "../cmd/notifyctl").CombinedOutput()
	if err != nil {
		return dir, errors.New(string(out))
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := programs(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// checkCommand asks the program whether it knows a command line: it parses what
// stands before --help.
func checkCommand(t *testing.T, where, program string, args []string) {
	t.Helper()
	dir, err := programs()
	must(t, err)
	if program = filepath.Base(program); program != "notifyd" && program != "notifyctl" {
		t.Errorf("%s: program %q is not ours", where, program)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, program), append(slices.Clone(args), "--help")...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %s %q: %v\n%s", where, program, args, err, out)
	}
	// The help of a parent is no answer: of the words, each must be a command.
	usage := regexp.MustCompile(`(?m)^\s+` + program + ` .*$`).FindString(string(out))
	for _, word := range words(args) {
		if !strings.Contains(usage, " "+word) {
			t.Errorf("%s: %s has no command %q: %q", where, program, word, usage)
		}
	}
	if i := slices.Index(args, "--role"); i >= 0 && args[i+1] != "%i" {
		if _, err := duties.ParseRoles(strings.Split(args[i+1], ",")); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
}

// words are the names of commands that a command line begins with.
func words(args []string) (out []string) {
	for _, a := range args {
		if strings.HasPrefix(a, "-") || strings.ContainsAny(a, "/.") {
			break
		}
		out = append(out, a)
	}
	return out
}

// checkConfig loads a configuration as notifyd does.
func checkConfig(t *testing.T, where string, content []byte, environ ...string) app.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notifyd.yaml")
	must(t, os.WriteFile(file, content, 0o600))
	l, err := app.Load([]string{file}, environ, nil)
	if err != nil {
		t.Errorf("%s: %v", where, err)
	}
	return l.Config
}

// checkStop holds how long a stop may take to how long notifyd drains.
func checkStop(t *testing.T, where string, cfg *app.Config, before, all time.Duration) {
	t.Helper()
	if least := before + cfg.Workers.Drain + 10*time.Second; all < least {
		t.Errorf("%s: killed %v after it was told to stop; it drains %v after %v", where, all, cfg.Workers.Drain, before)
	}
}

// Whatever is in the folder is read by one of the tests.
func TestEveryFileIsChecked(t *testing.T) {
	t.Parallel()
	known := []string{"Dockerfile", "Dockerfile.dockerignore", "deploy_test.go", "docker_test.go", "documents_test.go", "kubernetes_test.go", "units_test.go", "compose/compose.yaml", "compose/notifyd.yaml"}
	for _, pattern := range []string{"*", "*/*"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.IsDir() {
				continue
			}
			unit, manifest := strings.HasPrefix(f, "systemd/") && strings.HasSuffix(f, ".service"), strings.HasPrefix(f, "kubernetes/") && strings.HasSuffix(f, ".yaml")
			if !unit && !manifest && !slices.Contains(known, f) {
				t.Errorf("nothing reads %s", f)
			}
		}
	}
}

// The recipe at the head of the compose file leaves secrets that notifyd takes:
// one that others can read is refused. What needs root or Docker is left out.
func TestComposeRecipe(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "set -e; umask 022; mkdir -p deploy/compose\n"
	for line := range strings.Lines(string(b)) {
		if cmd, ok := strings.CutPrefix(line, "#   "); ok && !strings.HasPrefix(cmd, "sudo ") && !strings.HasPrefix(cmd, "docker ") {
			script += cmd
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	key := filepath.Join(dir, "deploy", "compose", "secrets", "token_key")
	if _, err := server.NewVerifier(server.AuthConfig{Issuer: "notifyd", Audience: "notifyd", SecretFile: key}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"redis_password", "postgres_password"} {
		if err := secrets.CheckFile(filepath.Join(filepath.Dir(key), name)); err != nil {
			t.Error(err)
		}
	}
	st, err := os.Stat(filepath.Dir(key))
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the secrets is %v, %v; want mode 0700", st.Mode(), err)
	}
	if !strings.Contains(string(b), "sudo chown 65532:0 secrets/*") {
		t.Error("the user of the image cannot read the secrets")
	}
}

// TestLinkedVersion: the builds set a variable that both programs have. The linker ignores a name
// that does not exist, and the program then has no version.
func TestLinkedVersion(t *testing.T) {
	t.Parallel()
	set := regexp.MustCompile(`-X main\.(\w+)=`)
	for _, build := range []string{"../Makefile", "Dockerfile"} {
		b, err := os.ReadFile(build)
		must(t, err)
		found := set.FindSubmatch(b)
		if found == nil {
			t.Errorf("%s sets no version", build)
			continue
		}
		for _, program := range []string{"notifyd", "notifyctl"} {
			source, err := os.ReadFile(filepath.Join("..", "cmd", program, "main.go"))
			must(t, err)
			if !strings.Contains(string(source), "\nvar "+string(found[1])+" string\n") {
				t.Errorf("%s sets %s, which %s does not have", build, found[1], program)
			}
		}
	}
}
