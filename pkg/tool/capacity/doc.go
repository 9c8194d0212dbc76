// Package capacity calculates how many workers, nodes, accounts and partitions a load needs, from
// the rate of one of each and the limits of providers.
//
// A sheet has two counts per line. Count is calculated as in the design document behind notifyd
// (the source): mails of one second are spread over their objective, and replicas of the log and
// of the scheduler's rows are not counted. Sustained is what the same load needs if it lasts. If
// they differ, a Limit says why.
//
// Everything here is pure: no clock, no files, no network.
//
//	input.go      the input: Input, its defaults, its rules
//	number.go     parsing and formatting of numbers
//	sheet.go      Compute: the lines
//	limits.go     where Count is too low; rows by chunk; what breaks first
//	measured.go   measured rates instead of assumed ones
//	verify.go     comparison of a sheet with a running installation
package capacity
