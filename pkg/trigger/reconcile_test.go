package trigger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (p *plant) reconciler(change func(*conserve.Config), hit func(string)) *conserve.Auditor {
	cfg := conserve.Config{
		Rows: p.store.Triggers(), Timers: p.store.Timers(), Cold: p.store.ColdTimers(), Shards: engine.FixedShards(testShards), Waiting: p.cfg.Census.Set, Page: 3,
		Triggers: Mender{Triggers: p.store.Triggers(), Later: p.wheel, Dead: p.dead, hit: hit},
	}
	if change != nil {
		change(&cfg)
	}
	return conserve.New(cfg)
}

// reported returns what a reconciler finds now.
func (p *plant) reported(r *conserve.Auditor) conserve.Report {
	p.t.Helper()
	rep, err := r.Triggers(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return rep
}

// mended repairs findings, and returns how many by class.
func (p *plant) mended(r *conserve.Auditor, fs []conserve.Finding) map[string]int {
	p.t.Helper()
	mended, err := r.Mend(context.Background(), fs)
	if err != nil {
		p.t.Fatal(err)
	}
	return mended
}

// put stores a row as a crash may have left it, with the index row and the message of the given
// generations (below 0: none).
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
		if err := p.store.Timers().Put(ctx, notify.SpreadOver(testShards), []engine.Timer{indexRow(b, &engine.Trigger{Gen: uint32(indexGen), NextAt: t.NextAt})}); err != nil {
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

// Every combination of state, times, index row and message is repaired by one pass, and a second
// pass changes nothing. Terminal rows stay as they are. Then every trigger comes to its end, with
// at most one call for each attempt.
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
		r := p.reconciler(nil, nil)
		rep := p.reported(r)
		if got := snapshot(); !equalRows(got, before) {
			t.Error("a report changed rows")
		}
		done := p.mended(r, rep.Findings)
		t.Logf("%d combinations; found %v; changed %v", n, rep.Counts, done)
		if len(done) != 4 {
			t.Errorf("changed %v, want four classes", done)
		}
		after := snapshot()
		time.Sleep(time.Millisecond)
		again := p.reported(r)
		if twice := p.mended(r, slices.Concat(rep.Findings, again.Findings)); len(twice) != 0 {
			t.Errorf("the second pass changed %v", twice)
		}
		if !equalRows(snapshot(), after) {
			t.Error("the second pass changed rows")
		}
		for class := range again.Counts {
			if class != conserve.OpenBucket && class != conserve.Orphan {
				t.Errorf("found again: %v", again.Counts)
			}
		}
		for id, c := range rows {
			if was, is := before[id], after[id]; c.terminal && (is.State != was.State || is.Ended != was.Ended || is.Reason != was.Reason) {
				t.Errorf("%s: a terminal row was touched: %+v", ids[id], is)
			}
		}

		// The timer engine releases all stored rows, also those whose time is in the past.
		err := p.store.Timers().Pending(ctx, func(x *engine.Timer) error {
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
		go func() { ended <- r.MendTriggers(hourly, time.Hour, func(_, _ map[string]int, _ error) {}) }() // what was not overdue yet will be
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

// A report says what it found. Each finding is repaired once, by whichever process.
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
		p.put(7, engine.Trigger{NextAt: past}, 0, -1) // a minute of an hour ago that was not dropped
		ctx := context.Background()
		if err := p.store.Timers().Put(ctx, notify.SpreadOver(testShards), []engine.Timer{{FireAt: now.Add(time.Hour).UnixMilli(), ID: []byte("x"), Kind: TimerKind, Payload: []byte("y")}, {FireAt: now.Add(time.Hour).UnixMilli(), ID: []byte("z"), Kind: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.store.Triggers().Create(ctx, []engine.Trigger{{ID: "bad", State: engine.TriggerPending}}); err != nil {
			t.Fatal(err)
		}
		r := p.reconciler(nil, nil)
		rep := p.reported(r)
		want := map[string]string{overdue: conserve.Late, expired: conserve.ClaimExpired, lost: conserve.Missing, owed: conserve.LetterOwed, orphan: conserve.Orphan, "bad": conserve.Unreadable}
		for _, f := range rep.Findings {
			if c, expected := want[f.ID]; expected && c == f.Class {
				delete(want, f.ID)
			}
			if f.ID == fine {
				t.Errorf("found %+v", f)
			}
		}
		if len(want) != 0 || rep.Counts[conserve.OpenBucket] != 1 || rep.Counts[conserve.Unreadable] != 2 || rep.Truncated {
			t.Errorf("missing %v in %+v", want, rep)
		}

		if done := p.mended(r, rep.Findings); len(done) != 4 {
			t.Errorf("%+v", done)
		}
		if done := p.mended(p.reconciler(nil, nil), rep.Findings); len(done) != 0 {
			t.Errorf("applied by another process: %+v", done)
		}
		if row := p.row(lost); row.Version != 1 {
			t.Errorf("an index row cost a swap: %+v", row)
		}

		if short := p.reported(p.reconciler(func(c *conserve.Config) { c.MaxListed = 1 }, nil)); len(short.Findings) != 1 || !short.Truncated || !maps.Equal(short.Counts, p.reported(r).Counts) {
			t.Errorf("%+v", short)
		}
	})
}

// Rows change between the report and the repair. A row that has changed is left alone, a row that
// has not is repaired, and the cancel of a reported trigger stays valid.
func TestApplyMeetsChanges(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		past := time.Now().Add(-time.Hour).UnixMilli()
		var ids []string
		for n := range 4 {
			ids = append(ids, p.put(n, engine.Trigger{State: engine.TriggerPending, NextAt: past, FireAt: past}, -1, -1))
		}
		swap := func(id string) {
			if err := p.cancel(id); err != nil {
				t.Error(err)
			}
		}
		r := p.reconciler(nil, func(string) { swap(ids[1]) }) // between its read and its swap
		rep := p.reported(r)
		swap(ids[0])
		if done := p.mended(r, rep.Findings); done[conserve.Late] != 2 || len(rep.Findings) != 4 {
			t.Errorf("%+v of %+v", done, rep.Findings)
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

// From then on the limit uses the reconciler's count.
func TestReconcilerCounts(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		for n := range 7 {
			p.put(n, engine.Trigger{State: engine.TriggerPending, NextAt: time.Now().Add(time.Minute).UnixMilli()}, 0, -1)
		}
		p.reported(p.reconciler(nil, nil))
		if n := p.cfg.Census.Waiting("shop"); n != 7 {
			t.Errorf("%d waiting, want 7", n)
		}
	})
}

// Run finds by itself what a lost message has left.
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
			done <- p.reconciler(nil, nil).MendTriggers(ctx, time.Hour, func(found, mended map[string]int, err error) {
				if runs++; err != nil || runs == 1 && mended[conserve.Late] != 1 || runs > 1 && (found[conserve.Late] != 0 || len(mended) != 0) {
					t.Errorf("run %d: %+v, %+v, %v", runs, found, mended, err)
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

// Hourly repairs of a backlog that waits for its receiver do not pile up messages: the messages of
// the old generation are dropped.
func TestReconcilePilesNothingUp(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		d, _ := p.run()
		if _, err := d.HoldCircuit("shop", limit.HeldOpen); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for range 20 {
			ids = append(ids, p.create("shop", `"delay_seconds":1`))
		}
		r := p.reconciler(nil, nil)
		for range 24 {
			pass(time.Hour)
			if done := p.mended(r, p.reported(r).Findings); done[conserve.Late] != 20 {
				t.Fatalf("%+v", done)
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
