// Package postgres implements three contracts with PostgreSQL: profiles with their
// versioned table of changes, callers, and meta. One pool of connections connects to the
// primary among the hosts of the DSN. Reads also use the primary. So a read returns every
// write that was acknowledged before the read began. Start reading at store.go.
//
// Changes. One row is the counter of the versions of all profiles. A writer of a profile locks this
// row, gets the new version from it, and keeps the lock until the writer commits. So versions
// become visible in order. A follower that reads Changes from a cursor misses no change, even
// without NOTIFY. Listen only makes followers read sooner. The disadvantage is that writers of
// profiles commit one after another.
//
// Parts. Profiles are in engine.ProfileParts tables. The hash that chooses a user's
// partition of the log also chooses the user's table. So a worker reads the users of its
// partitions and few other users. The server computes the hash (user_hash), so every writer
// uses the same hash.
//
// Failover. A synchronous standby has every acknowledged write. If the DSN names both
// hosts, the pool finds the promoted standby by itself, because it uses only hosts that
// accept writes. An asynchronous standby may lack the last commits. If such a standby is
// promoted, its counter is less than versions that Changes has already returned. Changes
// detects this loss and returns store_regressed, and the follower reads all profiles again.
// Doctor reports whether a synchronous standby is connected.
//
// Errors are translated only in errors.go. If a write returns an error, the commit may
// still have happened. Calling the write again is always safe.
package postgres
