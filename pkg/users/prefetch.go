//go:build amd64 || arm64

package users

// prefetch asks for the cache lines at n addresses and waits for none. It is no
// access: an address may be of nothing.
//
//go:noescape
func prefetch(at *uintptr, n int)
