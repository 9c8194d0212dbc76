package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/load"
)

// TestOwned checks that a notifyd that does not stop is killed, and started again. If a notifyd ends by
// itself, died returns an error with the last line that it wrote.
func TestOwned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "stubborn")
	script := "#!/bin/sh\ntrap '' TERM\necho ready >>" + dir + "/ready\necho I hang\nexec sleep 600\n"
	if err := os.WriteFile(bin, []byte(script), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	starts := 0
	o := &owned{bin: bin, dir: dir, ready: func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(dir, "ready"))
		if n := strings.Count(string(b), "\n"); err != nil || n <= starts {
			return errors.New("not yet")
		}
		return nil
	}}
	t.Cleanup(func() { _ = o.killAll() })
	if err := o.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	starts++
	before := o.proc
	if args := before.Args; args[len(args)-1] != "engines=embedded" {
		t.Errorf("it may join a cluster: %q", args)
	}
	end, err := o.Fault(t.Context(), &load.FaultSpec{Process: "stop"})
	if err != nil {
		t.Fatal(err)
	}
	if err := end(t.Context()); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("a stop that does not end: %v", err)
	}
	if o.proc == before || o.died() != nil {
		t.Errorf("it was not started again: %v", o.died())
	}
	if err := o.proc.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-o.proc.done
	if err := o.died(); err == nil || !strings.Contains(err.Error(), "notifyd ended: signal: killed: I hang") {
		t.Errorf("one that ends by itself: %v", err)
	}
	o.bin = filepath.Join(dir, "absent")
	if err := o.start(t.Context()); err == nil {
		t.Error("a program that is not there starts")
	}
}

// TestChildTakesNoSettings: variables that configure a notifyd in the environment of notifyctl
// may name a cluster. The notifyd that a run starts does not get them.
func TestChildTakesNoSettings(t *testing.T) {
	t.Setenv("NOTIFYD__ENGINES", "distributed")
	o := &owned{bin: "/bin/true", dir: t.TempDir()}
	c, err := o.child("notifyd")
	if err != nil {
		t.Fatal(err)
	}
	<-c.done
	if i := slices.IndexFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, "NOTIFYD__") }); i >= 0 || len(c.Env) == 0 {
		t.Errorf("its environment: %q", c.Env)
	}
}
