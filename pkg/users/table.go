package users

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// table maps byte keys to short byte values. Readers never wait. The top bits of a key's hash
// choose a shard. Each shard has an atomic pointer to an immutable shardState. A shardState has the
// entries, each in the only cell where it can be, and a short list of recent changes. A write
// copies this list. When the list has more than overlayMax changes, the shard is packed again.
// There is no pointer for each entry, so millions of entries cost the garbage collector nothing.
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
	state atomic.Pointer[shardState]
	mu    sync.Mutex // held by writers
}

// shardState never changes after it was published. A pilot is a number that many keys share. The
// hash of a key and its pilot determine the cell of the key. The pilots were chosen so that each
// key has its own cell (hash and displace: Belazzougui, Botelho, Dietzfelbinger, 2009).
//
// A look-up reads one pilot and one cell. The pilots need half a byte a key, so even for 5M users
// they stay in the CPU caches. So a look-up costs one cache miss. A table of slots that point to
// entries would cost two cache misses and a search. A key needs the memory of its cell and half a
// byte; 15 of 16 cells are in use.
type shardState struct {
	pilots    []uint16 // one for about keysPerPilot keys
	cells     []byte
	cellCount uint32      // number of cells
	cellSize  uint32      // bytes of a cell
	overlay   []keyChange // recent changes, and keys without a cell
	spill     []byte      // entries that are too large for a cell
}

// keyChange is a recent write; there is at most one per key.
type keyChange struct {
	hash       uint64
	key, value []byte
	removed    bool
}

func (t *table) len() int { return int(t.live.Load()) }

func (t *table) stateOf(hash uint64) *shardState { return t.shards[hash>>(64-shardBits)].state.Load() }

// get returns the value of a key. The value aliases memory that is never changed.
func (t *table) get(hash uint64, key []byte) ([]byte, bool) {
	s := t.stateOf(hash)
	if s == nil {
		return nil, false
	}
	if v, changed, ok := s.findChange(hash, key); changed {
		return v, ok
	}
	if s.cellCount == 0 {
		return nil, false
	}
	return s.readCell(s.cellOffset(hash), hash, key)
}

// findChange looks for a key among the recent changes.
func (s *shardState) findChange(hash uint64, key []byte) (value []byte, changed, ok bool) {
	for i := range s.overlay {
		if c := &s.overlay[i]; c.hash == hash && string(c.key) == string(key) {
			return c.value, true, !c.removed
		}
	}
	return nil, false, false
}

// cellOffset returns the offset of the only cell where a key with this hash can be. It is an offset
// in the slice s.cells, which must not be empty.
func (s *shardState) cellOffset(hash uint64) int {
	return int(cellIndex(hash, s.pilots[pilotIndex(hash, len(s.pilots))], s.cellCount)) * int(s.cellSize)
}

// pilotIndex returns which of n pilots belongs to a hash. It uses other bits of the hash than the
// choice of the shard, so that the two are independent.
func pilotIndex(hash uint64, n int) int { return int(uint64(uint32(hash)) * uint64(n) >> 32) }

// cellIndex returns a cell from 0 to cellCount-1. Each pilot gives a hash another, independent
// cell.
func cellIndex(hash uint64, pilot uint16, cellCount uint32) uint32 {
	x := (hash ^ uint64(pilot)*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return uint32(x >> 32 * uint64(cellCount) >> 32)
}

// readCell returns the value of a key if the cell at the given offset has the entry of the key.
// Otherwise it returns nil and false.
//
// A cell is {uvarint key length, uvarint value length, key, value, zeros}. The cell of a spilled
// entry has key length 0: {0, 1, offset in spill u64, low bits of the hash u32}.
func (s *shardState) readCell(offset int, hash uint64, key []byte) ([]byte, bool) {
	b := s.cells[offset:]
	if n := len(key); uint(n-1) < 0x7f && int(b[0]) == n && b[1] < 0x80 { // nearly all keys
		if b = b[2 : 2+n+int(b[1])]; string(b[:n]) != string(key) {
			return nil, false
		}
		return b[n:len(b):len(b)], true
	}
	if b[0] == 0 {
		from, low := spillOffset(b)
		if from < 0 || low != hash&math.MaxUint32 {
			return nil, false
		}
		b = s.spill[from:]
	}
	k, v := splitEntry(b)
	if string(k) != string(key) {
		return nil, false
	}
	return v, true
}

// spillOffset decodes a cell with key length 0. It returns -1 if the cell is empty.
func spillOffset(b []byte) (from int, low uint64) {
	if b[1] == 0 {
		return -1, 0
	}
	return int(binary.LittleEndian.Uint64(b[2:])), uint64(binary.LittleEndian.Uint32(b[10:]))
}

// splitEntry returns the key and value of the entry at the start of b.
func splitEntry(b []byte) (key, value []byte) {
	k, n := binary.Uvarint(b)
	v, m := binary.Uvarint(b[n:])
	b = b[n+m:][: k+v : k+v]
	return b[:k:k], b[k:]
}

// put stores a value, or removes the key if value is nil. It ignores an empty key, because no user
// and no address is empty.
func (t *table) put(hash uint64, key, value []byte) {
	if len(key) == 0 {
		return
	}
	sh := &t.shards[hash>>(64-shardBits)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	old := sh.state.Load()
	if old == nil {
		old = &shardState{}
	}
	_, had := t.get(hash, key)
	if !had && value == nil {
		return
	}
	c := keyChange{hash: hash, key: slices.Clone(key), value: slices.Clone(value), removed: value == nil}
	next := *old
	next.overlay = make([]keyChange, 0, len(old.overlay)+1)
	for _, o := range old.overlay {
		if o.hash != hash || string(o.key) != string(key) {
			next.overlay = append(next.overlay, o)
		}
	}
	next.overlay = append(next.overlay, c)
	if len(next.overlay) > overlayMax {
		next = *next.repack()
	}
	sh.state.Store(&next)
	switch {
	case !had:
		t.live.Add(1)
	case c.removed:
		t.live.Add(-1)
	}
}

// len returns the number of entries that are not removed.
func (s *shardState) len() (n int) {
	s.each(func(uint64, []byte, []byte) { n++ })
	return n
}

// each calls the function fn for each entry, except entries that a recent change has removed.
func (s *shardState) each(fn func(hash uint64, key, value []byte)) {
	for at := 0; at < len(s.cells); at += int(s.cellSize) {
		b := s.cells[at:]
		if b[0] == 0 {
			from, _ := spillOffset(b)
			if from < 0 {
				continue
			}
			b = s.spill[from:]
		}
		k, v := splitEntry(b)
		h := hashKey(k)
		if _, changed, _ := s.findChange(h, k); !changed {
			fn(h, k, v)
		}
	}
	for _, c := range s.overlay {
		if !c.removed {
			fn(c.hash, c.key, c.value)
		}
	}
}
