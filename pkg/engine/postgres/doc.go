// Package postgres implements contracts that suit a relational store with PostgreSQL:
// profiles with their versioned change table, callers, and meta. One pool of connections
// goes to the primary among the hosts of the DSN. Reads also use the primary, so each read
// sees the writes that were acknowledged before. Start reading at store.go.
//
// Changes. A writer takes the version of a profile while it holds the lock of the counter's
// row until its commit. So versions become visible in order, and a follower that reads
// Changes from a cursor misses none, even without NOTIFY. Listen only makes followers read
// sooner. The price is that writers of profiles commit one after another.
//
// Parts. Profiles are in engine.ProfileParts tables, by the hash that chooses a user's
// partition of the log. So a worker reads the users of its partitions and few others. The
// server computes the hash (user_hash), so every writer uses the same one.
//
// Failover. A synchronous standby has every acknowledged write. If the DSN names both hosts,
// the pool finds the promoted standby by itself, because it uses only hosts that accept
// writes. An asynchronous standby may lack the last commits. Changes then notices that the
// counter is behind the cursor and returns store_regressed; the follower reads all profiles
// again. Doctor reports whether there is a synchronous standby.
//
// Errors are translated only in errors.go. After an error of a write the commit may have
// happened; every write may be called again.
package postgres
