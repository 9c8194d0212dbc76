package users

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// table maps byte keys to short byte values for readers that never wait. It
// is cut into shards by the top bits of the key's hash; a shard is an
// immutable state behind an atomic pointer: entries, each in the one cell it can be in,
// and a short list of changes since. A change copies the list; every
// overlayMax changes the shard is packed again. No pointer per entry, so that
// millions of them cost the garbage collector nothing.
type table struct {
	shards [shards]shard
	live   atomic.Int64
}

const (
	shardBits  = 10
	shards     = 1 << shardBits
	overlayMax = 64
)

type shard struct {
	state atomic.Pointer[state]
	mu    sync.Mutex // of writers
}

// state never changes once published. Which cell is a key's follows from its hash and
// from one of the pilots, which pack chose so that each key has a cell for itself
// (hash and displace: Belazzougui, Botelho, Dietzfelbinger, 2009). So an entry is
// found by reading one of the pilots, which are half a byte a key and of 5M users stay
// in the caches, and the cell: one miss, where a table of slots with the places of the
// entries takes two, and a search. Memory: a cell's size and half a byte a key, at a load
// of 15/16.
type state struct {
	pilots []uint16 // one for about keysPerPilot keys
	cells  []byte
	room   uint32   // cells
	size   uint32   // bytes of a cell
	over   []change // and keys for which there is no cell
	spill  []byte   // entries that are too large for a cell
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
	if s.room == 0 {
		return nil, false
	}
	return s.read(s.cell(hash), hash, key)
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

// cell is where in cells the entry of a hash lies, if there is one. There must be
// cells.
func (s *state) cell(hash uint64) int {
	return int(cellOf(hash, s.pilots[pilotOf(hash, len(s.pilots))], s.room)) * int(s.size)
}

// pilotOf says which of n pilots is a hash's: by other bits than the shard is.
func pilotOf(hash uint64, n int) int { return int(uint64(uint32(hash)) * uint64(n) >> 32) }

// cellOf is one of so many cells; another pilot is another choice, for each hash by
// itself.
func cellOf(hash uint64, pilot uint16, room uint32) uint32 {
	x := (hash ^ uint64(pilot)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return uint32(x >> 32 * uint64(room) >> 32)
}

// read returns the value of a key if its entry is in the cell there, else nil.
//
// A cell is {uvarint key length, uvarint value length, key, value, zeros}. The key of
// an entry that lies among the spilled has no length: {0, 1, where it begins u64, low
// bits of the hash u32}.
func (s *state) read(at int, hash uint64, key []byte) ([]byte, bool) {
	b := s.cells[at:]
	if n := len(key); uint(n-1) < 0x7f && int(b[0]) == n && b[1] < 0x80 { // nearly all
		if b = b[2 : 2+n+int(b[1])]; string(b[:n]) != string(key) {
			return nil, false
		}
		return b[n:len(b):len(b)], true
	}
	if b[0] == 0 {
		from, low := spilledAt(b)
		if from < 0 || low != hash&math.MaxUint32 {
			return nil, false
		}
		b = s.spill[from:]
	}
	k, v := entry(b)
	if string(k) != string(key) {
		return nil, false
	}
	return v, true
}

// spilledAt reads a cell without a key; -1: it is empty.
func spilledAt(b []byte) (from int, low uint64) {
	if b[1] == 0 {
		return -1, 0
	}
	return int(binary.LittleEndian.Uint64(b[2:])), uint64(binary.LittleEndian.Uint32(b[10:]))
}

// entry reads the entry that b begins with.
func entry(b []byte) (key, value []byte) {
	k, n := binary.Uvarint(b)
	v, m := binary.Uvarint(b[n:])
	b = b[n+m:][: k+v : k+v]
	return b[:k:k], b[k:]
}

// set stores a value, or removes the key when value is nil. A key without a byte, which
// is no user and no address, is not stored.
func (t *table) set(hash uint64, key, value []byte) {
	if len(key) == 0 {
		return
	}
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

// len counts the live entries.
func (s *state) len() (n int) {
	s.each(func(uint64, []byte, []byte) { n++ })
	return n
}

// each visits the live entries.
func (s *state) each(fn func(hash uint64, key, value []byte)) {
	for at := 0; at < len(s.cells); at += int(s.size) {
		b := s.cells[at:]
		if b[0] == 0 {
			from, _ := spilledAt(b)
			if from < 0 {
				continue
			}
			b = s.spill[from:]
		}
		k, v := entry(b)
		h := hashKey(k)
		if _, changed, _ := s.changed(h, k); !changed {
			fn(h, k, v)
		}
	}
	for _, c := range s.over {
		if !c.gone {
			fn(c.hash, c.key, c.value)
		}
	}
}
