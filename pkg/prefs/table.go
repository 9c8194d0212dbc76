package prefs

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// table maps byte keys to short byte values for readers that never wait. It
// is cut into shards by the top bits of the key's hash; a shard is an
// immutable state behind an atomic pointer: a compact open-addressed table
// over an arena, and a short list of changes since. A change copies the list;
// every overlayMax changes the shard is packed again. No pointer per entry, so
// that millions of them cost the garbage collector nothing.
//
// Memory: key and value, 2 to 4 bytes of lengths, 8 bytes a slot at a load of
// 3/8 to 3/4.
type table struct {
	shards [shards]shard
	live   atomic.Int64
}

const (
	shardBits  = 10
	shards     = 1 << shardBits
	overlayMax = 64

	// A slot is 40 bits of arena offset + 1 and 24 bits of hash, so that a
	// foreign entry is hardly ever read.
	offsetBits = 40
	offsetMask = 1<<offsetBits - 1
)

type shard struct {
	state atomic.Pointer[state]
	mu    sync.Mutex // of writers
}

// state never changes once published.
type state struct {
	slots []uint64
	arena []byte // {uvarint key length, uvarint value length, key, value}...
	count int
	over  []change
}

// change is a recent write of one key; at most one a key.
type change struct {
	hash       uint64
	key, value []byte
	gone       bool
}

func (t *table) len() int { return int(t.live.Load()) }

// get returns the value of a key. It aliases memory that never changes.
func (t *table) get(hash uint64, key []byte) ([]byte, bool) {
	s := t.shards[hash>>(64-shardBits)].state.Load()
	if s == nil {
		return nil, false
	}
	for i := range s.over {
		if c := &s.over[i]; c.hash == hash && string(c.key) == string(key) {
			return c.value, !c.gone
		}
	}
	return s.get(hash, key)
}

func (s *state) get(hash uint64, key []byte) ([]byte, bool) {
	if len(s.slots) == 0 {
		return nil, false
	}
	mask := uint64(len(s.slots) - 1)
	for i := place(hash) & mask; ; i = (i + 1) & mask {
		slot := s.slots[i]
		if slot == 0 {
			return nil, false
		}
		if slot>>offsetBits == hash&(1<<(64-offsetBits)-1) {
			if k, v := s.entry(slot & offsetMask); string(k) == string(key) {
				return v, true
			}
		}
	}
}

// place is where a hash begins in a shard's slots: bits that neither the
// shard's number nor the tag use up.
func place(hash uint64) uint64 { return hash >> 24 }

// entry reads the entry whose offset + 1 is given.
func (s *state) entry(at uint64) (key, value []byte) {
	b := s.arena[at-1:]
	if len(b) > 2 && b[0] < 0x80 && b[1] < 0x80 {
		k, v := int(b[0]), int(b[1])
		b = b[2:]
		return b[:k:k], b[k : k+v : k+v]
	}
	k, n := binary.Uvarint(b)
	v, m := binary.Uvarint(b[n:])
	b = b[n+m:]
	return b[:k:k], b[k : k+v : k+v]
}

// touch reads what lookups of these hashes will read: first all slots, then
// all entries, so that the cache misses of each kind overlap. The result only
// keeps the reads from being left out.
func (t *table) touch(hashes []uint64) (sum uint64) {
	for _, h := range hashes {
		if s := t.shards[h>>(64-shardBits)].state.Load(); s != nil && len(s.slots) > 0 {
			sum += s.slots[place(h)&uint64(len(s.slots)-1)]
		}
	}
	for _, h := range hashes {
		s := t.shards[h>>(64-shardBits)].state.Load()
		if s == nil || len(s.slots) == 0 {
			continue
		}
		mask := uint64(len(s.slots) - 1)
		i := place(h) & mask
		for s.slots[i] != 0 && s.slots[i]>>offsetBits != h&(1<<(64-offsetBits)-1) {
			i = (i + 1) & mask
		}
		if at := s.slots[i] & offsetMask; at != 0 { // an address of 64 bytes takes a second cache line
			sum += uint64(s.arena[at-1]) + uint64(s.arena[min(at+63, uint64(len(s.arena)-1))])
		}
	}
	return sum
}

// set stores a value, or removes the key when value is nil.
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
	s.each(func(_ uint64, k, v []byte) { size += entrySize(k, v); count++ })
	p := &state{arena: make([]byte, 0, size), slots: make([]uint64, slotsFor(count))}
	s.each(func(h uint64, k, v []byte) { p.insert(h, k, v) })
	return p
}

// each visits the live entries.
func (s *state) each(fn func(hash uint64, key, value []byte)) {
	for _, slot := range s.slots {
		if slot == 0 {
			continue
		}
		k, v := s.entry(slot & offsetMask)
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

// insert adds an entry that is not there; for states not published yet.
func (s *state) insert(hash uint64, key, value []byte) {
	if 4*(s.count+1) > 3*len(s.slots) {
		s.grow()
	}
	at := uint64(len(s.arena)) + 1
	s.arena = binary.AppendUvarint(s.arena, uint64(len(key)))
	s.arena = binary.AppendUvarint(s.arena, uint64(len(value)))
	s.arena = append(append(s.arena, key...), value...)
	s.place(hash, at)
	s.count++
}

func (s *state) place(hash, at uint64) {
	mask := uint64(len(s.slots) - 1)
	i := place(hash) & mask
	for s.slots[i] != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = hash<<offsetBits | at
}

func (s *state) grow() {
	old := s.slots
	s.slots = make([]uint64, max(8, 2*len(old)))
	for _, slot := range old {
		if slot != 0 {
			k, _ := s.entry(slot & offsetMask)
			s.place(hashKey(k), slot&offsetMask)
		}
	}
}

// slotsFor is the table size for n entries: a load of at most 3/4.
func slotsFor(n int) int {
	if n == 0 {
		return 0
	}
	return max(8, 1<<bits.Len(uint((n*4+2)/3)))
}

func entrySize(k, v []byte) int {
	return uvarintLen(len(k)) + uvarintLen(len(v)) + len(k) + len(v)
}

func uvarintLen(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }

// loader fills a table that nobody writes to meanwhile; readers see nothing
// of it until done.
type loader struct {
	t      *table
	states [shards]*state
}

func (l *loader) add(hash uint64, key, value []byte) {
	s := l.states[hash>>(64-shardBits)]
	if s == nil {
		s = &state{}
		l.states[hash>>(64-shardBits)] = s
	}
	s.insert(hash, key, value)
}

// done publishes, shard by shard, packed: the peak is one shard above the sum.
func (l *loader) done() {
	n := 0
	for i, s := range &l.states {
		if s != nil {
			n += s.count
			s = s.packed()
			l.states[i] = nil
		}
		l.t.shards[i].state.Store(s)
	}
	l.t.live.Store(int64(n))
}
