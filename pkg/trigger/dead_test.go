package trigger

import (
	"context"
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
		dead := p.svc.Dead()
		if done, err := dead.Requeue(ctx, id); done || err != nil {
			t.Fatalf("one that waits: %v, %v", done, err)
		}
		pass(time.Hour)
		p.want(id, engine.TriggerFailed)
		first, err := dead.Get(ctx, id)
		if err != nil || first.Reason != "http_503" || first.Attempts != 2 || len(p.dead.of(id)) != 1 || first != p.dead.of(id)[0] {
			t.Fatalf("%+v, %v, written %+v", first, err, p.dead.of(id))
		}
		var done atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				ok, err := dead.RequeueIf(ctx, first)
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
		// It has failed again since: that is another letter.
		if done, err := dead.RequeueIf(ctx, first); done || err != nil {
			t.Errorf("the first letter again: %v, %v", done, err)
		}
		up = true
		if done, err := dead.Requeue(ctx, id); !done || err != nil {
			t.Fatal(done, err)
		}
		pass(10 * time.Second)
		p.want(id, engine.TriggerFired)
		if done, err := dead.Requeue(ctx, id); done || err != nil {
			t.Errorf("one that fired: %v, %v", done, err)
		}
		_, err = dead.Get(ctx, id)
		refused(t, err, notify.KindNotFound, "dead_letter_not_found", "")
		_, err = dead.Requeue(ctx, idOf(notify.Base{9}))
		refused(t, err, notify.KindNotFound, "trigger_not_found", "")
	})
}

// One that was given up because calls of it kill is called again, and one whose
// letter is owed is not requeued over it.
func TestRequeueLost(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		ctx := t.Context()
		now := time.Now().UnixMilli()
		row := engine.Trigger{ID: idOf(notify.NewBase(time.Now())), Caller: "shop", URL: base("shop") + "x", State: engine.TriggerFailed, Created: now, FireAt: now, Ended: now, NextAt: now, Reason: reasonLost, Epoch: 10}
		for range 10 {
			row.Log = append(row.Log, engine.Attempt{Class: ClassLost})
		}
		if _, err := p.store.Triggers().Create(ctx, []engine.Trigger{row}); err != nil {
			t.Fatal(err)
		}
		p.run()
		_, err := p.svc.Dead().Requeue(ctx, row.ID)
		refused(t, err, notify.KindConflict, "dead_letter_owed", "")
		row.Version, row.NextAt = 1, 0
		if _, err := p.store.Triggers().Swap(ctx, []engine.TriggerSwap{{Old: 1, New: row}}); err != nil {
			t.Fatal(err)
		}
		if done, err := p.svc.Dead().Requeue(ctx, row.ID); !done || err != nil {
			t.Fatal(done, err)
		}
		pass(5 * time.Second)
		p.want(row.ID, engine.TriggerFired)
	})
}

func TestListDead(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil, "bank")
		var failed []string
		for i := range 6 {
			row := engine.Trigger{ID: idOf(notify.Base{byte(i + 1)}), Caller: "shop", State: engine.TriggerFailed, Ended: int64(i), Reason: "http_503", Log: []engine.Attempt{{Class: ClassRetry}}}
			switch i {
			case 1:
				row.State = engine.TriggerFired
			case 2:
				row.Caller = "bank"
			case 3:
				row.Reason, row.Log = reasonLate, nil
			}
			if row.State == engine.TriggerFailed {
				failed = append([]string{row.ID}, failed...)
			}
			if _, err := p.store.Triggers().Create(context.Background(), []engine.Trigger{row}); err != nil {
				t.Fatal(err)
			}
		}
		f := func(what string, filter DeadFilter, most int, want ...string) {
			t.Helper()
			var got []string
			cursor := ""
			for {
				page, next, err := p.svc.Dead().List(t.Context(), filter, cursor, most)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range page {
					got = append(got, l.ID)
				}
				if cursor = next; next == "" {
					break
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
		}
		f("all", DeadFilter{}, 2, failed...)
		f("of a caller", DeadFilter{Caller: "bank"}, 10, failed[3])
		f("of a reason", DeadFilter{Reason: reasonLate}, 1, failed[2])
		f("of a class", DeadFilter{Class: noCall}, 1, failed[2])
		f("of a time", DeadFilter{Since: 2, Until: 4}, 10, failed[2], failed[3])
		_, _, err := p.svc.Dead().List(t.Context(), DeadFilter{}, "x", 1)
		refused(t, err, notify.KindInvalid, "bad_cursor", "after")
		_, _, err = p.svc.Dead().List(t.Context(), DeadFilter{}, "", 0)
		refused(t, err, notify.KindInvalid, "out_of_range", "limit")
	})
}
