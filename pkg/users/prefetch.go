//go:build amd64 || arm64

package users

// prefetch prefetches the cache lines at n addresses and waits for none. It does not access them,
// so an address may be invalid.
//
//go:noescape
func prefetch(at *uintptr, n int)
