// Package embedded is the embedded log: franz-go's own broker run in the process, so
// that the embedded default uses the client code that production uses. The process
// reaches it by Broker.Dial, tools of the same user by a unix socket. Kcat and rpk
// read through a loopback port on which nothing can be written (door.go, reader.go).
//
// The broker is a good log and a careless keeper. This package adds what it
// lacks:
//
//   - a cap on the log's size, room left on its volume, and an fsync probe, in
//     one Guard that intake asks (the broker drops errors of fsync);
//   - trimming behind what the caller says is safe, and never the last record of
//     a partition: the broker rebuilds a partition's end from its files, so one
//     whose files are all gone would begin at offset 0 again after a crash,
//     below the offsets its groups have committed. Its own retention knows no
//     consumers and stays off;
//   - a store id, so that a log and a database that do not belong together are
//     not started together;
//   - an fsync of its folders: the broker replaces its lists of topics and of
//     groups by a rename and leaves it at that, and a power cut that takes the
//     list of topics takes the log with it;
//   - a cut of half-written entries at the end of its lists of groups and of
//     producers, which it skips, but would append behind, where the next start
//     reads nothing;
//   - a check of every batch before it opens. It would cut a segment at the first
//     bad checksum and give out the offsets of what it cut again. Instead headers
//     are written anew where the checksum shows that nothing else is wrong, and a
//     damaged or missing batch is replaced by a marker that takes its offsets; what
//     is lost is written down and reported until somebody settles it. The ends of
//     the partitions are written down apart, so that damage at an end is told from
//     a write that a crash cut short; and their starts, before a trim, so that
//     segments that somebody removed are told from trimmed ones.
//
// What is left: one node, hence no replication. Opening reads the whole log
// twice, and keeps it in memory: the check costs 0.7 to 1.3 s a GiB on a busy
// machine. Damage is found at a start; while the broker runs, a reader that meets
// it stands. The start of a partition is not kept across a crash: records trimmed
// from a file that is not yet gone come back. The name of a new segment becomes
// durable with the first fsync of the file, not of its folder: that is enough on
// ext4, XFS and btrfs, and less than POSIX asks for.
package embedded
