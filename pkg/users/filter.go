package users

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// filter is a register-blocked Bloom filter: an entry sets four bits of one 64-bit word, and there
// are at least 16 bits for each entry. A filter answers "certainly not" with one load. Bits are
// never cleared. When a filter is full, a larger filter replaces it.
type filter struct {
	words    []atomic.Uint64
	mask     uint64
	roomLeft int64
}

// newFilter returns a filter with room for at least n entries.
func newFilter(n int) *filter {
	words := 1 << max(6, bits.Len(uint(n/4)))
	return &filter{words: make([]atomic.Uint64, words), mask: uint64(words - 1), roomLeft: int64(words) * 4}
}

func filterBits(hash uint64) uint64 {
	return 1<<(hash&63) | 1<<(hash>>6&63) | 1<<(hash>>12&63) | 1<<(hash>>18&63)
}

func (f *filter) add(hash uint64) { f.words[hash>>24&f.mask].Or(filterBits(hash)) }

// mayContain returns false only if the hash was certainly never added.
func (f *filter) mayContain(hash uint64) bool {
	p := filterBits(hash)
	return f.words[hash>>24&f.mask].Load()&p == p
}

// set is a table with a filter that is checked first. Nearly all look-ups find nothing, and with
// the filter such a look-up costs only one load.
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
	if !s.filter.Load().mayContain(hash) {
		return nil, false
	}
	return s.table.get(hash, key)
}

// put stores a value, or removes the key if value is nil. Only one goroutine may write at a time.
// put adds the key to the filter before it adds the key to the table. It publishes a larger filter
// only after that filter has all keys. So a reader never misses a key.
func (s *set) put(hash uint64, key, value []byte) {
	if value != nil {
		f := s.filter.Load()
		if f.roomLeft--; f.roomLeft < 0 {
			f = s.largerFilter(2 * s.len())
		}
		f.add(hash)
		s.filter.Store(f)
	}
	s.table.put(hash, key, value)
}

// largerFilter returns a filter with room for n entries that contains all keys of the table.
func (s *set) largerFilter(n int) *filter {
	f := newFilter(n)
	f.roomLeft -= int64(s.len())
	for i := range s.shards {
		if st := s.shards[i].state.Load(); st != nil {
			st.each(func(h uint64, _, _ []byte) { f.add(h) })
		}
	}
	return f
}

// adjustCount adds delta to the number stored for a key. If the result is 0 or less, it removes the
// key.
func (s *set) adjustCount(key []byte, delta int) {
	h := hashKey(key)
	n := delta
	if v, ok := s.get(h, key); ok {
		n += int(binary.LittleEndian.Uint32(v))
	}
	if n <= 0 {
		s.put(h, key, nil)
		return
	}
	s.put(h, key, binary.LittleEndian.AppendUint32(nil, uint32(n)))
}

// replaceWith replaces the contents of s with the contents of another set, source. It replaces the
// filter first. Until the table is replaced too, a look-up of a new key finds nothing.
func (s *set) replaceWith(source *set) {
	s.filter.Store(source.filter.Load())
	for i := range s.shards {
		s.shards[i].state.Store(source.shards[i].state.Load())
	}
	s.live.Store(source.live.Load())
}
