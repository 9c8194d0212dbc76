package enginetest

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func triggerID(n int) string { return "trg_" + base(1, uint64(n)).String() }

// trigger returns a trigger with a value in every field except Version.
func trigger(n int, caller string, state engine.TriggerState) engine.Trigger {
	t := engine.Trigger{
		ID: triggerID(n), Caller: caller, URL: "https://shop.example/hooks/1", Payload: []byte{0, 0xff, byte(n)},
		Created: 500, FireAt: 1000, Schedule: []time.Duration{time.Second, 90 * time.Minute},
		MaxLateness: 3 * time.Minute, Late: engine.LateDeadLetter, Form: engine.PayloadBase64,
		Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TraceState: "vendor=x",
		State: state, Gen: 2, Epoch: 3, Attempts: 1, Deferrals: 4, NextAt: 1500, LeaseUntil: 1700, Reason: "timeout",
		Log: []engine.Attempt{
			{N: 1, At: 1400, Took: 1234567, Status: 503, Class: "retry", Detail: "503", Body: []byte("busy"), Address: "192.0.2.1:443"},
			{N: 2, At: 1500, Class: "timeout"},
		},
	}
	if state >= engine.TriggerFired {
		t.Ended = int64(1000 + n)
	}
	return t
}

func ids(ts []engine.Trigger) (out []string) {
	for i := range ts {
		out = append(out, ts[i].ID)
	}
	return out
}

// getTrigger returns the row with this id.
func getTrigger(t T, s engine.Triggers, id string) engine.Trigger {
	t.Helper()
	return val(s.Get(bg, []string{id}))(t)[0]
}

// moveTrigger reads a row and swaps its state. It returns true if the swap was applied.
func moveTrigger(t T, s engine.Triggers, id string, state engine.TriggerState, ended int64) bool {
	t.Helper()
	row := getTrigger(t, s, id)
	old := row.Version
	row.State, row.Ended = state, ended
	return val(s.Swap(bg, []engine.TriggerSwap{{Old: old, New: row}}))(t)[0]
}

