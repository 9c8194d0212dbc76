package users

// hexBytes writes the hexadecimal digits of n bytes of src to dst, 16 bytes at a time. n must be at
// least 16.
//
//go:noescape
func hexBytes(dst, src *byte, n int)

// hexAppend appends the hexadecimal digits of src to b. b must have room for the digits and for 8
// more bytes.
func hexAppend(b, src []byte) []byte {
	if len(src) < 16 {
		return hexWords(b, src)
	}
	at := len(b)
	b = b[:at+2*len(src)]
	hexBytes(&b[at], &src[0], len(src))
	return b
}
