package intake

import (
	"hash/maphash"
)

// seen finds users that come twice in a request: an open-addressed table of
// 8-byte entries {epoch 16, tag 16, ordinal 32}. An entry of another epoch is
// free, so nothing is cleared between requests. The hash is keyed by a secret
// of the process, and equal tags are settled by comparing the bytes: neither a
// collision nor somebody who looks for one can drop a real receiver.
type seen struct {
	seed  maphash.Seed
	epoch uint64   // 1..65535, in the top bits
	slots []uint64 // at least mask+1
	mask  uint64
	limit uint32   // users before the table doubles
	where []uint64 // by ordinal: partition 16, offset 40, length 8 of the user's bytes
}

const (
	firstSlots = 1 << 12
	keptSlots  = 1 << 22 // a larger table is not kept: 32 MiB
)

// begin starts a request.
func (s *seen) begin() {
	if s.slots == nil {
		s.seed = maphash.MakeSeed()
	}
	if len(s.slots) > keptSlots {
		s.slots = nil
	}
	if cap(s.where) > keptSlots {
		s.where = nil
	}
	s.where = s.where[:0]
	s.nextEpoch()
	s.resize(firstSlots)
}

func (s *seen) nextEpoch() {
	if s.epoch += 1 << 48; s.epoch == 0 { // wrapped
		clear(s.slots)
		s.epoch = 1 << 48
	}
}

// resize uses n slots, a power of two.
func (s *seen) resize(n int) {
	if len(s.slots) < n {
		s.slots = make([]uint64, n)
		s.epoch = 1 << 48
	}
	s.mask, s.limit = uint64(n-1), uint32(n/2)
}

// find returns the slot user belongs into and the entry to put there; false
// when the user is there already. cols holds the users' bytes.
func (s *seen) find(user []byte, cols []column) (slot, entry uint64, fresh bool) {
	if uint32(len(s.where)) >= s.limit {
		s.grow(cols)
	}
	h := maphash.Bytes(s.seed, user)
	tag := s.epoch | h>>48<<32
	for slot = h & s.mask; ; slot = (slot + 1) & s.mask {
		e := s.slots[slot]
		if (e^s.epoch)>>48 != 0 {
			return slot, tag | uint64(len(s.where)), true
		}
		if (e^tag)>>32 == 0 && string(s.bytes(uint32(e), cols)) == string(user) {
			return 0, 0, false
		}
	}
}

// put stores what find returned; the user's bytes are at offset off of cols[part].
func (s *seen) put(slot, entry uint64, part uint16, off, n int) {
	s.slots[slot] = entry
	s.where = append(s.where, uint64(part)<<48|uint64(off)<<8|uint64(n))
}

func (s *seen) bytes(ordinal uint32, cols []column) []byte {
	w := s.where[ordinal]
	off, n := int(w<<16>>24), int(w&0xff)
	return cols[w>>48].buf[off : off+n]
}

func (s *seen) grow(cols []column) {
	n := 4 * int(s.mask+1)
	s.nextEpoch()
	s.resize(n)
	for i := range s.where {
		h := maphash.Bytes(s.seed, s.bytes(uint32(i), cols))
		slot := h & s.mask
		for (s.slots[slot]^s.epoch)>>48 == 0 {
			slot = (slot + 1) & s.mask
		}
		s.slots[slot] = s.epoch | h>>48<<32 | uint64(i)
	}
}
