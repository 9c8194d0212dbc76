// Package memory contains engines without a disk. Their content is lost when the process ends.
//
// Lease, Limits and Heartbeats are for embedded mode. In that mode only one process runs. It
// shares no state with other processes, and the next process does not need the state of these
// engines. Broadcast and Filter are only for tests.
//
// Store implements the durable contracts with pkg/store over sorted slices (rows.go).
// tests/engines runs the same programs on Store and on real engines and compares the answers. The
// tests of other packages use Store because it is fast.
package memory
