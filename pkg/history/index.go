package history

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// chain is the index of a tail: hashes in order of arrival, an entry's place
// being its ordinal, chained from a table of heads. 12 bytes an entry, one
// random write per add into a table that stays in the cache.
type chain struct {
	hashes []uint64
	next   []uint32 // ordinal+1 of the entry before with the same head; 0: none
	head   []uint32 // ordinal+1 of the last entry
	shift  uint8
}

const (
	headBitsMin = 8
	headBitsMax = 16
)

func (c *chain) len() int { return len(c.hashes) }

// add appends hashes in order.
func (c *chain) add(hs []uint64) {
	if len(hs) > c.room() {
		c.grow(len(hs))
	}
	c.extend(copy(c.hashes[len(c.hashes):cap(c.hashes)], hs))
}

// room is how many more hashes fit in.
func (c *chain) room() int { return cap(c.hashes) - len(c.hashes) }

// grow makes room for n more.
func (c *chain) grow(n int) {
	// By four: by the quarter that append would take, a tail of a million was
	// copied four times over, which cost as much as all else here.
	room := max(len(c.hashes)+n, min(4*cap(c.hashes), 1<<20))
	c.hashes = append(make([]uint64, 0, room), c.hashes...)
	c.next = append(make([]uint32, 0, room), c.next...)
}

// extend enters the n hashes that stand in the room behind the last one.
func (c *chain) extend(added int) {
	n := len(c.hashes)
	c.hashes = c.hashes[:n+added]
	c.next = c.next[:n+added]
	if len(c.head) < 1<<headBitsMax && len(c.hashes) > 8*len(c.head) {
		c.rehead()
		return
	}
	c.link(n)
}

// link enters the entries from on.
func (c *chain) link(from int) {
	hashes := c.hashes[from:]
	next := c.next[from:][:len(hashes)]
	head, shift := c.head, c.shift
	for i, h := range hashes {
		slot := &head[h>>(shift&63)]
		next[i] = *slot
		*slot = uint32(from + i + 1)
	}
}

// rehead makes the table of heads large enough and enters everything again.
func (c *chain) rehead() {
	b := min(max(bits.Len(uint(len(c.hashes)/4)), headBitsMin), headBitsMax)
	if cap(c.head) >= 1<<b {
		c.head = c.head[:1<<b]
		clear(c.head)
	} else {
		c.head = make([]uint32, 1<<b)
	}
	c.shift = uint8(64 - b)
	c.link(0)
}

// find appends the ordinals of h, latest first.
func (c *chain) find(dst []uint32, h uint64) []uint32 {
	if len(c.hashes) == 0 {
		return dst
	}
	for o := c.head[h>>c.shift]; o != 0; o = c.next[o-1] {
		if c.hashes[o-1] == h {
			dst = append(dst, o-1)
		}
	}
	return dst
}

// reset empties the chain and keeps its arrays.
func (c *chain) reset() {
	c.hashes, c.next = c.hashes[:0], c.next[:0]
	c.head = c.head[:0]
}

func hashBase(b notify.Base) uint64 { return notify.HashUser(b[:]) }

// The sorted index of a sealed segment.
const (
	entrySize   = 5
	bucketSize  = 16      // entries a directory slot, on average
	maxOrdinals = 1 << 24 // ordinals of an entry
	maxDirBits  = 20
)

// dirBits is the directory's size for n entries, as a power of two.
func dirBits(n int) int { return min(max(bits.Len(uint(n/bucketSize))-1, 0), maxDirBits) }

// indexSize is the size of the index of n entries, in bytes.
func indexSize(n, dirBits int) int64 { return 4*(1<<dirBits+1) + int64(n)*entrySize }

