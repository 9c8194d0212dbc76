// Package docs carries documents that programs read too.
package docs

import _ "embed" // for Metrics

// Metrics is metrics.md: the catalogue of every metric notifyd has, held against
// a running node by a test of pkg/app.
//
//go:embed metrics.md
var Metrics string
