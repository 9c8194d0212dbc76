package outcomehook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// outcomesLog is notifications-outcomes, of one partition.
type outcomesLog struct {
	recs   []log.Record
	marked int // records below are done
}

func (l *outcomesLog) Append(_ context.Context, recs []log.Record) error {
	for _, r := range recs {
		r.Offset = int64(len(l.recs))
		l.recs = append(l.recs, r)
	}
	return nil
}

// end appends one record of n receivers of a caller that ended as status.
func (l *outcomesLog) end(t *testing.T, caller string, n int, change ...func(*notify.Ended)) {
	t.Helper()
	e := notify.Ended{Version: 1, Caller: caller, Channel: "push", Category: "otp", At: t0.UnixMilli()}
	b := notify.NewBase(t0)
	copy(b[6:], fmt.Sprintf("%010d", len(l.recs)))
	for i := range n {
		e.Receivers = append(e.Receivers, notify.EndedReceiver{ID: notify.ID{Base: b, Index: uint32(i), FanOut: true}.String(), User: fmt.Sprint("u", i), Status: "DELIVERED", Provider: "apns", Attempts: 1})
	}
	for _, f := range change {
		f(&e)
	}
	v, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), []log.Record{{Topic: notify.TopicOutcomes, Value: v}}); err != nil {
		t.Fatal(err)
	}
}

// follow hands the records that are not done to a Follower, max records at a time.
func (l *outcomesLog) follow(t *testing.T, f *Follower, max int) error {
	t.Helper()
	h := f.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicOutcomes})
	for l.marked < len(l.recs) {
		var msgs []*log.Msg
		done := 0
		for _, r := range l.recs[l.marked:min(len(l.recs), l.marked+max)] {
			msgs = append(msgs, log.NewMsg(r, func() { done++ }))
		}
		if err := h.Handle(t.Context(), msgs); err != nil {
			if done != 0 {
				t.Errorf("%d of %d done after %v", done, len(msgs), err)
			}
			return err
		}
		if done != len(msgs) {
			t.Fatalf("%d of %d done", done, len(msgs))
		}
		l.marked += done
	}
	return nil
}

func all(id string) engine.Caller {
	return engine.Caller{ID: id, OutcomesURL: "https://" + id + ".example/", OutcomesOf: engine.OutcomesAll}
}