// Triggers runs the suite of engine.Triggers.
func Triggers(t *testing.T, open Opener[engine.Triggers]) {
	t.Run("Create stores new rows with Version 1; won is false if a row with the id exists, which stays as it is", func(t *testing.T) {
		s, reopen := open(t)
		a, b, bare := trigger(1, "shop", engine.TriggerPending), trigger(2, "shop", engine.TriggerFailed), engine.Trigger{ID: "x"}
		// If an engine does not store a field, this test can only notice it if the field
		// has a value. So every field must have a value.
		for v, i := reflect.ValueOf(b), 0; i < v.NumField(); i++ {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Version" {
				t.Errorf("the trigger of this suite has no %s", name)
			}
		}
		again := trigger(1, "thief", engine.TriggerCancelled)
		a.Version = 7 // Create ignores the version
		same(t, "won", val(s.Create(bg, []engine.Trigger{a, b, again, bare}))(t), []bool{true, true, false, true})
		if reopen != nil {
			s = reopen()
		}
		same(t, "won again", val(s.Create(bg, []engine.Trigger{again, trigger(3, "shop", engine.TriggerPending)}))(t), []bool{false, true})
		same(t, "none", val(s.Create(bg, nil))(t), []bool{})
		a.Version, b.Version, bare.Version = 1, 1, 1
		for _, want := range []engine.Trigger{a, b, bare} {
			same(t, "row", getTrigger(t, s, want.ID), want)
		}
		same(t, "of the thief", ids(val(s.List(bg, "thief", 0, engine.TriggerCursor{}, 10))(t)), []string(nil))
	})
	t.Run("of many concurrent calls of Create for one id one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(i int) {
			// Half of the calls create the rows in the reverse order, because calls with
			// the same rows must not deadlock.
			ts := []engine.Trigger{trigger(1, fmt.Sprint(i), engine.TriggerPending), trigger(2, fmt.Sprint(i), engine.TriggerPending)}
			if i%2 == 1 {
				ts[0], ts[1] = ts[1], ts[0]
			}
			got, err := s.Create(bg, ts)
			if err != nil {
				t.Error(err)
				return
			}
			for _, w := range got {
				if w {
					won.Add(1)
				}
			}
		})
		same(t, "winners", won.Load(), int32(2))
		same(t, "listed", len(val(s.List(bg, "", 0, engine.TriggerCursor{}, 100))(t)), 2)
	})
	t.Run("Get returns rows in the order of ids; for an id without a row a Trigger without ID", func(t *testing.T) {
		s, _ := open(t)
		a, b := trigger(1, "shop", engine.TriggerPending), trigger(2, "shop", engine.TriggerPending)
		val(s.Create(bg, []engine.Trigger{a, b}))(t)
		a.Version, b.Version = 1, 1
		same(t, "rows", val(s.Get(bg, []string{b.ID, triggerID(3), a.ID, b.ID, ""}))(t), []engine.Trigger{b, {}, a, b, {}})
		same(t, "none", val(s.Get(bg, nil))(t), []engine.Trigger{})
	})
	t.Run("Swap replaces each row whose stored version is Old, with Version Old+1; the swaps are independent", func(t *testing.T) {
		s, reopen := open(t)
		for n := range 4 {
			val(s.Create(bg, []engine.Trigger{trigger(n, "shop", engine.TriggerPending)}))(t)
		}
		next := func(n int, state engine.TriggerState) engine.Trigger {
			x := trigger(n, "shop", state)
			x.Attempts, x.Log, x.Payload, x.Version = 9, nil, []byte("new"), 77
			return x
		}
		won := val(s.Swap(bg, []engine.TriggerSwap{
			{Old: 1, New: next(0, engine.TriggerInFlight)}, {Old: 2, New: next(1, engine.TriggerInFlight)},
			{Old: 0, New: next(2, engine.TriggerInFlight)}, {Old: 1, New: next(9, engine.TriggerInFlight)},
			{Old: 0, New: next(8, engine.TriggerInFlight)}, {Old: 1, New: next(3, engine.TriggerCancelled)},
		}))(t)
		same(t, "won", won, []bool{true, false, false, false, false, true})
		if reopen != nil {
			s = reopen()
		}
		want := []engine.Trigger{next(0, engine.TriggerInFlight), trigger(1, "shop", engine.TriggerPending), trigger(2, "shop", engine.TriggerPending), next(3, engine.TriggerCancelled), {}, {}}
		want[0].Version, want[1].Version, want[2].Version, want[3].Version = 2, 1, 1, 2
		same(t, "rows", val(s.Get(bg, []string{triggerID(0), triggerID(1), triggerID(2), triggerID(3), triggerID(8), triggerID(9)}))(t), want)
	})
	t.Run("a later swap of one call sees the earlier ones", func(t *testing.T) {
		s, _ := open(t)
		row := trigger(1, "shop", engine.TriggerPending)
		val(s.Create(bg, []engine.Trigger{row}))(t)
		to := func(old uint64, state engine.TriggerState) engine.TriggerSwap {
			x := row
			x.State = state
			return engine.TriggerSwap{Old: old, New: x}
		}
		won := val(s.Swap(bg, []engine.TriggerSwap{to(1, engine.TriggerInFlight), to(1, engine.TriggerCancelled), to(2, engine.TriggerFired)}))(t)
		same(t, "won", won, []bool{true, false, true})
		got := getTrigger(t, s, row.ID)
		same(t, "state and version", []any{got.State, got.Version}, []any{engine.TriggerFired, uint64(3)})
		for state := engine.TriggerPending; state <= engine.TriggerExpired; state++ {
			same(t, "listed", len(val(s.List(bg, "shop", state, engine.TriggerCursor{}, 10))(t)) == 1, state == engine.TriggerFired)
		}
	})
	t.Run("of many concurrent swaps of one version one wins", func(t *testing.T) {
		s, _ := open(t)
		const rows, rounds = 5, 10
		for n := range rows {
			val(s.Create(bg, []engine.Trigger{trigger(n, "shop", engine.TriggerPending)}))(t)
		}
		var wins [rows]atomic.Int64
		together(16, func(i int) {
			for round := range rounds {
				var names []string
				for k := range rows {
					names = append(names, triggerID((i+k*(1+i%4))%rows)) // the same rows in many orders
				}
				have, err := s.Get(bg, names)
				if err != nil {
					t.Error(err)
					return
				}
				ss := make([]engine.TriggerSwap, rows)
				for k, row := range have {
					row.Attempts++
					ss[k] = engine.TriggerSwap{Old: have[k].Version, New: row}
				}
				won, err := s.Swap(bg, ss)
				if err != nil {
					t.Error(err)
					return
				}
				after, err := s.Get(bg, names)
				if err != nil {
					t.Error(err)
					return
				}
				for k, w := range won {
					if w {
						wins[(i+k*(1+i%4))%rows].Add(1)
					}
					if after[k].Version < have[k].Version || w && after[k].Version <= have[k].Version {
						t.Errorf("round %d: version %d of %s after a swap of %d (%v): Get must see every Swap that returned before the call", round, after[k].Version, names[k], have[k].Version, w)
					}
				}
			}
		})
		for n := range rows {
			got := getTrigger(t, s, triggerID(n))
			same(t, "one version a win", int64(got.Version), 1+wins[n].Load())
			same(t, "one attempt a win", int64(got.Attempts), 1+wins[n].Load())
			if wins[n].Load() == 0 {
				t.Fatalf("no swap of trigger %d was applied", n)
			}
		}
	})
	t.Run("List returns at most max rows of a caller, newest id first, after the cursor; of one state, or of all", func(t *testing.T) { listTriggers(t, open) })
	t.Run("a trigger without an id is notify.KindInvalid and nothing is stored", func(t *testing.T) {
		s, _ := open(t)
		_, err := s.Create(bg, []engine.Trigger{trigger(1, "shop", engine.TriggerPending), {}})
		wantKind(t, err, notify.KindInvalid)
		same(t, "rows", val(s.Get(bg, []string{triggerID(1)}))(t), []engine.Trigger{{}})
		val(s.Create(bg, []engine.Trigger{trigger(1, "shop", engine.TriggerPending)}))(t)
		_, err = s.Swap(bg, []engine.TriggerSwap{{Old: 1, New: trigger(1, "shop", engine.TriggerFired)}, {}})
		wantKind(t, err, notify.KindInvalid)
		same(t, "state", getTrigger(t, s, triggerID(1)).State, engine.TriggerPending)
	})
	t.Run("Purge removes at most max terminal rows that ended earlier than beforeMs, and never a row that is not terminal", func(t *testing.T) { purgeTriggers(t, open) })
	t.Run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T) {
		s, _ := open(t)
		fresh := func() engine.Trigger {
			x := trigger(1, "shop", engine.TriggerPending)
			x.Version = 1
			return x
		}
		in := fresh()
		val(s.Create(bg, []engine.Trigger{in}))(t)
		spoil := func(x *engine.Trigger) {
			x.Payload[0], x.Schedule[0], x.Log[0].N, x.Log[0].Body[0] = 'x', 9, 9, 'x'
		}
		spoil(&in)
		got := getTrigger(t, s, in.ID)
		same(t, "row", got, fresh())
		spoil(&got)
		same(t, "row again", getTrigger(t, s, in.ID), fresh())
		listed := val(s.List(bg, "shop", 0, engine.TriggerCursor{}, 1))(t)
		same(t, "listed", listed[0], fresh())
		spoil(&listed[0])
		same(t, "listed again", val(s.List(bg, "shop", 0, engine.TriggerCursor{}, 1))(t)[0], fresh())
	})
	t.Run("model", func(t *testing.T) { triggersModel(t, open) })
}

