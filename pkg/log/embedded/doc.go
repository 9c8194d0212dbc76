// Package embedded is the embedded log: franz-go's own broker (kfake) run in the process, so that
// the embedded default uses the same client code as a cluster. The process connects by
// Broker.Dial, tools of the same user by a unix socket. Kcat and rpk read through a loopback port
// that allows no writes (door.go, reader.go). Start with Open in broker.go.
//
// The broker stores records well, but does not protect its files. This package adds what it lacks:
//
//   - A cap on the log's size, a minimum of free space on its volume, and an fsync probe, because
//     the broker drops errors of fsync. Guard combines them; intake asks it.
//   - Trimming below the offsets that the caller says are safe, but never of the last record of a
//     partition. The broker rebuilds a partition's end from its files: a partition without files
//     would begin at offset 0 again after a crash, below the offsets that its groups have
//     committed. The broker's own retention does not know consumers and stays off.
//   - A store id, so that a log and a database that do not belong together are not started
//     together.
//   - An fsync of the folders. The broker replaces its lists of topics and of groups by a rename
//     without one, and a power cut that loses the list of topics loses the log.
//   - Removal of half-written entries at the end of its lists of groups and of producers. The
//     broker skips such an entry but appends after it, and the next start reads nothing after it.
//   - A check of every batch before the broker opens the log (check.go, mend.go). The broker would
//     cut a segment at the first bad checksum and assign the offsets of the cut records again. The
//     check instead rewrites a header if the checksum proves that the rest is intact, and replaces
//     a damaged or missing batch by a marker that occupies its offsets. It writes each loss down;
//     the loss is reported until an operator removes the report. The ends of the partitions are
//     stored separately (ends.go), to distinguish damage at an end from a write that a crash cut
//     short. Their starts are stored before a trim, to distinguish removed segments from trimmed
//     ones.
//
// Limits: there is one node, hence no replication. Opening reads the whole log twice and holds one
// copy in memory; the check costs 0.7 to 1.3 s a GiB on a busy machine. Damage is found only at a
// start: while the broker runs, a reader that meets damage stops there. The start of a partition
// does not survive a crash: trimmed records of a file that still exists come back. The name of a
// new segment becomes durable with the first fsync of the file, not of its folder. That is enough
// on ext4, XFS and btrfs, but POSIX does not guarantee it.
package embedded