func (w *world) follower(t *testing.T, l *outcomesLog, change ...func(*FollowConfig)) *Follower {
	t.Helper()
	cfg := FollowConfig{Callers: w.store.Callers(), Triggers: w, Log: l, State: func(context.Context, notify.ID) (notify.Outcome, error) {
		return notify.Outcome{}, errors.New("not to be asked")
	}}
	for _, f := range change {
		f(&cfg)
	}
	f, err := NewFollower(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// ends returns the outcomes in a caller's triggers, in order, and the number in each trigger.
func (w *world) ends(t *testing.T, caller string) (os []Outcome, sizes []int) {
	t.Helper()
	last := outcomePlace{-1, 0}
	for _, row := range w.made {
		if row.Caller != caller {
			continue
		}
		var p Payload
		if err := json.Unmarshal(row.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if p.Type != Type || p.Caller != caller || p.Last != 0 || p.Position == nil || !last.isBefore(outcomePlace{p.Position.Offset, p.Position.Item}) {
			t.Fatalf("after %v: %.200s", last, row.Payload)
		}
		last = outcomePlace{p.Position.Offset, p.Position.Item}
		os, sizes = append(os, p.Outcomes...), append(sizes, len(p.Outcomes))
	}
	return os, sizes
}

func ids(os []Outcome) (s []string) {
	for _, o := range os {
		s = append(s, o.ID)
	}
	return s
}

func TestFollowerPacks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, all("shop"), all("bank"), engine.Caller{ID: "quiet", OutcomesURL: "https://quiet.example/"})
	l := &outcomesLog{}
	told := 0
	for range 150 {
		l.end(t, "shop", 1)
		l.end(t, "bank", 1)
		l.end(t, "quiet", 1) // does not ask any more
	}
	l.end(t, "shop", 100)
	if err := l.Append(t.Context(), []log.Record{{Topic: notify.TopicOutcomes, Value: []byte("{")}}); err != nil {
		t.Fatal(err)
	}
	refused := map[string]int{}
	f := w.follower(t, l, func(c *FollowConfig) {
		c.Told, c.Refused = func(n int) { told += n }, func(code string) { refused[code]++ }
	})
	if err := l.follow(t, f, 1000); err != nil {
		t.Fatal(err)
	}
	shop, sizes := w.ends(t, "shop")
	if len(shop) != 250 || !slices.Equal(sizes, []int{100, 100, 50}) {
		t.Errorf("shop: %d in %v", len(shop), sizes)
	}
	if o := shop[0]; o.Status != "DELIVERED" || o.User != "u0" || o.Provider != "apns" || o.Attempts != 1 || !o.Ended.Equal(t0) || !o.At.IsZero() {
		t.Errorf("%+v", o)
	}
	if bank, sizes := w.ends(t, "bank"); len(bank) != 150 || !slices.Equal(sizes, []int{100, 50}) {
		t.Errorf("bank: %d in %v", len(bank), sizes)
	}
	if quiet, _ := w.ends(t, "quiet"); quiet != nil {
		t.Errorf("quiet is told: %v", quiet)
	}
	if told != 400 || refused["undecodable"] != 1 {
		t.Errorf("told %d, refused %v", told, refused)
	}
}

// A crash leaves triggers whose records are not marked. Whatever the next batch contains, each
// outcome is told once and in order.
func TestFollowerKilledBeforeTheMark(t *testing.T) {
	t.Parallel()
	for after := range 3 { // triggers made before the crash
		w := newWorld(t, all("shop"))
		l := &outcomesLog{}
		for range 130 {
			l.end(t, "shop", 2)
		}
		ctx, die := context.WithCancel(t.Context())
		hits := 0
		f := w.follower(t, l, func(c *FollowConfig) {
			c.hit = func(string) {
				if hits++; hits > after {
					die()
					panic("killed")
				}
			}
		})
		func() {
			defer func() { _ = recover() }()
			var msgs []*log.Msg
			for _, r := range l.recs[:100+after] {
				msgs = append(msgs, log.NewMsg(r, func() { t.Error("done before all was told") }))
			}
			_ = f.Assigned(ctx, log.TopicPartition{Topic: notify.TopicOutcomes}).Handle(ctx, msgs)
		}()
		l.end(t, "shop", 3)
		if err := l.follow(t, w.follower(t, l), 70); err != nil {
			t.Fatal(err)
		}
		got, _ := w.ends(t, "shop")
		seen := ids(got)
		if len(seen) != 263 || len(slices.Compact(slices.Sorted(slices.Values(seen)))) != 263 {
			t.Errorf("%d crashes in: %d told, %d of them different; want 263", after, len(seen), len(slices.Compact(slices.Sorted(slices.Values(seen)))))
		}
	}
}

// receipts makes the receivers of a record those of receipts, whose rows do not exist yet.
func receipts(e *notify.Ended) {
	for i := range e.Receivers {
		e.Receivers[i].Look, e.Receivers[i].Receipt, e.Receivers[i].Status = true, true, ""
	}
}

// A crash after a trigger loses no outcome that was not ready when the trigger was made, and
// repeats no other trigger.
func TestFollowerKilledBesideAnEarlyReceipt(t *testing.T) {
	t.Parallel()
	for after := 1; after < 4; after++ { // triggers made before the crash
		w := newWorld(t, all("shop"))
		l := &outcomesLog{}
		for i := range 250 {
			if i == 5 {
				l.end(t, "shop", 1, receipts)
			} else {
				l.end(t, "shop", 1)
			}
		}
		ready := false
		hits := 0
		f := w.follower(t, l, func(c *FollowConfig) {
			c.State = func(context.Context, notify.ID) (notify.Outcome, error) {
				if !ready {
					return notify.Outcome{State: notify.Accepted}, nil
				}
				return notify.Outcome{State: notify.Delivered}, nil
			}
			c.hit = func(string) {
				if hits++; hits == after {
					panic("killed")
				}
			}
		})
		func() {
			defer func() { _ = recover() }()
			var msgs []*log.Msg
			for _, r := range l.recs {
				msgs = append(msgs, log.NewMsg(r, func() {}))
			}
			_ = f.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicOutcomes}).Handle(t.Context(), msgs[:240])
		}()
		ready = true
		if err := l.follow(t, f, 3); err != nil {
			t.Fatal(err)
		}
		var seen []string // w.ends would refuse the receipt's trigger: it comes after later outcomes
		for _, row := range w.made {
			var p Payload
			if err := json.Unmarshal(row.Payload, &p); err != nil {
				t.Fatal(err)
			}
			seen = append(seen, ids(p.Outcomes)...)
		}
		if len(seen) != 250 || len(slices.Compact(slices.Sorted(slices.Values(seen)))) != 250 {
			t.Errorf("a crash after %d triggers: %d told, %d of them different; want 250", after, len(seen), len(slices.Compact(slices.Sorted(slices.Values(seen)))))
		}
	}
}

