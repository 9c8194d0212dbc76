package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// TestProcessFaults does to a real notifyd what faults do, under load.
func TestProcessFaults(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "notifyd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../notifyd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const text = `
name: FAULT
server: {mode: process}
phases:
  - name: main
    duration: 6s
    steps: [{target: http-single, rate: 50, users: 1k, addresses: true, workers: 300}]
    faults: [{at: 1s, for: 2s, process: FAULT}]
drain: 10m
EXPECT
thresholds: [lost == 0, unexpected == 0, early == 0]
`
	check := map[string]func(*testing.T, *load.Result){
		// What is stopped for a while answers later, and forgets nothing.
		"pause": func(t *testing.T, r *load.Result) {
			t.Helper()
			if r.Totals.Failed != 0 || r.Ledger.Delivered != r.Totals.Sent || r.Steps[0].Service.Max < int64(1500*time.Millisecond) {
				t.Errorf("%+v, %+v", r.Totals, r.Steps[0].Service)
			}
		},
		// A stop that is asked for delivers what it took, once.
		"stop": func(t *testing.T, r *load.Result) {
			t.Helper()
			if r.Totals.Failed == 0 || r.Ledger.Duplicates != 0 {
				t.Errorf("%+v", r.Totals)
			}
		},
		"kill": func(t *testing.T, r *load.Result) {
			t.Helper()
			if r.Totals.Failed == 0 {
				t.Errorf("%+v", r.Totals)
			}
		},
	}
	for fault, check := range check {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			expect := "" // only a kill may repeat a call
			if fault == "kill" {
				expect = "expect: [duplicates]"
			}
			file := scenarioFile(t, strings.NewReplacer("FAULT", fault, "EXPECT", expect).Replace(text))
			r := measure(t, newWorld(t, ""), file, "--notifyd", bin)
			if len(r.Faults) != 1 || r.Faults[0].Error != "" || r.Faults[0].Ended-r.Faults[0].Began < time.Second {
				t.Errorf("%+v", r.Faults)
			}
			kinds := []string{}
			for _, m := range r.Markers {
				kinds = append(kinds, m.Kind)
			}
			if !slices.Contains(kinds, "fault") || !slices.Contains(kinds, "heal") {
				t.Errorf("marked: %v", kinds)
			}
			if r.Ledger.Delivered != r.Totals.Acked || r.Totals.Acked == 0 {
				t.Errorf("%+v, %+v", r.Totals, r.Ledger)
			}
			check(t, &r)
		})
	}
}

// TestOwned: a notifyd that does not stop is killed, and one that ends by itself is
// noticed, with what it said last.
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
	t.Cleanup(func() { _ = o.end() })
	if err := o.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	starts++
	before := o.proc
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
