//go:build amd64 || arm64

package users

// prefetch starts to load the cache lines at n addresses and does not wait for them. The caller
// passes a pointer to the first of these addresses, which must be in one array. prefetch does not
// access the addresses, so an address may be invalid.
//
//go:noescape
func prefetch(at *uintptr, n int)
