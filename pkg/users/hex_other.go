//go:build !amd64

package users

// hexAppend appends the digits of kept. b has room for them and one word more.
func hexAppend(b, kept []byte) []byte { return hexWords(b, kept) }