func listTriggers(t *testing.T, open Opener[engine.Triggers]) {
	s, reopen := open(t)
	for n, c := range []struct {
		caller string
		state  engine.TriggerState
	}{
		{"shop", engine.TriggerPending}, {"bank", engine.TriggerPending}, {"shop", engine.TriggerFired}, {"shop", engine.TriggerPending},
		{"sho", engine.TriggerPending}, {"bank", engine.TriggerFailed}, {"shop", engine.TriggerPending}, {"shops", engine.TriggerInFlight},
	} {
		val(s.Create(bg, []engine.Trigger{trigger(n, c.caller, c.state)}))(t)
	}
	f := func(what, caller string, state engine.TriggerState, after, max int, want ...int) {
		t.Helper()
		var c engine.TriggerCursor
		if after >= 0 {
			c.ID = triggerID(after)
		}
		var wanted []string
		for _, n := range want {
			wanted = append(wanted, triggerID(n))
		}
		got := val(s.List(bg, caller, state, c, max))(t)
		same(t, what, ids(got), wanted)
		for i := range got {
			same(t, what+": row", got[i], getTrigger(t, s, got[i].ID))
		}
	}
	all := func() {
		t.Helper()
		f("a caller and state", "shop", engine.TriggerPending, -1, 10, 6, 3, 0)
		f("a caller", "shop", 0, -1, 10, 6, 3, 2, 0)
		f("a state", "", engine.TriggerPending, -1, 10, 6, 4, 3, 1, 0)
		f("all", "", 0, -1, 10, 7, 6, 5, 4, 3, 2, 1, 0)
		f("open", "", engine.TriggerOpen, -1, 10, 7, 6, 5, 4, 3, 1, 0)
		f("open, of a caller", "shop", engine.TriggerOpen, -1, 2, 6, 3)
		same(t, "open ones", val(s.CountOpen(bg, "shop", 10))(t), 3)
		same(t, "open ones of all", val(s.CountOpen(bg, "", 10))(t), 7)
		if n := val(s.CountOpen(bg, "shop", 1))(t); n < 2 {
			t.Errorf("CountOpen returned %d, want at least 2, because 3 triggers are open", n)
		}
	}
	all()
	if reopen != nil {
		s = reopen()
		all()
	}
	f("max", "shop", engine.TriggerPending, -1, 2, 6, 3)
	f("max of a caller", "shop", 0, -1, 3, 6, 3, 2)
	f("max of a state", "", engine.TriggerPending, -1, 3, 6, 4, 3)
	f("max of all", "", 0, -1, 1, 7)
	f("max 0", "shop", 0, -1, 0)
	f("after", "shop", engine.TriggerPending, 6, 10, 3, 0)
	f("after one of another", "shop", engine.TriggerPending, 5, 10, 3, 0)
	f("after, of a caller", "shop", 0, 3, 10, 2, 0)
	f("after, of a state", "", engine.TriggerPending, 4, 10, 3, 1, 0)
	f("after, of all", "", 0, 3, 2, 2, 1)
	f("after the last", "", 0, 0, 10)
	f("nobody's", "x", 0, -1, 10)
	f("no state", "shop", engine.TriggerExpired, -1, 10)

	// When the state of a row changes, the row moves from one list to another list.
	moveTrigger(t, s, triggerID(3), engine.TriggerInFlight, 0)
	f("left", "shop", engine.TriggerPending, -1, 10, 6, 0)
	f("joined", "shop", engine.TriggerInFlight, -1, 10, 3)
	f("joined, of all", "", engine.TriggerInFlight, -1, 10, 7, 3)
	f("open, whether it is called or not", "shop", engine.TriggerOpen, -1, 10, 6, 3, 0)
	// A FAILED row is open until its dead letter is written.
	letter := func(next int64) {
		row := getTrigger(t, s, triggerID(3))
		old := row.Version
		row.State, row.Ended, row.NextAt = engine.TriggerFailed, 9, next
		same(t, "swapped", val(s.Swap(bg, []engine.TriggerSwap{{Old: old, New: row}}))(t), []bool{true})
	}
	letter(8)
	f("owed", "shop", engine.TriggerOpen, -1, 10, 6, 3, 0)
	letter(0)
	f("written", "shop", engine.TriggerOpen, -1, 10, 6, 0)
	same(t, "open ones", val(s.CountOpen(bg, "shop", 10))(t), 2)
	row := getTrigger(t, s, triggerID(3))
	row.NextAt = 1500
	val(s.Swap(bg, []engine.TriggerSwap{{Old: row.Version, New: row}}))(t)
	moveTrigger(t, s, triggerID(3), engine.TriggerPending, 0)
	if reopen != nil {
		s = reopen()
	}
	all()
}