// While a caller is refused, its outcomes are appended again once, also those that are not ready.
func TestFollowerAppendsEarlyReceiptsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, all("shop"))
		w.refuse = map[string]error{"shop": notify.Invalid("no_secret", "", "the caller has no secret")}
		l := &outcomesLog{}
		now := func(e *notify.Ended) { e.At = time.Now().UnixMilli() }
		l.end(t, "shop", 1, now, receipts)
		l.end(t, "shop", 1, now)
		f := w.follower(t, l, func(c *FollowConfig) {
			c.State = func(context.Context, notify.ID) (notify.Outcome, error) {
				return notify.Outcome{State: notify.Accepted}, nil
			}
		})
		var msgs []*log.Msg
		for _, r := range l.recs {
			msgs = append(msgs, log.NewMsg(r, func() {}))
		}
		if err := f.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicOutcomes}).Handle(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
		appended := 0
		for _, r := range l.recs[2:] {
			var e notify.Ended
			if err := json.Unmarshal(r.Value, &e); err != nil {
				t.Fatal(err)
			}
			appended += len(e.Receivers)
		}
		if appended != 2 {
			t.Errorf("of two outcomes, %d were appended again", appended)
		}
	})
}

func TestFollowerPutsBackARefusedCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, all("full"), all("shop"))
		w.refuse["full"] = &notify.Error{Kind: notify.KindThrottled, Code: "too_many_pending"}
		l := &outcomesLog{}
		now := func(e *notify.Ended) { e.At = time.Now().UnixMilli() }
		l.end(t, "full", 3, now)
		l.end(t, "shop", 1, now)
		refused := map[string]int{}
		f := w.follower(t, l, func(c *FollowConfig) { c.Refused = func(code string) { refused[code]++ } })
		h := f.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicOutcomes})
		done := 0
		begun := time.Now()
		if err := h.Handle(t.Context(), []*log.Msg{log.NewMsg(l.recs[0], func() { done++ }), log.NewMsg(l.recs[1], func() { done++ })}); err != nil {
			t.Fatal(err)
		}
		if shop, _ := w.ends(t, "shop"); len(shop) != 1 || done != 2 || len(l.recs) != 3 || time.Since(begun) != 5*time.Second {
			t.Fatalf("shop %v, %d done, %d records, after %v", shop, done, len(l.recs), time.Since(begun))
		}
		delete(w.refuse, "full")
		l.marked = 2
		if err := l.follow(t, f, 10); err != nil {
			t.Fatal(err)
		}
		if full, _ := w.ends(t, "full"); len(full) != 3 {
			t.Errorf("%v", full)
		}
		// Nobody is tried for ever.
		w.refuse["full"] = &notify.Error{Kind: notify.KindConflict, Code: "no_secret"}
		l.end(t, "full", 1, now)
		time.Sleep(25 * time.Hour)
		if err := l.follow(t, f, 10); err != nil {
			t.Fatal(err)
		}
		if refused["too_many_pending"] != 1 || refused["no_secret"] != 1 || refused["given_up"] != 1 {
			t.Errorf("%v", refused)
		}
	})
}

// A store that is away holds everything; nothing is marked.
func TestFollowerWaitsForStores(t *testing.T) {
	t.Parallel()
	w := newWorld(t, all("shop"))
	w.refuse["shop"] = notify.Unavailable("trigger_store", time.Second, nil)
	l := &outcomesLog{}
	l.end(t, "shop", 1)
	f := w.follower(t, l)
	if err := l.follow(t, f, 10); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("%v", err)
	}
	delete(w.refuse, "shop")
	if err := l.follow(t, f, 10); err != nil {
		t.Fatal(err)
	}
	if got, _ := w.ends(t, "shop"); len(got) != 1 || len(l.recs) != 1 {
		t.Errorf("%v, %d records", got, len(l.recs))
	}
}

