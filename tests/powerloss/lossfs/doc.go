// Package lossfs is a file system for tests that loses everything unsynced when the power is
// cut. A SIGKILL proves nothing about fsync, because the kernel keeps the pages of a dead
// process. A Disk loses them.
//
// # The model
//
// A Disk has two states: what programs see, and what would be found after a
// power cut. They meet at a sync.
//
//   - Contents. A write is volatile until fsync or fdatasync of its file, which
//     makes all of its pages and its size durable. sync_file_range does nothing.
//     A truncation is volatile in the same way.
//   - Names. A name made, moved or removed is volatile until an fsync of its
//     folder. In the model [WithFile], an fsync of a file also makes the names
//     durable that it got or lost since, and those of the folders above it: so
//     do ext4, XFS and btrfs, of which the model is the weakest common part (the
//     first two commit everything older with it). In the model [WithFolder] only
//     an fsync of the folder does, which is all that POSIX gives.
//   - A rename is atomic: after a cut one of the two states is found. What it
//     replaced is there again where the rename was lost.
//
// [Disk.Cut] ends the power: without a source of randomness it drops all that
// is volatile; with one it keeps part of it, as a disk does that had begun to
// write back: a prefix of the changes of names, since file systems journal them
// in order, and any subset of the pages of 4 KiB, in which a file that grew may
// have its new size before its contents, which then read as zeros.
//
// Left out: hard and symbolic links, extended attributes, writable mappings,
// sectors within a page, disks that lie about a flush.
package lossfs
