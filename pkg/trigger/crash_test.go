package trigger

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A graceful stop lets the calls under way end and gives back messages whose calls have not
// started. No trigger is called twice.
func TestGracefulStop(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.CallerInFlight = 10 })
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 5 * time.Second, ok }
		var ids []string
		for range 100 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		_, stop := p.run()
		pass(2 * time.Second)
		stopped := time.Now()
		stop()
		if took := time.Since(stopped); took > 6*time.Second {
			t.Errorf("stopped after %v", took)
		}
		states := map[engine.TriggerState]int{}
		for _, id := range ids {
			row := p.row(id)
			states[row.State]++
			if row.State == engine.TriggerPending && row.Attempts != 0 {
				t.Errorf("%+v", row)
			}
		}
		if states[engine.TriggerFired] != 10 || states[engine.TriggerPending] != 90 {
			t.Errorf("states %v", states)
		}
		if d, _ := p.queue.Depth(context.Background()); d.Ready != 90 || d.InFlight != 0 {
			t.Errorf("queue %+v", d)
		}
		p.run()
		pass(2 * time.Minute)
		for _, id := range ids {
			p.want(id, engine.TriggerFired)
			if n := len(p.sink.of(id)); n != 1 {
				t.Errorf("%d calls", n)
			}
		}
	})
}

// Claims whose calls have not started when the stop comes are given back at once and not counted.
func TestStopAfterClaim(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		reached := make(chan struct{}, 1)
		p.cfg.hit = func(name string) {
			if name == "trigger-claimed" {
				reached <- struct{}{}
				time.Sleep(time.Second)
			}
		}
		id := p.create("shop", `"delay_seconds":1`)
		_, stop := p.run()
		<-reached
		stop()
		row := p.want(id, engine.TriggerPending)
		if row.Attempts != 0 || row.Deferrals != 1 || row.Reason != CauseShutdown || p.sink.count() != 0 {
			t.Errorf("%+v, %d calls", row, p.sink.count())
		}
		p.cfg.hit = nil
		p.run()
		pass(2 * time.Second)
		p.want(id, engine.TriggerFired)
	})
}

// A process that was paused until after the end of its lease makes no call with that lease. What
// another process has written into the row stays.
func TestPausedOverTheLease(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		paused := make(chan struct{})
		var once sync.Once
		p.cfg.hit = func(name string) {
			if name == "trigger-claimed" {
				once.Do(func() {
					close(paused)
					time.Sleep(time.Minute)
				})
			}
		}
		id := p.create("shop", `"delay_seconds":1`)
		p.run()
		<-paused
		p.cfg.hit = nil
		p.run()
		pass(20 * time.Second)
		// The first dispatcher still extends the message's visibility. Another one reaches the row all
		// the same.
		base, _ := parseID(id)
		if err := p.queue.Enqueue(context.Background(), []engine.Message{{Body: message{base: base}.encode()}}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		row := p.want(id, engine.TriggerFired)
		if calls := p.sink.of(id); len(calls) != 1 || row.Epoch < 2 {
			t.Errorf("%d calls, %+v", len(calls), row)
		}
	})
}

// A paused process whose triggers no other process claimed returns the claim and goes on.
func TestPausedAlone(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		paused := false
		p.cfg.hit = func(name string) {
			if name == "trigger-claimed" && !paused {
				paused = true
				time.Sleep(time.Minute)
			}
		}
		id := p.create("shop", `"delay_seconds":1`)
		p.run()
		pass(3 * time.Minute)
		row := p.want(id, engine.TriggerFired)
		if calls := p.sink.of(id); len(calls) != 1 || row.Attempts != 1 || row.Deferrals != 1 {
			t.Errorf("%d calls, %+v", len(calls), row)
		}
	})
}

// If the answer of the swap for a claim or an outcome is lost, the row decides. There is one call,
// and the trigger ends.
func TestSwapInDoubt(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, nth := range []int{1, 2} { // the claim, the outcome
			for _, applied := range []bool{false, true} {
				p := newPlant(t, nil)
				n := 0
				p.cfg.Triggers = &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
					if method == "Swap" {
						if n++; n == nth {
							return slip{err: errDown, applied: applied}
						}
					}
					return slip{}
				}}
				id := p.create("shop", `"delay_seconds":1`)
				_, stop := p.run()
				pass(2 * time.Minute)
				stop()
				row := p.want(id, engine.TriggerFired)
				if calls := p.sink.of(id); len(calls) != 1 || row.Attempts != 1 {
					t.Errorf("swap %d, applied %v: %d calls, %+v", nth, applied, len(calls), row)
				}
				if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
					t.Errorf("swap %d, applied %v: left in the queue: %+v", nth, applied, d)
				}
			}
		}
	})
}

