package wheel

import (
	"math"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func fireAll(w *Wheel[int], now time.Time) (fired []int) {
	w.Advance(now, func(_ time.Time, v int) { fired = append(fired, v) })
	return fired
}

func want(t *testing.T, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("fired %v, want %v", got, want)
	}
}

func TestRoundsUpToTheMillisecond(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start.Add(time.Millisecond), 1)
	w.Add(start.Add(time.Millisecond+1), 2)
	want(t, fireAll(w, start.Add(time.Millisecond-1)))
	want(t, fireAll(w, start.Add(time.Millisecond)), 1)
	want(t, fireAll(w, start.Add(2*time.Millisecond-1)))
	want(t, fireAll(w, start.Add(2*time.Millisecond)), 2)
}

func TestOneTickByTimeThenInsertion(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	at := start.Add(time.Hour)
	w.Add(at, 2)
	w.Add(at.Add(-300), 1)
	w.Add(at, 3)
	w.Add(at.Add(-500), 0)
	want(t, fireAll(w, at), 0, 1, 2, 3)
}

func TestInsertionOrderSurvivesCascades(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	at := start.Add(70 * time.Second)
	w.Add(at, 1)
	want(t, fireAll(w, at.Add(-60*time.Second)))
	w.Add(at, 2)
	want(t, fireAll(w, at.Add(-10*time.Millisecond)))
	w.Add(at, 3)
	want(t, fireAll(w, at), 1, 2, 3)
}

func TestPastFiresInTheNextAdvance(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start, 2)
	w.Add(start.Add(-time.Hour), 1)
	w.Add(time.Time{}, 0)
	if at, ok := w.Next(); !ok || at.After(start) {
		t.Fatalf("Next = %v, %v; want %v at the latest", at, ok, start)
	}
	want(t, fireAll(w, start), 0, 1, 2)
}

func TestFarFuture(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	far := start.AddDate(200, 0, 0)
	w.Add(time.Unix(math.MaxInt64/2, 0), 3) // counts as 2262
	w.Add(far, 1)
	w.Add(time.Unix(1<<40, 0), 4)
	want(t, fireAll(w, far.Add(-1)))
	want(t, fireAll(w, far), 1)
	want(t, fireAll(w, time.Date(2261, 1, 1, 0, 0, 0, 0, time.UTC)))
	want(t, fireAll(w, time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)), 3, 4)
}

func TestClockSetBackDoesNothing(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start.Add(time.Second), 1)
	w.Add(start.Add(-2*time.Hour), 0)
	want(t, fireAll(w, start.Add(-time.Hour)))
	if w.Len() != 2 {
		t.Fatalf("Len = %d, want 2", w.Len())
	}
	want(t, fireAll(w, start.Add(time.Second)), 0, 1)
}

func TestAddFromFire(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start.Add(time.Second), 0)
	now := start.Add(time.Minute)
	var fired []int
	w.Advance(now, func(_ time.Time, v int) {
		fired = append(fired, v)
		w.Add(start, 1)                          // long past
		w.Add(start.Add(2*time.Second), 2)       // due within the running Advance
		w.Add(now.Add(time.Millisecond), 3)      // not due
		w.Add(now.Add(-time.Second+1000_000), 9) // due, too
	})
	want(t, fired, 0)
	if at, ok := w.Next(); !ok || at.After(now) {
		t.Fatalf("Next = %v, %v; want %v at the latest", at, ok, now)
	}
	want(t, fireAll(w, now), 1, 2, 9)
	want(t, fireAll(w, now.Add(time.Millisecond)), 3)
}

func TestCancelFromFire(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	at := start.Add(time.Second)
	var hs [4]Handle
	for i := range hs {
		hs[i] = w.Add(at, i)
	}
	var fired []int
	w.Advance(at, func(_ time.Time, v int) {
		fired = append(fired, v)
		if w.Cancel(hs[v]) {
			t.Errorf("Cancel of the firing timer %d: true", v)
		}
		if v == 0 && !w.Cancel(hs[2]) {
			t.Error("Cancel of a timer of the same tick: false")
		}
	})
	want(t, fired, 0, 1, 3)
	if w.Len() != 0 {
		t.Fatalf("Len = %d, want 0", w.Len())
	}
}

