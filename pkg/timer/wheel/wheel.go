// Package wheel is a hierarchical timing wheel: a pure data structure that
// holds timers and says which are due. It has no clock and no goroutine; the
// caller passes the time in, sleeps until Next and calls Advance.
//
// # How it works
//
// Time is counted in ticks of one millisecond. Six levels of 256 slots each
// stand for the bytes of a tick: a timer lies at the level of the highest byte
// in which its tick differs from the current one, in the slot of that byte's
// value. So level 0 holds the rest of the current 256 ms, level 1 the rest of
// the current 65.5 s, level 2 of 4.7 h, level 3 of 50 days and so on, and six
// levels hold every time there is. When the current tick enters a slot of a
// higher level, the slot's timers move down: at most once per level, two moves
// for a timer an hour away.
//
// A slot is a doubly linked list of indexes into pages of timers. Freed timers
// are reused, pages are never moved or given back, and a timer costs 24 bytes
// and its value. With a T that holds no pointers the garbage collector has
// nothing to look at however many timers wait.
//
// Appending to lists and moving them down in order keeps timers of one tick in
// the order they were added, so no sequence number is stored.
package wheel

import (
	"math/bits"
	"time"
)

// Resolution is the length of a tick. A timer's time is rounded up to it.
const Resolution = time.Millisecond

const (
	levels   = 6
	slotBits = 8
	slots    = 1 << slotBits

	// Two lists besides the slots, so that Cancel finds every timer in one way.
	listLate = levels * slots // was due when it was added: fires in the next Advance
	listDue  = listLate + 1   // being fired by the Advance that runs
	lists    = listDue + 1
)

// Wheel holds timers with values of type T. It is not safe for concurrent use:
// the caller's lock covers it.
type Wheel[T any] struct {
	slab[T]
	cur       uint64 // every tick up to here has been fired
	horizon   uint64 // cur, or while an Advance runs the tick it goes to
	advancing bool
	pending   int
	lists     [lists]list
	used      [levels][slots / 64]uint64 // bit set: the slot holds timers
}

type list struct{ head, tail uint32 }

// New returns an empty wheel whose clock stands at now.
func New[T any](now time.Time) *Wheel[T] {
	w := &Wheel[T]{}
	w.cur = floorTick(now)
	w.horizon = w.cur
	return w
}

// Add adds a timer that is due at at, any time from the years 1678 to 2262
// (others count as the nearest of these; the monotonic part is not used). One
// that is due already, measured by the latest Advance, fires in the next
// Advance; called from fire, that is the one after the running one, so that an
// Advance always ends.
func (w *Wheel[T]) Add(at time.Time, v T) Handle {
	ns := nanos(at)
	i, n := w.alloc()
	n.at, n.v = ns, v
	w.pending++
	if tick := ceilTick(ns); tick <= w.horizon {
		w.link(listLate, i, n)
	} else {
		w.link(w.place(tick), i, n)
	}
	return newHandle(i, n.gen)
}

// Cancel removes a timer in constant time. It reports false when the timer has
// fired, is firing, or was cancelled before; a handle never speaks for another
// timer than its own. The zero Handle is no timer.
func (w *Wheel[T]) Cancel(h Handle) bool {
	i, n := w.lookup(h)
	if n == nil {
		return false
	}
	w.unlink(n)
	w.free(i, n)
	w.pending--
	return true
}

// Len returns the number of timers that have neither fired nor been cancelled.
func (w *Wheel[T]) Len() int { return w.pending }

// Next returns a time before which nothing fires, for the caller's sleep, and
// false when no timer is pending. It is exact for timers of the current 256 ms;
// for others it may be earlier than the first of them, where an Advance fires
// nothing and a better answer follows (five times at most).
func (w *Wheel[T]) Next() (time.Time, bool) {
	if w.lists[listLate].head != 0 || w.lists[listDue].head != 0 {
		return tickTime(w.cur), true
	}
	tick, _, ok := w.first()
	if !ok {
		return time.Time{}, false
	}
	return tickTime(tick), true
}