func purgeTriggers(t *testing.T, open Opener[engine.Triggers]) {
	s, reopen := open(t)
	states := []engine.TriggerState{
		engine.TriggerPending, engine.TriggerInFlight, engine.TriggerFired, engine.TriggerFailed,
		engine.TriggerCancelled, engine.TriggerExpired, engine.TriggerFired, engine.TriggerPending,
	}
	for n, state := range states {
		x := trigger(n, "shop", state)
		if x.Ended == 0 && n == 1 {
			x.Ended = 3 // Purge must ignore Ended of a row that is not terminal
		}
		val(s.Create(bg, []engine.Trigger{x}))(t)
	}
	moveTrigger(t, s, triggerID(7), engine.TriggerFired, 1004) // terminal by a swap, not by Create
	moveTrigger(t, s, triggerID(6), engine.TriggerFired, 5000) // the time of its end is now later
	same(t, "none", val(s.Purge(bg, math.MaxInt64, 0))(t), 0)
	same(t, "nothing that old", val(s.Purge(bg, 1002, 10))(t), 0)
	same(t, "max", val(s.Purge(bg, 1005, 2))(t), 2)
	same(t, "the rest", val(s.Purge(bg, 1005, 10))(t), 2)
	if reopen != nil {
		s = reopen()
	}
	var want []string
	for _, n := range []int{6, 5, 1, 0} {
		want = append(want, triggerID(n))
	}
	same(t, "left", ids(val(s.List(bg, "", 0, engine.TriggerCursor{}, 100))(t)), want)
	same(t, "left of the caller", ids(val(s.List(bg, "shop", 0, engine.TriggerCursor{}, 100))(t)), want)
	same(t, "gone", getTrigger(t, s, triggerID(2)).ID, "")
	same(t, "won again", val(s.Create(bg, []engine.Trigger{trigger(2, "shop", engine.TriggerFired)}))(t), []bool{true})
	same(t, "all that are terminal", val(s.Purge(bg, math.MaxInt64, 100))(t), 3)
	same(t, "never another one", ids(val(s.List(bg, "", 0, engine.TriggerCursor{}, 100))(t)), []string{triggerID(1), triggerID(0)})
}

