// Package engine holds the contracts of what is durable or shared and has several users:
// one file per contract, and checks of what callers pass. A contract with one user stands
// with it. An engine (pebble, memory, cassandra,
// redis, postgres, sqs) implements some of them; pkg/app decides which.
//
// A contract is its comments plus its suite: every sentence about what is true
// after a return has a test of the same words in pkg/engine/enginetest, which
// every engine passes. To add an engine, implement the contracts it serves,
// translate its errors into *notify.Error in one function, and call the suites
// from a test file.
//
// Rules for all of them:
//   - methods may be called from any goroutine;
//   - a nil error of a writing method means durable: it survives a kill of the
//     process and, where the engine has a disk, a loss of power;
//   - an error of a writing method means unknown: it may or may not be stored,
//     and calling again with the same arguments is safe;
//   - a failure of the engine is notify.KindUnavailable, never a panic;
//   - slices passed in may be reused by the caller after the return; slices
//     returned belong to the caller.
package engine
