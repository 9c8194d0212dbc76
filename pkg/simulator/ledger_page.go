package simulator

import (
	"bytes"
	"cmp"
	"math/bits"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pageSize is how many neighbours of a fan-out share a page: as many as a word has bits.
const pageSize = 64

// pageKey names a page: up to pageSize neighbours of a fan-out, or one single.
//
// An id that was sent to several addresses has a slot in as many layers: its first
// address in layer 0, its second in layer 1. A slot of a layer is used only if that
// of the layer below is.
type pageKey struct {
	base  notify.Base
	page  uint32 // index / pageSize; 0 of a single
	layer uint16
	fan   bool
}

func keyOf(id notify.ID) (k pageKey, i int) {
	return pageKey{base: id.Base, page: id.Index / pageSize, fan: id.Fan}, int(id.Index % pageSize)
}

func (k *pageKey) id(i int) notify.ID {
	return notify.ID{Base: k.base, Index: k.page*pageSize + uint32(i), Fan: k.fan}
}

// compare orders keys by base, and so by the time at which ids were made.
func (k *pageKey) compare(o *pageKey) int {
	if c := bytes.Compare(k.base[:], o.base[:]); c != 0 {
		return c
	}
	if k.fan != o.fan {
		return cmp.Compare(b2u(k.fan), b2u(o.fan))
	}
	return cmp.Or(cmp.Compare(k.page, o.page), cmp.Compare(k.layer, o.layer))
}

// page holds slots; bit i of seen says that slot i is used. A single uses slot 0.
type page struct {
	seen  uint64
	alone bool // in a table: there was no other version when it was made, so none of its slots
	slots [pageSize]slot
}

// add copies the used slots of o that p does not have. Of two versions of a page the
// newer one is p.
func (p *page) add(o *page) {
	for m := o.seen &^ p.seen; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		p.slots[i] = o.slots[i]
	}
	p.seen |= o.seen
}

// slot is what is known of one (id, address) pair. It holds no pointers, so that
// the garbage collector does not look at millions of them.
type slot struct {
	at         int64 // first delivery, or first attempt before there is one; Unix nanoseconds
	addr       uint32
	attempts   uint16 // both stop at the most there may be
	deliveries uint16
	attempt    uint16 // hash of the first delivery's attempt id; 0: it had none
	status     int16  // the last one
	provider   Provider
	idCounted  bool // in layer 0: some address of the id was taken
}

// table is the part of the pairs that is in memory. Its arenas and maps hold no
// pointers, and are used again after they were written to a file: the heap stays
// as large as it is.
type table struct {
	places  map[pageKey]uint32     // where a page is in fans, or a single in singles
	last    map[notify.Base]uint32 // highest page of each fan-out
	singles arena[slot]
	fans    arena[page]

	near      pageKey // the page of a fan-out of the last look, for neighbours come together
	nearPlace uint32
	nearKnown bool
	missed    pageKey // if known: what was looked for last and is not there, for it is put next
	missing   bool
}

func newTable() *table {
	return &table{places: map[pageKey]uint32{}, last: map[notify.Base]uint32{}}
}

// Bytes of memory that a single, a page and a fan-out take, with their part of the maps.
const (
	singleBytes = 24 + 52
	fanBytes    = 16 + 24*pageSize + 52
	lastBytes   = 44
)

func (t *table) bytes() int {
	return int(t.singles.n)*singleBytes + int(t.fans.n)*fanBytes + len(t.last)*lastBytes
}

func (t *table) reset() {
	clear(t.places)
	clear(t.last)
	t.singles.reset()
	t.fans.reset()
	t.nearKnown, t.missing = false, false
}

func (t *table) place(k *pageKey) (uint32, bool) {
	if t.nearKnown && t.near == *k {
		return t.nearPlace, true
	}
	if t.missing && t.missed == *k {
		return 0, false
	}
	at, ok := t.places[*k]
	if !ok {
		t.missed, t.missing = *k, true
	} else if k.fan {
		t.near, t.nearPlace, t.nearKnown = *k, at, true
	}
	return at, ok
}

// get returns slot i of a page, an unused one if the table does not have it; alone says
// that there is no older version of it then.
func (t *table) get(k *pageKey, i int) (s slot, alone bool) {
	at, ok := t.place(k)
	switch {
	case !ok:
		return slot{}, false
	case !k.fan:
		return *t.singles.at(at), false
	}
	p := t.fans.at(at)
	if p.seen>>i&1 == 1 {
		return p.slots[i], false
	}
	return slot{}, p.alone
}

// put sets a slot. A page that is new asks whether it is alone.
func (t *table) put(k *pageKey, i int, s slot, alone func(k *pageKey) bool) {
	at, ok := t.place(k)
	if !k.fan {
		if !ok {
			at = t.singles.add()
			t.places[*k], t.missing = at, false
		}
		*t.singles.at(at) = s
		return
	}
	if !ok {
		at = t.fans.add()
		p := t.fans.at(at)
		p.seen, p.alone = 0, alone(k) // it may have been used before
		t.places[*k], t.missing = at, false
		t.last[k.base] = max(t.last[k.base], k.page)
	}
	p := t.fans.at(at)
	p.seen |= 1 << i
	p.slots[i] = s
}

// load copies a page to p, and reports whether the table has it.
func (t *table) load(k *pageKey, p *page) bool {
	at, ok := t.places[*k]
	switch {
	case !ok:
		p.seen = 0
	case k.fan:
		*p = *t.fans.at(at)
	default:
		p.seen, p.slots[0] = 1, *t.singles.at(at)
	}
	return ok
}

// arena is a growing list that never moves its elements.
type arena[T any] struct {
	chunks []*[arenaChunk]T
	n      uint32
}

const arenaChunk = 256

func (a *arena[T]) at(i uint32) *T { return &a.chunks[i/arenaChunk][i%arenaChunk] }

// reset keeps the memory that was in use, and no more: what was once needed for
// singles must not stay beside what is now needed for fan-outs.
func (a *arena[T]) reset() {
	used := (int(a.n) + arenaChunk - 1) / arenaChunk
	clear(a.chunks[used:])
	a.chunks, a.n = a.chunks[:used], 0
}

// add returns the place of one element more, which holds what was there before a reset.
func (a *arena[T]) add() uint32 {
	if int(a.n/arenaChunk) == len(a.chunks) {
		a.chunks = append(a.chunks, new([arenaChunk]T))
	}
	a.n++
	return a.n - 1
}
