package wheel

import (
	"cmp"
	"math"
	"slices"
)

// Handle names one timer of one wheel for Cancel. The zero Handle names none.
type Handle uint64

// newHandle packs the index of a timer and its generation, which is never 0.
func newHandle(i, gen uint32) Handle { return Handle(gen)<<32 | Handle(i) }

// node is a timer, or a free place for one. Lists are linked by index, not by
// pointer: half the size, and nothing for the garbage collector to follow.
type node[T any] struct {
	at   int64  // ns since 1970
	next uint32 // in its list or in the free list; 0: none
	prev uint32
	gen  uint32 // raised when the timer is gone: its handles are stale then
	list uint16 // the list it is in; free when it is in none
	v    T
}

// free marks a node in no list.
const free = math.MaxUint16

const (
	pageBits = 12
	pageSize = 1 << pageBits
)

// slab stores nodes in pages: growing copies nothing, so that Add has no pause
// at ten million timers. Index 0 is never used and means none.
type slab[T any] struct {
	pages    []*[pageSize]node[T]
	top      uint32 // indexes up to here have been handed out
	freeHead uint32
	scratch  []dueKey
}

func (s *slab[T]) at(i uint32) *node[T] { return &s.pages[i>>pageBits][i%pageSize] }

func (s *slab[T]) alloc() (uint32, *node[T]) {
	if i := s.freeHead; i != 0 {
		n := s.at(i)
		s.freeHead = n.next
		return i, n
	}
	if s.top == math.MaxUint32 {
		panic("wheel: more than 4,294,967,295 timers")
	}
	s.top++
	if int(s.top>>pageBits) == len(s.pages) {
		s.pages = append(s.pages, new([pageSize]node[T]))
	}
	n := s.at(s.top)
	n.gen = 1
	return s.top, n
}

func (s *slab[T]) free(i uint32, n *node[T]) {
	var none T
	n.v = none // what it points to may be collected
	n.list = free
	if n.gen == math.MaxUint32 {
		// Its generations are used up. Starting over would let a handle four
		// billion timers old cancel a new one; the place is given up instead.
		n.gen = 0
		return
	}
	n.gen++
	n.next = s.freeHead
	s.freeHead = i
}

// lookup returns the pending timer h names, or nil.
func (s *slab[T]) lookup(h Handle) (uint32, *node[T]) {
	i, gen := uint32(h), uint32(h>>32)
	if i == 0 || i > s.top || gen == 0 {
		return 0, nil
	}
	n := s.at(i)
	if n.gen != gen || n.list == free {
		return 0, nil
	}
	return i, n
}

// link appends a node to a list.
func (w *Wheel[T]) link(to int, i uint32, n *node[T]) {
	l := &w.lists[to]
	n.list, n.prev, n.next = uint16(to), l.tail, 0
	if l.tail == 0 {
		l.head = i
		if to < levels*slots {
			w.used[to/slots][to%slots/64] |= 1 << (to % 64)
		}
	} else {
		w.at(l.tail).next = i
	}
	l.tail = i
}

// unlink removes a node from its list.
func (w *Wheel[T]) unlink(n *node[T]) {
	from := int(n.list)
	l := &w.lists[from]
	if n.prev == 0 {
		l.head = n.next
	} else {
		w.at(n.prev).next = n.next
	}
	if n.next == 0 {
		l.tail = n.prev
	} else {
		w.at(n.next).prev = n.prev
	}
	if l.head == 0 {
		w.clear(from)
	}
}

// take empties a list and returns its first node; the nodes are still chained
// by next.
func (w *Wheel[T]) take(from int) uint32 {
	head := w.lists[from].head
	w.lists[from] = list{}
	w.clear(from)
	return head
}

func (w *Wheel[T]) clear(slot int) {
	if slot < levels*slots {
		w.used[slot/slots][slot%slots/64] &^= 1 << (slot % 64)
	}
}

type dueKey struct {
	at int64
	i  uint32
}

// sortDue orders the due list by time, keeping the order of equal ones. Times
// in whole milliseconds are equal within a tick, so mostly it only looks.
func (w *Wheel[T]) sortDue() {
	sorted, last := true, int64(math.MinInt64)
	for i := w.lists[listDue].head; i != 0; {
		n := w.at(i)
		if n.at < last {
			sorted = false
			break
		}
		last, i = n.at, n.next
	}
	if sorted {
		return
	}
	keys := w.scratch[:0]
	for i := w.take(listDue); i != 0; {
		n := w.at(i)
		keys = append(keys, dueKey{n.at, i})
		i = n.next
	}
	slices.SortStableFunc(keys, func(a, b dueKey) int { return cmp.Compare(a.at, b.at) })
	for _, k := range keys {
		w.link(listDue, k.i, w.at(k.i))
	}
	w.scratch = keys[:0]
	if cap(keys) > maxScratch {
		w.scratch = nil
	}
}

// maxScratch bounds what sorting keeps between calls: 1 MiB.
const maxScratch = 1 << 16
