package trigger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// p99Beside returns the p99 lateness of a caller that has 500 triggers over 10 s, whose calls take
// 50 ms each. Beside it are callers whose receivers hang; each of them has 500 triggers that are
// due at once.
func p99Beside(t *testing.T, hanging int) (p99 time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		var callers []string
		for i := range hanging {
			callers = append(callers, fmt.Sprintf("hang%d", i))
		}
		p := newPlant(t, func(c *DispatcherConfig) {
			c.MaxInFlight, c.MaxQueued = 400, 2000
			c.Breaker.MinVolume = 1 << 30 // only the bulkhead protects the caller
		}, callers...)
		p.sink.answer = func(_, host string, _ int) (time.Duration, result) {
			if host != "shop.example" {
				return 10 * time.Second, result{class: ClassTimeout}
			}
			return 50 * time.Millisecond, ok
		}
		due := map[string]time.Time{}
		for i := range 500 {
			for _, c := range callers {
				p.create(c, `"delay_seconds":30`)
			}
			due[p.create("shop", fmt.Sprintf(`"delay_seconds":%g`, 31+float64(i)/50))] = time.Now().Add(time.Duration(31e9 + float64(i)/50*1e9))
		}
		_, stop := p.run()
		pass(time.Minute)
		stop()
		var late []time.Duration
		for id, at := range due {
			calls := p.sink.of(id)
			if len(calls) != 1 {
				t.Fatalf("%d calls for %s", len(calls), id)
			}
			late = append(late, calls[0].at.Sub(at))
		}
		slices.Sort(late)
		if late[0] < 0 {
			t.Errorf("early by %v", -late[0])
		}
		p99 = late[len(late)*99/100]
		if d, _ := p.queue.Depth(context.Background()); d.Dead != 0 {
			t.Errorf("%d dead messages", d.Dead)
		}
	})
	return p99
}

// Callers whose receivers hang do not delay another caller.
func TestBulkhead(t *testing.T) {
	t.Parallel()
	alone := p99Beside(t, 0)
	for _, n := range []int{1, 8} {
		if beside := p99Beside(t, n); beside > alone+250*time.Millisecond {
			t.Errorf("p99 %v beside %d callers that hang, %v alone", beside, n, alone)
		}
	}
}

// A caller never has more calls at a time than its bulkhead allows.
func TestBulkheadLimit(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.putCaller(engine.Caller{ID: "shop", CallbackURLs: []string{base("shop")}, MaxInFlight: 7})
		running, most := 0, 0
		p.sink.answer = func(string, string, int) (time.Duration, result) { return time.Second, ok }
		post := p.cfg.post
		p.cfg.Events.InFlight = func(_ string, n int) { running = n; most = max(most, n) }
		p.cfg.post = post
		var ids []string
		for range 100 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		p.run()
		pass(30 * time.Second)
		for _, id := range ids {
			p.want(id, engine.TriggerFired)
		}
		if most != 7 || running != 0 {
			t.Errorf("at most %d at a time, %d at the end; want 7 and 0", most, running)
		}
	})
}

// Messages that find their caller's line full wait behind it in memory while there is room,
// and are not put off. A stop gives them back at once.
func TestWaitBehindFullLine(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.CallerInFlight, c.MaxQueued = 10, 300 })
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 5 * time.Millisecond, ok }
		_, stop := p.run()
		var ids []string
		for range 250 {
			ids = append(ids, p.create("shop", `"delay_seconds":5`))
		}
		pass(6 * time.Second)
		for _, id := range ids {
			p.want(id, engine.TriggerFired)
		}
		if n := p.evs.get("deferred " + CauseBulkhead); n != 0 {
			t.Errorf("%d messages were put off", n)
		}
		p.sink.answer = func(string, string, int) (time.Duration, result) { return time.Second, ok }
		for range 250 {
			p.create("shop", `"delay_seconds":5`)
		}
		pass(5*time.Second + 20*time.Millisecond)
		if n := p.evs.get("deferred " + CauseBulkhead); n != 0 {
			t.Errorf("%d messages were put off before the stop", n)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v, the calls under way end within a second", took)
		}
		if d, _ := p.queue.Depth(context.Background()); d.InFlight != 0 || d.Ready+d.Delayed != 240 || p.evs.get("deferred "+CauseShutdown) == 0 {
			t.Errorf("after the stop: %+v, want 240 messages given back", d)
		}
	})
}

