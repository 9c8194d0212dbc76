// Package codec packs records into bytes and unpacks them. One function describes the fields of a
// record for both directions, so packing and unpacking cannot differ. Start with Pack and Unpack.
// Packer and Unpacker do the same work without the allocations of Pack and Unpack.
package codec

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"
)

// Codec packs or unpacks one record. After the first damaged field every further field is unpacked
// as zero, and Unpack returns false. All unpacked strings and slices alias one copy of the packed
// bytes. A caller that stores a string for a long time must clone it, because otherwise the string
// keeps the whole record in memory.
type Codec struct {
	b       []byte
	pos     int  // bytes of b that were read
	reading bool // true: the codec unpacks; false: it packs
	damaged bool // true: a field could not be read

	numWords int
	words    [maxWords]string // the strings that Word has packed or unpacked
}

// Pack returns the version byte followed by the fields that fn describes.
func Pack(version byte, fn func(*Codec)) []byte {
	c := Packer(make([]byte, 0, 256), version)
	fn(&c)
	return c.b
}

// Unpack reads a record that Pack wrote. It returns true if it read all bytes and if the record's
// version is from 1 to maxVersion. If the record has a higher version, Unpack reads none of its fields.
func Unpack(b []byte, maxVersion byte, fn func(*Codec)) bool {
	c := Unpacker(b, maxVersion)
	if !c.damaged {
		fn(&c)
	}
	return c.Whole()
}

// Packer returns a codec that appends a record to b. Use it where the allocations of Pack cost too
// much.
func Packer(b []byte, version byte) Codec { return Codec{b: append(b, version)} }

// Packed returns the bytes that the caller gave to Packer, followed by the record.
func (c *Codec) Packed() []byte { return c.b }

// Unpacker returns a codec that reads a record that Packer wrote, if the record's version is from 1 to
// maxVersion. The caller calls Whole after the last field.
func Unpacker(b []byte, maxVersion byte) Codec {
	if len(b) == 0 || b[0] == 0 || b[0] > maxVersion {
		return Codec{reading: true, damaged: true}
	}
	return Codec{b: append([]byte(nil), b[1:]...), reading: true}
}

// Whole reports whether the record was undamaged and was read to its last byte.
func (c *Codec) Whole() bool { return !c.damaged && c.pos == len(c.b) }

func (c *Codec) markDamaged() { c.damaged, c.pos = true, len(c.b) }

// nextBytes returns the next n bytes, or nil if fewer are left.
func (c *Codec) nextBytes(n int) []byte {
	if n > len(c.b)-c.pos {
		c.markDamaged()
		return nil
	}
	c.pos += n
	return c.b[c.pos-n : c.pos : c.pos]
}

// Uint packs or unpacks an unsigned integer of variable length.
func (c *Codec) Uint(v *uint64) {
	switch {
	case !c.reading:
		c.b = binary.AppendUvarint(c.b, *v)
	case c.pos < len(c.b) && c.b[c.pos] < 0x80: // the common case: one byte
		*v = uint64(c.b[c.pos])
		c.pos++
	default:
		u, n := binary.Uvarint(c.b[c.pos:])
		if n <= 0 {
			c.markDamaged()
			u, n = 0, 0
		}
		*v = u
		c.pos += n
	}
}

// Int64 packs or unpacks a signed integer of variable length (zigzag).
func (c *Codec) Int64(v *int64) {
	u := uint64(*v)<<1 ^ uint64(*v>>63)
	c.Uint(&u)
	*v = int64(u>>1) ^ -int64(u&1)
}

// Number is any integer type of at most 64 bits.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Num packs or unpacks an integer of variable length. For 64 random bits use Fixed, which needs 8
// bytes, because Num may need 10 bytes.
func Num[N Number](c *Codec, v *N) {
	if ^N(0) > 0 { // an unsigned type
		u := uint64(*v)
		c.Uint(&u)
		*v = N(u)
		return
	}
	i := int64(*v)
	c.Int64(&i)
	*v = N(i)
}

// Delta packs or unpacks v as its difference from reference. The caller must pass the same reference
// in both directions. The packed difference is short if the two values are close to each other.
func Delta[N Number](c *Codec, v *N, reference N) {
	d := *v - reference
	Num(c, &d)
	*v = reference + d
}

// Fixed packs or unpacks an integer as 8 bytes, little endian.
func (c *Codec) Fixed(v *uint64) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	*v = 0
	if b := c.nextBytes(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// Byte packs or unpacks one byte.
func (c *Codec) Byte(v *byte) {
	if !c.reading {
		c.b = append(c.b, *v)
		return
	}
	*v = 0
	if b := c.nextBytes(1); b != nil {
		*v = b[0]
	}
}

// Bool packs or unpacks a bool as one byte.
func (c *Codec) Bool(v *bool) {
	var n byte
	if *v {
		n = 1
	}
	c.Byte(&n)
	*v = n == 1
}

// Len packs or unpacks the length of a list. Each item of the list takes at least one byte. If an
// unpacked length is greater than the number of unread bytes, Len marks the record as damaged and
// returns 0. So a damaged length cannot make Slice allocate more items than the record has bytes.
func (c *Codec) Len(n int) int {
	u := uint64(n)
	c.Uint(&u)
	if c.reading && u > uint64(len(c.b)-c.pos) || u > math.MaxInt32 {
		c.markDamaged()
		return 0
	}
	return int(u)
}

// Str packs or unpacks a string as its length and its bytes.
func (c *Codec) Str(v *string) {
	n := c.Len(len(*v))
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	*v = unsafe.String(unsafe.SliceData(c.nextBytes(n)), n)
}

// maxWords is how many words a record's table of words can contain. When the table is full, each
// further word is packed as a whole string every time.
const maxWords = 8

// Word packs or unpacks a string that may occur many times in a record. Word writes a repeated string
// as its number in the table of words.
func (c *Codec) Word(v *string) {
	var n uint64 // 0: the empty string; 1: the string follows; 2 or more: word n-2
	if !c.reading && *v != "" {
		n = uint64(slices.Index(c.words[:c.numWords], *v) + 2)
	}
	switch c.Uint(&n); {
	case n == 0:
		*v = ""
	case n >= 2 && n < 2+maxWords:
		*v = c.words[n-2]
	case n > 2:
		c.markDamaged()
	default:
		if c.Str(v); c.numWords < maxWords {
			c.words[c.numWords] = *v
			c.numWords++
		}
	}
}

// Bytes packs or unpacks a byte slice as its length and its bytes. It unpacks a slice of length 0 as
// nil.
func (c *Codec) Bytes(v *[]byte) {
	n := c.Len(len(*v))
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	*v = nil
	if n > 0 {
		*v = c.nextBytes(n)
	}
}

// Raw packs or unpacks len(v) bytes without a length. The caller must pass a v of the same length in
// both directions.
func (c *Codec) Raw(v []byte) {
	if !c.reading {
		c.b = append(c.b, v...)
		return
	}
	copy(v, c.nextBytes(len(v)))
}

// Slice packs the length of a slice, or unpacks it and allocates the slice. The caller then
// packs or unpacks the items in order. An empty slice is unpacked as nil.
func Slice[V any](c *Codec, vs *[]V) {
	n := c.Len(len(*vs))
	if !c.reading {
		return
	}
	*vs = nil
	if n > 0 {
		*vs = make([]V, n)
	}
}
