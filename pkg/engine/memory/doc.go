// Package memory holds engines without a disk. Nothing in them survives the process.
//
// Lease, Limits and Heartbeats serve embedded mode, where one process shares nothing with
// others and the next process needs nothing of their state. Tests use Broadcast and Filter.
//
// Store implements the durable contracts: those of pkg/store over sorted slices (rows.go).
// It is the naive model that the suites compare real engines with, and a fast store for the
// tests of other packages.
package memory