// Messages that wait behind a line are read in their turn, although rows before them lead to no
// call, even if the line has only one place.
func TestWaitBehindCancelledRows(t *testing.T) {
	for _, most := range []int{2, 20} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			in(t, func(t *testing.T) { waitBehindCancelledRows(t, most) })
		})
	}
}

func waitBehindCancelledRows(t *testing.T, most int) {
	p := newPlant(t, func(c *DispatcherConfig) { c.CallerInFlight, c.MaxQueued, c.Batch = 1, most, 1 })
	p.sink.answer = func(string, string, int) (time.Duration, result) { return time.Second, ok }
	p.run()
	first := p.create("shop", `"delay_seconds":1`)
	var cancelled, rest []string
	for range 17 {
		cancelled = append(cancelled, p.create("shop", `"delay_seconds":1.5`))
	}
	for range 2 {
		rest = append(rest, p.create("shop", `"delay_seconds":1.6`))
	}
	pass(1800 * time.Millisecond)
	for _, id := range cancelled {
		if err := p.cancel(id); err != nil {
			t.Fatal(err)
		}
	}
	pass(time.Minute)
	if n := p.evs.get("deferred " + CauseBulkhead); most == 20 && n != 0 {
		t.Errorf("%d messages were put off", n)
	}
	p.want(first, engine.TriggerFired)
	for _, id := range rest {
		p.want(id, engine.TriggerFired)
	}
	if n := p.sink.count(); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
	if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
		t.Errorf("%+v are left", d)
	}
}

// Messages that wait behind a line are put off when their receiver becomes so slow that another
// process may call it sooner.
func TestWaitBehindSlowReceiver(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.CallerInFlight, c.MaxQueued = 10, 300 })
		took := 5 * time.Millisecond
		p.sink.answer = func(string, string, int) (time.Duration, result) { return took, ok }
		d, _ := p.run()
		for range 250 {
			p.create("shop", `"delay_seconds":5`)
		}
		pass(6 * time.Second)
		took = 5 * time.Second
		for range 250 {
			p.create("shop", `"delay_seconds":5`)
		}
		pass(6 * time.Second)
		if n := p.evs.get("deferred " + CauseBulkhead); n != 0 || d.Circuits()[0].Queued <= 100 {
			t.Errorf("%d put off and %d in memory at first, want 0 and more than a line's 100", n, d.Circuits()[0].Queued)
		}
		pass(20 * time.Second)
		if n := d.Circuits()[0].Queued; n > 100 {
			t.Errorf("%d in memory, want a line's 100 at most", n)
		}
		pass(10 * time.Minute)
		if n := p.sink.count(); n != 500 {
			t.Errorf("%d calls, want 500", n)
		}
	})
}

// A process leaves to other processes what it would not call soon: a part of a burst, and a part of
// what it had when another process came.
func TestBurstIsShared(t *testing.T) {
	in(t, func(t *testing.T) {
		var beside atomic.Bool
		p := newPlant(t, func(c *DispatcherConfig) {
			c.CallerInFlight, c.Batch = 20, 20
			c.Share = func(limit int) int {
				if beside.Load() {
					return limit / 2
				}
				return limit
			}
		})
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 100 * time.Millisecond, ok }
		first, _ := p.run()
		due := func(n int) {
			for range n {
				p.create("shop", `"delay_seconds":5`)
			}
			pass(5*time.Second + 200*time.Millisecond)
		}
		held := func(d *Dispatcher) (n int) {
			for _, c := range d.Circuits() {
				n += c.Queued
			}
			return n
		}
		due(4200)
		if n := held(first); n < 3000 {
			t.Fatalf("one that is alone holds %d, want all", n)
		}
		beside.Store(true)
		second, _ := p.run()
		pass(5 * time.Second)
		for _, d := range []*Dispatcher{first, second} {
			if n := held(d); n > 1300 {
				t.Errorf("beside another one each holds what it calls soon; this one holds %d", n)
			}
		}
		pass(20 * time.Second)
		if n := p.sink.count(); n != 4200 {
			t.Errorf("%d calls after 26 s, want all 4200: two processes make 200 a second", n)
		}
		pass(10 * time.Second)
		due(2000)
		for _, d := range []*Dispatcher{first, second} {
			if n := held(d); n > 700 {
				t.Errorf("%d of the second burst in memory, want what is called soon", n)
			}
		}
		pass(12 * time.Second)
		if n := p.sink.count(); n < 6000 {
			t.Errorf("%d calls of the second burst after 12 s, want nearly all of 2000", n-4200)
		}
		pass(10 * time.Second)
		if n := p.sink.count(); n != 6200 {
			t.Errorf("%d calls, want all 6200", n)
		}
	})
}

