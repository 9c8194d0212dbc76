package server

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// However greedy callers are, one who comes new is let in; and when they have
// met each other, they hold the same.
func TestMemoryIsShared(t *testing.T) {
	t.Parallel()
	const size, each = 1 << 12, 4
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= 6; n++ {
		m := newMemory(size, 0)
		callers := make([]share, n)
		check := func() {
			var sum int64
			for i := range callers {
				sum += callers[i].held
			}
			if m.held != sum || m.held > size {
				t.Fatalf("%d held, callers hold %d", m.held, sum)
			}
		}
		grab := func(by *share) {
			for m.reserve(t.Context(), by, 0, each) == nil {
				if free := m.size - m.held; by.held > free {
					t.Fatalf("one holds %d and leaves %d", by.held, free)
				}
			}
			check()
		}
		for i := range callers { // the worst: each takes all it can before the next comes
			if free := m.size - m.held; free < size>>i {
				t.Fatalf("caller %d finds %d", i, free)
			}
			grab(&callers[i])
			if callers[i].held < size>>(i+1)-each {
				t.Fatalf("caller %d got %d", i, callers[i].held)
			}
		}
		for range 2 * size { // their bodies end, and each sends all it can
			if i := rng.IntN(n); callers[i].held > 0 {
				m.release(&callers[i], each)
			}
			for _, i := range rng.Perm(n) {
				grab(&callers[i])
			}
		}
		check()
		for i := range callers {
			if got, want := callers[i].held, int64(size/(n+1)); got < want*9/10 || got > want*11/10 {
				t.Errorf("one of %d holds %d, want some %d", n, got, want)
			}
		}
	}
}

func TestWaitingForMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(100, 2*time.Second)
		var a, b, c share
		take := func(by *share, have, want int64) chan error {
			done := make(chan error, 1)
			go func() { done <- m.reserve(t.Context(), by, have, want) }()
			synctest.Wait()
			return done
		}
		has := func(done chan error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("it still waits")
			}
		}
		waits := func(done chan error) {
			t.Helper()
			synctest.Wait()
			if len(done) != 0 {
				t.Errorf("it does not wait: %v", <-done)
			}
		}
		has(take(&a, 0, 25))
		has(take(&a, 0, 25))
		own := take(&a, 0, 20)
		waits(own)
		has(take(&b, 0, 25)) // who waits for its own share keeps nobody out
		large := take(&c, 0, 40)
		waits(large)
		small := take(new(share), 0, 1)
		waits(small) // else small ones could keep the large one out for ever
		m.release(&a, 25)
		has(large)
		has(small)
		waits(own)
		m.release(&a, 25)
		has(own)

		start := time.Now()
		full := take(&c, 40, 70)
		behind := take(&b, 0, 2)
		waits(full)
		time.Sleep(time.Second)
		m.release(&b, 25)
		has(full) // a body of which more came goes on when there is room
		has(behind)
		first := take(&c, 0, 5)
		if err := <-first; notify.KindOf(err) != notify.KindThrottled || notify.RetryAfterOf(err) <= 0 {
			t.Errorf("its own share: %v", err)
		}
		if err := <-take(new(share), 0, 90); notify.KindOf(err) != notify.KindUnavailable || time.Since(start) != 5*time.Second {
			t.Errorf("no room: %v after %v", err, time.Since(start))
		}
		// One that gives up lets those behind it go on.
		gone := take(new(share), 0, 90)
		time.Sleep(time.Second)
		after := take(new(share), 0, 1)
		waits(after)
		if err := <-gone; err == nil {
			t.Error("there was no room")
		}
		has(after)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.reserve(ctx, nil, 0, 90); err == nil || len(m.waiting) != 0 {
			t.Errorf("%v, %d wait", err, len(m.waiting))
		}
	})
}
