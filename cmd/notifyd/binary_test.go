package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReleaseHasNoFaultPoints: a release cannot be told to kill itself; the
// build of the torture can.
func TestReleaseHasNoFaultPoints(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it links the program twice")
	}
	f := func(want bool, tags ...string) {
		t.Helper()
		bin := filepath.Join(t.TempDir(), "notifyd")
		args := append([]string{"build", "-o", bin, "-ldflags", "-s -w"}, tags...)
		if out, err := exec.CommandContext(t.Context(), "go", append(args, ".")...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(bin)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(b, []byte("NOTIFYD_FAULT")); got != want {
			t.Errorf("built with %v: fault points %v, want %v", tags, got, want)
		}
	}
	f(false)
	f(true, "-tags", "faultinject")
}

// TestKcat reads the log of a dev server with the tool people have, as the
// banner says. Without kcat it says so; NOTIFY_REQUIRE_KCAT=1 makes that an error.
func TestKcat(t *testing.T) {
	t.Parallel()
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		if os.Getenv("NOTIFY_REQUIRE_KCAT") != "" {
			t.Fatal(err)
		}
		t.Skip("kcat is not installed: the log was not read with it")
	}
	home := t.TempDir()
	c := dev(t, home, "--context", "")
	cl := c.client(t, filepath.Join(home, "share", "notifyd", "dev", "token"))
	terminal(t, cl, send(t, cl))
	_, line, _ := strings.Cut(c.banner, "kcat -b ")
	line, _, _ = strings.Cut(line, "\n")
	args := append([]string{"-b"}, strings.Fields(line)...)
	args = append(args, "-e", "-q", "-f", `%t %o %k %S\n%s\n`)
	cmd := exec.CommandContext(t.Context(), kcat, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kcat %v: %v\n%s", args, err, &errs)
	}
	if !bytes.HasPrefix(out, []byte("notifications-push 0 ")) || !bytes.Contains(out, []byte("It works")) || !bytes.Contains(out, []byte("ann")) {
		t.Errorf("kcat %v read %q", args, out)
	}
	if code := c.signal(t, os.Interrupt, time.Minute); code != 0 {
		t.Errorf("exit %d\n%s", code, c.errs)
	}
}
