package trigger

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (p *plant) cancel(id string) error {
	_, err := p.svc.Cancel(context.Background(), "shop", id)
	return err
}

func (p *plant) reschedule(id, body string) (engine.Trigger, error) {
	return p.svc.Reschedule(context.Background(), "shop", id, []byte(body))
}

// A cancelled trigger is never called. It can be cancelled again without an error.
func TestCancel(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		id := p.create("shop", `"delay_seconds":60`)
		for range 2 {
			row, err := p.svc.Cancel(context.Background(), "shop", id)
			if err != nil || row.State != engine.TriggerCancelled || row.Ended == 0 {
				t.Fatalf("%+v, %v", row, err)
			}
		}
		pass(2 * time.Minute)
		if n := p.sink.count(); n != 0 {
			t.Errorf("%d calls after a cancel", n)
		}
		if p.evs.get("dropped CANCELLED") != 1 || p.evs.get("CANCELLED") != 1 {
			t.Errorf("events %v", p.evs.n)
		}
		_, err := p.reschedule(id, `{"delay_seconds":5}`)
		refused(t, err, notify.KindConflict, "trigger_cancelled", "")
		if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
			t.Errorf("left in the queue: %+v", d)
		}
	})
}

// A cancel is too late while a call runs, but not between retries. When the trigger has ended, the
// answer says how it ended.
func TestCancelWhen(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(_, _ string, n int) (time.Duration, result) {
			if n == 1 {
				return 5 * time.Second, status(500)
			}
			return 0, ok
		}
		p.run()
		a, b := p.create("shop", `"delay_seconds":1`), p.create("shop", `"delay_seconds":1`)
		pass(3 * time.Second)
		refused(t, p.cancel(a), notify.KindConflict, "too_late", "")
		_, err := p.reschedule(a, `{"delay_seconds":5}`)
		refused(t, err, notify.KindConflict, "too_late", "")
		pass(5 * time.Second)
		if err := p.cancel(a); err != nil {
			t.Errorf("between retries: %v", err)
		}
		pass(time.Minute)
		if n := len(p.sink.of(a)); n != 1 {
			t.Errorf("%d calls, the second after the cancel", n)
		}
		refused(t, p.cancel(b), notify.KindConflict, "trigger_fired", "")
		_, err = p.reschedule(b, `{"delay_seconds":5}`)
		refused(t, err, notify.KindConflict, "trigger_fired", "")
	})
}

// No caller sees or changes another caller's triggers.
func TestOthersTriggers(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil, "bank")
		id := p.create("shop", `"delay_seconds":60`)
		ctx := context.Background()
		for _, caller := range []string{"bank", "", "shop2"} {
			_, err := p.svc.Get(ctx, caller, id)
			refused(t, err, notify.KindNotFound, "trigger_not_found", "")
			_, err = p.svc.Cancel(ctx, caller, id)
			refused(t, err, notify.KindNotFound, "trigger_not_found", "")
			_, err = p.svc.Reschedule(ctx, caller, id, []byte(`{"delay_seconds":1}`))
			refused(t, err, notify.KindNotFound, "trigger_not_found", "")
			if rows, _ := p.svc.List(ctx, caller, 0, "", 10); len(rows) != 0 {
				t.Errorf("%q lists %d", caller, len(rows))
			}
		}
		for _, bad := range []string{"", "x", "ntf_" + id[4:], id + "0", "trg_", "trg_01ARZ3NDEKTSV4RRFFQ69G5FAV"} {
			_, err := p.svc.Get(ctx, "shop", bad)
			refused(t, err, notify.KindNotFound, "trigger_not_found", "")
		}
		if row, err := p.svc.Get(ctx, "shop", "trg_"+lower(id[4:])); err != nil || row.ID != id {
			t.Errorf("in lower case: %v", err)
		}
		if row, err := p.svc.Find(ctx, id); err != nil || row.Caller != "shop" {
			t.Errorf("an operator finds %+v, %v", row, err)
		}
	})
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 32
		}
	}
	return string(b)
}