// If a row does not show the outcome, the Follower looks it up and tells the current one.
func TestFollowerLooks(t *testing.T) {
	t.Parallel()
	since := all("shop")
	since.OutcomesSince = t0.UnixMilli()
	w := newWorld(t, since)
	l := &outcomesLog{}
	answers := map[int64]struct {
		out notify.Outcome
		err error
	}{
		0: {out: notify.Outcome{State: notify.Delivered, Epoch: 2, Updated: t0.UnixMilli() + 1000}},
		1: {out: notify.Outcome{State: notify.Failed}},   // the feed tells it
		2: {out: notify.Outcome{State: notify.Deferred}}, // will be told
		3: {err: &notify.Error{Kind: notify.KindGone}},
	}
	for range answers {
		l.end(t, "shop", 1, func(e *notify.Ended) { e.Receivers[0].Look = true })
	}
	l.end(t, "shop", 1, func(e *notify.Ended) { e.At-- }) // before the URL was set
	var down error
	f := w.follower(t, l, func(c *FollowConfig) {
		c.State = func(_ context.Context, id notify.ID) (notify.Outcome, error) {
			for at, a := range answers {
				var e notify.Ended
				if err := json.Unmarshal(l.recs[at].Value, &e); err != nil {
					t.Fatal(err)
				}
				if e.Receivers[0].ID == id.String() {
					return a.out, errors.Join(a.err, down)
				}
			}
			t.Fatalf("%s", id)
			return notify.Outcome{}, nil
		}
	})
	down = errors.New("down")
	if err := l.follow(t, f, 10); err == nil {
		t.Fatal("a state that cannot be read is passed over")
	}
	down = nil
	if err := l.follow(t, f, 10); err != nil {
		t.Fatal(err)
	}
	got, _ := w.ends(t, "shop")
	if len(got) != 1 || got[0].Status != "DELIVERED" || got[0].Epoch != 2 || !got[0].Ended.Equal(t0.Add(time.Second)) {
		t.Errorf("%+v", got)
	}
}

func TestAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, all("shop"))
		a := NewAsked(w.store.Callers(), discard)
		if err := a.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !a.Tells("shop") || a.Tells("bank") || !a.Any() {
			t.Error("not those that are stored")
		}
		if err := a.Watch(w.store.Callers()).Put(t.Context(), all("bank")); err != nil || !a.Tells("bank") {
			t.Error("a change through it does not bind at once", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- a.Run(ctx) }()
		off := all("shop")
		off.Version, off.OutcomesOf = 1, engine.OutcomesFailed
		if err := w.store.Callers().Put(t.Context(), off); err != nil { // elsewhere
			t.Fatal(err)
		}
		time.Sleep(AskedEvery + 1)
		synctest.Wait()
		if a.Tells("shop") {
			t.Error("a change elsewhere does not bind in time")
		}
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// A receipt may arrive before the row of its call. It is told once the row exists, unless a
// replay has begun meanwhile.
func TestFollowerWaitsForTheRowOfAReceipt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, all("shop"))
		l := &outcomesLog{}
		l.end(t, "shop", 2, func(e *notify.Ended) {
			e.At = time.Now().UnixMilli()
			for i := range e.Receivers {
				e.Receivers[i].Look, e.Receivers[i].Receipt, e.Receivers[i].Status = true, true, ""
			}
		})
		looks := 0
		f := w.follower(t, l, func(c *FollowConfig) {
			c.State = func(_ context.Context, id notify.ID) (notify.Outcome, error) {
				if id.Index == 1 {
					return notify.Outcome{State: notify.Accepted, Epoch: 1}, nil
				}
				if looks++; looks < 3 {
					return notify.Outcome{State: notify.Accepted}, nil
				}
				return notify.Outcome{State: notify.Delivered}, nil
			}
		})
		if err := l.follow(t, f, 10); err != nil {
			t.Fatal(err)
		}
		got, _ := w.ends(t, "shop")
		if len(got) != 1 || got[0].Status != "DELIVERED" || looks != 3 || len(l.recs) != 3 {
			t.Errorf("%+v after %d looks, %d records", got, looks, len(l.recs))
		}
	})
}

// An outcome of a newer release is not passed over.
func TestFollowLeavesWhatANewerReleaseWrote(t *testing.T) {
	t.Parallel()
	w := newWorld(t, all("shop"))
	l := &outcomesLog{}
	f := w.follower(t, l, func(c *FollowConfig) { c.Refused = func(code string) { t.Error(code) } })
	done := false
	m := log.NewMsg(log.Record{Topic: notify.TopicOutcomes, Value: []byte(`{"version":2}`)}, func() { done = true })
	err := f.Assigned(t.Context(), log.TopicPartition{Topic: notify.TopicOutcomes}).Handle(t.Context(), []*log.Msg{m})
	if !errors.Is(err, notify.ErrNewer) || done {
		t.Errorf("%v, done %v", err, done)
	}
}
