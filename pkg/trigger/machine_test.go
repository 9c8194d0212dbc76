package trigger

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func testTerms() *callRules {
	return &callRules{schedule: DefaultSchedule, lease: 30 * time.Second, skew: 2 * time.Second, maxAge: 72 * time.Hour, maxRetryAfter: time.Hour, maxLost: 10}
}

// TestJudge has every state with every message, and checks the decision. For a terminal row,
// nothing but its dead letter is ever decided.
func TestJudge(t *testing.T) {
	t.Parallel()
	const now = 1_000_000
	x := testTerms()
	f := func(what string, row engine.Trigger, gen uint32, want messageVerdict) {
		t.Helper()
		if row.State != 0 {
			row.ID = "trg_x"
		}
		if got, _, at := x.judge(&row, gen, now); got != want || (got == verdictEarly || got == verdictLeased) && at <= now {
			t.Errorf("%s: %d until %d, want %d", what, got, at, want)
		}
	}
	f("no row", engine.Trigger{}, 0, verdictOrphan)
	for state := engine.TriggerPending; state <= engine.TriggerExpired; state++ {
		f(StateName(state)+", a generation to come", engine.Trigger{State: state, Gen: 1}, 2, verdictOrphan)
		row := engine.Trigger{State: state, Gen: 2}
		f(StateName(state)+", an old generation", row, 1, verdictDrop)
		if isTerminal(state) {
			f(StateName(state), row, 2, verdictDrop)
			row.FireAt, row.MaxLateness, row.Late = -now*now, 1, engine.LateDrop
			f(StateName(state)+", long overdue", row, 2, verdictDrop)
		}
	}
	f("FAILED, owed", engine.Trigger{State: engine.TriggerFailed, NextAt: 5}, 0, verdictOwed)
	f("FAILED, owed, an old generation", engine.Trigger{State: engine.TriggerFailed, NextAt: 5, Gen: 1}, 0, verdictOwed)
	f("PENDING, its millisecond", engine.Trigger{State: engine.TriggerPending, NextAt: now, FireAt: now}, 0, verdictDue)
	f("PENDING, a millisecond before", engine.Trigger{State: engine.TriggerPending, NextAt: now + 1, FireAt: now}, 0, verdictEarly)
	f("IN_FLIGHT, held", engine.Trigger{State: engine.TriggerInFlight, LeaseUntil: now - 2000}, 0, verdictLeased)
	f("IN_FLIGHT, out", engine.Trigger{State: engine.TriggerInFlight, LeaseUntil: now - 2001, FireAt: now}, 0, verdictDue)
	late := engine.Trigger{State: engine.TriggerPending, FireAt: now - 1001, NextAt: now - 1001, MaxLateness: time.Second}
	f("late, fire", late, 0, verdictDue)
	late.Late = engine.LateDrop
	f("late, drop", late, 0, verdictOver)
	late.FireAt++
	f("just in time", late, 0, verdictDue)
	lost := engine.Trigger{State: engine.TriggerPending, FireAt: now}
	for range 10 {
		f("lost claims", lost, 0, verdictDue)
		lost.Log = append(lost.Log, engine.Attempt{Class: ClassLost})
	}
	f("too many lost claims", lost, 0, verdictOver)
}

