// Package postgres serves the contracts that suit a relational store from
// PostgreSQL: profiles with their versioned change table, callers, meta, and
// operators' tables. One pool of connections goes to the primary of the hosts
// that the DSN names, reads included: what was answered is what the next reads.
//
// Changes. A version is taken under the lock of its counter's row, which is held
// until the commit: versions become visible in their order, so whoever follows
// Changes from a cursor misses none, and needs no NOTIFY. Listen only makes it
// look sooner. The price is that writers of profiles commit one after another.
//
// Parts. Profiles lie in engine.ProfileParts tables, by the hash that chooses a user's
// partition of the log: a worker reads the users of its partitions and few others. The
// server computes the hash (user_hash), so each writer puts a row where it belongs.
//
// A primary that is lost. With a synchronous standby what was answered is on the
// standby; a pool whose DSN names both finds the promoted one by itself, because
// it takes only hosts that accept writes. An asynchronous standby may lack the
// last commits: Changes notices that its counter is behind the cursor and answers
// store_regressed, upon which the follower reads all anew. Doctor names both.
//
// Errors are translated in errors.go alone. An error of a write means unknown:
// the commit may have happened; every write may be called again.
package postgres
