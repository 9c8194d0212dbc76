package main

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

// TestRequireValid: with --require-valid a run exits 0 only if its figures are the
// server's. A run that failed for another reason keeps its exit code.
func TestRequireValid(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[string]int{
		load.Valid: term.ExitOK, load.SinkBound: term.ExitOK, load.ConcurrencyBound: term.ExitOK,
		load.GeneratorBound: term.ExitFindings, load.Inconclusive: term.ExitFindings, "": term.ExitFindings, "OF_A_LATER_RELEASE": term.ExitFindings,
	} {
		for exit, code := range map[int]int{term.ExitOK: want, term.ExitPartial: term.ExitPartial, term.ExitSLO: term.ExitSLO} {
			res := &load.Result{Exit: exit, Verdict: load.Verdict{Code: verdict}}
			if got := term.ExitCode(loadExitError(t.Context(), res, true)); got != code {
				t.Errorf("%s, exit %d: exits %d, want %d", verdict, exit, got, code)
			}
			if got := term.ExitCode(loadExitError(t.Context(), res, false)); got != exit {
				t.Errorf("%s, exit %d: without --require-valid it exits %d", verdict, exit, got)
			}
		}
	}
}
