package pebble

import (
	"encoding/binary"
	"sync"
	"unsafe"
)

// reader takes a packed value apart. After the first damage every read yields
// zero and bad is set. What it returns aliases the value.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v := r.uint()
	return int64(v>>1) ^ -int64(v&1)
}

// count reads how many items follow, of at least size bytes each, so that
// damage cannot make the caller allocate more than the value is long.
func (r *reader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) fixed(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) bytes() []byte {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	return r.fixed(n)
}

func (r *reader) string() string {
	p := r.bytes()
	return unsafe.String(unsafe.SliceData(p), len(p))
}

// done reports whether the whole value was read without damage.
func (r *reader) done() bool { return !r.bad && len(r.b) == 0 }

func appendInt64(b []byte, v int64) []byte { return binary.AppendVarint(b, v) }

func appendLen(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// packed holds encoded rows between a writer and the committer.
type packed struct {
	buf  []byte
	ends []int // of each part
}

var packedPool = sync.Pool{New: func() any { return new(packed) }}

// newPacked returns an empty one, to be put back into the pool.
func newPacked() *packed {
	p := packedPool.Get().(*packed)
	p.buf, p.ends = p.buf[:0], p.ends[:0]
	return p
}

// mark ends a part.
func (p *packed) mark() { p.ends = append(p.ends, len(p.buf)) }

// part returns the part with a number.
func (p *packed) part(i int) []byte {
	start := 0
	if i > 0 {
		start = p.ends[i-1]
	}
	return p.buf[start:p.ends[i]]
}
