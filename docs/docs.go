// Package docs embeds the documents that programs read too.
package docs

import _ "embed" // for Metrics

// Metrics contains the tables of all metrics of notifyd, in Markdown: the pages metrics-*.md of
// this folder. A test of pkg/app compares the tables with the metrics of a running node.
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
