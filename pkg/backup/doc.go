// Package backup defines the format of a backup: one file with everything that the embedded engines
// store. The file itself shows whether it is complete. Package app decides what is in a backup.
// Package app also decides the order in which the parts are copied, so that no accepted
// notification is missing.
//
// A backup is a tar archive, compressed with zstd. Its first entry, manifest.json, lists all other
// entries, with the size and SHA-256 of each file. So Verify and Restore detect an incomplete
// transfer or a changed bit, and Restore knows how much it will write before it writes. The command
// "zstd -d | tar t" lists a backup without this program.
//
// Write in write.go makes a backup. Verify and Restore in restore.go read a backup.
package backup
