// Package embedded is the embedded log. It runs franz-go's own broker (kfake) in the process, so that
// the embedded log uses the same client code as a cluster. The process connects with Broker.Dial. Tools
// of the same user connect through a unix socket. kcat and rpk read through a loopback port that allows
// no writes (door.go, reader.go). Start with Open in broker.go.
//
// The broker stores records well, but does not protect its files. This package adds what the broker
// lacks:
//
//   - A cap on the log's size, a minimum of free space on its volume, and an fsync probe, because
//     the broker ignores errors of fsync. Guard combines the three. Intake asks Guard before it
//     accepts a record.
//   - Trimming of records below the safe offsets, which the caller states. The last record of a
//     partition is never trimmed. The broker finds a partition's end in its files: after a crash a
//     partition without files would begin at offset 0 again, below the offsets that its groups have
//     committed. The broker's own retention is off, because it does not know the consumers.
//   - A store id, so that a log and a database that do not belong together are not started
//     together.
//   - An fsync of the folders. The broker replaces its lists of topics and of groups by a rename and
//     does not fsync the folder. If a power cut loses the list of topics, the log is lost.
//   - Removal of incomplete entries at the end of the broker's lists of groups and of producers. The
//     broker skips such an entry but appends after it. The next start would not read the entries
//     after the incomplete one.
//   - A check of every batch before the broker opens the log (check.go, mend.go). Without the check,
//     the broker would cut a segment at the first bad checksum and give the offsets of the cut
//     records to new records. The check rewrites a header if the checksum proves that the rest of
//     the batch is intact. It replaces a damaged or missing batch by a marker that occupies the same
//     offsets. It writes each loss into a report. The loss is reported until an operator removes the
//     report. The ends of the partitions are stored separately (ends.go). So the check can
//     distinguish damage at an end from a write that a crash cut. The first offsets are stored
//     before a trim. So the check can distinguish missing segments from trimmed segments.
//
// Limits: there is one node, so there is no replication. Opening reads the whole log twice and holds
// one copy in memory. The check takes 0.7 to 1.3 s for each GiB on a busy machine. Damage is found
// only at a start: while the broker runs, a reader stops at damage. The first offset of a partition
// does not survive a crash: trimmed records return if their file still exists. When the broker creates
// a segment, it does not sync the folder. So only the first fsync of the new segment makes its name
// durable. ext4, XFS and btrfs make the name durable then, but POSIX does not guarantee this.
package embedded
