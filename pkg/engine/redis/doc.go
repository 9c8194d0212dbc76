// Package redis serves what several processes share and may lose for a moment:
// leases, heartbeats and broadcasts, token buckets and blocked accounts, the seen-filter, a
// cache of preferences, idempotency keys, the spill buffer, and a delay queue.
// It speaks to one server, to one behind sentinels, or to a cluster.
//
// Every change of more than one value is a Lua script, which Redis runs whole,
// on the server's own clock (TIME): clocks of callers do not matter. Keys that
// one script touches share a hash tag, so that a cluster keeps them together.
//
//	<prefix>lease:<name>           owner; PX = the lease's ttl
//	<prefix>beats:<group>          hash: owner -> last beat and end, µs
//	<prefix>bucket:<name>          hash: tokens, µs; PX = until it is full again
//	<prefix>blocked:<account>      until, µs; PX = until then
//	<prefix>{idem:<n>}:<hash>      hash: a reservation; PX = its Expires and an hour
//	<prefix>{idem:<n>}:ends        sorted set: hash by Expires, for Purge
//	<prefix>{spill}:records        stream: spilled records; id = seq
//	<prefix>{spill}:head           hash: last seq, bytes
//	<prefix>{queue:<name>}:...     see queue.go
//	<prefix>{seen:<name>}:...      see filter.go
//	<prefix>channel:<name>         a channel of pub/sub: it keeps nothing
//
// # What is durable
//
// Redis answers before it has asked a disk, unless appendfsync is always. With
// everysec a loss of power takes the last second, a failover what the replica
// had not got yet, and an emptied Redis forgets all. What must not be lost has
// its truth elsewhere (terms, rows, the log), with one exception: a spilled
// record is nowhere else. So Push of the spill buffer asks, each time, whether
// the server fsyncs always or a replica has confirmed, and refuses otherwise.
//
// Seqs of the buffer, and ids of messages, come from the server's clock and
// never repeat, so that what somebody remembers of before a Redis was emptied
// names nothing that came after.
//
// # Failures
//
// A server that is down is noticed within about 0.4 s, a frozen one within
// 0.6 s (Config.Timeout, one retry). Both are notify.KindUnavailable, as is a
// full server, one that is loading, and a replica that must not be written.
// What the logic does without Redis stands in docs/failures-cluster.md.
package redis
