package prefs

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// table maps byte keys to short byte values for readers that never wait. It
// is cut into shards by the top bits of the key's hash; a shard is an
// immutable state behind an atomic pointer: a compact open-addressed table
// over an arena, and a short list of changes since. A change copies the list;
// every overlayMax changes the shard is packed again. No pointer per entry, so
// that millions of them cost the garbage collector nothing.
//
// Memory: key and value and 2 to 4 bytes of lengths, rounded up to 32, and 4
// bytes a slot at a load of 3/8 to 3/4. An entry of up to 64 bytes lies in one cache
// line: one that would begin in the second half of a line and not end there begins
// in the next, behind an entry without a key.
type table struct {
	shards [shards]shard
	live   atomic.Int64
}

const (
	shardBits  = 10
	shards     = 1 << shardBits
	overlayMax = 64

	// Entries begin at multiples of unit: a slot names one in few bits.
	unit        = 32
	minUnitBits = 8
)

type shard struct {
	state atomic.Pointer[state]
	mu    sync.Mutex // of writers
}

// state never changes once published.
type state struct {
	// A slot is the number of an entry's unit + 1 in the low unitBits, whether the
	// entry is of more than one cache line in the next, and as many of the hash's
	// low bits as fit above, so that a foreign entry is hardly ever read. 4 bytes,
	// not 8: those of 5M users take 32 MiB.
	slots    []uint32
	arena    []byte // {uvarint key length, uvarint value length, key, value, padding}...; no key: padding
	over     []change
	count    int // entries of the arena
	unitBits uint8
}

// change is a recent write of one key; at most one a key.
type change struct {
	hash       uint64
	key, value []byte
	gone       bool
}

func (t *table) len() int { return int(t.live.Load()) }

func (t *table) stateOf(hash uint64) *state { return t.shards[hash>>(64-shardBits)].state.Load() }

// get returns the value of a key. It aliases memory that never changes.
func (t *table) get(hash uint64, key []byte) ([]byte, bool) {
	s := t.stateOf(hash)
	if s == nil {
		return nil, false
	}
	if v, changed, ok := s.changed(hash, key); changed {
		return v, ok
	}
	return s.get(hash, key)
}

// changed looks for a key among the changes.
func (s *state) changed(hash uint64, key []byte) (value []byte, changed, ok bool) {
	for i := range s.over {
		if c := &s.over[i]; c.hash == hash && string(c.key) == string(key) {
			return c.value, true, !c.gone
		}
	}
	return nil, false, false
}

// get looks for a key in the arena.
func (s *state) get(hash uint64, key []byte) ([]byte, bool) {
	if len(s.slots) == 0 {
		return nil, false
	}
	mask := uint64(len(s.slots) - 1)
	tag := s.tag(hash)
	for i := place(hash) & mask; ; i = (i + 1) & mask {
		slot := s.slots[i]
		if slot == 0 {
			return nil, false
		}
		if at, mine := s.entryAt(slot, tag); mine {
			if k, v, _ := entry(s.arena[at:]); string(k) == string(key) {
				return v, true
			}
		}
	}
}

// place is where a hash begins in a shard's slots: bits that neither the
// shard's number nor the tag use up.
func place(hash uint64) uint64 { return hash >> 24 }

func (s *state) tag(hash uint64) uint32 { return uint32(hash) << 1 << s.unitBits }

// wide reports whether the entry of a slot is of more than one cache line.
func (s *state) wide(slot uint32) bool { return slot>>s.unitBits&1 != 0 }

// seek returns the first slot that may be of a hash, 0 if there is none, and where
// its entry begins. There must be slots.
func (s *state) seek(hash uint64) (slot uint32, at int) {
	mask := uint64(len(s.slots) - 1)
	tag := s.tag(hash)
	for i := place(hash) & mask; ; i = (i + 1) & mask {
		slot = s.slots[i]
		if slot == 0 {
			return 0, 0
		}
		if at, mine := s.entryAt(slot, tag); mine {
			return slot, at
		}
	}
}

// entryAt is where in the arena the entry of a slot begins, if the slot has the tag.
func (s *state) entryAt(slot, tag uint32) (at int, mine bool) {
	low := uint32(1)<<s.unitBits - 1
	return int(slot&low-1) * unit, (slot^tag)>>s.unitBits>>1 == 0
}

// entry reads the entry that b begins with; size is without its padding.
func entry(b []byte) (key, value []byte, size int) {
	if len(b) > 2 && b[0] < 0x80 && b[1] < 0x80 {
		k, v := int(b[0]), int(b[1])
		b = b[2:]
		return b[:k:k], b[k : k+v : k+v], 2 + k + v
	}
	k64, n := binary.Uvarint(b)
	v64, m := binary.Uvarint(b[n:])
	k, v := int(k64), int(v64)
	b = b[n+m:]
	return b[:k:k], b[k : k+v : k+v], n + m + k + v
}

// valueOf returns the value of the entry that b begins with if its key is this one.
func valueOf(b, key []byte) ([]byte, bool) {
	if n := len(key); n < 0x80 && int(b[0]) == n && b[1] < 0x80 { // nearly all
		b = b[2 : 2+n+int(b[1])]
		return b[n:len(b):len(b)], string(b[:n]) == string(key)
	}
	k, v, _ := entry(b)
	return v, string(k) == string(key)
}