func triggersModel(t *testing.T, open Opener[engine.Triggers]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		m := modelTriggers{}
		states := rapid.Custom(func(rt *rapid.T) engine.TriggerState {
			return engine.TriggerState(rapid.Uint8Range(1, 6).Draw(rt, "state"))
		})
		callers := rapid.SampledFrom([]string{"", "a", "ab", "b"})
		rows := rapid.Custom(func(rt *rapid.T) engine.Trigger {
			x := trigger(rapid.IntRange(0, 5).Draw(rt, "n"), callers.Draw(rt, "caller"), states.Draw(rt, "state"))
			x.Ended = rapid.Int64Range(0, 4).Draw(rt, "ended")
			x.Payload = bytes.Repeat([]byte{1}, rapid.IntRange(0, 3).Draw(rt, "payload"))
			if x.State == engine.TriggerFailed && rapid.Bool().Draw(rt, "written") {
				x.NextAt = 0
			}
			if len(x.Payload) == 0 {
				x.Payload, x.Schedule, x.Log = nil, nil, nil
			}
			return x
		})
		actions := map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				ts := rapid.SliceOfN(rows, 0, 3).Draw(rt, "rows")
				same(rt, "Create", val(s.Create(bg, ts))(rt), m.create(ts))
			},
			"swap": func(rt *rapid.T) {
				ss := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) engine.TriggerSwap {
					return engine.TriggerSwap{Old: rapid.Uint64Range(0, 4).Draw(rt, "old"), New: rows.Draw(rt, "row")}
				}), 0, 5).Draw(rt, "swaps")
				same(rt, "Swap", val(s.Swap(bg, ss))(rt), m.swap(ss))
			},
			"list": func(rt *rapid.T) {
				caller, n := callers.Draw(rt, "caller"), rapid.IntRange(0, 6).Draw(rt, "max")
				state := engine.TriggerState(rapid.Uint8Range(0, 7).Draw(rt, "state"))
				if state == 7 {
					state = engine.TriggerOpen
				}
				after := engine.TriggerCursor{ID: rapid.SampledFrom([]string{"", triggerID(1), triggerID(3), "zzz"}).Draw(rt, "after")}
				same(rt, "List", val(s.List(bg, caller, state, after, n))(rt), m.list(caller, state, after.ID, n))
			},
			"purge": func(rt *rapid.T) {
				before := rapid.Int64Range(0, 5).Draw(rt, "before")
				same(rt, "Purge", val(s.Purge(bg, before, 100))(rt), m.purge(before))
			},
			"look": func(rt *rapid.T) {
				var names []string
				for n := range 6 {
					names = append(names, triggerID(n))
				}
				same(rt, "Get", val(s.Get(bg, names))(rt), m.get(names))
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
