// Package archive copies dead letters and outcomes into files before their retention removes
// them: NDJSON compressed with zstd, one file per hour and kind, each with a manifest that says
// how many lines it has.
//
//	<dir>/dead-letters/2026-11-22/04-00000017.ndjson.zst
//	<dir>/dead-letters/2026-11-22/04-00000017.json
//	<dir>/outcomes/2026-11-22/04-00000018.ndjson.zst
//
// Day and hour (UTC) say when the file was written. The number counts files.
//
// One row of the store holds the progress. The Archiver writes a file in four steps:
//
//  1. It writes the whole file under a temporary name and syncs it.
//  2. It stores in the row that this file is pending, with the file's manifest and the progress
//     that the file reaches.
//  3. It gives the file its name and writes the manifest next to it.
//  4. It moves the progress in the row behind the file.
//
// A crash before step 2 leaves the row unchanged: the next run writes the file anew. A crash
// after step 2 leaves the pending file in the row: the next run finishes it. Thus no line is
// left out and none is in two files. (If somebody takes the file out of the folder between step
// 3 and step 4, its lines are written again.)
//
// If several processes have the archive, one of them at a time runs it, and the row is written
// by compare and swap. Either each process has a folder of its own and all share one bucket, or
// they share a folder. A process that finds a pending file neither in its folder nor in the
// bucket writes it again under the same name. The bucket accepts only one file per name, and the
// row keeps the manifest of every version. The version in the bucket counts, whichever process
// stored it, so no line is in the bucket twice. A process that comes back late puts its own
// version aside. Without a bucket, and with one folder per process, the lines of such a file are
// in two folders.
//
// A dead letter is archived as soon as it is indexed. An outcome is archived once its record is
// older than Config.After; a receipt that arrives later is not in the archive. A receiver that
// is still open by then is archived in the state it has.
//
// Start reading at Archiver.Once in archiver.go. files.go writes and reads the files,
// progress.go tells retention what is archived.
package archive