// Messages that were put off return at the pace of all processes together. Any of them may receive
// such a message, and one process may have put off nearly all of a backlog.
func TestMessagesReturnAtThePaceOfAllProcesses(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, processes := range []int{1, 2, 8} {
			p := newPlant(t, func(c *DispatcherConfig) { c.Share = func(limit int) int { return limit / processes } })
			d, err := NewDispatcher(p.cfg)
			if err != nil {
				t.Fatal(err)
			}
			l := d.lanes.newLane()
			l.callInterval = 10 * time.Millisecond
			var last time.Duration
			for range 800 {
				w := &work{}
				w.msg.deferrals = 2
				last = d.lanes.setAwayLocked(l, w, time.Now()).delay
			}
			// They return a quarter faster than they are called, in steps of awayStep.
			want := 800 * 10 * time.Millisecond * 4 / 5 / time.Duration(processes)
			if last < want || last > want+awayStep {
				t.Errorf("the last of 800 messages returns after %v, want %v: %d processes make %d calls a second", last, want, processes, 100*processes)
			}
		}
	})
}

// While the breaker is open nothing is called, and waiting triggers use no attempts. All of them
// fire when the receiver is back.
func TestBreaker(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		var states []limit.BreakerState
		p.cfg.Events.Breaker = func(_ string, s limit.BreakerState) { states = append(states, s) }
		up := time.Now().Add(10 * time.Minute)
		p.sink.answer = func(string, string, int) (time.Duration, result) {
			if time.Now().Before(up) {
				return 20 * time.Millisecond, status(503)
			}
			return 20 * time.Millisecond, ok
		}
		var ids []string
		for i := range 300 {
			ids = append(ids, p.create("shop", fmt.Sprintf(`"delay_seconds":%d`, 1+i)))
		}
		p.run()
		pass(11 * time.Second)
		opened := p.sink.count()
		if opened < 10 || opened > 11 {
			t.Errorf("open after %d calls, want 10", opened)
		}
		pass(55 * time.Second)
		if n := p.sink.count(); n != opened {
			t.Errorf("%d calls while it was open", n-opened)
		}
		pass(9 * time.Minute)
		if n := p.sink.count(); n > opened+3*10 {
			t.Errorf("%d calls in 10 minutes, want %d and 3 probes a minute at most", n, opened)
		}
		pass(5 * time.Minute)
		attempts := 0
		for _, id := range ids {
			row := p.want(id, engine.TriggerFired)
			attempts += row.Attempts
		}
		if attempts != p.sink.count() {
			t.Errorf("%d attempts, %d calls", attempts, p.sink.count())
		}
		if !slices.Contains(states, limit.Open) || !slices.Contains(states, limit.HalfOpen) || states[len(states)-1] != limit.Closed {
			t.Errorf("states %v", states)
		}
		if p.evs.get("deferred breaker") == 0 {
			t.Error("nothing was put off")
		}
	})
}

// A receiver that has just come back is not given all of its backlog at once.
func TestSlowStart(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		up := time.Now().Add(2 * time.Minute)
		p.sink.answer = func(string, string, int) (time.Duration, result) {
			if time.Now().Before(up) {
				return 0, status(503)
			}
			return time.Second, ok
		}
		most := map[int]int{} // calls at a time, by second since it came back
		closed := time.Time{}
		p.cfg.Events.Breaker = func(_ string, s limit.BreakerState) {
			if s == limit.Closed && time.Now().After(up) && closed.IsZero() {
				closed = time.Now()
			}
		}
		p.cfg.Events.InFlight = func(_ string, n int) {
			if !closed.IsZero() {
				s := int(time.Since(closed).Seconds())
				most[s] = max(most[s], n)
			}
		}
		for range 3000 {
			p.create("shop", `"delay_seconds":1`)
		}
		p.run()
		pass(10 * time.Minute)
		if most[0] > 3 || most[1] > 8 || most[2] > 16 {
			t.Errorf("calls at a time by second after closing: %v", most)
		}
		peak := 0
		for _, n := range most {
			peak = max(peak, n)
		}
		if peak != 100 {
			t.Errorf("peak %d, want the whole bulkhead in the end", peak)
		}
	})
}

