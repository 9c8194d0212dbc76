// Package log is the log: it appends records to Kafka topics and reads them back, with franz-go.
// The same code talks to a cluster and to the embedded broker of pkg/log/embedded.
//
// Producer (producer.go, direct.go) appends. Group (group.go, assignment.go) is a member of a
// consumer group: its poll loop queues records, one goroutine for each partition calls the
// handler, and a commit loop commits the low-water marks. Reader reads given offsets without a
// group. Admin creates and checks topics. Start with Producer and Group.
//
// The package guarantees:
//
//   - Producer.Append returns nil only when all in-sync replicas have acknowledged every record
//     (embedded: written and, if so configured, fsynced). After an error a record may or may not
//     be stored, so readers must recognise a second copy by its id.
//   - Group hands each partition's records to its handler in order. It commits only the contiguous
//     low-water mark: the offset below which every record was marked done. Committing anything
//     else loses records at a crash. In a test with 6 kills and 20,000 records, franz-go's default
//     auto-commit in front of a worker pool lost 6,358 records, marking in the order of
//     completion lost 66, and the low-water mark lost none.
//   - A position that is no longer in the log is reported. It never silently becomes a replay of
//     the whole log.
//
// Types of franz-go do not appear in the package's interface.
package log
