package users

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// filter is a register-blocked Bloom filter: four bits of one 64-bit word, 16
// bits and more an entry. It answers "surely not" with one load. Bits are only
// ever set; a filter that is too full is replaced by a larger one.
type filter struct {
	words []atomic.Uint64
	mask  uint64
	room  int64
}

// newFilter returns a filter with room for n entries or more.
func newFilter(n int) *filter {
	words := 1 << max(6, bits.Len(uint(n/4)))
	return &filter{words: make([]atomic.Uint64, words), mask: uint64(words - 1), room: int64(words) * 4}
}

func pattern(hash uint64) uint64 {
	return 1<<(hash&63) | 1<<(hash>>6&63) | 1<<(hash>>12&63) | 1<<(hash>>18&63)
}

func (f *filter) add(hash uint64) { f.words[hash>>24&f.mask].Or(pattern(hash)) }

// may reports false when hash was surely never added.
func (f *filter) may(hash uint64) bool {
	p := pattern(hash)
	return f.words[hash>>24&f.mask].Load()&p == p
}

// set is a table behind a filter: the misses, nearly all lookups, cost one
// load.
type set struct {
	filter atomic.Pointer[filter]
	table
}

func newSet() *set {
	s := &set{}
	s.filter.Store(newFilter(0))
	return s
}

func (s *set) get(hash uint64, key []byte) ([]byte, bool) {
	if !s.filter.Load().may(hash) {
		return nil, false
	}
	return s.table.get(hash, key)
}

// set stores or removes; one writer at a time. The filter has the key before
// the table does, and a larger filter has all keys before it is published.
func (s *set) set(hash uint64, key, value []byte) {
	if value != nil {
		f := s.filter.Load()
		if f.room--; f.room < 0 {
			f = s.grown(2 * s.len())
		}
		f.add(hash)
		s.filter.Store(f)
	}
	s.table.set(hash, key, value)
}

// grown makes a filter for n entries with all that is in the table.
func (s *set) grown(n int) *filter {
	f := newFilter(n)
	f.room -= int64(s.len())
	for i := range s.shards {
		if st := s.shards[i].state.Load(); st != nil {
			st.each(func(h uint64, _, _ []byte) { f.add(h) })
		}
	}
	return f
}

// count moves a key's number by so much; none at 0.
func (s *set) count(key []byte, by int) {
	h := hashKey(key)
	n := by
	if v, ok := s.get(h, key); ok {
		n += int(binary.LittleEndian.Uint32(v))
	}
	if n <= 0 {
		s.set(h, key, nil)
		return
	}
	s.set(h, key, binary.LittleEndian.AppendUint32(nil, uint32(n)))
}

// become takes over what from holds, the filter first: a key that it does not
// have yet is not found.
func (s *set) become(from *set) {
	s.filter.Store(from.filter.Load())
	for i := range s.shards {
		s.shards[i].state.Store(from.shards[i].state.Load())
	}
	s.live.Store(from.live.Load())
}