func TestStaleHandle(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	old := w.Add(start.Add(time.Second), 1)
	if !w.Cancel(old) || w.Cancel(old) {
		t.Fatal("the first Cancel is true, the second false")
	}
	next := w.Add(start.Add(time.Second), 2)
	if uint32(old) != uint32(next) {
		t.Fatal("the place was not used again: the test shows nothing")
	}
	if w.Cancel(old) || w.Cancel(0) || w.Cancel(next+1) || w.Cancel(Handle(uint32(next))) {
		t.Fatal("a handle of no pending timer cancelled something")
	}
	want(t, fireAll(w, start.Add(time.Second)), 2)
	if w.Cancel(next) {
		t.Fatal("a fired timer was cancelled")
	}
}

func TestHandleOfAnotherWheel(t *testing.T) {
	t.Parallel()
	w, other := New[int](start), New[int](start)
	w.Cancel(w.Add(start, 1)) // its place is free, in generation 2
	other.Cancel(other.Add(start, 1))
	if w.Cancel(other.Add(start, 2)) {
		t.Fatal("a free place was cancelled")
	}
	w.Add(start, 3)
	want(t, fireAll(w, start), 3)
}

func TestPlaceIsGivenUpAfterItsLastGeneration(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	h := w.Add(start, 1)
	w.at(uint32(h)).gen = math.MaxUint32
	last := newHandle(uint32(h), math.MaxUint32)
	if !w.Cancel(last) || w.Cancel(last) {
		t.Fatal("the last generation can be cancelled once")
	}
	if next := w.Add(start, 2); uint32(next) == uint32(h) {
		t.Fatal("a place came back with its generations used up")
	}
	if w.Cancel(h) || w.Cancel(Handle(uint32(h))) {
		t.Fatal("a handle of a place given up cancelled something")
	}
}

func TestPanicInFireLosesNothing(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	at := start.Add(time.Second)
	for i := range 3 {
		w.Add(at, i)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		w.Advance(at.Add(time.Second), func(_ time.Time, v int) {
			if v == 1 {
				panic("fire")
			}
		})
	}()
	if at2, ok := w.Next(); !ok || at2.After(at) {
		t.Fatalf("Next = %v, %v; want %v at the latest", at2, ok, at)
	}
	want(t, fireAll(w, at.Add(time.Second)), 2)
}

func TestAdvanceFromFirePanics(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	w.Add(start, 1)
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	w.Advance(start, func(time.Time, int) { w.Advance(start, func(time.Time, int) {}) })
}

func TestFreedValuesAreDropped(t *testing.T) {
	t.Parallel()
	w := New[*int](start)
	h := w.Add(start.Add(time.Second), new(int))
	w.Cancel(h)
	h2 := w.Add(start, new(int))
	w.Advance(start, func(time.Time, *int) {})
	if w.at(uint32(h)).v != nil || w.at(uint32(h2)).v != nil {
		t.Fatal("a free place still points to a value")
	}
}

func TestNothingIsAllocatedPerTimer(t *testing.T) {
	w := New[uint64](start)
	now := start
	round := func() {
		for i := range 100 {
			h := w.Add(now.Add(time.Duration(i)*time.Millisecond), 1)
			if i%3 == 0 {
				w.Cancel(h)
			}
		}
		now = now.Add(100 * time.Millisecond)
		w.Advance(now, func(time.Time, uint64) {})
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
	w.Add(start.Add(2*time.Hour), 1)
	w.Add(start.Add(-time.Second), 2)
	w.Advance(start.Add(time.Hour), func(time.Time, int) {})
	w.Add(start.Add(10*time.Second), 3) // late by the clock there is
	w.Rewind(start)
	w.Add(start.Add(10*time.Second), 4)
	want(t, fireAll(w, start.Add(10*time.Second-1)))
	want(t, fireAll(w, start.Add(10*time.Second)), 3, 4)
	w.Rewind(start.Add(time.Minute)) // ahead: nothing
	want(t, fireAll(w, start.Add(2*time.Hour)), 1)
}

func TestDeleteFunc(t *testing.T) {
	t.Parallel()
	w := New[int](start)
	h := w.Add(start.Add(time.Second), 1)
	w.Add(start.Add(time.Hour), 2)
	w.Add(start, 3)
	if n := w.DeleteFunc(func(v int) bool { return v != 2 }); n != 2 {
		t.Errorf("removed %d, want 2", n)
	}
	if w.Cancel(h) {
		t.Error("a removed timer was cancelled")
	}
	w.Add(start.Add(time.Second), 4)
	want(t, fireAll(w, start.Add(time.Hour)), 4, 2)
}
