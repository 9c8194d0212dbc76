// Package engine declares the contracts (Go interfaces) of durable and shared state that
// several packages use. Each contract has one file, which also checks the arguments of its
// methods. A contract that only one package uses is declared in that package. An engine
// (pebble, memory, cassandra, redis, postgres, sqs) implements some of the contracts.
// pkg/app chooses the engine of each contract.
//
// A contract consists of its comments and its tests. The tests are in
// pkg/engine/enginetest, and every engine passes them. Every sentence that says what is
// true after a method returns has a test whose name says the same. To add an engine,
// implement its contracts, translate its errors into *notify.Error in one function, and
// call the tests of the contracts from a test file.
//
// Rules of all contracts:
//   - any goroutine may call a method;
//   - if a method that writes returns nil, the write is durable: it survives when the
//     process is killed. If the engine has a disk, the write also survives a loss of power;
//   - if a method that writes returns an error, the write may or may not be stored. Calling
//     the method again with the same arguments is safe;
//   - if the engine fails, a method returns notify.KindUnavailable and never panics;
//   - after a method has returned, the caller may reuse the slices that it passed to the
//     method. Slices that a method returns belong to the caller.
//
// Start reading at status.go (outcome rows), timers.go and queue.go.
package engine
