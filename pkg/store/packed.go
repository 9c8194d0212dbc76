package store

import "sync"

// packed holds encoded keys and values of rows for a Write. They are encoded before the Write,
// because its fill function runs under a lock and should only copy.
type packed struct {
	b    []byte
	ends []int // end of each part in b
}

var packedPool = sync.Pool{New: func() any { return new(packed) }}

// newPacked returns an empty packed from the pool. The caller puts it back.
func newPacked() *packed {
	p := packedPool.Get().(*packed)
	p.b, p.ends = p.b[:0], p.ends[:0]
	return p
}

// endPart ends the current part at the end of b.
func (p *packed) endPart() { p.ends = append(p.ends, len(p.b)) }

// part returns part i.
func (p *packed) part(i int) []byte {
	start := 0
	if i > 0 {
		start = p.ends[i-1]
	}
	return p.b[start:p.ends[i]]
}
