package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/codes"
)

// parsedOnly are commands whose examples need a machine for themselves, a terminal,
// or runs that were kept: their flags and arguments are parsed, and no more.
var parsedOnly = []string{
	"notifyctl plan -f", "notifyctl load run", "notifyctl load capacity", "notifyctl load merge", "notifyctl load compare", "notifyctl load show", "notifyctl load view", "notifyctl load agent",
}

// TestExamples runs every example of every command's help against a server: whoever
// pastes one must not be told that the command line, or the request, is wrong. That
// what it names is not there is no mistake of the example.
func TestExamples(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&program{now: time.Now, getenv: func(string) string { return "" }})
	var examples []string
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "notifyctl ") {
				examples = append(examples, line)
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(root)
	if len(examples) < 60 {
		t.Fatalf("%d examples", len(examples))
	}
	user := n.forExample(t, filepath.Join(t.TempDir(), "setup"), repo)
	set := exec.CommandContext(t.Context(), "sh", "-c", "notifyctl user set ann --yes --push $DEVICE0 --sms +4915112345678 --email ann@example.com")
	set.Env = user
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	code := regexp.MustCompile(`dlq .* --code ([^ ]+)`)
	for _, line := range examples {
		if m := code.FindStringSubmatch(line); len(m) == 2 && len(codes.Find(m[1])) == 0 {
			t.Errorf("%s: there is no code %s", line, m[1])
		}
		t.Run(line, func(t *testing.T) {
			if slices.ContainsFunc(parsedOnly, func(p string) bool { return strings.HasPrefix(line+" ", p+" ") }) {
				parse(t, line)
				return
			}
			dir := filepath.Join(t.TempDir(), "examples")
			env := n.forExample(t, dir, repo)
			sh := exec.CommandContext(t.Context(), "sh", "-c", "notifyctl() { command notifyctl --yes \"$@\"; }\n"+strings.ReplaceAll(line, "/tmp/", dir+"/"))
			sh.Dir, sh.Env, sh.Stdin = dir, env, strings.NewReader("token\n")
			out, err := sh.CombinedOutput()
			if e, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || e.ExitCode() == term.ExitUsage || e.ExitCode() == term.ExitError || e.ExitCode() > 100) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// parse reads the flags and arguments of a line.
func parse(t *testing.T, line string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `notifyctl() { printf '%s\n' "$@"; }
jq() { cat; }
`+strings.NewReplacer(" >", " #").Replace(line)).Output()
	if err != nil {
		t.Fatal(err)
	}
	c, args, err := newRoot(&program{now: time.Now, getenv: func(string) string { return "" }}).Find(strings.Split(strings.TrimSpace(string(out)), "\n"))
	if err == nil {
		err = c.ParseFlags(args)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		t.Error(err)
	}
}

// forExample makes what examples name: files, folders, contexts, a caller.
func (n *node) forExample(t *testing.T, dir, repo string) (env []string) {
	t.Helper()
	files := map[string]string{
		"users.csv":                       "user_id,name\nann,Ann\n",
		"orders.ndjson":                   `{"channel":"push","category":"transactional","to":{"user_id":"ann"},"content":{"title":"T","body":"B"}}` + "\n",
		"body.bin":                        "body",
		"plan.yaml":                       "rate: 5M\n",
		"my.json":                         `{"panels":[]}`,
		"rules/one.yml":                   "groups: []\n",
		"monitoring/grafana/service.json": `{"panels":[]}`,
		".secrets/notify":                 "token\n",
	}
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"scenarios", "bench"} {
		if err := os.Symlink(filepath.Join(repo, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	e := &testscript.Env{WorkDir: dir, Vars: []string{"PATH=" + os.Getenv("PATH")}}
	if err := n.setup(e); err != nil {
		t.Fatal(err)
	}
	cs, err := term.OpenContexts(e.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"prod", "staging"} {
		if err := cs.Set(name, term.Context{Server: n.url, TokenFile: filepath.Join(dir, "token")}); err != nil {
			t.Fatal(err)
		}
	}
	return e.Vars
}
