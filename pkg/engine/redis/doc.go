// Package redis implements contracts for state that several processes share: leases, heartbeats
// and broadcasts, token buckets and blocked accounts, the seen-filter, idempotency keys, the
// spill buffer, and a delay queue. The processes keep working if this state is lost or
// unavailable for a short time. The package connects to one server, to a master with sentinels,
// or to a cluster. Start reading at store.go.
//
// Every change of more than one value is a Lua script or, in the seen-filter, a transaction. Redis
// runs each of them as one step. A script reads the current time from the server's clock, so that
// differences between the clocks of callers have no effect. Only the scripts for idempotency keys
// get the current time from the caller. The keys of one script share a hash tag, so that a cluster
// keeps them on one node.
//
// These are the keys. PX is the time after which Redis removes a key.
//
//	<prefix>lease:<name>           owner; PX = the lease's ttl
//	<prefix>beats:<group>          hash: owner -> last beat and expiry, µs, and value
//	<prefix>bucket:<name>          hash: tokens, last update, µs; PX = time until the bucket is full
//	<prefix>blocked:<account>      end of the block, µs; PX = time until then
//	<prefix>{idem:<n>}:<hash>      hash: a reservation; PX = one hour after its Expires
//	<prefix>{idem:<n>}:ends        sorted set: hash, sorted by Expires, for Purge
//	<prefix>{spill}:records        stream: spilled records; id = seq
//	<prefix>{spill}:head           hash: last seq, bytes
//	<prefix>{queue:<name>}:...     see queue.go
//	<prefix>{seen:<name>}:...      see filter.go
//	<prefix>channel:<name>         a channel of pub/sub; it stores nothing
//
// # What is durable
//
// If the setting appendfsync does not have the value "always", Redis answers before the write is on
// disk. With the value "everysec", a power failure loses the writes of the last second. A failover
// loses the writes that the replica had not received. A Redis that was emptied has lost everything.
// State that must not be lost is stored outside Redis (terms, rows, the log), with one exception: a
// spilled record has no other copy. So each Push of the spill buffer checks that the server fsyncs
// every write or that a replica has confirmed the write. If neither is true, Push returns an error.
//
// The seqs of the spill buffer and the ids of messages come from the server's clock and are
// never used twice. So after Redis was emptied, an old seq or receipt never matches a new
// record or message.
//
// # Failures
//
// A call detects within about 0.4 s that the server is down, and within 0.6 s that the server
// hangs (Config.Timeout, one retry). In both cases the call returns notify.KindUnavailable. It
// returns the same error if the server is full or still loads its data, or if the server is a
// replica, which refuses writes. docs/failures-cluster.md says what the program does without
// Redis.
package redis
