package main

import (
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
