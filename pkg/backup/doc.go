// Package backup is the form of a backup: one file with everything the embedded
// engines keep, that says itself whether it is whole. What goes in, and in which
// order it is taken so that nothing accepted is missing, package app knows.
//
// A backup is a tar archive, compressed with zstd. Its first entry,
// manifest.json, lists every other one, files with size and SHA-256, so that a
// transfer that broke off, or a disk that turned a bit, is noticed before
// anything is restored, and a restore knows how much it will write before it
// writes. "zstd -d | tar t" lists one without this program.
package backup
