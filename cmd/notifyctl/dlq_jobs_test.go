package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
)

// The plan of a replay says how many receivers may have had their notification, and what
// becomes of these.
func TestPlanSaysWhatMayHaveArrived(t *testing.T) {
	t.Parallel()
	plan := api.Plan{Entries: 3, Spec: api.JobSpec{Kind: "replay"}, Counts: map[string]map[string]int{"class": {"permanent": 1, "ambiguous": 2}}}
	for _, force := range []bool{false, true} {
		plan.Spec.ForceResend = force
		said := ""
		for _, f := range planFields((&program{}), &plan) {
			if f[0] == "may have arrived" {
				said = f[1]
			}
		}
		if !strings.HasPrefix(said, "2 UNKNOWN: ") || !strings.Contains(said, "twice") || strings.Contains(said, "--force-resend") == force {
			t.Errorf("force %v: %q", force, said)
		}
	}
}
