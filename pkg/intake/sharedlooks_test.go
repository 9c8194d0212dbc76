package intake

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/request"
)

// farSpill is a buffer that takes a while to answer; the answer is of the moment at which
// it was asked.
type farSpill struct {
	Spill
	mu    sync.Mutex
	looks int
}

func (f *farSpill) Stats(ctx context.Context) (records, bytes, oldest int64, err error) {
	f.mu.Lock()
	f.looks++
	f.mu.Unlock()
	records, bytes, oldest, err = f.Spill.Stats(ctx)
	time.Sleep(10 * time.Millisecond) // of the bubble
	return records, bytes, oldest, err
}

// Requests that come at once share looks at the buffer.
func TestLooksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		far := &farSpill{Spill: r.spill}
		r.Service.stores.Spill = far
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(singleBody)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if far.looks != 2 {
			t.Errorf("%d looks for 1,000 requests at once, want the first one's and one for all others", far.looks)
		}
		if n := len(r.log.records()); n != 1000 {
			t.Errorf("%d records", n)
		}
	})
}

// A request that comes after something was spilled does not take the answer of a look that
// began before.
func TestSharedLookBeganAfterTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		r.Service.stores.Spill = &farSpill{Spill: r.spill}
		send := func() {
			if _, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(single(`"category":"otp"`))); err != nil {
				t.Error(err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(send)
		time.Sleep(5 * time.Millisecond)
		if err := r.spill.Push(t.Context(), []engine.Spilled{{}}, 1<<20); err != nil { // by another process
			t.Fatal(err)
		}
		wg.Go(send)
		wg.Wait()
		if n := r.spill.len(); n != 2 || len(r.log.records()) != 1 {
			t.Errorf("%d are spilled, %d in the log", n, len(r.log.records()))
		}
	})
}

// A request whose caller has gone does not wait for the look of others.
func TestSharedLookEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l sharedLooks
		at := func(context.Context) bool { time.Sleep(time.Minute); return true }
		go l.await(context.Background(), at)
		synctest.Wait()
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		began := time.Now()
		if _, ok := l.await(ctx, at); ok || time.Since(began) != time.Second {
			t.Errorf("%v after %v", ok, time.Since(began))
		}
		time.Sleep(5 * time.Minute)
		if holds, ok := l.await(context.Background(), at); !holds || !ok {
			t.Error("no look after the shared one")
		}
	})
}
