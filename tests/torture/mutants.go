package main

import (
	"maps"
	"slices"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// mutants each break one mechanism. The torture must notice, else it proves
// nothing.
var mutants = map[string]victim.Mutant{
	// The group commits what it has read instead of what is done.
	"auto-commit": {
		File: "pkg/stream/tracker.go", Old: "t.head < len(t.pending) && t.pending[t.head].done.Load() {", New: "t.head < len(t.pending) {",
	},
	// Windows are called without a durable claim.
	"no-claims": {
		File: "pkg/worker/job.go", Old: "func (j *job) claim(w *window) error {",
		New: "func (j *job) claim(w *window) error {\n\tif w != nil {\n\t\treturn nil\n\t}",
	},
	// The record is marked before its outcome is durable. Marks are committed
	// once a second and outcomes take milliseconds, so the mutant waits between
	// the two: else twenty kills would mostly miss the moment.
	"mark-first": {
		File: "pkg/worker/job.go", Old: "\tfault.Hit(\"before-outcome\")\n",
		New: "\tj.msg.Done()\n\tselect {\n\tcase <-time.After(1500 * time.Millisecond):\n\tcase <-j.p.ctx.Done():\n\t}\n\tfault.Hit(\"before-outcome\")\n",
	},
}

func mutantNames() []string { return slices.Sorted(maps.Keys(mutants)) }
