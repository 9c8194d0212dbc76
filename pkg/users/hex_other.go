//go:build !amd64

package users

// hexAppend appends the hexadecimal digits of kept to b. b must have room for the digits and for 8
// more bytes.
func hexAppend(b, kept []byte) []byte { return hexWords(b, kept) }
