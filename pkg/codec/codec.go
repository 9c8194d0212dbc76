// Package codec packs records into bytes and unpacks them. One function describes a
// record for both ways, so that the two cannot differ.
package codec

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"
)

// Codec packs or unpacks one record. After the first damage every read yields zero,
// and Unpack reports false. What is unpacked shares one copy of the packed bytes: who
// keeps a text of a record for long clones it.
type Codec struct {
	b    []byte
	at   int // what of b was read
	read bool
	bad  bool

	numWords int
	words    [maxWords]string // see Word
}

// Pack returns the version and what fn describes.
func Pack(version byte, fn func(*Codec)) []byte {
	c := Packer(make([]byte, 0, 256), version)
	fn(&c)
	return c.b
}

// Unpack reads what Pack returned. It reports whether all of it was read and its
// version was 1 to version; of a newer version nothing is read.
func Unpack(b []byte, version byte, fn func(*Codec)) bool {
	c := Unpacker(b, version)
	if !c.bad {
		fn(&c)
	}
	return c.Whole()
}

// Packer returns a codec that appends a record to b. It is for paths on which the
// allocations of Pack cost too much.
func Packer(b []byte, version byte) Codec { return Codec{b: append(b, version)} }

// Packed returns the bytes with the record.
func (c *Codec) Packed() []byte { return c.b }

// Unpacker returns a codec that reads what Packer wrote. It is for such paths, too; see
// Whole.
func Unpacker(b []byte, version byte) Codec {
	if len(b) == 0 || b[0] == 0 || b[0] > version {
		return Codec{read: true, bad: true}
	}
	return Codec{b: append([]byte(nil), b[1:]...), read: true}
}

// Whole reports what Unpack does, once the record was read.
func (c *Codec) Whole() bool { return !c.bad && c.at == len(c.b) }

func (c *Codec) damaged() { c.bad, c.at = true, len(c.b) }

// next returns the next n bytes, nil if there are fewer.
func (c *Codec) next(n int) []byte {
	if n > len(c.b)-c.at {
		c.damaged()
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at : c.at]
}

// Uint is an unsigned integer of variable length.
func (c *Codec) Uint(v *uint64) {
	switch {
	case !c.read:
		c.b = binary.AppendUvarint(c.b, *v)
	case c.at < len(c.b) && c.b[c.at] < 0x80: // most
		*v = uint64(c.b[c.at])
		c.at++
	default:
		u, n := binary.Uvarint(c.b[c.at:])
		if n <= 0 {
			c.damaged()
			u, n = 0, 0
		}
		*v = u
		c.at += n
	}
}

// Int64 is an integer of variable length.
func (c *Codec) Int64(v *int64) {
	u := uint64(*v)<<1 ^ uint64(*v>>63)
	c.Uint(&u)
	*v = int64(u>>1) ^ -int64(u&1)
}

// Number is every integer that fits into 64 bits.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Num is any integer but those of 64 random bits, which Fixed is for.
func Num[N Number](c *Codec, v *N) {
	if ^N(0) > 0 { // it has no sign
		u := uint64(*v)
		c.Uint(&u)
		*v = N(u)
		return
	}
	i := int64(*v)
	c.Int64(&i)
	*v = N(i)
}

// Delta is an integer that lies near another one, which is known.
func Delta[N Number](c *Codec, v *N, near N) {
	d := *v - near
	Num(c, &d)
	*v = near + d
}

// Fixed is an integer of 8 bytes.
func (c *Codec) Fixed(v *uint64) {
	if !c.read {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	*v = 0
	if b := c.next(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

// Byte is one byte.
func (c *Codec) Byte(v *byte) {
	if !c.read {
		c.b = append(c.b, *v)
		return
	}
	*v = 0
	if b := c.next(1); b != nil {
		*v = b[0]
	}
}

// Bool is one byte.
func (c *Codec) Bool(v *bool) {
	var n byte
	if *v {
		n = 1
	}
	c.Byte(&n)
	*v = n == 1
}

// Len is the length of a list whose items take at least a byte each, so that
// damage cannot make the reader allocate more than the value is long.
func (c *Codec) Len(n int) int {
	u := uint64(n)
	c.Uint(&u)
	if c.read && u > uint64(len(c.b)-c.at) || u > math.MaxInt32 {
		c.damaged()
		return 0
	}
	return int(u)
}

// Str is a text, behind its length.
func (c *Codec) Str(v *string) {
	n := c.Len(len(*v))
	if !c.read {
		c.b = append(c.b, *v...)
		return
	}
	*v = unsafe.String(unsafe.SliceData(c.next(n)), n)
}

// maxWords bounds the table of words of a record. Further ones are written in full.
const maxWords = 8

// Word is a text that a record may hold many times.
func (c *Codec) Word(v *string) {
	var n uint64 // 0: empty, 1: a text follows, else word n-2
	if !c.read && *v != "" {
		n = uint64(slices.Index(c.words[:c.numWords], *v) + 2)
	}
	switch c.Uint(&n); {
	case n == 0:
		*v = ""
	case n >= 2 && n < 2+maxWords:
		*v = c.words[n-2]
	case n > 2:
		c.damaged()
	default:
		if c.Str(v); c.numWords < maxWords {
			c.words[c.numWords] = *v
			c.numWords++
		}
	}
}

// Bytes of length 0 are unpacked as nil.
func (c *Codec) Bytes(v *[]byte) {
	n := c.Len(len(*v))
	if !c.read {
		c.b = append(c.b, *v...)
		return
	}
	*v = nil
	if n > 0 {
		*v = c.next(n)
	}
}

// Raw is a part of a length that is known.
func (c *Codec) Raw(v []byte) {
	if !c.read {
		c.b = append(c.b, v...)
		return
	}
	copy(v, c.next(len(v)))
}

// Slice is the length of a slice whose items the caller packs or unpacks next, in
// order. Nil and empty are unpacked as nil.
func Slice[V any](c *Codec, vs *[]V) {
	n := c.Len(len(*vs))
	if !c.read {
		return
	}
	*vs = nil
	if n > 0 {
		*vs = make([]V, n)
	}
}

// List is a slice, each item as item describes it.
func List[V any](c *Codec, vs *[]V, item func(*Codec, *V)) {
	Slice(c, vs)
	for i := range *vs {
		item(c, &(*vs)[i])
	}
}
