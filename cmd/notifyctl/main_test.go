package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain makes the test binary the program itself when a script runs it.
func TestMain(m *testing.M) {
	testscript.Main(leakTested{m}, map[string]func(){"notifyctl": main})
}

type leakTested struct{ m *testing.M }

func (l leakTested) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScripts runs the program against a whole notifyd, embedded, with
// simulated providers.
func TestScripts(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	deadline := time.Now().Add(20 * time.Minute) // a script that waits for what never comes is killed
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Deadline:            deadline,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:               n.setup,
	})
}

// world is the outside of one in-process run.
type world struct {
	env      map[string]string
	in       string
	terminal bool // of standard input
}

// ctl runs one command line in this process.
func (w *world) ctl(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	var out, errs strings.Builder
	p := &program{
		out: &out, err: &errs, in: strings.NewReader(w.in), now: time.Now, inTerminal: w.terminal,
		getenv: func(name string) string { return w.env[name] },
	}
	code = run(ctx, p, args)
	return out.String(), errs.String(), code
}

func newWorld(t *testing.T, server string) *world {
	return &world{env: map[string]string{"HOME": t.TempDir(), "NOTIFYCTL_SERVER": server}}
}
