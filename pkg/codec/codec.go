// Package codec packs records into bytes and unpacks them. One function describes a
// record for both ways, so that the two cannot differ.
package codec

import (
	"encoding/binary"
	"math"
)

// Codec packs or unpacks one record. After the first damage every read yields zero,
// and Unpack reports false. What it unpacks shares no memory with the packed bytes.
type Codec struct {
	b    []byte
	read bool
	bad  bool
}

// Pack returns the version and what fn describes.
func Pack(version byte, fn func(*Codec)) []byte {
	c := Codec{b: append(make([]byte, 0, 256), version)}
	fn(&c)
	return c.b
}

// Unpack reads what Pack returned. It reports whether all of it was read and its
// version was 1 to version; of a newer version nothing is read.
func Unpack(b []byte, version byte, fn func(*Codec)) bool {
	if len(b) == 0 || b[0] == 0 || b[0] > version {
		return false
	}
	c := Codec{b: b[1:], read: true}
	fn(&c)
	return !c.bad && len(c.b) == 0
}

// Uint is an unsigned integer of variable length.
func (c *Codec) Uint(v *uint64) {
	if !c.read {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	u, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.bad, c.b, u, n = true, nil, 0, 0
	}
	*v, c.b = u, c.b[n:]
}

// Int64 is an integer of variable length.
func (c *Codec) Int64(v *int64) {
	if !c.read {
		c.b = binary.AppendVarint(c.b, *v)
		return
	}
	i, n := binary.Varint(c.b)
	if n <= 0 {
		c.bad, c.b, i, n = true, nil, 0, 0
	}
	*v, c.b = i, c.b[n:]
}

// Number is every integer that fits into 64 bits.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Num is any integer but those of 64 random bits, which Fixed is for.
func Num[N Number](c *Codec, v *N) {
	i := int64(*v)
	c.Int64(&i)
	*v = N(i)
}

// Fixed is an integer of 8 bytes.
func (c *Codec) Fixed(v *uint64) {
	if !c.read {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	if len(c.b) < 8 {
		c.bad, c.b = true, nil
		*v = 0
		return
	}
	*v, c.b = binary.LittleEndian.Uint64(c.b), c.b[8:]
}

// Bool is one byte.
func (c *Codec) Bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	Num(c, &n)
	*v = n == 1
}

// Len is the length of a list whose items take at least a byte each, so that
// damage cannot make the reader allocate more than the value is long.
func (c *Codec) Len(n int) int {
	u := uint64(n)
	c.Uint(&u)
	if c.read && u > uint64(len(c.b)) || u > math.MaxInt32 {
		c.bad, c.b = true, nil
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
	*v, c.b = string(c.b[:n]), c.b[n:]
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
		*v = append([]byte(nil), c.b[:n]...)
	}
	c.b = c.b[n:]
}

// Raw is a part of a length that is known.
func (c *Codec) Raw(v []byte) {
	if !c.read {
		c.b = append(c.b, v...)
		return
	}
	if len(c.b) < len(v) {
		c.bad, c.b = true, nil
		return
	}
	copy(v, c.b)
	c.b = c.b[len(v):]
}

// List is a slice; nil and empty are unpacked as nil.
func List[V any](c *Codec, vs *[]V, item func(*Codec, *V)) {
	n := c.Len(len(*vs))
	if c.read {
		*vs = nil
		if n > 0 {
			*vs = make([]V, n)
		}
	}
	for i := range *vs {
		item(c, &(*vs)[i])
	}
}
