package simulator

import (
	"encoding/binary"
	"iter"

	"github.com/notifyd/notifyd/pkg/notify"
)

// singles is a hash table from base to slot with open addressing and linear
// probing. Bases are random already and nothing is ever removed, so that is all
// it takes. With Go's map instead, a new single took 1.7 to 2 times as long and
// 133 bytes while growing.
type singles struct {
	n   int
	tab []single // a power of two long; an unused slot is free
}

type single struct {
	base notify.Base
	slot slot
}

// get returns the slot of b; an unused one when there is none.
func (t *singles) get(b notify.Base) slot {
	if len(t.tab) == 0 {
		return slot{}
	}
	return t.tab[t.find(b)].slot
}

// put sets the slot of b; s is used.
func (t *singles) put(b notify.Base, s slot) {
	if t.n >= len(t.tab)/4*3 {
		t.grow()
	}
	e := &t.tab[t.find(b)]
	if !e.slot.used() {
		t.n++
		e.base = b
	}
	e.slot = s
}

// find returns where b is, or where it would go.
func (t *singles) find(b notify.Base) uint64 {
	mask := uint64(len(t.tab) - 1)
	i := mix(binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])) & mask
	for t.tab[i].slot.used() && t.tab[i].base != b {
		i = (i + 1) & mask
	}
	return i
}

func (t *singles) grow() {
	old := t.tab
	t.tab = make([]single, max(16, 2*len(old)))
	for i := range old {
		if old[i].slot.used() {
			t.tab[t.find(old[i].base)] = old[i]
		}
	}
}

// all yields every base with its slot.
func (t *singles) all() iter.Seq2[notify.Base, slot] {
	return func(yield func(notify.Base, slot) bool) {
		for i := range t.tab {
			if t.tab[i].slot.used() && !yield(t.tab[i].base, t.tab[i].slot) {
				return
			}
		}
	}
}