// However often its message is received, a trigger is called once.
func TestDuplicateMessages(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 3 * time.Second, ok }
		p.run()
		p.run() // two dispatchers compete
		id := p.create("shop", `"delay_seconds":1`)
		base, _ := parseID(id)
		for range 50 {
			if err := p.queue.Enqueue(context.Background(), []engine.Message{{Body: message{base: base, attempt: 1}.encode(), Delay: time.Second}}); err != nil {
				t.Fatal(err)
			}
		}
		pass(5 * time.Minute)
		p.want(id, engine.TriggerFired)
		if n := len(p.sink.of(id)); n != 1 {
			t.Errorf("%d calls", n)
		}
		if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
			t.Errorf("left in the queue: %+v", d)
		}
	})
}

// While the store is away for minutes, no message becomes dead. Afterwards everything fires once.
func TestStoreAway(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		var ids []string
		for range 50 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		back := time.Now().Add(20 * time.Minute)
		p.cfg.Triggers = &shaky{Triggers: p.store.Triggers(), on: func(string, []string) slip {
			if time.Now().Before(back) {
				return slip{err: errDown}
			}
			return slip{}
		}}
		p.run()
		pass(22 * time.Minute)
		for _, id := range ids {
			p.want(id, engine.TriggerFired)
			if n := len(p.sink.of(id)); n != 1 {
				t.Errorf("%d calls", n)
			}
		}
		if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
			t.Errorf("left in the queue: %+v", d)
		}
	})
}

// At fire time the dispatcher checks which URLs the caller may call. It knows a change PolicyAge
// after it was made, at the latest.
func TestPolicyAtFire(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		warm := p.create("shop", `"delay_seconds":1`) // the record is cached
		id := p.create("shop", `"delay_seconds":3`)
		pass(1500 * time.Millisecond)
		p.want(warm, engine.TriggerFired)
		p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{"https://shop.example/elsewhere/"}})
		pass(5 * time.Second)
		row := p.want(id, engine.TriggerFailed)
		if row.Reason != ClassDenied || row.Attempts != 1 || len(p.sink.of(id)) != 0 || len(p.dead.of(id)) != 1 {
			t.Errorf("%d calls, %+v", len(p.sink.of(id)), row)
		}
	})
}

// The triggers of a disabled caller wait. So do the triggers of a caller without a secret, and of a
// caller whose record cannot be read.
func TestWithheldCaller(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, c := range []engine.Caller{
			{ID: "shop", CallbackURLs: []string{base("shop")}, Disabled: true},
			{ID: "shop", CallbackURLs: []string{base("shop")}, Secrets: []engine.CallerSecret{{Secret: testSecret, Expires: 1}}},
		} {
			p := newPlant(t, nil)
			id := p.create("shop", `"delay_seconds":1`)
			p.putCaller(c)
			_, stop := p.run()
			pass(6 * time.Hour)
			if row := p.want(id, engine.TriggerPending); row.Attempts != 0 || p.sink.count() != 0 {
				t.Errorf("%+v", row)
			}
			p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}})
			pass(2 * time.Minute)
			p.want(id, engine.TriggerFired)
			stop()
			if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
				t.Errorf("left in the queue: %+v", d)
			}
		}
	})
}

// slowCallers takes the time takes to read the record of a caller.
type slowCallers struct {
	engine.Callers
	takes atomic.Int64 // ns
}

func (c *slowCallers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	time.Sleep(time.Duration(c.takes.Load()))
	return c.Callers.Get(ctx, id)
}

// Calls that need their caller's record wait for one read together, even if the read takes longer
// than a record may be cached.
func TestSlowRecord(t *testing.T) {
	in(t, func(t *testing.T) {
		slow := &slowCallers{}
		slow.takes.Store(int64(2 * time.Second))
		p := newPlant(t, func(c *DispatcherConfig) {
			slow.Callers, c.Callers = c.Callers, slow
		})
		var ids []string
		for range 8 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		p.run()
		pass(10 * time.Second)
		for _, id := range ids {
			p.want(id, engine.TriggerFired)
		}
	})
}

// A call that has waited for its caller's record until after the end of its lease is not made with
// that claim.
func TestRecordSlowerThanTheLease(t *testing.T) {
	in(t, func(t *testing.T) {
		slow := &slowCallers{}
		p := newPlant(t, func(c *DispatcherConfig) {
			slow.Callers, c.Callers = c.Callers, slow
			c.hit = func(name string) {
				if name == "trigger-claimed" && slow.takes.Load() == 0 {
					slow.takes.Store(int64(time.Minute))
				}
			}
			c.PolicyAge = -1
		})
		id := p.create("shop", `"delay_seconds":1`)
		p.run()
		pass(45 * time.Second)
		slow.takes.Store(int64(time.Millisecond))
		pass(2 * time.Minute)
		row := p.want(id, engine.TriggerFired)
		if calls, n := p.sink.of(id), p.evs.get("deferred "+CauseLeased); len(calls) != 1 || n != 1 || row.Deferrals != 1 {
			t.Errorf("%d calls, %d claims given back: %+v", len(calls), n, row)
		}
	})
}

