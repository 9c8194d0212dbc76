// Package log is the log: it appends records to Kafka topics and reads them
// back, over franz-go. The same code talks to a cluster and to the embedded
// broker of pkg/log/embedded.
//
// What it promises:
//
//   - Producer.Append returns nil only when every record is acknowledged by all
//     in-sync replicas (embedded: written and, if so configured, fsynced). An
//     error means unknown: a record may be stored nevertheless, so whoever reads
//     must recognise a second copy by its id.
//   - Group hands each partition's records to its handler in order and commits
//     only the contiguous low-water mark: the offset below which every record
//     was marked done. Committing anything else loses records at a crash: over
//     6 kills and 20,000 records, franz-go's default auto-commit in front of a
//     worker pool lost 6,358 of them, marking in the order of completion 66, the
//     low-water mark none.
//   - A position that is no longer in the log is reported, never silently turned
//     into a replay of all that is left.
//
// Types of franz-go stay inside.
package log
