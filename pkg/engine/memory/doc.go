// Package memory holds engines without a disk.
//
// Lease and Limits are the ones embedded mode runs: what they keep is worth
// nothing to the next process. Store implements the durable contracts over
// plain maps, or those of pkg/store over sorted slices (rows.go): it is the
// naive model that the suites compare real engines with, and the fast double
// for tests of packages that need one. Nothing of it survives the process.
package memory
