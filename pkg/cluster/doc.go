// Package cluster coordinates notifyd processes that work over the same stores. It uses the
// contracts of pkg/engine and knows no engine.
//
//	roles.go                   the roles of a process, and the tasks that they mean
//	alone.go                   parts that one process at a time runs, under a lease
//	peers.go                   the processes that divide a limit among themselves
//	clock.go                   how far this machine's clock is off from the servers'
//	spread.go                  a number, such as that of timer shards, that all processes agree on
//	followed.go                a stored map that operators change and every process follows:
//	                           lanes.go, campaigns.go, circuits.go, grants.go
//	figure.go                  a value that one process finds out for all
//	cards.go, standings.go     what processes report to operators and to each other
//	tails.go                   live outcomes of all processes
//	removal.go                 the time by which old data is removed
//
// A process with embedded engines is alone. It uses lanes, campaigns, circuits, grants and
// removal, and no heartbeats or leases.
//
// All of it tolerates that Redis is away: each process then goes on with what it last knew,
// or refuses what it can no longer decide (Clock.Err, Spread.Now).
package cluster
