// Package capacity calculates how many workers, nodes, accounts and partitions a load needs. It
// uses the rate of a single worker, node, account or partition, and the limits of providers.
//
// Each line of a sheet has two counts. Count is calculated as in the source, the design document on
// which notifyd is based. The source assumes a single burst of mails, sent within the mail
// objective. It counts no replicas of the log and of the scheduler's rows. Sustained is the count
// that the load needs if it lasts. If the two differ, a Limit explains why.
//
// All functions are pure: they use no clock, no files and no network.
//
//	input.go      the input: Input, its defaults, its rules
//	number.go     parsing and formatting of numbers
//	sheet.go      Compute: the lines
//	limits.go     lines whose Count is too low; nodes saved by rows per chunk; what breaks first
//	measured.go   measured rates instead of assumed rates
//	verify.go     comparison of a sheet with a running installation
package capacity
