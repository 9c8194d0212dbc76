// Package archive copies dead letters and outcomes into files before they are removed after their
// retention. The files are NDJSON compressed with zstd. Each run of the Archiver, by default one
// per hour, writes at most one new file of each kind. Each file has a manifest, which contains its
// number of lines.
//
//	<dir>/dead-letters/2026-11-22/04-00000017.ndjson.zst
//	<dir>/dead-letters/2026-11-22/04-00000017.json
//	<dir>/outcomes/2026-11-22/04-00000018.ndjson.zst
//
// The day and hour (UTC) are the time when the file was written. The number counts files.
//
// One row of the store contains the progress. The Archiver writes a file in four steps:
//
//  1. It writes the whole file under a temporary name and syncs it.
//  2. It stores in the row that this file is pending, with the file's manifest and the
//     progress after the file.
//  3. It gives the file its final name and writes the manifest next to it.
//  4. It stores in the row that the file is archived.
//
// After a crash before step 2 the row is unchanged, and the next run writes the file again. After a
// crash after step 2 the row contains the pending file, and the next run completes the file. Thus each
// line is in exactly one file. (If the file is removed from the folder between step 3 and step 4,
// its lines are written again.)
//
// If several processes share the archive, only one of them at a time runs the Archiver, which
// writes the row by compare and swap. Either each process has its own folder and all processes
// share one bucket, or all processes share one folder. If a process finds a pending file neither in
// its folder nor in the bucket, it writes the file again with the same name. The bucket accepts
// only one file per name, and the row contains the manifest of every version. The version in the
// bucket counts, whichever process stored it. So no line is in the bucket twice. A process that
// returns later moves its own version to another folder. Without a bucket, and with one folder per
// process, the lines of such a file are in two folders.
//
// A dead letter is archived as soon as it is indexed. An outcome is archived once its record is
// older than Config.After. A receipt that arrives later is not in the archive. If a receiver has no
// final state at that time, the archive contains its state of that time.
//
// Start reading at Archiver.Once in archiver.go. lines.go collects the lines of dead letters and
// outcomes. files.go writes and reads the files. progress.go reports to the removal of old records
// what is archived.
package archive
