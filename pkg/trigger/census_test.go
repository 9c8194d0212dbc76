package trigger

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// slowCount is a store that records how often triggers are counted. If the channel now is not nil,
// each count waits for it.
type slowCount struct {
	engine.Triggers
	counts int
	now    chan struct{}
}

func (s *slowCount) CountOpen(ctx context.Context, caller string, most int) (int, error) {
	s.counts++
	if s.now != nil {
		<-s.now
	}
	return s.Triggers.CountOpen(ctx, caller, most)
}

// A process that only accepts requests sees no trigger end. It must not refuse a caller that has no
// waiting triggers.
func TestCensusOfAnAPIAlone(t *testing.T) {
	store := &slowCount{Triggers: memory.New().Triggers()}
	c := NewCensus(store, true)
	const most = 100
	for range 5 * most {
		if full, err := c.wouldExceed(t.Context(), "shop", 1, most); err != nil || full {
			t.Fatal("refused with nothing waiting", err)
		}
		c.add("shop", 1) // and another process ends it at once
	}
	if want := 5 * most / (most / 10); store.counts > want {
		t.Errorf("counted %d times for %d triggers, want at most %d", store.counts, 5*most, want)
	}
	// If another process creates triggers, this process notices it within a tenth of the limit.
	var rows []engine.Trigger
	for range most {
		rows = append(rows, engine.Trigger{ID: idOf(notify.NewBase(time.Now())), Caller: "shop", State: engine.TriggerPending})
	}
	if _, err := store.Create(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	for admitted := 0; ; admitted++ {
		full, err := c.wouldExceed(t.Context(), "shop", 1, most)
		if err != nil || admitted > most/10 {
			t.Fatal("admitted", admitted, err)
		}
		if full {
			break
		}
		c.add("shop", 1)
	}
}

// While the triggers of a caller are counted, its other requests wait for the result. They are not
// refused because of the old count, which is about to be corrected.
func TestNobodyIsRefusedDuringACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, shared := range []bool{false, true} {
			store := &slowCount{Triggers: memory.New().Triggers(), now: make(chan struct{})}
			c := NewCensus(store, shared)
			c.add("shop", 10)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if full, err := c.wouldExceed(t.Context(), "shop", 1, 10); err != nil || full {
						t.Error("refused with nothing waiting", err)
					}
				})
			}
			synctest.Wait()
			close(store.now)
			all.Wait()
			if store.counts != 1 {
				t.Errorf("counted %d times", store.counts)
			}
		}
	})
}
