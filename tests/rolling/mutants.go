package main

import "github.com/notifyd/notifyd/tests/internal/victim"

// mutants each break one mechanism; the run must notice.
var mutants = map[string]victim.Mutant{
	// A worker that stops lets go of the calls under way.
	"no-drain": {
		File: "pkg/stream/group.go",
		Old:  "g.drain(base, as, g.cfg.DrainTimeout)",
		New:  "g.drain(base, as, 0)",
	},
}
