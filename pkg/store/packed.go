package store

import "sync"

// packed holds encoded keys and values of rows for a Write. The caller encodes them before the Write,
// because the Write's fill function runs under a lock and should only copy.
type packed struct {
	b    []byte
	ends []int // end of each part, as an index in b
}

var packedPool = sync.Pool{New: func() any { return new(packed) }}

// newPacked returns an empty object of type packed from packedPool. The caller must put the object
// back into the pool.
func newPacked() *packed {
	p := packedPool.Get().(*packed)
	p.b, p.ends = p.b[:0], p.ends[:0]
	return p
}

// endPart ends the current part, which contains the bytes that were appended to b since the last
// call of endPart.
func (p *packed) endPart() { p.ends = append(p.ends, len(p.b)) }

// part returns the bytes of part i.
func (p *packed) part(i int) []byte {
	start := 0
	if i > 0 {
		start = p.ends[i-1]
	}
	return p.b[start:p.ends[i]]
}
