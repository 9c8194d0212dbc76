// Package cluster coordinates notifyd processes that use the same stores. It uses only the
// interfaces of pkg/engine and depends on no particular engine.
//
//	roles.go                   the roles of a process, and the tasks of each role
//	alone.go                   work that only one process at a time does, under a lease
//	peers.go                   the processes that share a limit
//	clock.go                   the difference between this machine's clock and the servers' clocks
//	spread.go                  a number on which all processes agree, such as the number of timer shards
//	followed.go                a stored map that operators change and every process applies:
//	                           lanes.go, campaigns.go, circuits.go, grants.go
//	figure.go                  a value that one process reads for all processes
//	cards.go, standings.go     what processes report to operators and to each other
//	tails.go                   live outcomes of all processes
//	removal.go                 the time that decides which old data is removed
//
// A process with embedded engines is alone. It uses lanes, campaigns, circuits, grants and removal,
// but no heartbeats or leases.
//
// If Redis is unreachable, each process continues with the last values that it has read. If a decision
// would not be safe with these values, the process returns an error instead (Clock.Err, Spread.Now).
package cluster
