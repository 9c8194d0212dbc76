// Package memory contains engines without a disk. Their content is lost when the process
// ends.
//
// Lease, Limits and Heartbeats are for embedded mode. In that mode only one process runs.
// It shares no state with other processes, and the next process does not need the state of
// these engines. Tests use Broadcast and Filter.
//
// Store implements the durable contracts with pkg/store over sorted slices (rows.go). The
// tests in enginetest use Store as a simple model and compare real engines with it. The
// tests of other packages use it as a fast store.
package memory
