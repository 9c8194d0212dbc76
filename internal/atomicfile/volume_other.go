//go:build !linux

package atomicfile

// FreeBytes returns -1: on this system the free space is unknown. The caller then notices
// a full disk only by a failed write.
func FreeBytes(string) (int64, error) { return -1, nil }

// SameVolume returns true: on this system volumes cannot be distinguished.
func SameVolume(string, string) bool { return true }
