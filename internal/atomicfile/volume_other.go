//go:build !linux

package atomicfile

// FreeBytes returns -1, because on this system the free space is not known. So the caller notices a
// full disk only when a write fails.
func FreeBytes(string) (int64, error) { return -1, nil }

// SameVolume returns true: on this system volumes cannot be distinguished.
func SameVolume(string, string) bool { return true }