// A circuit that an operator holds stays held until the operator releases it. However long that
// takes, triggers use no attempts.
func TestPinnedCircuit(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil, "bank")
		d, _ := p.run()
		if _, err := d.HoldCircuit("shop", limit.HeldOpen); err != nil {
			t.Fatal(err)
		}
		if _, err := d.HoldCircuit("shop", limit.NotHeld); err == nil {
			t.Error("pinned to nothing")
		}
		a, b := p.create("shop", `"delay_seconds":1`), p.create("bank", `"delay_seconds":1`)
		pass(24 * time.Hour)
		p.want(b, engine.TriggerFired)
		if row := p.want(a, engine.TriggerPending); row.Attempts != 0 || p.sink.count() != 1 {
			t.Errorf("%+v", row)
		}
		list := d.Circuits()
		if len(list) != 2 || list[0].Caller != "bank" || list[1].Caller != "shop" || list[1].State != limit.Open || list[1].Hold != limit.HeldOpen || list[0].State != limit.Closed {
			t.Errorf("circuits %+v", list)
		}
		if q, _ := p.queue.Depth(context.Background()); q.Dead != 0 || q.Delayed != 1 {
			t.Errorf("queue %+v", q)
		}
		if c := d.ResetCircuit("shop"); c.State != limit.Closed || c.Hold != limit.NotHeld {
			t.Errorf("after the reset %+v", c)
		}
		pass(time.Minute)
		if row := p.want(a, engine.TriggerFired); row.Attempts != 1 || row.Deferrals == 0 {
			t.Errorf("%d attempts, %d deferrals", row.Attempts, row.Deferrals)
		}

		// While the circuit is held closed, errors do not open it.
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 0, status(500) }
		if _, err := d.HoldCircuit("shop", limit.HeldClosed); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			p.create("shop", `"delay_seconds":1`)
		}
		before := p.sink.count()
		pass(5 * time.Second)
		if n := p.sink.count() - before; n != 50 {
			t.Errorf("%d calls, want 50", n)
		}
	})
}

// besideBacklog returns the p99 lateness of a caller's triggers that are due on time, while the
// catch-up releases 6,000 triggers of the same caller that were due long before. It also returns
// how long the catch-up took. Calls take 20 ms, so 50 at a time make 2,500 a second.
func besideBacklog(t *testing.T, into func(q engine.Queue) func(context.Context, []engine.Timer) error) (p99, drained time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.CallerInFlight = 50 })
		p.sink.answer = func(string, string, int) (time.Duration, result) { return 20 * time.Millisecond, ok }
		var overdue []string
		var mu sync.Mutex
		var late []engine.Timer
		prompt := p.wheel.publish
		p.wheel.publish = func(_ context.Context, ts []engine.Timer) error { // no dispatcher is running
			mu.Lock()
			defer mu.Unlock()
			late = append(late, ts...)
			return nil
		}
		for range 6000 {
			overdue = append(overdue, p.create("shop", `"delay_seconds":1`))
		}
		pass(time.Minute)
		p.wheel.publish = prompt
		due := map[string]time.Time{}
		for i := range 500 {
			due[p.create("shop", fmt.Sprintf(`"delay_seconds":%g`, 1+float64(i)/100))] = time.Now().Add(time.Duration(1e9 + float64(i)/100*1e9))
		}
		began := time.Now()
		publish := into(p.queue)
		for len(late) > 0 {
			n := min(len(late), 500)
			if err := publish(context.Background(), late[:n]); err != nil {
				t.Fatal(err)
			}
			late = late[n:]
		}
		_, stop := p.run()
		pass(time.Minute)
		stop()
		for _, id := range overdue {
			calls := p.sink.of(id)
			if len(calls) != 1 {
				t.Fatalf("%d calls for %s", len(calls), id)
			}
			drained = max(drained, calls[0].at.Sub(began))
		}
		var behind []time.Duration
		for id, at := range due {
			calls := p.sink.of(id)
			if len(calls) != 1 {
				t.Fatalf("%d calls for %s", len(calls), id)
			}
			behind = append(behind, calls[0].at.Sub(at))
		}
		slices.Sort(behind)
		p99 = behind[len(behind)*99/100]
	})
	return p99, drained
}

