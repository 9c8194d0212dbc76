// Package wheel is a hierarchical timing wheel: a data structure that contains timers and returns
// the timers that are due. It has no clock and no goroutine. The caller passes the current time in,
// sleeps until Next and calls Advance.
//
// # How it works
//
// Time is counted in milliseconds since 1970. There are six levels of 256 slots; each level stands
// for one byte of a time. A timer is at the level of the highest byte in which its time differs
// from the current time. Its slot is the value of that byte. So level 0 contains the timers of the
// rest of the current 256 ms, level 1 the timers of the rest of the current 65.5 s, level 2 of the
// current 4.7 h, level 3 of the current 50 days and so on. When the current time enters a slot of a
// higher level, the timers of the slot move to lower levels. A timer moves at most once per level,
// so a timer that is due in an hour moves twice.
//
// At any time, all timers of one millisecond are in the same slot. Timers are appended to slots and
// moved down in order. So timers of one millisecond stay in the order in which they were added, and
// no sequence number is needed.
package wheel

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	levels   = 6
	slotBits = 8
	slots    = 1 << slotBits

	latest = 1<<(levels*slotBits) - 1 // ms; in the year 10889
	// lateSlot is the slot of timers that were already due when they were added. They fire in the
	// next Advance.
	lateSlot = levels * slots
)

// Wheel contains timers with values of type T. It is not safe for concurrent use, so the caller
// must lock it.
type Wheel[T any] struct {
	now     int64 // time of the latest Advance or Rewind
	pending int
	slots   [levels*slots + 1][]timer[T]
	used    [levels][slots / 64]uint64 // bit set: the slot is not empty
}

type timer[T any] struct {
	due int64
	v   T
}

// New returns an empty wheel. The parameter now is its current time, in ms since 1970.
func New[T any](now int64) *Wheel[T] { return &Wheel[T]{now: inRange(now)} }

// inRange returns the time nearest to ms that the levels can represent.
func inRange(ms int64) int64 { return min(max(ms, 0), latest) }

// Add adds a timer with the value v. The parameter due is the time at which the timer fires, in ms
// since 1970. If this time is not after the latest Advance, the timer fires in the next Advance.
func (w *Wheel[T]) Add(due int64, v T) {
	w.pending++
	w.placeTimer(timer[T]{inRange(due), v})
}

func (w *Wheel[T]) placeTimer(t timer[T]) {
	slot := lateSlot
	if t.due > w.now {
		level := (bits.Len64(uint64(t.due^w.now)) - 1) / slotBits
		slot = level*slots + int(t.due>>(level*slotBits))%slots
		w.used[level][slot%slots/64] |= 1 << (slot % 64)
	}
	w.slots[slot] = append(w.slots[slot], t)
}

// Len returns the number of timers that have not fired.
func (w *Wheel[T]) Len() int { return w.pending }

// Now returns the time of the latest Advance or Rewind.
func (w *Wheel[T]) Now() int64 { return w.now }

// Next returns a time before which no timer fires, so that the caller can sleep until then. The
// result ok is false if no timer is pending. The time is exact for timers of the current 256 ms.
// For later timers the time may be earlier than the first timer. Then Advance fires nothing, and
// the following Next is more exact. For each timer this happens at most five times.
func (w *Wheel[T]) Next() (at int64, ok bool) {
	if len(w.slots[lateSlot]) > 0 {
		return w.now, true
	}
	at, _, ok = w.firstSlot()
	return at, ok
}

// Advance sets the current time to the parameter now, and fires every timer whose time is not after
// it, ordered by time. To fire a timer, it calls the function fire with the timer's value; this
// function must not use the wheel. Timers with equal times fire in the order in which they were
// added. If the new time is before the latest time (the clock was set back), Advance does nothing;
// see Rewind.
func (w *Wheel[T]) Advance(now int64, fire func(v T)) {
	if now = inRange(now); now < w.now {
		return
	}
	overdue := w.takeSlot(lateSlot)
	slices.SortStableFunc(overdue, func(a, b timer[T]) int { return cmp.Compare(a.due, b.due) })
	w.fireSlot(overdue, fire)
	for {
		at, slot, ok := w.firstSlot()
		if !ok || at > now {
			break
		}
		w.now = at
		w.fireSlot(w.takeSlot(slot), fire)
	}
	w.now = now // no slot with timers begins between the last slot and the new time, so no timer changes its level
}

// fireSlot fires the timers of a slot that are due, and moves the other timers to lower levels.
func (w *Wheel[T]) fireSlot(ts []timer[T], fire func(v T)) {
	for _, t := range ts {
		if t.due > w.now {
			w.placeTimer(t)
			continue
		}
		w.pending--
		fire(t.v)
	}
	clear(ts) // so that the values can be garbage collected
}

// Rewind sets the clock of the wheel back. After that, timers fire when they are due by the new
// clock. Without Rewind, a wheel whose clock was set back fires nothing, not even new timers, until
// the old time is reached again. The cost of Rewind grows with the number of pending timers. If the
// new time is not before the latest time, Rewind does nothing.
func (w *Wheel[T]) Rewind(now int64) {
	if now = inRange(now); now >= w.now {
		return
	}
	var all []timer[T]
	for slot := range w.slots {
		all = append(all, w.takeSlot(slot)...)
	}
	w.now = now
	for _, t := range all {
		w.placeTimer(t)
	}
}

// DeleteFunc removes every timer for whose value the function del returns true.
func (w *Wheel[T]) DeleteFunc(del func(v T) bool) {
	for slot := range w.slots {
		ts := w.slots[slot]
		if len(ts) == 0 {
			continue
		}
		kept := slices.DeleteFunc(ts, func(t timer[T]) bool { return del(t.v) })
		w.pending -= len(ts) - len(kept)
		if w.slots[slot] = kept; len(kept) == 0 {
			w.takeSlot(slot)
		}
	}
}

// keptCap is the largest capacity that an empty slot keeps.
const keptCap = 1 << 10

// takeSlot empties a slot and returns its timers. The result is valid until the next timer is added
// to that slot.
func (w *Wheel[T]) takeSlot(slot int) []timer[T] {
	ts := w.slots[slot]
	if w.slots[slot] = ts[:0]; cap(ts) > keptCap {
		w.slots[slot] = nil
	}
	if slot != lateSlot {
		w.used[slot/slots][slot%slots/64] &^= 1 << (slot % 64)
	}
	return ts
}

// firstSlot returns the time at which the earliest used slot begins, and the index of that slot.
// The slot is in the lowest used level. All timers of a level lie within the current slot of the
// next higher level.
func (w *Wheel[T]) firstSlot() (at int64, slot int, ok bool) {
	for level := range levels {
		for word, set := range w.used[level] {
			if set != 0 {
				n := word*64 + bits.TrailingZeros64(set)
				shift := level * slotBits
				return w.now>>(shift+slotBits)<<(shift+slotBits) | int64(n)<<shift, level*slots + n, true
			}
		}
	}
	return 0, 0, false
}