// The queue sets apart a message that cannot be read, so that the message blocks no other. A
// message of a newer release stays in the queue, as it was, for a process of that release.
func TestUnreadableMessages(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		for _, b := range []string{"", "x", "\x02T34567890123456789012345678901234", "\x01E34567890123456789012345678901234"} {
			if err := p.queue.Enqueue(context.Background(), []engine.Message{{Body: []byte(b)}}); err != nil {
				t.Fatal(err)
			}
		}
		id := p.create("shop", `"delay_seconds":1`)
		pass(2 * time.Second)
		p.want(id, engine.TriggerFired)
		pass(time.Hour)
		if d, _ := p.queue.Depth(context.Background()); d.Dead != 3 || d.Ready+d.Delayed+d.InFlight != 1 {
			t.Errorf("queue %+v", d)
		}
	})
}

// newerRows is a trigger store in which the trigger id has a row of a newer release, until id is
// nil. It counts the swaps of that trigger.
type newerRows struct {
	engine.Triggers
	id    *atomic.Pointer[string]
	swaps *atomic.Int32
}

func (r newerRows) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	if id := r.id.Load(); id != nil && slices.Contains(ids, *id) {
		return nil, notify.Newer("the trigger "+*id, 2, 1)
	}
	return r.Triggers.Get(ctx, ids)
}

func (r newerRows) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	if id := r.id.Load(); id != nil && slices.ContainsFunc(ss, func(s engine.TriggerSwap) bool { return s.New.ID == *id }) {
		r.swaps.Add(1)
	}
	return r.Triggers.Swap(ctx, ss)
}

// A trigger whose row a newer release wrote is left to that release. This dispatcher makes no call
// and no swap, and the message stays in the queue however often it was received. Other triggers
// continue.
func TestLeavesTriggersOfANewerRelease(t *testing.T) {
	in(t, func(t *testing.T) {
		rows := newerRows{id: &atomic.Pointer[string]{}, swaps: &atomic.Int32{}}
		p := newPlant(t, func(c *DispatcherConfig) {
			rows.Triggers = c.Triggers
			c.Triggers = rows
		})
		newer, other := p.create("shop", `"delay_seconds":1`), p.create("shop", `"delay_seconds":1`)
		rows.id.Store(&newer)
		p.run()
		pass(2 * time.Second)
		p.want(other, engine.TriggerFired)
		pass(time.Hour)
		if n := len(p.sink.of(newer)); n > 0 || rows.swaps.Load() > 0 {
			t.Errorf("%d calls, %d swaps", n, rows.swaps.Load())
		}
		d, _ := p.queue.Depth(context.Background())
		if d.Dead != 0 || d.Ready+d.Delayed+d.InFlight != 1 || p.evs.get("deferred "+CauseNewer) < 10 {
			t.Errorf("queue %+v, put off %d times", d, p.evs.get("deferred "+CauseNewer))
		}
		rows.id.Store(nil) // from now on the row can be read
		pass(time.Minute)
		p.want(newer, engine.TriggerFired)
	})
}

// tardy is a queue that is slow to acknowledge.
type tardy struct {
	engine.Queue
	by time.Duration
}

func (q tardy) Ack(ctx context.Context, receipts []string) error {
	time.Sleep(q.by)
	return q.Queue.Ack(ctx, receipts)
}

// What follows a message may be received before that message is deleted: the same message, put off,
// or the message of its index row. It is not taken for a copy.
func TestSuccessorIsNoCopy(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) {
			c.Queue = tardy{c.Queue, 20 * time.Second}
			c.CallerInFlight, c.MaxQueued = 1, 2
		})
		p.sink.answer = func(_, _ string, n int) (time.Duration, result) {
			if n < 3 {
				return 0, status(500)
			}
			return 100 * time.Millisecond, ok
		}
		d, _ := p.run()
		if _, err := d.HoldCircuit("shop", limit.HeldClosed); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for range 50 {
			ids = append(ids, p.create("shop", `"delay_seconds":1,"retry_schedule_seconds":[2,11,30]`))
		}
		pass(30 * time.Minute)
		for _, id := range ids {
			if p.want(id, engine.TriggerFired); len(p.sink.of(id)) != 3 {
				t.Errorf("%d calls", len(p.sink.of(id)))
			}
		}
	})
}
