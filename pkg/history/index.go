package history

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/notifyd/notifyd/pkg/notify"
)

// chain is the index of a tail: a hash table with chaining. An entry's position is its ordinal. An
// entry takes 12 bytes. Adding an entry makes a single random write, into a table that stays in the
// CPU cache.
type chain struct {
	hashes []uint64
	next   []uint32 // by entry: ordinal+1 of the previous entry in the same slot of head; 0: none
	head   []uint32 // by slot: ordinal+1 of the latest entry; 0: none
	shift  uint8
}

const (
	headBitsMin = 8
	headBitsMax = 16
)

func (c *chain) len() int { return len(c.hashes) }

// add appends the given hashes, in order.
func (c *chain) add(hs []uint64) {
	if len(hs) > c.room() {
		c.grow(len(hs))
	}
	c.extend(copy(c.hashes[len(c.hashes):cap(c.hashes)], hs))
}

// room returns how many more hashes fit without growing.
func (c *chain) room() int { return cap(c.hashes) - len(c.hashes) }

// grow makes room for at least n more hashes.
func (c *chain) grow(n int) {
	// Grow by a factor of four. The built-in append would grow the slice by only a quarter. So it
	// would copy a tail of a million entries four times, which took as much time as everything
	// else in this file.
	room := max(len(c.hashes)+n, min(4*cap(c.hashes), 1<<20))
	c.hashes = append(make([]uint64, 0, room), c.hashes...)
	c.next = append(make([]uint32, 0, room), c.next...)
}

// extend adds the next hashCount hashes to the index. The caller has already copied these
// hashes to the end of c.hashes, where the free room is.
func (c *chain) extend(hashCount int) {
	n := len(c.hashes)
	c.hashes = c.hashes[:n+hashCount]
	c.next = c.next[:n+hashCount]
	if len(c.head) < 1<<headBitsMax && len(c.hashes) > 8*len(c.head) {
		c.rebuildHeads()
		return
	}
	c.link(n)
}

// link adds to the head table all entries with an ordinal of minOrdinal or more.
func (c *chain) link(minOrdinal int) {
	hashes := c.hashes[minOrdinal:]
	next := c.next[minOrdinal:][:len(hashes)]
	head, shift := c.head, c.shift
	for i, h := range hashes {
		slot := &head[h>>(shift&63)]
		next[i] = *slot
		*slot = uint32(minOrdinal + i + 1)
	}
}

// rebuildHeads makes the head table large enough for all entries and adds all entries again.
func (c *chain) rebuildHeads() {
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

// find appends to dst the ordinals of the entries with the hash h, latest first.
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

// reset empties the chain and keeps its arrays for reuse.
func (c *chain) reset() {
	c.hashes, c.next = c.hashes[:0], c.next[:0]
	c.head = c.head[:0]
}

func hashBase(b notify.Base) uint64 { return notify.HashUser(b[:]) }

// Layout of the sorted index of a sealed segment.
const (
	entrySize   = 5
	bucketSize  = 16      // average number of entries per directory slot
	maxOrdinals = 1 << 24 // an entry has 24 bits of ordinal
	maxDirBits  = 20
)

// dirBits returns the base-2 logarithm of the directory's size for n entries.
func dirBits(n int) int { return min(max(bits.Len(uint(n/bucketSize))-1, 0), maxDirBits) }

// indexSize returns the size of an index of n entries, in bytes.
func indexSize(n, dirBits int) int64 { return 4*(1<<dirBits+1) + int64(n)*entrySize }

// appendIndex appends the sorted index of hashes. A hash's position in the slice is its ordinal.
// The index begins with a directory of 2^dirBits+1 numbers. For each value of the hash's top bits,
// the directory has the number of entries before the first entry with this value; the last number
// counts all entries. Then each entry has the next 16 bits of its hash and its ordinal. Entries of
// one slot are in the order of their ordinals.
//
// appendIndex sorts by the first byte of the hash, and then sorts each group by the other directory
// bits. Both steps stay in the first-level caches. Sorting a million entries in one step missed the
// cache at each entry and took 13 ns per receiver. The two steps take 5 ns (BenchmarkIndex).
func appendIndex(b []byte, hashes []uint64, dirBits int) []byte {
	n, slots := len(hashes), 1<<dirBits
	start, size := len(b), int(indexSize(n, dirBits))
	if cap(b)-start < size {
		b = append(make([]byte, 0, start+size), b...)
	}
	b = b[:start+size]
	dir, entries := b[start:start+4*(slots+1)], b[start+4*(slots+1):]

	first := min(dirBits, 8)
	keys := sortBuffers.Get().(*[]uint64)
	defer sortBuffers.Put(keys)
	ends := sortByFirstBits(keys, hashes, uint(first))
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

// sortBuffers keeps the buffers of sortByFirstBits: 8 MB for a segment of a million receivers.
var sortBuffers = sync.Pool{New: func() any { return new([]uint64) }}

// sortByFirstBits fills keys with one key per hash: the top 40 bits of the hash, followed by its
// ordinal. It sorts the keys only by their highest bitCount bits. Keys that are equal in these bits
// keep their order. It returns the end index of each group.
func sortByFirstBits(keys *[]uint64, hashes []uint64, bitCount uint) (ends [1 << 8]uint32) {
	if cap(*keys) < len(hashes) {
		*keys = make([]uint64, len(hashes))
	}
	*keys = (*keys)[:len(hashes)]
	for _, h := range hashes {
		ends[uint8(h>>(64-bitCount))]++
	}
	sum := uint32(0)
	for i := range ends {
		ends[i], sum = sum, sum+ends[i]
	}
	for o, h := range hashes {
		to := &ends[uint8(h>>(64-bitCount))]
		(*keys)[*to] = h>>24<<24 | uint64(o)
		*to++
	}
	return ends
}

// sortedIndex is the position and size of an index in a file.
type sortedIndex struct {
	off     int64
	entries int
	bits    int
}

// find appends to dst the ordinals of the entries that match h in the bits that the index
// contains. It makes two reads of the file. The parameter buf is scratch memory; find returns it,
// possibly grown.
func (x sortedIndex) find(r io.ReaderAt, buf []byte, dst []uint32, h uint64) ([]uint32, []byte, error) {
	var d [8]byte
	slot := int64(h >> uint(64-x.bits))
	if err := readFull(r, d[:], x.off+4*slot); err != nil {
		return dst, buf, err
	}
	lo, hi := binary.LittleEndian.Uint32(d[:]), binary.LittleEndian.Uint32(d[4:])
	if lo > hi || int64(hi) > int64(x.entries) {
		return dst, buf, fmt.Errorf("%w: directory slot %d has the impossible range %d to %d; the index has %d entries", errDamaged, slot, lo, hi, x.entries)
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

// readFull reads len(b) bytes. It returns errDamaged if the file is shorter.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == io.EOF || err == nil {
		return fmt.Errorf("%w: only %d of %d bytes could be read at offset %d", errDamaged, n, len(b), off)
	}
	return err
}