// Only the last generation of a rescheduled trigger fires, at its time.
func TestReschedule(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		start := time.Now()
		id := p.create("shop", `"delay_seconds":60`)
		for _, body := range []string{`{"delay_seconds":30}`, `{"delay_seconds":1}`, `{"delay_seconds":0}`} {
			if body == `{"delay_seconds":0}` {
				break
			}
			if _, err := p.reschedule(id, body); err != nil {
				t.Fatal(err)
			}
		}
		row, err := p.reschedule(id, `{"delay_seconds":300}`)
		if err != nil || row.Gen != 3 || row.FireAt != start.Add(300*time.Second).UnixMilli() {
			t.Fatalf("%+v, %v", row, err)
		}
		pass(299 * time.Second)
		if n := p.sink.count(); n != 0 {
			t.Fatalf("%d calls of an old generation", n)
		}
		pass(2 * time.Second)
		calls := p.sink.of(id)
		if len(calls) != 1 || calls[0].at.Before(start.Add(300*time.Second)) {
			t.Fatalf("calls %+v", calls)
		}
		if n := p.evs.get("dropped rescheduled"); n != 3 {
			t.Errorf("%d messages of old generations were dropped, want 3", n)
		}
		for body, code := range map[string]string{`{}`: "required", `{"delay_seconds":1,"x":1}`: "unknown_field", `{"delay_seconds":-1}`: "out_of_range", `{"delay_seconds":99999999}`: "too_far"} {
			id := p.create("shop", `"delay_seconds":60`)
			if _, err := p.reschedule(id, body); notify.KindOf(err) != notify.KindInvalid {
				t.Errorf("%s: %v, want %s", body, err, code)
			}
			if row := p.row(id); row.Gen != 0 {
				t.Errorf("%s: the row has generation %d", body, row.Gen)
			}
		}
	})
}

// A trigger that is rescheduled to the present fires at once, although the message of the new
// generation may be received before the row is swapped.
func TestRescheduleToNow(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.scfg.hit = func(name string) {
			if name == "trigger-reschedule-indexed" {
				pass(100 * time.Millisecond) // the message is in the queue, but the row is not swapped yet
			}
		}
		var err error
		if p.svc, err = New(p.scfg); err != nil {
			t.Fatal(err)
		}
		p.run()
		id := p.create("shop", `"delay_seconds":600`)
		if _, err := p.reschedule(id, `{"delay_seconds":0}`); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		p.want(id, engine.TriggerFired)
		if p.evs.get("deferred orphan") == 0 {
			t.Error("the message did not come before the row: this test shows nothing")
		}
	})
}

// Between retries a reschedule moves the next attempt. The number of attempts stays the same.
func TestRescheduleBetweenRetries(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(_, _ string, n int) (time.Duration, result) { return 0, status(500) }
		p.run()
		id := p.create("shop", `"delay_seconds":1,"retry_schedule_seconds":[60,60]`)
		pass(10 * time.Second)
		if _, err := p.reschedule(id, `{"delay_seconds":3600}`); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour - 20*time.Second)
		if n := p.sink.count(); n != 1 {
			t.Fatalf("%d calls", n)
		}
		pass(10 * time.Minute)
		if row := p.want(id, engine.TriggerFailed); row.Attempts != 3 {
			t.Errorf("%d attempts", row.Attempts)
		}
	})
}

// If the answer of a swap is lost, the row is read to find out whether the swap was made.
func TestChangeSettlesDoubt(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, applied := range []bool{false, true} {
			p := newPlant(t, nil)
			s := &shaky{Triggers: p.store.Triggers()}
			p.scfg.Triggers = s
			p.svc, _ = New(p.scfg)
			a, b := p.create("shop", `"delay_seconds":60`), p.create("shop", `"delay_seconds":60`)
			fails := 0
			s.on = func(method string, _ []string) slip {
				if method == "Swap" && fails < 2 {
					fails++
					return slip{err: errDown, applied: applied}
				}
				return slip{}
			}
			if row, err := p.svc.Cancel(context.Background(), "shop", a); err != nil || row.State != engine.TriggerCancelled {
				t.Errorf("applied %v: %+v, %v", applied, row, err)
			}
			fails = 0
			row, err := p.reschedule(b, `{"delay_seconds":120}`)
			if want := p.row(b); err != nil || row.Gen != 1 || want.Gen != 1 || row.Version != want.Version {
				t.Errorf("applied %v: generation %d, stored %d, %v", applied, row.Gen, want.Gen, err)
			}
			s.on = func(method string, _ []string) slip {
				if method == "Swap" {
					return slip{err: errDown}
				}
				return slip{}
			}
			if err := p.cancel(b); notify.KindOf(err) != notify.KindUnavailable {
				t.Errorf("store away: %v", err)
			}
		}
	})
}

// A state row takes longer to be stored than messages wait for it. The trigger is found all the
// same, because its index row is written again before the answer.
func TestSlowCreate(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		s := &shaky{Triggers: p.store.Triggers()}
		p.scfg.Triggers = s
		p.svc, _ = New(p.scfg)
		p.run()
		delay := 5 * time.Minute
		s.on = func(method string, _ []string) slip {
			if method == "Create" || method == "Swap" {
				time.Sleep(delay)
			}
			return slip{}
		}
		id := p.create("shop", `"delay_seconds":1`)
		if p.evs.get("dropped orphan") != 1 {
			t.Error("the first message was not dropped: this test shows nothing")
		}
		pass(5 * time.Second)
		p.want(id, engine.TriggerFired)

		delay = 0
		id = p.create("shop", `"delay_seconds":3600`)
		delay = 5 * time.Minute
		if _, err := p.reschedule(id, `{"delay_seconds":1}`); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Second)
		p.want(id, engine.TriggerFired)
	})
}

