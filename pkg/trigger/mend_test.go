package trigger

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Requeue gives a failed trigger all of its attempts again; each failure has a
// dead letter of its own.
func TestRequeue(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		up := false
		p.sink.answer = func(string, string, int) (time.Duration, result) {
			if up {
				return 0, ok
			}
			return 0, status(503)
		}
		p.run()
		ctx := t.Context()
		id := p.create("shop", `"delay_seconds":1,"retry_schedule_seconds":[1],"max_lateness_seconds":60,"late_policy":"drop"`)
		mender := Mender{Triggers: p.store.Triggers(), Later: p.wheel, Dead: p.dead}
		if done, err := mender.Requeue(ctx, id); done || err != nil {
			t.Fatalf("one that waits: %v, %v", done, err)
		}
		pass(time.Hour)
		p.want(id, engine.TriggerFailed)
		if l := p.dead.of(id); len(l) != 1 || l[0].Reason != "http_503" || l[0].Attempts != 2 {
			t.Fatalf("written %+v", l)
		}
		var done atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				ok, err := mender.Requeue(ctx, id)
				if err != nil {
					t.Error(err)
				}
				if ok {
					done.Add(1)
				}
			})
		}
		wg.Wait()
		if done.Load() != 1 {
			t.Errorf("requeued %d times", done.Load())
		}
		pass(time.Minute)
		row := p.want(id, engine.TriggerFailed)
		if row.Attempts != 2 || len(p.sink.of(id)) != 4 || len(p.dead.of(id)) != 2 {
			t.Errorf("%d attempts, %d calls, %d letters", row.Attempts, len(p.sink.of(id)), len(p.dead.of(id)))
		}
		up = true
		if done, err := mender.Requeue(ctx, id); !done || err != nil {
			t.Fatal(done, err)
		}
		pass(10 * time.Second)
		p.want(id, engine.TriggerFired)
		if done, err := mender.Requeue(ctx, id); done || err != nil {
			t.Errorf("one that fired: %v, %v", done, err)
		}
		for _, none := range []string{idOf(notify.Base{9}), "x"} {
			if done, err := mender.Requeue(ctx, none); done || err != nil {
				t.Errorf("%s, which is not there: %v, %v", none, done, err)
			}
		}
	})
}

// A trigger that was given up because its calls kill the process is called again after a requeue.
// The count of its lost claims begins again.
func TestRequeueLost(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		ctx := t.Context()
		now := time.Now().UnixMilli()
		row := engine.Trigger{ID: idOf(notify.NewBase(time.Now())), Caller: "shop", URL: base("shop") + "x", State: engine.TriggerFailed, Created: now, FireAt: now, Ended: now, Reason: reasonLost, Epoch: 10}
		for range 10 {
			row.Log = append(row.Log, engine.Attempt{Class: ClassLost})
		}
		if _, err := p.store.Triggers().Create(ctx, []engine.Trigger{row}); err != nil {
			t.Fatal(err)
		}
		p.run()
		if done, err := (Mender{Triggers: p.store.Triggers(), Later: p.wheel, Dead: p.dead}).Requeue(ctx, row.ID); !done || err != nil {
			t.Fatal(done, err)
		}
		pass(5 * time.Second)
		p.want(row.ID, engine.TriggerFired)
	})
}
