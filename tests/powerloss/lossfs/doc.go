// Package lossfs is a file system for tests. It loses all unsynced data when the power is cut. A
// SIGKILL of a process proves nothing about fsync, because the kernel keeps the unsynced pages of
// a dead process. A Disk loses these pages.
//
// # The model
//
// A Disk has two states. The live state is what programs see. The durable state is what a power
// cut would leave. A sync copies data from the live state to the durable state. Changes that were
// not yet copied are volatile.
//
//   - Contents. A write is volatile until an fsync or fdatasync of its file. This call makes all
//     pages and the size of the file durable. A truncation is volatile in the same way.
//     sync_file_range makes nothing durable.
//   - Names. The creation, rename or removal of a name is volatile until an fsync of its folder.
//     In the model [WithFolder], nothing else makes a name durable; POSIX requires no more than
//     this. In the model [WithFile], an fsync of a file also makes durable the names that the
//     file has received or lost since its previous fsync, and the names of the folders above the
//     file. ext4, XFS and btrfs give at least this guarantee. (ext4 and XFS also commit all older changes.)
//   - Renames. A rename is atomic: after a cut the disk has either the state before the rename or
//     the state after it. If the rename was lost, the file that it replaced exists again.
//
// [Disk.Cut] cuts the power. Without a random source it drops all volatile changes. With a random
// source it keeps some of them, like a disk that had begun to write back. It keeps a prefix of the
// changes of names, because file systems journal these changes in order. It keeps any subset of
// the changed pages of 4 KiB. A file that has grown may have its new size without its new
// contents; the missing contents read as zeros.
//
// The model does not include hard links, symbolic links, extended attributes, writable mappings,
// sectors within a page, or disks that report a flush which they have not done.
package lossfs
