package wheel

import (
	"math"
	"slices"
	"testing"
)

const (
	start  = int64(1_772_366_400_000)
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
)

func fireAll(w *Wheel[int], now int64) (fired []int) {
	w.Advance(now, func(v int) { fired = append(fired, v) })
	return fired
}

func want(t *testing.T, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("fired %v, want %v", got, want)
	}
}

func TestFiresAtItsMillisecond(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start+1, 1)
	w.Add(start+2, 2)
	want(t, fireAll(w, start))
	want(t, fireAll(w, start+1), 1)
	want(t, fireAll(w, start+2), 2)
}

func TestInsertionOrderSurvivesCascades(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	at := start + 70*second
	w.Add(at, 1)
	want(t, fireAll(w, at-60*second))
	w.Add(at, 2)
	want(t, fireAll(w, at-10))
	w.Add(at, 3)
	want(t, fireAll(w, at), 1, 2, 3)
}

func TestPastFiresInTheNextAdvance(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start, 2)
	w.Add(start-hour, 1)
	w.Add(math.MinInt64, 0)
	if at, ok := w.Next(); !ok || at > start {
		t.Fatalf("Next = %v, %v; want %v at the latest", at, ok, start)
	}
	want(t, fireAll(w, start), 0, 1, 2)
}

func TestFarFuture(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	far := start + 200*365*24*hour
	w.Add(math.MaxInt64, 3) // counts as the latest
	w.Add(far, 1)
	w.Add(latest, 4)
	want(t, fireAll(w, far-1))
	want(t, fireAll(w, far), 1)
	want(t, fireAll(w, latest-1))
	want(t, fireAll(w, math.MaxInt64), 3, 4)
}

func TestClockSetBackDoesNothing(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start+second, 1)
	w.Add(start-2*hour, 0)
	want(t, fireAll(w, start-hour))
	if w.Len() != 2 {
		t.Fatalf("Len = %d, want 2", w.Len())
	}
	want(t, fireAll(w, start+second), 0, 1)
}

func TestFreedValuesAreDropped(t *testing.T) {
	t.Parallel()
	w := New[*int](start)
	gone := new(int)
	w.Add(start+second, gone)
	w.Add(start+2*second, new(int))
	w.Add(start, new(int))
	w.DeleteFunc(func(v *int) bool { return v == gone })
	w.Advance(start+2*second, func(*int) {})
	for slot, ts := range w.slots {
		for _, x := range ts[:cap(ts)] {
			if x.v != nil {
				t.Fatalf("slot %d still points to a value", slot)
			}
		}
	}
}

func TestNothingIsAllocatedPerTimer(t *testing.T) {
	w := New[uint64](start)
	now := start
	round := func() {
		for i := range int64(100) {
			w.Add(now+i, 1)
		}
		now += 256 // the same slots again, whose room is kept
		w.Advance(now, func(uint64) {})
	}
	for range 2 * slots {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Fatalf("%v allocations per 100 timers, want 0", n)
	}
}

// A clock that is set back: what was added before and after fires by the new
// time, not when the old one comes round again.
func TestRewind(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start+2*hour, 1)
	w.Add(start-second, 2)
	w.Advance(start+hour, func(int) {})
	w.Add(start+10*second, 3) // late by the clock there is
	w.Rewind(start)
	w.Add(start+10*second, 4)
	want(t, fireAll(w, start+10*second-1))
	want(t, fireAll(w, start+10*second), 3, 4)
	w.Rewind(start + minute) // ahead: nothing
	want(t, fireAll(w, start+2*hour), 1)
}

func TestDeleteFunc(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start+second, 1)
	w.Add(start+hour, 2)
	w.Add(start, 3)
	w.DeleteFunc(func(v int) bool { return v != 2 })
	if w.Len() != 1 {
		t.Errorf("%d are left, want 1", w.Len())
	}
	w.Add(start+second, 4)
	want(t, fireAll(w, start+hour), 4, 2)
}