// A create that was never answered leaves at most an index row, and this row is dropped.
func TestUnansweredCreate(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		s := &shaky{Triggers: p.store.Triggers(), on: func(method string, _ []string) slip {
			if method == "Create" {
				return slip{err: errDown}
			}
			return slip{}
		}}
		p.scfg.Triggers = s
		p.svc, _ = New(p.scfg)
		p.run()
		if _, err := p.tryCreate(p.svc, "shop", `"delay_seconds":1`, ""); notify.KindOf(err) != notify.KindUnavailable {
			t.Fatalf("answered %v", err)
		}
		pass(10 * time.Minute)
		if p.evs.get("dropped orphan") != 1 || p.sink.count() != 0 {
			t.Errorf("%d calls, events %v", p.sink.count(), p.evs.n)
		}
		if d, _ := p.queue.Depth(context.Background()); d != (engine.QueueDepth{}) {
			t.Errorf("left in the queue: %+v", d)
		}
	})
}

func TestList(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil, "bank")
		var want []string
		for range 5 {
			want = append([]string{p.create("shop", `"delay_seconds":60`)}, want...)
			p.create("bank", `"delay_seconds":60`)
			time.Sleep(time.Millisecond)
		}
		ctx := context.Background()
		if err := p.cancel(want[2]); err != nil {
			t.Fatal(err)
		}
		var got []string
		after := ""
		for {
			rows, err := p.svc.List(ctx, "shop", 0, after, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				got = append(got, r.ID)
			}
			if len(rows) < 2 {
				break
			}
			after = rows[1].ID
		}
		if len(got) != 5 || got[0] != want[0] || got[4] != want[4] {
			t.Errorf("listed %v, want %v", got, want)
		}
		if rows, err := p.svc.List(ctx, "shop", engine.TriggerCancelled, "", 10); err != nil || len(rows) != 1 || rows[0].ID != want[2] {
			t.Errorf("cancelled: %v, %v", rows, err)
		}
		if rows, err := p.svc.ListAll(ctx, engine.TriggerPending, "", 100); err != nil || len(rows) != 9 {
			t.Errorf("all that wait: %d, %v", len(rows), err)
		}
		_, err := p.svc.List(ctx, "shop", 0, "x", 10)
		refused(t, err, notify.KindInvalid, "bad_cursor", "after")
		_, err = p.svc.List(ctx, "shop", 0, "", 0)
		refused(t, err, notify.KindInvalid, "out_of_range", "limit")
		_, err = p.svc.List(ctx, "shop", 7, "", 1)
		refused(t, err, notify.KindInvalid, "unknown_state", "status")
		for s := engine.TriggerPending; s <= engine.TriggerExpired; s++ {
			if back, known := ParseState(StateName(s)); !known || back != s {
				t.Errorf("state %d is %q, which is %d", s, StateName(s), back)
			}
		}
		if _, known := ParseState(""); known {
			t.Error("the empty state is known")
		}
	})
}

// The answer of a swap was lost, and others have changed the row since then. The caller is told
// that the result is not known, because to try again might make the change twice.
func TestChangeDoesNothingTwice(t *testing.T) {
	in(t, func(t *testing.T) {
		for _, applied := range []bool{false, true} {
			p := newPlant(t, nil)
			s := &shaky{Triggers: p.store.Triggers()}
			mine := p.scfg
			mine.Triggers = s
			svc, err := New(mine)
			if err != nil {
				t.Fatal(err)
			}
			id := p.create("shop", `"delay_seconds":60`)
			once := true
			s.on = func(method string, _ []string) slip {
				if method == "Swap" && once {
					once = false
					return slip{err: errDown, applied: applied, after: func() {
						if _, err := p.reschedule(id, `{"delay_seconds":240}`); err != nil {
							t.Error(err)
						}
					}}
				}
				return slip{}
			}
			row, err := svc.Reschedule(context.Background(), "shop", id, []byte(`{"delay_seconds":120}`))
			stored := p.row(id)
			if applied {
				if notify.KindOf(err) != notify.KindUnavailable || stored.Gen != 2 || stored.FireAt != stored.Created+240_000 {
					t.Errorf("%v; the row has generation %d, fires at +%d", err, stored.Gen, stored.FireAt-stored.Created)
				}
			} else if err != nil || row.Gen != 1 || stored.FireAt != stored.Created+120_000 {
				t.Errorf("%v; generation %d, fires at +%d", err, row.Gen, stored.FireAt-stored.Created)
			}
		}
	})
}
