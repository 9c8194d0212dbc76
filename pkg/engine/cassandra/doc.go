// Package cassandra keeps status, history, timers, triggers and what operators
// work with in a keyspace of Cassandra. Status, timers and triggers may each have
// a cluster of its own: Open opens one, the wirer several.
//
// Three kinds of writes are never mixed in one column:
//
//   - rows that are inserted and never changed (timers, hints, schedules, indexes).
//     Of two with one key the first counts: the moment of the write is the last
//     part of the key;
//   - rows that are overwritten (outcomes, holds, values of names), whose timestamps come from
//     a hybrid logical clock (clock.go): who reads a row and replaces it wins,
//     whatever the machines' clocks say;
//   - rows that are compared and swapped (triggers, heads, shards, records, logs), by
//     lightweight transactions alone; all but triggers are read at SERIAL. An answer that does not
//     come is followed by a look (cas.go): the writer's number in the row says
//     whose it is.
//
// The audit log, campaigns, jobs and values of names are rows of the table records.
// partitions.go implements rows.Partitions with it, and pkg/store puts their contracts
// over that.
//
// What belongs to one call lies in one partition, where a batch is atomic and is
// seen as a whole, or it is named by a row that is written last. Where neither
// holds, the accessor's comment says what is promised instead.
//
// Outcomes and the history lie by the minute in which a request was made, in few
// partitions a minute: what many single sends write together is one write to each of
// these, where a partition a request would be one write each.
//
// What goes to a partition that a write is under way to waits for it, and goes with all
// else that waits (combine.go): a busy cluster gets few large requests.
//
// Nothing is searched for: which buckets of time hold rows is noted in the table
// buckets before the rows are answered. Timers go a minute at a time, with one
// partition delete. What a purge worked off goes with one delete of a range
// (purges.go). Entries of lists go one by one, in partitions small enough for what
// is left of them for a while (listings.go).
package cassandra