// Triggers that are on time do not wait behind the backlog. The backlog gets all the capacity that
// is left.
func TestOnTimeBesideBacklog(t *testing.T) {
	t.Parallel()
	p99, drained := besideBacklog(t, func(q engine.Queue) func(context.Context, []engine.Timer) error {
		return ToBacklog(q, BacklogPace{})
	})
	one, _ := besideBacklog(t, func(q engine.Queue) func(context.Context, []engine.Timer) error {
		return func(ctx context.Context, ts []engine.Timer) error { // puts the backlog into the same lane as the rest
			ms, err := messages(ts)
			if err != nil {
				return err
			}
			for i := range ms {
				ms[i].Backlog = false
			}
			return q.Enqueue(ctx, ms)
		}
	})
	short, _ := besideBacklog(t, ToQueue) // too little late to count as backlog
	t.Logf("on time p99 %v beside a backlog that took %v; %v beside what is late; %v in one lane", p99, drained, short, one)
	if max(p99, short) > 100*time.Millisecond {
		t.Errorf("on time p99 %v", p99)
	}
	if drained > 5*time.Second {
		t.Errorf("the backlog took %v", drained)
	}
	if one < 500*time.Millisecond {
		t.Errorf("on time p99 %v in one lane: this test shows nothing", one)
	}
}

// While the backlog lane is deep, producers are slow, but they do not stop.
func TestBacklogPace(t *testing.T) {
	in(t, func(t *testing.T) {
		q := newHeapQueue(10)
		// This process owns a quarter of the shards.
		publish := ToBacklog(q, BacklogPace{Deep: 1000, Slow: 400, Share: func() float64 { return 0.25 }})
		batch := make([]engine.Timer, 100)
		for i := range batch {
			batch[i] = engine.Timer{Kind: TimerKind, FireAt: time.Now().UnixMilli(), Payload: []byte("x")}
		}
		took := func(batches int) time.Duration {
			began := time.Now()
			for range batches {
				if err := publish(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		if d := took(10); d > 0 {
			t.Errorf("a shallow lane took %v", d)
		}
		if d := took(10); d < 9*time.Second || d > 11*time.Second {
			t.Errorf("1,000 into a deep lane at 100 a second took %v", d)
		}
		ds, err := q.Receive(t.Context(), 2000, time.Hour)
		if err != nil || len(ds) != 2000 || !ds[0].Backlog {
			t.Fatalf("%d messages, %v", len(ds), err)
		}
		var done []string
		for _, d := range ds {
			done = append(done, d.Receipt)
		}
		if err := q.Ack(t.Context(), done); err != nil {
			t.Fatal(err)
		}
		if d := took(5); d > 0 {
			t.Errorf("an empty lane took %v", d)
		}
		if err := publish(t.Context(), []engine.Timer{{Kind: TimerKind + 1}}); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("another kind: %v", err)
		}
	})
}

// While both lines of a caller have messages, one of four messages is from the backlog. So neither
// line can starve the other.
func TestTurnsOfLines(t *testing.T) {
	t.Parallel()
	var all lanes
	var l lane
	for range 30 {
		l.lines[lineOnTime].queue = append(l.lines[lineOnTime].queue, &work{lane: &l})
		l.lines[lineBacklog].queue = append(l.lines[lineBacklog].queue, &work{lane: &l, delivery: engine.Delivery{Backlog: true}})
	}
	turns := ""
	for l.waiting() > 0 {
		turns += [...]string{"o", "b"}[all.nextLocked(&l).line()]
	}
	if want := strings.Repeat("ooob", 10) + strings.Repeat("b", 20); turns != want {
		t.Errorf("%s, want %s", turns, want)
	}
}
