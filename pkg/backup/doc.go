// Package backup defines the format of a backup: one file with everything the embedded engines
// store. The file itself proves whether it is complete. Package app decides what goes into a
// backup, and in which order it is copied so that no accepted notification is missing.
//
// A backup is a tar archive, compressed with zstd. Its first entry, manifest.json, lists every
// other entry, files with size and SHA-256. Thus Verify and Restore notice a transfer that broke
// off or a flipped bit, and Restore knows how much it will write before it writes. "zstd -d | tar
// t" lists a backup without this program.
//
// Write in write.go makes a backup; Verify and Restore in restore.go read one.
package backup
