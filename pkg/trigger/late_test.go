package trigger

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// No dispatcher runs for ten minutes: triggers that were due in the meantime follow their late
// policies.
func TestMaxLateness(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		f := func(extra string) string { return p.create("shop", `"delay_seconds":60,`+extra) }
		fire := f(`"max_lateness_seconds":30`)
		drop := f(`"max_lateness_seconds":30,"late_policy":"drop"`)
		bury := f(`"max_lateness_seconds":30,"late_policy":"dead_letter"`)
		enough := f(`"max_lateness_seconds":601,"late_policy":"drop"`)
		none := f(`"exact":true`)
		pass(11 * time.Minute)
		p.run()
		pass(time.Second)
		for _, id := range []string{fire, enough, none} {
			p.want(id, engine.TriggerFired)
		}
		if row := p.want(drop, engine.TriggerExpired); row.Reason != "late" || row.Epoch != 0 || row.Ended == 0 {
			t.Errorf("dropped: %+v", row)
		}
		if row := p.want(bury, engine.TriggerFailed); row.Reason != "late" || row.Attempts != 0 {
			t.Errorf("dead-lettered: %+v", row)
		}
		if n := p.sink.count(); n != 3 {
			t.Errorf("%d calls, want 3", n)
		}
		if l := p.dead.of(bury); len(l) != 1 || l[0].Reason != "late" || l[0].Class != noCall {
			t.Errorf("letters %+v", l)
		}
		if len(p.dead.of(drop)) != 0 {
			t.Error("a dropped one has a dead letter")
		}
	})
}

// The limit applies to retries, too: no call starts after it. A trigger that was called ends
// FAILED, never EXPIRED.
func TestMaxLatenessOfRetries(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 0, status(500) }
		p.run()
		id := p.create("shop", `"delay_seconds":1,"max_lateness_seconds":60,"late_policy":"drop","retry_schedule_seconds":[20,20,20,20]`)
		at := time.Now().Add(time.Second)
		pass(10 * time.Minute)
		if row := p.want(id, engine.TriggerFailed); row.Reason != "late" || row.Attempts != 3 {
			t.Errorf("%+v", row)
		}
		for _, c := range p.sink.of(id) {
			if c.at.Sub(at) > time.Minute {
				t.Errorf("a call %v after its time", c.at.Sub(at))
			}
		}
		if len(p.dead.of(id)) != 1 {
			t.Error("no dead letter")
		}
	})
}

// No trigger is put off for ever.
func TestMaxAge(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.MaxAge = time.Hour })
		d, _ := p.run()
		if _, err := d.HoldCircuit("shop", limit.HeldOpen); err != nil {
			t.Fatal(err)
		}
		id := p.create("shop", `"delay_seconds":1,"retry_schedule_seconds":[600]`)
		pass(69 * time.Minute)
		p.want(id, engine.TriggerPending)
		pass(3 * time.Minute)
		if row := p.want(id, engine.TriggerFailed); row.Reason != "too_old" || row.Attempts != 0 || len(p.dead.of(id)) != 1 {
			t.Errorf("%+v", row)
		}
	})
}

// A message that is received before the time in its row waits: in the queue if the wait is short,
// or else as an index row.
func TestEarlyMessage(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, delay := range []time.Duration{3 * time.Second, time.Hour} {
			p := newPlant(t, nil)
			_, stop := p.run()
			id := p.create("shop", fmt.Sprintf(`"delay_seconds":%g`, delay.Seconds()))
			at := time.Now().Add(delay)
			base, _ := parseID(id)
			for range 3 {
				if err := p.queue.Enqueue(context.Background(), []engine.Message{{Body: message{base: base, attempt: 1}.encode()}}); err != nil {
					t.Fatal(err)
				}
			}
			pass(delay - time.Millisecond)
			if p.sink.count() != 0 {
				t.Fatalf("called before %v", delay)
			}
			pass(40 * time.Second)
			if calls := p.sink.of(id); len(calls) != 1 || calls[0].at.Before(at) {
				t.Errorf("calls %+v", calls)
			}
			p.want(id, engine.TriggerFired)
			stop()
			if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
				t.Errorf("left in the queue: %+v", d)
			}
		}
	})
}

// A timer that is put into the queue before its time is not early either.
func TestToQueue(t *testing.T) {
	in(t, func(t *testing.T) {
		q := newHeapQueue(5)
		publish := ToQueue(q)
		at := time.Now().Add(5 * time.Minute)
		x := indexRow([16]byte{1}, &engine.Trigger{Gen: 3, NextAt: at.UnixMilli(), Attempts: 2})
		if err := publish(t.Context(), []engine.Timer{x}); err != nil {
			t.Fatal(err)
		}
		ds, err := q.Receive(t.Context(), 10, time.Minute)
		if err != nil || len(ds) != 1 || time.Now().Before(at) {
			t.Fatalf("%+v at %v, %v", ds, time.Now(), err)
		}
		if m, ok := decodeMessage(ds[0].Body); !ok || m.base != [16]byte{1} || m.gen != 3 || m.attempt != 3 {
			t.Errorf("message %+v", m)
		}
		x.Kind = 1
		if err := publish(t.Context(), []engine.Timer{x}); err == nil {
			t.Error("an envelope is taken")
		}
		if _, ok := decodeMessage(append(ds[0].Body, 0)); ok {
			t.Error("a longer message is taken")
		}
	})
}
