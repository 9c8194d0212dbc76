package store_test

import (
	"context"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// between runs a function once, before the next Swap.
type between struct {
	rows.Rows
	run func()
}

func (b *between) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	if run := b.run; run != nil {
		b.run = nil
		run()
	}
	return b.Rows.Swap(ctx, cs...)
}

// TestPurgeLooksAgain: a schedule that is moved between a purge's look and its swap
// stays, and nothing of it is left once its new time has come.
func TestPurgeLooksAgain(t *testing.T) {
	b := &between{Rows: memory.New().Rows()}
	s := store.OnRows(b).Schedules()
	x := engine.Schedule{Base: notify.Base{1}, Caller: "shop", FireAt: 5}
	if err := s.Put(t.Context(), []engine.Schedule{x}); err != nil {
		t.Fatal(err)
	}
	b.run = func() {
		head := engine.ScheduleHead{Base: x.Base, State: engine.SchedulePending, Gen: 1, FireAt: 50}
		if _, won, err := s.Swap(t.Context(), 0, head); !won || err != nil {
			t.Error(won, err)
		}
	}
	if n, err := s.Purge(t.Context(), 10, 10); n != 0 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	if _, ok, err := s.Get(t.Context(), x.Base); !ok || err != nil {
		t.Error(ok, err)
	}
	if n, err := s.Purge(t.Context(), 51, 10); n != 1 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	err := b.Scan(t.Context(), rows.Partition{Table: 'S'}, rows.Range{}, func(r rows.Row) (bool, error) {
		t.Errorf("left: %q", r.Key)
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}
