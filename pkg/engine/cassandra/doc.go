// Package cassandra stores outcome rows, history, timers, triggers, dead letters and other
// state of operators in a keyspace of Cassandra. Outcome rows, timers and triggers may each
// have a separate cluster: Open opens one cluster, and pkg/app opens several. Start reading
// at store.go.
//
// A column is written in only one of three ways:
//
//   - Rows that are inserted and never changed (timers, hints, schedules, indexes). Of two
//     rows with one key the first wins, because the time of the write is the last part of
//     the stored key.
//   - Rows that are overwritten (outcomes, holds, values of names). Their timestamps come
//     from a hybrid logical clock (clock.go), so a process that reads a row and replaces it
//     wins, whatever the clocks of the machines say.
//   - Rows that are compared and swapped (triggers, heads, shards, records, logs), only by
//     lightweight transactions. All but triggers are read at SERIAL. If an answer is lost,
//     the row is read back (cas.go): the nonce in the row tells who wrote it.
//
// The audit log, campaigns, jobs and values of names are rows of the table records.
// partitions.go implements rows.Partitions with it, and pkg/store puts their contracts
// over that.
//
// The rows of one call are in one partition, where a batch is atomic and becomes visible as
// a whole; or a row that is written last names the others. Where neither holds, the comment
// of the accessor in store.go says what is promised instead.
//
// Outcomes and history are partitioned by the minute in which a request was made, with few
// partitions a minute. So the rows of many single sends become one write to each of these
// partitions. With a partition for each request every send would be a write of its own.
//
// While a write to a partition is under way, other writes to it wait, and are then sent
// together (combine.go). So a busy cluster gets few large requests.
//
// No table is searched: the table buckets notes which buckets of time hold rows, before
// these rows are acknowledged. Timers are removed a minute at a time, with one delete of a
// partition. A purge removes its list entries with one delete of a range (purges.go). Entries
// of other lists are removed one by one; their partitions are small enough for the tombstones
// (listings.go).
package cassandra
