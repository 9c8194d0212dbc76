// Package docs carries documents that programs read too.
package docs

import _ "embed" // for Metrics

// Metrics is the catalogue of every metric notifyd has: the tables of the pages metrics-*.md
// of a server, one after the other. A test of pkg/app compares them with a running node.
var Metrics = requests + delivery + timers + engines

var (
	//go:embed metrics-requests.md
	requests string
	//go:embed metrics-delivery.md
	delivery string
	//go:embed metrics-timers.md
	timers string
	//go:embed metrics-engines.md
	engines string
)
