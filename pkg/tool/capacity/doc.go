// Package capacity is the arithmetic of capacity: from a load, what one of each
// part can do, and what providers allow, how many of each part are needed.
//
// A sheet has two counts a line. The first counts as the design notifyd comes
// from does: mails of one second are spread over their objective, replicas of
// the log and of the scheduler's rows are not counted. The second is what the
// same load takes when it lasts. Where they differ, a Limit says why.
//
// Everything here is pure: no clock, no files, no network.
//
//	input.go      what is given: Input, its defaults, its rules
//	number.go     how numbers are read and written
//	sheet.go      Compute: the lines
//	limits.go     where the first count does not hold; rows by chunk; what breaks first
//	measured.go   rates measured here instead of assumed ones
package capacity