// set stores a value, or removes the key when value is nil. A key has a byte or more.
func (t *table) set(hash uint64, key, value []byte) {
	sh := &t.shards[hash>>(64-shardBits)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	old := sh.state.Load()
	if old == nil {
		old = &state{}
	}
	_, had := t.get(hash, key)
	if !had && value == nil {
		return
	}
	c := change{hash: hash, key: slices.Clone(key), value: slices.Clone(value), gone: value == nil}
	next := *old
	next.over = make([]change, 0, len(old.over)+1)
	for _, o := range old.over {
		if o.hash != hash || string(o.key) != string(key) {
			next.over = append(next.over, o)
		}
	}
	next.over = append(next.over, c)
	if len(next.over) > overlayMax {
		next = *next.packed()
	}
	sh.state.Store(&next)
	switch {
	case !had:
		t.live.Add(1)
	case c.gone:
		t.live.Add(-1)
	}
}

// packed returns the same content without an overlay, of exactly fitting size.
func (s *state) packed() *state {
	size, count := 0, 0
	s.each(func(_ uint64, k, v []byte) { _, size = room(size, entrySize(k, v)); count++ })
	arena := make([]byte, 0, size)
	s.each(func(_ uint64, k, v []byte) { arena = appendEntry(arena, k, v) })
	return index(arena, make([]uint32, slotsFor(count)), count)
}

// each visits the live entries.
func (s *state) each(fn func(hash uint64, key, value []byte)) {
	for at := 0; at < len(s.arena); {
		k, v, size := entry(s.arena[at:])
		at += padded(size)
		if len(k) == 0 {
			continue
		}
		h := hashKey(k)
		if !slices.ContainsFunc(s.over, func(c change) bool { return c.hash == h && string(c.key) == string(k) }) {
			fn(h, k, v)
		}
	}
	for _, c := range s.over {
		if !c.gone {
			fn(c.hash, c.key, c.value)
		}
	}
}

// index makes a state of an arena of so many entries, all of them of different
// keys. slots are zero, and enough (slotsFor).
func index(arena []byte, slots []uint32, count int) *state {
	return indexBy(arena, slots, count, uint8(max(bits.Len(uint(len(arena)/unit)), minUnitBits)))
}

func indexBy(arena []byte, slots []uint32, count int, unitBits uint8) *state {
	s := &state{arena: arena, slots: slots, count: count, unitBits: unitBits}
	if count == 0 {
		return s
	}
	mask := uint64(len(slots) - 1)
	for at := 0; at < len(arena); {
		k, _, size := entry(arena[at:])
		if len(k) > 0 {
			h := hashKey(k)
			i := place(h) & mask
			for slots[i] != 0 {
				i = (i + 1) & mask
			}
			slots[i] = s.tag(h) | uint32(at/unit+1)
			if size > cacheLine {
				slots[i] |= 1 << s.unitBits
			}
		}
		at += padded(size)
	}
	return s
}

// slotsFor is the table size for n entries: a load of at most 3/4.
func slotsFor(n int) int {
	if n == 0 {
		return 0
	}
	return max(8, 1<<bits.Len(uint((n*4+2)/3)))
}

func appendEntry(b, key, value []byte) []byte {
	from, _ := room(len(b), entrySize(key, value))
	b = append(b, none[:from-len(b)]...)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = append(append(b, key...), value...)
	size := len(b) - from
	return append(b, none[:padded(size)-size]...)
}

// none is padding, and an entry without a key.
var none [unit]byte

// room is where an entry of so many bytes lies that is added at: within one cache
// line if it fits in one.
func room(at, size int) (from, to int) {
	if size > unit && size <= cacheLine && at%cacheLine != 0 {
		at += unit
	}
	return at, at + padded(size)
}

func padded(size int) int { return (size + unit - 1) / unit * unit }

func entrySize(k, v []byte) int {
	return uvarintLen(len(k)) + uvarintLen(len(v)) + len(k) + len(v)
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// loader fills a table that nobody writes to meanwhile; readers see nothing
// of it until done. A key may be added once.
type loader struct {
	t      *table
	arenas [shards][]byte
	counts [shards]int
}

func (l *loader) add(hash uint64, key, value []byte) {
	i := hash >> (64 - shardBits)
	l.arenas[i] = appendEntry(l.arenas[i], key, value)
	l.counts[i]++
}

// together is how many shards' memory is one piece: large enough for large
// pages, without which a look-up among millions of entries takes twice as long
// (BenchmarkLook). A piece is free once each of its shards has been packed again.
const together = 256

// wholeLines is the least multiple of a cache line that is not below n.
func wholeLines(n int) int { return (n + cacheLine - 1) &^ (cacheLine - 1) }

// done publishes, piece by piece: the peak is one piece above the sum.
func (l *loader) done() {
	n := 0
	for from := 0; from < shards; from += together {
		size, slots := 0, 0
		for i := from; i < from+together; i++ {
			size += wholeLines(len(l.arenas[i]))
			slots += slotsFor(l.counts[i])
		}
		arenas, indexes := make([]byte, size), make([]uint32, slots)
		pieces := [...][]byte{arenas, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(indexes))), 4*slots)}
		for _, p := range pieces {
			preferLargePages(p)
		}
		for i := from; i < from+together; i++ {
			var s *state
			if count := l.counts[i]; count > 0 {
				k, m := copy(arenas, l.arenas[i]), slotsFor(count)
				s = index(arenas[:k:k], indexes[:m:m], count)
				arenas, indexes = arenas[wholeLines(k):], indexes[m:]
				n += count
			}
			l.arenas[i], l.counts[i] = nil, 0
			l.t.shards[i].state.Store(s)
		}
		for _, p := range pieces {
			makeLargePages(p)
		}
	}
	l.t.live.Store(int64(n))
}
