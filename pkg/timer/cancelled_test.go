package timer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// When a cancelled schedule is due, the engine records it as cancelled, and tries again until that
// succeeds. It publishes none of its timers, and closes their minute only afterwards.
func TestCancelledIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var mu sync.Mutex
		var published, recorded, refused int
		e := New(Config{
			Store: store.Timers(), Schedules: store.Schedules(), Owner: "a", Shards: 2,
			Publish: func(_ context.Context, ts []engine.Timer) error {
				mu.Lock()
				defer mu.Unlock()
				published += len(ts)
				return nil
			},
			Cancelled: func(_ context.Context, ts []engine.Timer) error {
				mu.Lock()
				defer mu.Unlock()
				if refused < 3 {
					refused++
					return notify.Unavailable("log", 0, errors.New("away"))
				}
				recorded += len(ts)
				return nil
			},
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()

		base := notify.NewBase(time.Now())
		at := time.Now().Add(30 * time.Second).UnixMilli()
		var ts []engine.Timer
		for p := range uint16(4) {
			ts = append(ts, engine.Timer{FireAt: at, ID: notify.Chunk{Base: base, Partition: p}.TimerID(0), Kind: KindEnvelope, Head: base, Weight: 1})
		}
		if err := e.Park(ctx, ts); err != nil {
			t.Fatal(err)
		}
		for shard := range uint16(2) {
			if err := store.Schedules().Hint(ctx, []engine.Hint{{Partition: engine.TimerPartition{Bucket: at / 60_000, Shard: shard}, Base: base}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, won, err := store.Schedules().Swap(ctx, 0, engine.ScheduleHead{Base: base, State: engine.ScheduleCancelled, FireAt: at}); !won || err != nil {
			t.Fatal(won, err)
		}
		time.Sleep(29 * time.Second)
		mu.Lock()
		if refused+recorded != 0 {
			t.Error("it was recorded before its time")
		}
		mu.Unlock()
		time.Sleep(3 * time.Minute)
		mu.Lock()
		if published != 0 || recorded != 4 || refused != 3 {
			t.Errorf("published %d, recorded %d of 4, refused %d times", published, recorded, refused)
		}
		mu.Unlock()
		left := 0
		if err := store.Timers().Pending(ctx, func(*engine.Timer) error { left++; return nil }); err != nil || left != 0 {
			t.Errorf("%d rows are left, %v", left, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
