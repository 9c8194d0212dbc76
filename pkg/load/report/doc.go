// Package report is what is left of a load run: a summary for people, JSON, a page
// of HTML that needs nothing else, and a .hlog for HdrHistogram's tools (text.go,
// store.go, html.go, hlog.go). Runs are kept in a folder (store.go), compared
// (compare.go), and put together from their segments (merge.go). During a run its
// figures can be scraped (metrics.go).
//
// Everything here is a pure function of a load.Result or load.Snapshot, whose
// texts may come from anybody's scenario: each form escapes them.
package report