// Random lives of a row keep the rules: only legal moves happen, attempts are bounded and counted
// once, and the next attempt is never before the time that was asked for.
func TestMachine(t *testing.T) {
	t.Parallel()
	legal := map[[2]engine.TriggerState]bool{
		{engine.TriggerPending, engine.TriggerInFlight}: true, {engine.TriggerInFlight, engine.TriggerInFlight}: true,
		{engine.TriggerInFlight, engine.TriggerPending}: true, {engine.TriggerInFlight, engine.TriggerFired}: true,
		{engine.TriggerInFlight, engine.TriggerFailed}: true, {engine.TriggerPending, engine.TriggerExpired}: true,
		{engine.TriggerPending, engine.TriggerFailed}: true,
	}
	rapid.Check(t, func(t *rapid.T) {
		x := testTerms()
		x.maxLost = 3
		now := int64(1_000_000_000_000)
		b := notify.Base{rapid.Byte().Draw(t, "base")}
		row := engine.Trigger{ID: idOf(b), State: engine.TriggerPending, FireAt: now, NextAt: now}
		if n := rapid.IntRange(0, 4).Draw(t, "waits"); n > 0 {
			for range n {
				row.Schedule = append(row.Schedule, time.Duration(rapid.IntRange(1, 1000).Draw(t, "wait"))*time.Second)
			}
		}
		if rapid.Bool().Draw(t, "limited") {
			row.MaxLateness = time.Duration(rapid.IntRange(1, 2000).Draw(t, "lateness")) * time.Second
			row.Late = engine.LatePolicy(rapid.IntRange(0, 2).Draw(t, "policy"))
		}
		calls := 0
		to := func(next engine.Trigger) {
			if !legal[[2]engine.TriggerState{row.State, next.State}] {
				t.Fatalf("%s to %s", StateName(row.State), StateName(next.State))
			}
			if next.Epoch < row.Epoch || next.Attempts < row.Attempts || len(next.Log) > maxLog {
				t.Fatalf("%+v after %+v", next, row)
			}
			row = next
		}
		for range 60 {
			if isTerminal(row.State) {
				break
			}
			now += int64(rapid.IntRange(0, 600_000).Draw(t, "time"))
			switch v, _, at := x.judge(&row, row.Gen, now); v {
			case verdictEarly, verdictLeased:
				now = at
				continue
			case verdictOver:
				to(x.giveUpRow(row, now))
				if row.State == engine.TriggerExpired && (calls > 0 || row.Late != engine.LateDrop) {
					t.Fatalf("expired after %d calls: %+v", calls, row)
				}
				continue
			case verdictDue:
			default:
				t.Fatalf("verdict %d of %+v", v, row)
			}
			if now < row.NextAt {
				t.Fatalf("claimed %d ms early", row.NextAt-now)
			}
			if row.MaxLateness > 0 && row.Late != engine.LateFire && now > row.FireAt+row.MaxLateness.Milliseconds() {
				t.Fatalf("claimed %d ms after its time", now-row.FireAt)
			}
			to(x.claimRow(row, time.UnixMilli(now), 0))
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // the caller dies
				continue
			case 1:
				before := row.Attempts
				if to(unclaimRow(row, CauseShutdown)); row.Attempts != before {
					t.Fatal("a deferral is counted as an attempt")
				}
				continue
			}
			calls++
			r := result{class: rapid.SampledFrom([]string{ClassOK, ClassRetry, ClassTimeout, ClassThrottled, ClassRejected, ClassPermanent, ClassDenied}).Draw(t, "class")}
			r.retryAfter = time.Duration(rapid.IntRange(0, 3700).Draw(t, "retry after")) * time.Second
			wait := time.Duration(0)
			if waits := x.scheduleOf(&row); row.Attempts < len(waits) {
				wait = waits[row.Attempts]
			}
			to(x.settleRow(row, b, &r, time.UnixMilli(now), now))
			if least := max(wait, min(r.retryAfter, time.Hour)); row.State == engine.TriggerPending && row.NextAt < now+least.Milliseconds() {
				t.Fatalf("the next attempt is %d ms early", now+least.Milliseconds()-row.NextAt)
			}
			if (r.isPermanent() || r.class == ClassOK) && !isTerminal(row.State) {
				t.Fatalf("%s goes on", r.class)
			}
		}
		if row.Attempts != calls || calls > len(x.scheduleOf(&row))+1 {
			t.Fatalf("%d attempts, %d calls, %d waits", row.Attempts, calls, len(x.scheduleOf(&row)))
		}
		if isTerminal(row.State) != (row.Ended != 0) {
			t.Fatalf("%+v", row)
		}
		if owes := row.NextAt != 0; isTerminal(row.State) && owes != (row.State == engine.TriggerFailed) {
			t.Fatalf("owed %v: %+v", owes, row)
		}
	})
}

// The log keeps the latest attempts and few bodies. It never writes to the array of the earlier
// row.
func TestAppendLog(t *testing.T) {
	t.Parallel()
	var log []engine.Attempt
	for n := 1; n <= 100; n++ {
		before := append([]engine.Attempt(nil), log...)
		next := appendLog(log, engine.Attempt{N: n, Body: []byte("x")})
		for i := range before {
			if len(before[i].Body) != len(log[i].Body) {
				t.Fatal("the log of the row before was written to")
			}
		}
		log = next
	}
	bodies := 0
	for _, a := range log {
		bodies += len(a.Body)
	}
	if len(log) != maxLog || log[len(log)-1].N != 100 || bodies != maxBodies {
		t.Errorf("%d kept, %d bodies", len(log), bodies)
	}
}

// A message is the same after it was encoded and decoded.
func TestMessage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := message{gen: rapid.Uint32().Draw(t, "gen"), attempt: rapid.Uint16().Draw(t, "attempt"), deferrals: rapid.Uint16().Draw(t, "deferrals"), caller: rapid.Uint64().Draw(t, "caller")}
		copy(m.base[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "base"))
		if got, ok := decodeMessage(m.encode()); !ok || got != m {
			t.Fatalf("%+v became %+v", m, got)
		}
	})
}
