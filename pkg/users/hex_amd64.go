package users

// hexBytes writes the hexadecimal digits of n bytes of src to dst, 16 bytes at a time. n must be at
// least 16.
//
//go:noescape
func hexBytes(dst, src *byte, n int)

// hexAppend appends the hexadecimal digits of kept to b. b must have room for the digits and for 8
// more bytes.
func hexAppend(b, kept []byte) []byte {
	if len(kept) < 16 {
		return hexWords(b, kept)
	}
	at := len(b)
	b = b[:at+2*len(kept)]
	hexBytes(&b[at], &kept[0], len(kept))
	return b
}
