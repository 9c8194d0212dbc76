package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (p *plant) reconciler(change func(*ReconcilerConfig)) *Reconciler {
	p.t.Helper()
	cfg := ReconcilerConfig{
		Triggers: p.store.Triggers(), Timers: p.store.Timers(), Shards: testShards, Later: p.wheel, Dead: p.dead,
		Census: p.cfg.Census, Page: 3,
	}
	if change != nil {
		change(&cfg)
	}
	r, err := NewReconciler(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// put stores a row as a crash may have left it, with the index row and the
// message of given generations (below 0: none).
func (p *plant) put(n int, t engine.Trigger, indexGen, messageGen int) string {
	p.t.Helper()
	ctx := context.Background()
	b := notify.NewBase(time.Now().Add(-2 * time.Hour)).Item(n)
	t.ID, t.Caller, t.URL, t.Version = idOf(b), "shop", base("shop")+"x", 0
	if t.State != 0 {
		if won, err := p.store.Triggers().Create(ctx, []engine.Trigger{t}); err != nil || !won[0] {
			p.t.Fatalf("%v, %v", won, err)
		}
	}
	if indexGen >= 0 {
		if err := p.store.Timers().Put(ctx, testShards, []engine.Timer{indexRow(b, &engine.Trigger{Gen: uint32(indexGen), NextAt: t.NextAt})}); err != nil {
			p.t.Fatal(err)
		}
	}
	if messageGen >= 0 {
		if err := p.queue.Enqueue(ctx, []engine.Message{{Body: message{base: b, gen: uint32(messageGen), attempt: 1}.encode()}}); err != nil {
			p.t.Fatal(err)
		}
	}
	return t.ID
}

// Every combination of state, times, index row and message: one pass repairs
// it, a second changes nothing, terminal rows stay as they are, and then every
// trigger comes to its end with one call at most for each attempt.
func TestReconcileEveryCombination(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, func(c *DispatcherConfig) { c.MaxInFlight, c.CallerInFlight = 2000, 1000 })
		now := time.Now()
		ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
		type kase struct {
			what     string
			row      engine.Trigger
			terminal bool
		}
		var cases []kase
		for _, at := range []struct {
			what string
			next int64
		}{{"overdue", ago(time.Hour)}, {"just due", ago(time.Minute)}, {"soon", ago(-5 * time.Minute)}, {"in an hour", ago(-time.Hour)}, {"tomorrow", ago(-24 * time.Hour)}} {
			for _, attempts := range []int{0, 2} {
				cases = append(cases, kase{fmt.Sprint("PENDING ", at.what, attempts), engine.Trigger{
					State: engine.TriggerPending, FireAt: at.next, NextAt: at.next, Attempts: attempts, Epoch: uint32(attempts), Gen: 1,
				}, false})
			}
		}
		for _, lease := range []struct {
			what  string
			until int64
		}{{"expired", ago(time.Hour)}, {"expired a moment ago", ago(time.Minute)}, {"held", ago(-20 * time.Second)}} {
			cases = append(cases, kase{"IN_FLIGHT " + lease.what, engine.Trigger{
				State: engine.TriggerInFlight, FireAt: ago(2 * time.Hour), NextAt: ago(2 * time.Hour), Epoch: 1, Gen: 1, LeaseUntil: lease.until,
			}, false})
		}
		for _, ended := range []int64{ago(time.Hour), ago(time.Minute)} {
			for _, state := range []engine.TriggerState{engine.TriggerFired, engine.TriggerCancelled, engine.TriggerExpired, engine.TriggerFailed} {
				cases = append(cases, kase{StateName(state), engine.Trigger{State: state, FireAt: ago(2 * time.Hour), Gen: 1, Ended: ended}, true})
			}
			cases = append(cases, kase{"FAILED owed", engine.Trigger{State: engine.TriggerFailed, FireAt: ago(2 * time.Hour), Gen: 1, Ended: ended, NextAt: ended, Reason: "http_500"}, true})
		}
		cases = append(cases, kase{"no row", engine.Trigger{NextAt: ago(-time.Hour)}, false}, kase{"no row, past", engine.Trigger{NextAt: ago(time.Hour)}, false})

		ids := map[string]string{}
		rows := map[string]kase{}
		n := 0
		for _, c := range cases {
			for _, index := range []int{-1, 0, 1} {
				for _, msg := range []int{-1, 0, 1, 2} {
					n++
					id := p.put(n, c.row, index, msg)
					ids[id] = fmt.Sprintf("%s, index %d, message %d", c.what, index, msg)
					rows[id] = c
				}
			}
		}
		snapshot := func() map[string]engine.Trigger {
			out := map[string]engine.Trigger{}
			for id, c := range rows {
				if c.row.State != 0 {
					out[id] = p.row(id)
				}
			}
			return out
		}
		before := snapshot()
		ctx := context.Background()
		r := p.reconciler(nil)
		rep, err := r.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := snapshot(); !equalRows(got, before) {
			t.Error("a report changed rows")
		}
		done, err := r.Apply(ctx, rep)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d combinations; found %v; changed %v, skipped %v", n, rep.Counts, done.Changed, done.Skipped)
		after := snapshot()
		time.Sleep(time.Millisecond)
		again, err := r.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := r.Apply(ctx, again)
		if err != nil || len(twice.Changed) != 0 {
			t.Errorf("the second pass changed %v, %v", twice.Changed, err)
		}
		if !equalRows(snapshot(), after) {
			t.Error("the second pass changed rows")
		}
		for class := range again.Counts {
			if class != FindOpenBucket && class != FindOrphanIndex {
				t.Errorf("found again: %v", again.Counts)
			}
		}
		for id, c := range rows {
			if was, is := before[id], after[id]; c.terminal && (is.State != was.State || is.Ended != was.Ended || is.Reason != was.Reason) {
				t.Errorf("%s: a terminal row was touched: %+v", ids[id], is)
			}
		}

		// The timer engine releases what is stored, in the past as well.
		err = p.store.Timers().Pending(ctx, func(x *engine.Timer) error {
			c := *x
			time.AfterFunc(time.Until(time.UnixMilli(c.FireAt)), func() { _ = p.wheel.publish(ctx, []engine.Timer{c}) })
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p.run()
		hourly, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(hourly, time.Hour, nil) }() // what was not overdue yet will be
		pass(30 * time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for id, c := range rows {
			if c.row.State == 0 {
				continue
			}
			row := p.row(id)
			calls := p.sink.of(id)
			switch {
			case c.terminal:
				if len(calls) != 0 || row.State != c.row.State || row.NextAt != 0 {
					t.Errorf("%s: %d calls, %s", ids[id], len(calls), StateName(row.State))
				}
			case row.State == engine.TriggerFired:
				if len(calls) != 1 || calls[0].at.UnixMilli() < c.row.NextAt {
					t.Errorf("%s: %d calls", ids[id], len(calls))
				}
			default:
				t.Errorf("%s: stays %s (%s)", ids[id], StateName(row.State), row.Reason)
			}
			if c.row.State == engine.TriggerFailed && c.row.NextAt != 0 && len(p.dead.of(id)) != 1 {
				t.Errorf("%s: %d dead letters", ids[id], len(p.dead.of(id)))
			}
		}
	})
}

func equalRows(a, b map[string]engine.Trigger) bool {
	return maps.EqualFunc(a, b, func(x, y engine.Trigger) bool {
		return x.Version == y.Version && x.State == y.State && x.NextAt == y.NextAt
	})
}

// A report says what it found, keeps its digest over the wire, and is refused
// when it is altered or old.
func TestReport(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		now := time.Now()
		past := now.Add(-time.Hour).UnixMilli()
		overdue := p.put(1, engine.Trigger{State: engine.TriggerPending, NextAt: past, FireAt: past}, -1, -1)
		expired := p.put(2, engine.Trigger{State: engine.TriggerInFlight, NextAt: past, FireAt: past, LeaseUntil: past, Epoch: 1}, -1, -1)
		lost := p.put(3, engine.Trigger{State: engine.TriggerPending, NextAt: now.Add(time.Hour).UnixMilli()}, -1, -1)
		owed := p.put(4, engine.Trigger{State: engine.TriggerFailed, NextAt: past, Ended: past}, -1, -1)
		orphan := p.put(5, engine.Trigger{NextAt: now.Add(30 * time.Minute).UnixMilli()}, 0, -1)
		fine := p.put(6, engine.Trigger{State: engine.TriggerPending, NextAt: now.Add(time.Hour).UnixMilli()}, 0, -1)
		p.put(7, engine.Trigger{NextAt: past}, 0, -1) // a minute of an hour ago that nobody dropped
		ctx := context.Background()
		if err := p.store.Timers().Put(ctx, testShards, []engine.Timer{{FireAt: now.Add(time.Hour).UnixMilli(), ID: []byte("x"), Kind: TimerKind, Payload: []byte("y")}, {FireAt: now.Add(time.Hour).UnixMilli(), ID: []byte("z"), Kind: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.store.Triggers().Create(ctx, []engine.Trigger{{ID: "bad", State: engine.TriggerPending}}); err != nil {
			t.Fatal(err)
		}
		r := p.reconciler(nil)
		rep, err := r.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{overdue: FindOverdue, expired: FindClaimExpired, lost: FindNoIndex, owed: FindLetterOwed, orphan: FindOrphanIndex, "bad": FindUnreadable}
		for _, f := range rep.Findings {
			if c, expected := want[f.ID]; expected && c == f.Class {
				delete(want, f.ID)
			}
			if f.ID == fine {
				t.Errorf("found %+v", f)
			}
		}
		if len(want) != 0 || rep.Counts[FindOpenBucket] != 1 || rep.Counts[FindUnreadable] != 2 || rep.Clean() || rep.Truncated {
			t.Errorf("missing %v in %+v", want, rep)
		}

		var wire Report
		b, _ := json.Marshal(rep)
		if err := json.Unmarshal(b, &wire); err != nil || wire.Digest != wire.digest() {
			t.Errorf("over the wire the digest is another: %v", err)
		}
		altered := wire
		altered.Findings = slices.Clone(wire.Findings)
		altered.Findings[0].Version++
		_, err = r.Apply(ctx, altered)
		refused(t, err, notify.KindInvalid, "bad_digest", "digest")
		if done, err := r.Apply(ctx, wire); err != nil || len(done.Changed) != 4 {
			t.Errorf("%+v, %v", done, err)
		}
		_, err = r.Apply(ctx, wire)
		refused(t, err, notify.KindConflict, "stale_report", "report_id")
		second := p.reconciler(nil)
		if done, err := second.Apply(ctx, wire); err != nil || len(done.Changed) != 0 {
			t.Errorf("applied by another process: %+v, %v", done, err)
		}
		time.Sleep(time.Second)
		old, err := r.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(16 * time.Minute)
		_, err = r.Apply(ctx, old)
		refused(t, err, notify.KindConflict, "stale_report", "report_id")
		if row := p.row(lost); row.Version != 1 {
			t.Errorf("an index row cost a swap: %+v", row)
		}

		small := p.reconciler(func(c *ReconcilerConfig) { c.MaxFindings = 1 })
		short, err := small.Report(ctx)
		if err != nil || len(short.Findings) != 1 || !short.Truncated {
			t.Errorf("%+v, %v", short, err)
		}
	})
}

// Between report and repair rows move: what moved is left alone, what has not
// is repaired, and the cancel of a reported trigger stands.
func TestApplyMeetsChanges(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		past := time.Now().Add(-time.Hour).UnixMilli()
		var ids []string
		for n := range 4 {
			ids = append(ids, p.put(n, engine.Trigger{State: engine.TriggerPending, NextAt: past, FireAt: past}, -1, -1))
		}
		ctx := context.Background()
		swap := func(id string) {
			if err := p.cancel(id); err != nil {
				t.Error(err)
			}
		}
		r := p.reconciler(func(c *ReconcilerConfig) {
			c.hit = func(string) { swap(ids[1]) } // between its read and its swap
		})
		rep, err := r.Report(ctx)
		if err != nil {
			t.Fatal(err)
		}
		swap(ids[0])
		done, err := r.Apply(ctx, rep)
		if err != nil || done.Changed[FindOverdue] != 2 || done.Skipped[FindOverdue] != 2 {
			t.Errorf("%+v, %v", done, err)
		}
		p.run()
		pass(5 * time.Minute)
		for i, id := range ids {
			state, calls := engine.TriggerFired, 1
			if i < 2 {
				state, calls = engine.TriggerCancelled, 0
			}
			p.want(id, state)
			if n := len(p.sink.of(id)); n != calls {
				t.Errorf("%d: %d calls", i, n)
			}
		}
	})
}

