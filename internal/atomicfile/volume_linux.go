package atomicfile

import "golang.org/x/sys/unix"

// FreeBytes returns how many bytes an unprivileged process may still write on the volume of a
// folder. The folder must exist.
func FreeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// SameVolume reports whether the folders a and b are on the same volume. It returns false if stat fails
// on a or on b.
func SameVolume(a, b string) bool {
	var sa, sb unix.Stat_t
	return unix.Stat(a, &sa) == nil && unix.Stat(b, &sb) == nil && sa.Dev == sb.Dev
}
