package store

import "sync"

// packed holds the keys and values of rows until a Write copies them: they are packed
// before it, for under its lock they should only be copied.
type packed struct {
	b    []byte
	ends []int // of each part
}

var packedPool = sync.Pool{New: func() any { return new(packed) }}

// newPacked returns an empty one, to be put back into the pool.
func newPacked() *packed {
	p := packedPool.Get().(*packed)
	p.b, p.ends = p.b[:0], p.ends[:0]
	return p
}

// mark ends a part.
func (p *packed) mark() { p.ends = append(p.ends, len(p.b)) }

// part returns the part with a number.
func (p *packed) part(i int) []byte {
	start := 0
	if i > 0 {
		start = p.ends[i-1]
	}
	return p.b[start:p.ends[i]]
}
