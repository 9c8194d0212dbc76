// Package cassandra stores outcome rows, history, timers, triggers, dead letters and other
// state of operators in a keyspace of Cassandra. Outcome rows, timers and triggers may each
// have a separate cluster. Open opens one cluster; pkg/app opens several clusters if they
// are configured. Start reading at store.go.
//
// A column is written in only one of three ways:
//
//   - Rows that are inserted and never changed (timers, hints, schedules, indexes). If the
//     same row is inserted twice, the first row is valid: the time of the write is the last
//     part of the stored key, so readers read the first row first.
//   - Rows that are overwritten (outcomes, holds, and rows of the table records that no write
//     compares). Their timestamps come from a hybrid logical clock (clock.go). So a process
//     that reads a row and replaces it wins, even if the clocks of the machines differ.
//   - Rows that are compared and swapped (triggers, heads, shards, logs, and all other rows of
//     the table records). They are written only by lightweight transactions. Except for
//     triggers, a read before a swap has the consistency SERIAL. Reads for lists do not need
//     SERIAL. If the answer to a swap is lost, the row is read again (cas.go). The nonce in
//     the row shows which write was applied.
//
// The audit log, campaigns, jobs and values of Meta are rows of the table records.
// partitions.go implements rows.Partitions with that table. pkg/store uses rows.Partitions
// to implement the contracts of these four.
//
// Normally all rows of one call are in one partition. There a batch is atomic, and its rows
// become visible together. If the rows are in several partitions, the row that is written last
// normally contains the keys of the other rows, so a reader that begins at that row finds all rows.
// A few calls do not work in this way; their methods in store.go say what the caller can rely on.
//
// Outcomes and history are partitioned by the minute in which a request was made. Each
// minute has few partitions. So the rows of many single sends become one write to each of
// these partitions. If each request had its own partition, each send would need its own
// write.
//
// While a write to a partition is running, other writes to that partition wait. When that
// write ends, the waiting writes are sent together (combine.go). So a busy cluster gets few
// large requests.
//
// Only audits read a whole table of rows. Other calls read the table buckets to find the rows. It
// has a note for each period of time (bucket) that may have rows. The note is stored before these
// rows are acknowledged. Timers are removed one minute at a time, with one delete of a partition.
// A purge removes the entries of its list with one delete of a range (purges.go). Entries of other
// lists are removed one by one. Their partitions are so small that the tombstones do not stop
// reads (listings.go).
package cassandra
