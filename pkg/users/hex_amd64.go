package users

// hexBytes writes the digits of n bytes of src to dst, 16 bytes at once. n is at least 16.
//
//go:noescape
func hexBytes(dst, src *byte, n int)

// hexAppend appends the digits of kept. b has room for them and one word more.
func hexAppend(b, kept []byte) []byte {
	if len(kept) < 16 {
		return hexWords(b, kept)
	}
	at := len(b)
	b = b[:at+2*len(kept)]
	hexBytes(&b[at], &kept[0], len(kept))
	return b
}
