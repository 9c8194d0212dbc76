//go:build !amd64

package users

// hexAppend appends the hexadecimal digits of src to b. b must have room for the digits and for 8
// more bytes.
func hexAppend(b, src []byte) []byte { return hexWords(b, src) }