// appendIndex appends the sorted index of hashes, whose places are their
// ordinals: a directory of 2^bits+1 counts on the top bits of the hash, then
// per entry the 16 bits of hash below and the ordinal. Entries of a bucket are
// in order of arrival.
//
// They are sorted by the hash's first byte and then each of those parts by the rest:
// both stay in the first caches, while all at once each of a million entries missed
// them, 13 ns of what a receiver took and now 5 (BenchmarkIndex).
func appendIndex(b []byte, hashes []uint64, dirBits int) []byte {
	n, slots := len(hashes), 1<<dirBits
	start, size := len(b), int(indexSize(n, dirBits))
	if cap(b)-start < size {
		b = append(make([]byte, 0, start+size), b...)
	}
	b = b[:start+size]
	dir, entries := b[start:start+4*(slots+1)], b[start+4*(slots+1):]

	first := min(dirBits, 8)
	keys := sorting.Get().(*[]uint64)
	defer sorting.Put(keys)
	ends := byFirst(keys, hashes, uint(first))
	var at [1 << (maxDirBits - 8)]uint32
	rest := at[:1<<(dirBits-first)]
	sum, slot := uint32(0), 0
	for part, from := 0, uint32(0); part < 1<<first; part++ {
		of := (*keys)[from:ends[part]]
		from = ends[part]
		clear(rest)
		for _, k := range of {
			rest[k<<first>>(64+first-dirBits)]++
		}
		for i := range rest {
			binary.LittleEndian.PutUint32(dir[4*slot:], sum)
			slot++
			rest[i], sum = sum, sum+rest[i]
		}
		for _, k := range of {
			to := &rest[k<<first>>(64+first-dirBits)]
			e := entries[int(*to)*entrySize:][:entrySize]
			*to++
			below := uint16(k << (uint(dirBits) & 63) >> 48)
			e[0], e[1] = byte(below), byte(below>>8)
			e[2], e[3], e[4] = byte(k), byte(k>>8), byte(k>>16)
		}
	}
	binary.LittleEndian.PutUint32(dir[4*slot:], sum)
	return b
}

// sorting keeps the room of byFirst: 8 MB for a segment of a million.
var sorting = sync.Pool{New: func() any { return new([]uint64) }}

// byFirst puts into keys, for each hash, its 40 top bits above its ordinal, sorted by
// the first so many bits, else in order, and returns where each part ends.
func byFirst(keys *[]uint64, hashes []uint64, first uint) (ends [1 << 8]uint32) {
	if cap(*keys) < len(hashes) {
		*keys = make([]uint64, len(hashes))
	}
	*keys = (*keys)[:len(hashes)]
	for _, h := range hashes {
		ends[uint8(h>>(64-first))]++
	}
	sum := uint32(0)
	for i := range ends {
		ends[i], sum = sum, sum+ends[i]
	}
	for o, h := range hashes {
		to := &ends[uint8(h>>(64-first))]
		(*keys)[*to] = h>>24<<24 | uint64(o)
		*to++
	}
	return ends
}

// sortedIndex is the place of an index within a file.
type sortedIndex struct {
	off     int64
	entries int
	bits    int
}

// find appends the ordinals whose hash bits are h's. Two reads; buf is scratch.
func (x sortedIndex) find(r io.ReaderAt, buf []byte, dst []uint32, h uint64) ([]uint32, []byte, error) {
	var d [8]byte
	slot := int64(h >> uint(64-x.bits))
	if err := readFull(r, d[:], x.off+4*slot); err != nil {
		return dst, buf, err
	}
	lo, hi := binary.LittleEndian.Uint32(d[:]), binary.LittleEndian.Uint32(d[4:])
	if lo > hi || int64(hi) > int64(x.entries) {
		return dst, buf, fmt.Errorf("%w: directory slot %d spans %d to %d of %d", errDamaged, slot, lo, hi, x.entries)
	}
	if lo == hi {
		return dst, buf, nil
	}
	n := int(hi-lo) * entrySize
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if err := readFull(r, buf, x.off+4*(1<<x.bits+1)+int64(lo)*entrySize); err != nil {
		return dst, buf, err
	}
	below := uint16(h << uint(x.bits) >> 48)
	for e := buf; len(e) >= entrySize; e = e[entrySize:] {
		if uint16(e[0])|uint16(e[1])<<8 == below {
			dst = append(dst, uint32(e[2])|uint32(e[3])<<8|uint32(e[4])<<16)
		}
	}
	return dst, buf, nil
}

// readFull reads len(b) bytes; a shorter file is damage.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == io.EOF || err == nil {
		return fmt.Errorf("%w: %d of %d bytes at %d", errDamaged, n, len(b), off)
	}
	return err
}
