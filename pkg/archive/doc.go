// Package archive copies dead letters and outcomes into files before they age
// out: NDJSON compressed with zstd, a file an hour and kind, each with a manifest
// that says how many lines it has.
//
//	<dir>/dead-letters/2026-11-22/04-00000017.ndjson.zst
//	<dir>/dead-letters/2026-11-22/04-00000017.json
//	<dir>/outcomes/2026-11-22/04-00000018.ndjson.zst
//
// Day and hour (UTC) are those of the writing, the number counts files.
//
// How far it is, is one row of the store. A file is written whole under another
// name and synced; then the row says which file it is and what it holds; then it
// gets its name and its manifest; then the row moves on. Whoever is killed in
// between either finds the row unchanged and writes the file anew, or finds it
// named and finishes it: no line is left out, none is in two files. (Only where the
// file was taken out of the folder before the row moved on, its lines are written
// again.)
//
// Where several processes have the archive, one of them at a time runs it, and the row is
// compared and swapped. Each has a folder of its own and all have one bucket, or they share
// a folder. A process that finds a file pending which is neither in its folder nor in the
// bucket writes it again under the same name. The bucket takes one file of a name, and the row
// keeps the manifest of each, so the one that is there counts, whichever process stored it: no line is in
// the bucket twice. A process that comes back puts its own file aside. Without a bucket, and
// with a folder each, the lines of such a file are in two folders.
//
// A dead letter is archived when it has been indexed, an outcome when its record
// has settled (Config.After): what a receipt says later is not in it. A receiver
// that is still open by then is archived as it stands.
package archive
