package durable

import "golang.org/x/sys/unix"

// FreeBytes returns the bytes that an unprivileged process may still write on the
// volume of dir, which must exist.
func FreeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
