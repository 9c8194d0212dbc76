// Package engine holds the contracts of durable and shared state that several packages
// use: one file per contract, with the checks of its arguments. A contract that only one
// package uses is declared in that package. An engine (pebble, memory, cassandra, redis,
// postgres, sqs) implements some of the contracts. pkg/app chooses the engine of each.
//
// A contract is its comments plus its suite: every sentence about what is true
// after a return has a test of the same words in pkg/engine/enginetest, which
// every engine passes. To add an engine, implement the contracts it serves,
// translate its errors into *notify.Error in one function, and call the suites
// from a test file.
//
// Rules of all contracts:
//   - any goroutine may call a method;
//   - if a writing method returns nil, the write is durable: it survives a kill of the
//     process and, where the engine has a disk, a loss of power;
//   - if a writing method returns an error, the write may or may not be stored. Calling
//     again with the same arguments is safe;
//   - a failure of the engine is notify.KindUnavailable, never a panic;
//   - the caller may reuse slices that it passed in after the method has returned; slices
//     that a method returns belong to the caller.
//
// Start reading at status.go (outcome rows), timers.go and queue.go.
package engine
