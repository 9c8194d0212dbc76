package simulator

import (
	"bytes"
	"cmp"
	"math/bits"

	"github.com/notifyd/notifyd/pkg/notify"
)

// pageSize is the number of neighbouring receivers of a fan-out that share a page: one for each bit
// of a word.
const pageSize = 64

// pageKey identifies a page. A page has up to pageSize neighbouring receivers of a fan-out, or one
// single notification.
//
// Pages have layers, for ids that were sent to several addresses. The first address of an id has
// its slot in layer 0, the second address in layer 1, and so on. So a slot in a layer is used only
// if the same slot in the layer below is used.
type pageKey struct {
	base  notify.Base
	page  uint32 // index / pageSize; 0 for a single
	layer uint16
	fan   bool
}

func keyOf(id notify.ID) (k pageKey, i int) {
	return pageKey{base: id.Base, page: id.Index / pageSize, fan: id.FanOut}, int(id.Index % pageSize)
}

func (k *pageKey) id(i int) notify.ID {
	return notify.ID{Base: k.base, Index: k.page*pageSize + uint32(i), FanOut: k.fan}
}

// compare orders keys by base first. A base begins with its time, so older keys come first.
func (k *pageKey) compare(o *pageKey) int {
	if c := bytes.Compare(k.base[:], o.base[:]); c != 0 {
		return c
	}
	if k.fan != o.fan {
		return cmp.Compare(b2u(k.fan), b2u(o.fan))
	}
	return cmp.Or(cmp.Compare(k.page, o.page), cmp.Compare(k.layer, o.layer))
}

// pairPage holds slots. Bit i of seen is set if slot i is used. The page of a single notification
// uses only slot 0.
type pairPage struct {
	seen uint64
	// onlyVersion is used only in a pairTable. It is true if no other table and no run contained a
	// version of this page when the page was added to the table. Then its slots have no older
	// versions in other places.
	onlyVersion bool
	slots       [pageSize]pairSlot
}

// add fills unused slots of p with the slots of o, an older version of the page.
func (p *pairPage) add(o *pairPage) {
	for m := o.seen &^ p.seen; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		p.slots[i] = o.slots[i]
	}
	p.seen |= o.seen
}

// pairSlot holds the data of one (id, address) pair. It contains no pointers, so the garbage
// collector does not scan millions of slots.
type pairSlot struct {
	at         int64 // time of the first delivery; before a delivery, time of the first attempt; Unix nanoseconds
	addr       uint32
	attempts   uint16 // attempts and deliveries stay at their greatest value when they reach it
	deliveries uint16
	attempt    uint16 // hash of the attempt id of the first delivery; 0: the delivery had no attempt id
	status     int16  // status of the last answer
	provider   Provider
	idCounted  bool // only in layer 0; true: the id was taken at some address
}

// pairTable holds a part of the pairs in memory. Its arenas and maps contain no pointers. A table
// is used again after it was written to a file, so that the heap does not grow.
type pairTable struct {
	places      map[pageKey]uint32     // place of a page in fanoutPages, or of a single in singles
	highestPage map[notify.Base]uint32 // number of the highest page of each fan-out
	singles     arena[pairSlot]
	fanoutPages arena[pairPage]

	lastKey   pageKey // last fan-out page that was found; the next look-up is often for the same page
	lastPlace uint32
	lastKnown bool
	missedKey pageKey // if missKnown is true: last key that was not found; the next call often adds it
	missKnown bool
}

func newTable() *pairTable {
	return &pairTable{places: map[pageKey]uint32{}, highestPage: map[notify.Base]uint32{}}
}

// Bytes of memory for a single notification, for a page of a fan-out, and for the entry of a
// fan-out in highestPage. The first two include the entry in places.
const (
	singleBytes = 24 + 52
	fanBytes    = 16 + 24*pageSize + 52
	lastBytes   = 44
)

func (t *pairTable) bytes() int {
	return int(t.singles.n)*singleBytes + int(t.fanoutPages.n)*fanBytes + len(t.highestPage)*lastBytes
}

func (t *pairTable) reset() {
	clear(t.places)
	clear(t.highestPage)
	t.singles.reset()
	t.fanoutPages.reset()
	t.lastKnown, t.missKnown = false, false
}

func (t *pairTable) placeOf(k *pageKey) (uint32, bool) {
	if t.lastKnown && t.lastKey == *k {
		return t.lastPlace, true
	}
	if t.missKnown && t.missedKey == *k {
		return 0, false
	}
	at, ok := t.places[*k]
	if !ok {
		t.missedKey, t.missKnown = *k, true
	} else if k.fan {
		t.lastKey, t.lastPlace, t.lastKnown = *k, at, true
	}
	return at, ok
}

// slotOf returns slot i of a page. If the table does not contain the slot, it returns an unused
// slot. In this case the result alone is true if it is certain that no other place has an older
// version of the slot.
func (t *pairTable) slotOf(k *pageKey, i int) (s pairSlot, alone bool) {
	at, ok := t.placeOf(k)
	switch {
	case !ok:
		return pairSlot{}, false
	case !k.fan:
		return *t.singles.at(at), false
	}
	p := t.fanoutPages.at(at)
	if p.seen>>i&1 == 1 {
		return p.slots[i], false
	}
	return pairSlot{}, p.onlyVersion
}

// setSlot sets slot i of a page. Before it adds a new page, it calls the function alone, which
// returns true if the page has no older version in another place.
func (t *pairTable) setSlot(k *pageKey, i int, s pairSlot, alone func(k *pageKey) bool) {
	at, ok := t.placeOf(k)
	if !k.fan {
		if !ok {
			at = t.singles.grow()
			t.places[*k], t.missKnown = at, false
		}
		*t.singles.at(at) = s
		return
	}
	if !ok {
		at = t.fanoutPages.grow()
		p := t.fanoutPages.at(at)
		p.seen, p.onlyVersion = 0, alone(k) // the memory may contain an older page
		t.places[*k], t.missKnown = at, false
		t.highestPage[k.base] = max(t.highestPage[k.base], k.page)
	}
	p := t.fanoutPages.at(at)
	p.seen |= 1 << i
	p.slots[i] = s
}

// loadPage copies a page to p. It returns false if the table does not contain the page.
func (t *pairTable) loadPage(k *pageKey, p *pairPage) bool {
	at, ok := t.places[*k]
	switch {
	case !ok:
		p.seen = 0
	case k.fan:
		*p = *t.fanoutPages.at(at)
	default:
		p.seen, p.slots[0] = 1, *t.singles.at(at)
	}
	return ok
}

// arena is a list that grows and never moves its elements.
type arena[T any] struct {
	chunks []*[arenaChunk]T
	n      uint32
}

const arenaChunk = 256

func (a *arena[T]) at(i uint32) *T { return &a.chunks[i/arenaChunk][i%arenaChunk] }

// reset empties the list. It keeps the memory that was in use and frees the rest. So memory that
// was needed for singles becomes free when the table contains mostly fan-outs.
func (a *arena[T]) reset() {
	used := (int(a.n) + arenaChunk - 1) / arenaChunk
	clear(a.chunks[used:])
	a.chunks, a.n = a.chunks[:used], 0
}

// grow adds an element and returns its place. The caller must overwrite the element: it may contain
// an old value.
func (a *arena[T]) grow() uint32 {
	if int(a.n/arenaChunk) == len(a.chunks) {
		a.chunks = append(a.chunks, new([arenaChunk]T))
	}
	a.n++
	return a.n - 1
}