// The reconciler's count is what the limit goes by from then on.
func TestReconcilerCounts(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		for n := range 7 {
			p.put(n, engine.Trigger{State: engine.TriggerPending, NextAt: time.Now().Add(time.Minute).UnixMilli()}, 0, -1)
		}
		if _, err := p.reconciler(nil).Report(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := p.cfg.Census.Waiting("shop"); n != 7 {
			t.Errorf("%d waiting, want 7", n)
		}
	})
}

// Run finds what a lost message left, without anybody asking.
func TestReconcilerRuns(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		past := time.Now().Add(-time.Hour).UnixMilli()
		id := p.put(1, engine.Trigger{State: engine.TriggerPending, NextAt: past, FireAt: past}, -1, -1)
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		done := make(chan error, 1)
		go func() {
			done <- p.reconciler(nil).Run(ctx, time.Hour, func(rep Report, a Applied, err error) {
				if runs++; err != nil || runs == 1 && a.Changed[FindOverdue] != 1 || runs > 1 && (rep.Counts[FindOverdue] != 0 || len(a.Changed) != 0) {
					t.Errorf("run %d: %+v, %+v, %v", runs, rep, a, err)
				}
			})
		}()
		pass(3*time.Hour + time.Minute)
		cancel()
		if err := <-done; err != nil || runs != 3 {
			t.Errorf("%d runs, %v", runs, err)
		}
		p.want(id, engine.TriggerFired)
	})
}