// Advance fires every timer whose time, rounded up to the millisecond, is not
// after now: ordered by time, and by insertion where times are equal. Nothing
// fires early. A now before the latest one (the clock was set back) does
// nothing; see Rewind.
//
// A timer is gone before fire is called for it. Fire may call Add, Cancel, Len
// and Next. If it panics, the timers not yet fired fire in the next Advance.
func (w *Wheel[T]) Advance(now time.Time, fire func(at time.Time, v T)) {
	if w.advancing {
		panic("wheel: Advance called from fire")
	}
	target := floorTick(now)
	if target < w.cur {
		return
	}
	w.advancing, w.horizon = true, target
	defer func() { w.advancing, w.horizon = false, w.cur }()

	// Late timers were due at a tick that has passed, so all of them come
	// before all in the slots.
	w.makeDue(listLate)
	w.fireDue(fire)
	for {
		tick, level, ok := w.first()
		if !ok || tick > target {
			break
		}
		w.cur = tick
		slot := level*slots + int(tick>>(level*slotBits))%slots
		if level == 0 {
			w.makeDue(slot)
		} else {
			w.cascade(slot)
		}
		w.fireDue(fire)
	}
	// No slot begins in (cur, target], so no timer changes its level.
	w.cur = target
}

// Rewind sets the clock back: after it, a timer fires when its time comes by
// the new clock. Without it a wheel whose clock was set back fires nothing,
// new timers included, until the old time is reached again. Timers of one tick
// keep their order. The work is in proportion to the pending ones. A now that
// is not before the latest one does nothing; it must not be called from fire.
func (w *Wheel[T]) Rewind(now time.Time) {
	to := floorTick(now)
	if to >= w.cur {
		return
	}
	if w.advancing {
		panic("wheel: Rewind called from fire")
	}
	// All of them on one list first: a slot may stand for another time after.
	w.gather(listLate)
	for level := range levels {
		for slot := range slots {
			w.gather(level*slots + slot)
		}
	}
	w.cur, w.horizon = to, to
	for i := w.take(listDue); i != 0; {
		n := w.at(i)
		next := n.next
		if tick := ceilTick(n.at); tick <= to {
			w.link(listLate, i, n)
		} else {
			w.link(w.place(tick), i, n)
		}
		i = next
	}
}

// Now is the time of the latest Advance or Rewind, in whole ticks.
func (w *Wheel[T]) Now() time.Time { return tickTime(w.cur) }

// DeleteFunc removes every timer whose value del wants removed, and returns how
// many they were. The work is in proportion to the most timers there ever were
// at once. It must not be called from fire.
func (w *Wheel[T]) DeleteFunc(del func(v T) bool) (n int) {
	if w.advancing {
		panic("wheel: DeleteFunc called from fire")
	}
	for i := uint32(1); i <= w.top; i++ {
		x := w.at(i)
		if x.list != free && x.gen != 0 && del(x.v) {
			w.unlink(x)
			w.free(i, x)
			w.pending--
			n++
		}
	}
	return n
}

// first returns the first tick of the earliest slot in use, and its level. It
// is in the lowest level in use, because a level's timers all lie within the
// slot of the next level that the current tick is in.
func (w *Wheel[T]) first() (tick uint64, level int, ok bool) {
	for level := range levels {
		for word, set := range w.used[level] {
			if set != 0 {
				slot := uint64(word*64 + bits.TrailingZeros64(set))
				shift := level * slotBits
				return w.cur>>(shift+slotBits)<<(shift+slotBits) | slot<<shift, level, true
			}
		}
	}
	return 0, 0, false
}

// place returns the slot of a tick after the current one.
func (w *Wheel[T]) place(tick uint64) int {
	level := (bits.Len64(tick^w.cur) - 1) / slotBits
	return level*slots + int(tick>>(level*slotBits))%slots
}

// cascade moves the timers of a slot, which the current tick has just entered,
// to lower levels; those of its first tick are due.
func (w *Wheel[T]) cascade(slot int) {
	for i := w.take(slot); i != 0; {
		n := w.at(i)
		next := n.next
		if tick := ceilTick(n.at); tick == w.cur {
			w.link(listDue, i, n)
		} else {
			w.link(w.place(tick), i, n)
		}
		i = next
	}
	w.sortDue()
}

// makeDue moves a whole list to the due list.
func (w *Wheel[T]) makeDue(from int) {
	w.gather(from)
	w.sortDue()
}

// gather appends a whole list to the due list.
func (w *Wheel[T]) gather(from int) {
	for i := w.take(from); i != 0; {
		n := w.at(i)
		next := n.next
		w.link(listDue, i, n)
		i = next
	}
}

// fireDue fires the due list. It takes one timer at a time, because fire may
// cancel those behind it.
func (w *Wheel[T]) fireDue(fire func(time.Time, T)) {
	for i := w.lists[listDue].head; i != 0; i = w.lists[listDue].head {
		n := w.at(i)
		at, v := n.at, n.v
		w.unlink(n)
		w.free(i, n)
		w.pending--
		fire(time.Unix(0, at).UTC(), v)
	}
}
