package cassandra

import (
	"encoding/binary"
	"math"
)

// codec packs and unpacks values: one description of a type serves both ways.
// After the first damage every read yields zero and bad is set. What it unpacks
// aliases nothing that the driver keeps.
type codec struct {
	b    []byte
	read bool
	bad  bool
}

// pack returns the version and what fn describes.
func pack(version byte, fn func(*codec)) []byte {
	c := codec{b: append(make([]byte, 0, 256), version)}
	fn(&c)
	return c.b
}

// unpack reads what pack returned; it reports whether all of it was read and
// its version was at most version. Where it reports false, unread says why.
func unpack(b []byte, version byte, fn func(*codec)) bool {
	if len(b) == 0 || b[0] == 0 || b[0] > version {
		return false
	}
	c := codec{b: b[1:], read: true}
	fn(&c)
	return !c.bad && len(c.b) == 0
}

func (c *codec) uint(v *uint64) {
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

func (c *codec) int64(v *int64) {
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

// number is every integer that fits into 64 bits.
type number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// num is any integer but those of 64 random bits, which fixed is for.
func num[N number](c *codec, v *N) {
	i := int64(*v)
	c.int64(&i)
	*v = N(i)
}

func (c *codec) fixed(v *uint64) {
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

func (c *codec) bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	num(c, &n)
	*v = n == 1
}

// len is the length of a list whose items take at least a byte each, so that
// damage cannot make the reader allocate more than the value is long.
func (c *codec) len(n int) int {
	u := uint64(n)
	c.uint(&u)
	if c.read && u > uint64(len(c.b)) || u > math.MaxInt32 {
		c.bad, c.b = true, nil
		return 0
	}
	return int(u)
}

func (c *codec) str(v *string) {
	n := c.len(len(*v))
	if !c.read {
		c.b = append(c.b, *v...)
		return
	}
	*v, c.b = string(c.b[:n]), c.b[n:]
}

// bytes of length 0 are unpacked as nil.
func (c *codec) bytes(v *[]byte) {
	n := c.len(len(*v))
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

// raw is a part of a length that is known.
func (c *codec) raw(v []byte) {
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

// list is a slice; nil and empty are unpacked as nil.
func list[V any](c *codec, vs *[]V, item func(*codec, *V)) {
	n := c.len(len(*vs))
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
