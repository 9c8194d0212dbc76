// Package redis implements contracts for state that several processes share and may lose
// for a moment: leases, heartbeats and broadcasts, token buckets and blocked accounts, the
// seen-filter, idempotency keys, the spill buffer, and a delay queue. It talks to
// one server, to a master behind sentinels, or to a cluster. Start reading at store.go.
//
// Every change of more than one value is a Lua script. Redis runs a script as one step, and
// the script uses the server's clock (TIME), so the clocks of callers do not matter. The
// keys of one script share a hash tag, so that a cluster keeps them on one node.
//
//	<prefix>lease:<name>           owner; PX = the lease's ttl
//	<prefix>beats:<group>          hash: owner -> last beat and expiry, µs, and value
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
// Redis answers before the write is on disk, unless appendfsync is always. With everysec, a
// loss of power loses the writes of the last second. A failover loses the writes that the
// replica had not received. An emptied Redis loses all. State that must not be lost is kept
// elsewhere (terms, rows, the log), with one exception: a spilled record has no other copy.
// So each Push of the spill buffer checks that the server fsyncs always or that a replica
// has confirmed the write, and returns an error otherwise.
//
// Seqs of the spill buffer and ids of messages come from the server's clock and never
// repeat. So a seq or receipt from before Redis was emptied never names a later record or
// message.
//
// # Failures
//
// A server that is down is noticed within about 0.4 s, a frozen one within 0.6 s
// (Config.Timeout, one retry). Both are notify.KindUnavailable. So is a server that is full
// or loading, and a replica, which refuses writes. docs/failures-cluster.md says what the program
// does without Redis.
package redis