func TestBefore(t *testing.T) {
	t.Parallel()
	f := func(id, want []byte) {
		t.Helper()
		got := before(id)
		if len(got) != 64 || slices.Compare(got, id) >= 0 || slices.Compare(got[:len(want)], want) != 0 {
			t.Errorf("before %x is %x", id, got)
		}
	}
	f([]byte{1, 2, 3}, []byte{1, 2, 2})
	f([]byte{1, 0, 0}, []byte{0, 0xff, 0xff})
	f([]byte{0, 0, 1}, []byte{0, 0, 0})
}

// Hourly repairs of a backlog that waits for its receiver do not pile up
// messages: those of the old generation go.
func TestReconcilePilesNothingUp(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		d, _ := p.run()
		if _, err := d.PinCircuit("shop", PinnedOpen); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for range 20 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		r := p.reconciler(nil)
		for range 24 {
			pass(time.Hour)
			rep, err := r.Report(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if done, err := r.Apply(context.Background(), rep); err != nil || done.Changed[FindOverdue] != 20 {
				t.Fatalf("%+v, %v", done, err)
			}
		}
		pass(5 * time.Minute)
		if q, _ := p.queue.Depth(context.Background()); q.Delayed+q.Ready+q.InFlight != 20 || q.Dead != 0 {
			t.Errorf("queue %+v", q)
		}
		d.ResetCircuit("shop")
		pass(2 * time.Minute)
		for _, id := range ids {
			if p.want(id, engine.TriggerFired); len(p.sink.of(id)) != 1 {
				t.Errorf("%d calls", len(p.sink.of(id)))
			}
		}
	})
}
