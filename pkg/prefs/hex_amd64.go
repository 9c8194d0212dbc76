package prefs

// hexBlocks writes the 32 digits of each 16 bytes of src to dst.
//
//go:noescape
func hexBlocks(dst, src *byte, blocks int)

// hexAppend appends the digits of kept.
func hexAppend(b, kept []byte) []byte {
	if n := len(kept) / hexBlock; n > 0 {
		at := len(b)
		b = b[:at+2*hexBlock*n]
		hexBlocks(&b[at], &kept[0], n)
		kept = kept[hexBlock*n:]
	}
	return hexWords(b, kept)
}

const hexBlock = 16
