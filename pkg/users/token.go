package users

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Most addresses are APNs device tokens: "apns:" and 64 hexadecimal digits. Such a token is packed
// into 32 bytes, so that a user needs one cache line instead of two.
//
// A packed token begins with a byte with which no address can begin (ValidateAddress). This byte
// says how many digits the last byte contains.
const (
	tokenPrefix = "apns:"
	evenToken   = 1
	oddToken    = 2 // the lower half of the last byte is not a digit
)

// digits maps a character to the value of its hexadecimal digit, or to a value above 15 if it is
// not a digit. Capital letters do not count as digits, because unpacking would return small
// letters.
var digits = func() (t [256]uint8) {
	for i := range t {
		t[i] = 0xff
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = uint8(i)
	}
	return t
}()

// appendAddress appends an address to b in its packed form.
func appendAddress(b []byte, address string) []byte {
	if address != "" && (address[0] == evenToken || address[0] == oddToken) {
		return b // ValidateAddress refuses such an address
	}
	token, ok := strings.CutPrefix(address, tokenPrefix)
	if !ok || token == "" {
		return append(b, address...)
	}
	from, form := len(b), byte(evenToken)
	if len(token)%2 != 0 {
		form = oddToken
	}
	b = append(b, form)
	for i := 0; i < len(token); i += 2 {
		hi, lo := digits[token[i]], uint8(0)
		if i+1 < len(token) {
			lo = digits[token[i+1]]
		}
		if hi > 15 || lo > 15 {
			return append(b[:from], address...)
		}
		b = append(b, hi<<4|lo)
	}
	return b
}

// appendUnpacked unpacks an address and appends it to b.
func appendUnpacked(b, packed []byte) []byte {
	if len(packed) == 0 || packed[0] != evenToken && packed[0] != oddToken {
		return append(b, packed...)
	}
	odd := int(packed[0] - evenToken)
	packed = packed[1:]
	const word = 4 // bytes written at once; the last word may have fewer
	if cap(b)-len(b) < len(tokenPrefix)+2*(len(packed)+word) {
		b = slices.Grow(b, len(tokenPrefix)+2*(len(packed)+word))
	}
	b = append(b, tokenPrefix...)
	end := len(b) + 2*len(packed) - odd
	return hexAppend(b, packed)[:end]
}

// hexWords appends the hexadecimal digits of src to b, and up to 6 bytes of garbage after them. b
// must have room for the digits and the garbage.
func hexWords(b, src []byte) []byte {
	for ; len(src) >= 4; src = src[4:] {
		b = binary.LittleEndian.AppendUint64(b, hex(binary.LittleEndian.Uint32(src)))
	}
	if len(src) > 0 {
		var last [4]byte
		copy(last[:], src)
		b = binary.LittleEndian.AppendUint64(b, hex(binary.LittleEndian.Uint32(last[:])))
	}
	return b
}

// hex returns the eight hexadecimal digits of four bytes at once. It takes 3.5 ns. That is too long
// for a token of 32 bytes; see hexBytes.
func hex(v uint32) uint64 {
	const ones = 0x0101010101010101
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = x>>4&0x000f000f000f000f | x&0x000f000f000f000f<<8
	letter := (x + 6*ones) >> 4 & ones
	return x + '0'*ones + letter*('a'-'0'-10)
}
