// Package report writes, stores and compares the results of load runs.
//
//	text.go     summary for people, and one line for programs
//	html.go     page of HTML without scripts; its charts are in charts.go and chart.go
//	hlog.go     .hlog file for the tools of HdrHistogram
//	store.go    folder of runs, and the result as JSON
//	compare.go  one run against another
//	merge.go    one result from the results of the segments of a run
//	metrics.go  Prometheus metrics during a run
//
// Everything except Store is a pure function of a load.Result or load.Snapshot. Texts in a Result
// come from scenarios that anybody may have written, so each kind of report escapes them. A result
// that was read from a file may be damaged. Decode checks it, but not its histograms: a damaged
// histogram causes an error only when its figures are needed. Start reading at WriteText.
package report
