package main

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
)

// TestRequireValid: with --require-valid a run exits 0 only if its figures are the
// server's. A run that failed for another reason keeps its exit code.
func TestRequireValid(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[string]int{
		load.Valid: cli.ExitOK, load.SinkBound: cli.ExitOK, load.ConcurrencyBound: cli.ExitOK,
		load.GeneratorBound: cli.ExitFindings, load.Inconclusive: cli.ExitFindings, "": cli.ExitFindings, "OF_A_LATER_RELEASE": cli.ExitFindings,
	} {
		for exit, code := range map[int]int{cli.ExitOK: want, cli.ExitPartial: cli.ExitPartial, cli.ExitSLO: cli.ExitSLO} {
			res := &load.Result{Exit: exit, Verdict: load.Verdict{Code: verdict}}
			if got := cli.ExitCode(loadExit(t.Context(), res, true)); got != code {
				t.Errorf("%s, exit %d: exits %d, want %d", verdict, exit, got, code)
			}
			if got := cli.ExitCode(loadExit(t.Context(), res, false)); got != exit {
				t.Errorf("%s, exit %d: without --require-valid it exits %d", verdict, exit, got)
			}
		}
	}
}
