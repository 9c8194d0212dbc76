package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const shards = 8

// rig is a service over a store in memory; more services over one store are
// more processes.
type rig struct {
	*Service
	store *memory.Store
	swaps *swaps

	mu    sync.Mutex
	ended []engine.Timer
}

// swaps lets a test stand between a service and the heads.
type swaps struct {
	engine.Schedules
	before func(engine.ScheduleHead) // called ahead of a swap
	after  func() error              // its error takes the place of the answer
}

func (s *swaps) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if f := s.before; f != nil {
		s.before = nil
		f(h)
	}
	got, won, err := s.Schedules.Swap(ctx, old, h)
	if f := s.after; f != nil {
		s.after = nil
		if lost := f(); lost != nil {
			return engine.ScheduleHead{}, false, lost
		}
	}
	return got, won, err
}

func newRig() *rig {
	r := &rig{store: memory.New()}
	r.swaps = &swaps{Schedules: r.store.Schedules()}
	r.Service = New(Config{
		Schedules: r.swaps, Timers: r.store.Timers(), Cold: r.store.ColdTimers(), Shards: engine.FixedShards(shards),
		Park: func(ctx context.Context, ts []engine.Timer) error {
			for _, t := range ts {
				put := r.store.Timers().Put
				if time.Until(time.UnixMilli(t.FireAt)) > 30*24*time.Hour {
					put = r.store.ColdTimers().Put
				}
				if err := put(ctx, notify.SpreadOver(shards), []engine.Timer{t}); err != nil {
					return err
				}
			}
			return nil
		},
		Ended: func(_ context.Context, ts []engine.Timer) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended = append(r.ended, ts...)
			return nil
		},
	})
	return r
}

// fan schedules a fan-out of 4 partitions and 3 blocks, one receiver each.
func (r *rig) fan(t *testing.T, in time.Duration) notify.Base {
	t.Helper()
	now := time.Now()
	base, at := notify.NewBase(now), now.Add(in).UnixMilli()
	s := engine.Schedule{Base: base, Caller: "shop", Channel: notify.Push, Category: notify.Marketing, FireAt: at, Created: now.UnixMilli(),
		Partitions: 4, BlockSize: 4, Receivers: 12, Accepted: 12, FanOut: true}
	var ts []engine.Timer
	for i := range uint32(12) {
		ts = append(ts, timerOf(notify.Chunk{Base: base, Partition: uint16(i % 4), Block: i / 4}, at, i, true))
	}
	if err := r.Put(t.Context(), []engine.Schedule{s}, ts); err != nil {
		t.Fatal(err)
	}
	return base
}

// single schedules one notification.
func (r *rig) single(t *testing.T, in time.Duration, change ...func(*engine.Schedule)) notify.Base {
	t.Helper()
	now := time.Now()
	base, at := notify.NewBase(now), now.Add(in).UnixMilli()
	s := engine.Schedule{Base: base, Caller: "shop", Channel: notify.SMS, Category: notify.Alert, FireAt: at, Created: now.UnixMilli(), Partition: 3, Receivers: 1, Accepted: 1}
	for _, f := range change {
		f(&s)
	}
	if err := r.Put(t.Context(), []engine.Schedule{s}, []engine.Timer{timerOf(notify.Chunk{Base: base, Partition: 3}, at, 0, false)}); err != nil {
		t.Fatal(err)
	}
	return base
}

func timerOf(c notify.Chunk, at int64, index uint32, fan bool) engine.Timer {
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{Index: index, User: []byte("ann")})
	e := notify.Envelope{Chunk: c, FanOut: fan, Channel: notify.Push, Category: notify.Marketing, Caller: "shop", NotBefore: at, Count: 1, Receivers: w.Bytes()}
	if !fan {
		e.Channel, e.Category = notify.SMS, notify.Alert
	}
	return engine.Timer{FireAt: at, ID: c.TimerID(0), Kind: 1, Target: e.Lane().Topic(), Payload: notify.AppendEnvelope(nil, &e), Head: c.Base, Weight: 1}
}

func code(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Code
	}
	return ""
}

// hinted counts the partitions in which rows of v lie and its base is hinted.
func (r *rig) hinted(t *testing.T, v View) (with, without int) {
	t.Helper()
	_, ts, err := r.Timers(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ts {
		p := engine.TimerPartition{Bucket: x.FireAt / 60_000, Shard: engine.ShardOf(x.ID, notify.SpreadOver(shards))}
		hints, err := r.store.Schedules().Hints(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(hints, v.Base) {
			with++
		} else {
			without++
		}
	}
	return with, without
}

func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.fan(t, time.Hour)
		v, err := r.Cancel(t.Context(), base)
		if err != nil || v.State != engine.ScheduleCancelled {
			t.Fatalf("%+v, %v", v, err)
		}
		if with, without := r.hinted(t, v); with != 12 || without != 0 {
			t.Errorf("%d rows are hinted, %d are not", with, without)
		}
		if len(r.ended) != 12 {
			t.Errorf("the outcome of %d chunks was recorded", len(r.ended))
		}
		time.Sleep(time.Minute)
		again, err := r.Cancel(t.Context(), base)
		if err != nil || again.Touched != v.Touched || len(r.ended) != 12 {
			t.Errorf("a second cancel: %+v, %v, %d", again, err, len(r.ended))
		}
		if _, err := r.Move(t.Context(), base, time.Now().Add(2*time.Hour).UnixMilli(), "shop"); code(err) != "cancelled" {
			t.Errorf("a move of it: %v", err)
		}
		if _, err := r.Cancel(t.Context(), notify.NewBase(time.Now())); notify.KindOf(err) != notify.KindNotFound {
			t.Errorf("an unknown one: %v", err)
		}
	})
}

// TestGuard: what is nearly due is neither touched nor hinted, and the clock is
// looked at after the hint, which may take long.
func TestGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.single(t, 10*time.Second)
		time.Sleep(5499 * time.Millisecond)
		if _, err := r.Move(t.Context(), base, time.Now().Add(7*time.Second).UnixMilli(), "shop"); err != nil {
			t.Errorf("4,501 ms before: %v", err)
		}
		late := r.single(t, 4500*time.Millisecond)
		v, err := r.Cancel(t.Context(), late)
		if code(err) != "too_late" {
			t.Errorf("4,500 ms before: %v", err)
		}
		if with, _ := r.hinted(t, v); with != 0 || len(r.ended) != 0 {
			t.Error("something was written all the same")
		}
		slow := r.single(t, 6*time.Second)
		r.cfg.Schedules = &slowHints{r.swaps, 2 * time.Second}
		if _, err = r.Cancel(t.Context(), slow); code(err) != "too_late" {
			t.Errorf("a hint that took 2 s: %v", err)
		}
		if v, err = r.Get(t.Context(), slow); err != nil || v.State != engine.SchedulePending || v.version != 0 {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

type slowHints struct {
	engine.Schedules
	took time.Duration
}

func (s *slowHints) Hint(ctx context.Context, hs []engine.Hint) error {
	time.Sleep(s.took)
	return s.Schedules.Hint(ctx, hs)
}

func TestMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.fan(t, time.Hour)
		before, err := r.Get(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		for round, to := range []time.Duration{2 * time.Hour, 40 * 24 * time.Hour, time.Minute, 0} {
			at := time.Now().Add(to).UnixMilli()
			v, err := r.Move(t.Context(), base, at, "shop")
			if err != nil || v.FireAt != at || v.Gen != uint32(round+1) {
				t.Fatalf("to %v: %+v, %v", to, v, err)
			}
			got, err := r.Get(t.Context(), base)
			if err != nil || got != v {
				t.Fatalf("to %v: get %+v, %v", to, got, err)
			}
			_, ts, err := r.Timers(t.Context(), v)
			if err != nil || len(ts) != 12 {
				t.Fatalf("to %v: %d rows, %v", to, len(ts), err)
			}
			for _, x := range ts {
				var e notify.Envelope
				if err := notify.DecodeEnvelope(x.Payload, &e); err != nil || e.NotBefore != at || x.Gen != v.Gen || x.Head != base || x.Weight != 1 {
					t.Fatalf("to %v: %+v, %+v, %v", to, x, e, err)
				}
			}
		}
		if with, without := r.hinted(t, before); with != 12 || without != 0 {
			t.Errorf("of the first rows %d are hinted, %d are not", with, without)
		}

		once := r.single(t, time.Hour, func(s *engine.Schedule) { s.Expires = s.FireAt + 60_000 })
		v, err := r.Move(t.Context(), once, time.Now().Add(time.Hour).UnixMilli(), "shop")
		if err != nil || v.Gen != 0 {
			t.Errorf("to where it is: %+v, %v", v, err)
		}
		for _, c := range []struct {
			in   time.Duration
			code string
		}{{time.Hour + time.Minute, "expires_before_scheduled"}, {367 * 24 * time.Hour, "scheduled_too_far"}} {
			if _, err := r.Move(t.Context(), once, time.Now().Add(c.in).UnixMilli(), "shop"); code(err) != c.code {
				t.Errorf("in %v: %v, want %s", c.in, err, c.code)
			}
		}
		orphan := engine.Schedule{Base: notify.NewBase(time.Now()), Caller: "shop", FireAt: time.Now().Add(time.Hour).UnixMilli(), Receivers: 1, Accepted: 1}
		if err := r.store.Schedules().Put(t.Context(), []engine.Schedule{orphan}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Move(t.Context(), orphan.Base, time.Now().Add(2*time.Hour).UnixMilli(), "shop"); code(err) != "not_stored" {
			t.Errorf("without its timers: %v", err)
		}
	})
}

// TestOneWinner: of a cancel and a move at the same moment one wins, and the
// other's answer says so.
func TestOneWinner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		// A release wins between the clock and the swap.
		base := r.single(t, time.Hour)
		r.swaps.before = func(engine.ScheduleHead) {
			v, _ := r.Get(t.Context(), base)
			if _, won, err := r.store.Schedules().Swap(t.Context(), 0, engine.ScheduleHead{Base: base, State: engine.ScheduleReleased, FireAt: v.FireAt}); !won || err != nil {
				t.Error(won, err)
			}
		}
		if _, err := r.Cancel(t.Context(), base); code(err) != "too_late" {
			t.Errorf("behind a release: %v", err)
		}

		// A move wins before a cancel: the cancel then ends the moved one.
		base = r.single(t, time.Hour)
		to := time.Now().Add(3 * time.Hour).UnixMilli()
		r.swaps.before = func(engine.ScheduleHead) {
			if _, err := r.Move(t.Context(), base, to, "shop"); err != nil {
				t.Error(err)
			}
		}
		v, err := r.Cancel(t.Context(), base)
		if err != nil || v.State != engine.ScheduleCancelled || v.FireAt != to || v.Gen != 1 {
			t.Errorf("behind a move: %+v, %v", v, err)
		}
		if with, _ := r.hinted(t, v); with != 1 {
			t.Error("the rows it moved to are not hinted")
		}

		// A cancel wins before a move.
		base = r.single(t, time.Hour)
		r.swaps.before = func(engine.ScheduleHead) {
			if _, err := r.Cancel(t.Context(), base); err != nil {
				t.Error(err)
			}
		}
		if _, err := r.Move(t.Context(), base, to, "shop"); code(err) != "cancelled" {
			t.Errorf("behind a cancel: %v", err)
		}

		// A move that lost to a fence takes a generation of its own.
		base = r.single(t, time.Hour)
		r.swaps.before = func(h engine.ScheduleHead) {
			h.State, h.Gen, h.FireAt = engine.SchedulePending, 0, 0
			if _, won, err := r.store.Schedules().Swap(t.Context(), 0, h); !won || err != nil {
				t.Error(won, err)
			}
		}
		if v, err = r.Move(t.Context(), base, to+1, "shop"); err != nil || v.Gen != 2 {
			t.Errorf("behind a fence: %+v, %v", v, err)
		}
	})
}

// TestLostAnswer: a swap whose answer was lost counts when it was applied.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.single(t, time.Hour)
		lost := errors.New("no answer")
		r.swaps.after = func() error { return lost }
		v, err := r.Cancel(t.Context(), base)
		if err != nil || v.State != engine.ScheduleCancelled || len(r.ended) != 1 {
			t.Errorf("%+v, %v, %d", v, err, len(r.ended))
		}
		moved := r.single(t, time.Hour)
		r.swaps.after = func() error { return lost }
		if v, err = r.Move(t.Context(), moved, time.Now().Add(time.Minute).UnixMilli(), "shop"); err != nil || v.Gen != 1 {
			t.Errorf("%+v, %v", v, err)
		}
		never := r.single(t, time.Hour)
		r.cfg.Schedules = noSwap{r.swaps, lost}
		if _, err = r.Cancel(t.Context(), never); !errors.Is(err, lost) {
			t.Errorf("not applied: %v", err)
		}
	})
}

type noSwap struct {
	engine.Schedules
	err error
}

func (n noSwap) Swap(context.Context, uint64, engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	return engine.ScheduleHead{}, false, n.err
}

// TestEndedLater: a log that is away does not undo a cancel.
func TestEndedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.cfg.Ended = func(context.Context, []engine.Timer) error { return errors.New("away") }
		base := r.single(t, time.Hour)
		if v, err := r.Cancel(t.Context(), base); err != nil || v.State != engine.ScheduleCancelled {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

func TestForecast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		now := time.Now() // a whole minute, in a bubble
		r.fan(t, 90*time.Second)
		r.fan(t, 90*time.Second)
		moved := r.fan(t, 90*time.Second)
		gone := r.fan(t, 90*time.Second)
		r.single(t, 95*time.Second)
		r.single(t, 31*24*time.Hour+time.Second)
		if err := r.cfg.Park(t.Context(), []engine.Timer{{FireAt: now.Add(time.Minute).UnixMilli(), ID: []byte("trg"), Kind: 2}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Move(t.Context(), moved, now.Add(3*time.Minute).UnixMilli(), "shop"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Cancel(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		m := now.UnixMilli() / 60_000
		minutes := func(from, to int64, most int) ([]Due, bool, error) {
			return r.Forecast(t.Context(), from*60_000, to*60_000, most)
		}
		due, complete, err := minutes(m, m+6, 1000)
		want := []Due{{m + 1, "push", 24, 24}, {m + 1, "sms", 1, 1}, {m + 1, "trigger", 1, 1}, {m + 3, "push", 12, 12}}
		if err != nil || !complete || !slices.Equal(due, want) {
			t.Errorf("%+v, %v, %v\nwant %+v", due, complete, err, want)
		}
		far := m + 31*1440
		due, complete, err = minutes(far, far+2, 1000)
		if want = []Due{{far, "sms", 1, 1}}; err != nil || !complete || !slices.Equal(due, want) {
			t.Errorf("%+v, %v, %v\nwant %+v", due, complete, err, want)
		}
		if _, complete, err = minutes(m, m+6, 10); err != nil || complete {
			t.Errorf("10 rows are enough: %v, %v", complete, err)
		}
		// From the middle of a minute, and up to it.
		half := now.Add(95 * time.Second).UnixMilli()
		if due, _, err = r.Forecast(t.Context(), half, half+1, 1000); err != nil || !slices.Equal(due, []Due{{m + 1, "sms", 1, 1}}) {
			t.Errorf("%+v, %v", due, err)
		}
		if due, _, err = r.Forecast(t.Context(), half+1, (m+2)*60_000, 1000); err != nil || len(due) != 0 {
			t.Errorf("what came due before is due again: %+v, %v", due, err)
		}
	})
}

func TestList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		first := r.single(t, time.Hour)
		time.Sleep(time.Second)
		second := r.fan(t, time.Hour)
		if _, err := r.Cancel(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		vs, err := r.List(t.Context(), "shop", notify.Base{}, 10)
		if err != nil || len(vs) != 2 || vs[0].Base != second || vs[1].State != engine.ScheduleCancelled {
			t.Errorf("%+v, %v", vs, err)
		}
		if vs, err = r.List(t.Context(), "shop", second, 10); err != nil || len(vs) != 1 {
			t.Errorf("behind the first: %+v, %v", vs, err)
		}
		if vs, err = r.List(t.Context(), "other", notify.Base{}, 10); err != nil || len(vs) != 0 {
			t.Errorf("of another caller: %+v, %v", vs, err)
		}
	})
}

func TestBefore(t *testing.T) {
	t.Parallel()
	for _, id := range [][]byte{{1}, {0}, {1, 0}, {1, 2, 3}, {255}} {
		b := timerIDBefore(id)
		if slices.Compare(b, id) >= 0 {
			t.Errorf("%v is not below %v", b, id)
		}
		for _, between := range [][]byte{append(slices.Clone(b), 0), append(slices.Clone(b), 255)} {
			if len(between) <= 64 && slices.Compare(between, id) < 0 {
				t.Errorf("%v lies between %v and %v", between, b, id)
			}
		}
	}
}

// A move says who made it and when, also after the release, and leaves no rows
// of the generations before; after so many it is refused.
func TestMovedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		cfg := r.cfg
		cfg.MaxMoves = 5
		cfg.Forget = func(ctx context.Context, over notify.Spread, ts []engine.Timer) error {
			return r.store.Schedules().ForgetTimers(ctx, over, ts)
		}
		r.Service = New(cfg)
		for _, base := range []notify.Base{r.single(t, time.Hour), r.fan(t, 40*24*time.Hour)} {
			var v View
			var err error
			for i := range 5 {
				time.Sleep(time.Minute)
				days := time.Duration(20*(i+1)) * 24 * time.Hour // from the hot table to the cold one and back
				if v, err = r.Move(t.Context(), base, time.Now().Add(days).UnixMilli(), fmt.Sprint("caller", i)); err != nil {
					t.Fatal(err)
				}
				if v.MovedBy != fmt.Sprint("caller", i) || v.MovedAt != time.Now().UnixMilli() {
					t.Fatalf("%+v", v)
				}
				again, ts, err := r.Timers(t.Context(), v)
				if err != nil || again != v || sumWeight(ts) != v.Accepted {
					t.Fatalf("%+v, %d rows, %v", again, len(ts), err)
				}
				rows := uint32(0)
				count := func(x *engine.Timer) error {
					if x.Head == base {
						rows += x.Weight
					}
					return nil
				}
				if err := errors.Join(r.store.Timers().Pending(t.Context(), count), r.store.ColdTimers().Pending(t.Context(), count)); err != nil {
					t.Fatal(err)
				}
				if rows != v.Accepted {
					t.Errorf("%d receivers of %d are stored after move %d", rows, v.Accepted, i+1)
				}
			}
			if _, err := r.Move(t.Context(), base, time.Now().Add(time.Hour).UnixMilli(), "shop"); code(err) != "moved_too_often" || notify.KindOf(err) != notify.KindConflict {
				t.Errorf("move 6: %v", err)
			}
			if _, err := r.Move(t.Context(), base, v.FireAt, "shop"); err != nil {
				t.Errorf("to where it is: %v", err)
			}
			c, err := r.Cancel(t.Context(), base)
			if err != nil || c.MovedBy != "caller4" || c.MovedAt != v.MovedAt {
				t.Errorf("%+v, %v", c, err)
			}
		}
	})
}

// On a full disk nothing is moved and nothing stored; a cancel goes on.
func TestMoveOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.single(t, time.Hour)
		full := &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", RetryAfter: 5 * time.Second}
		cfg := r.cfg
		cfg.Gate = func() error { return full }
		s := New(cfg)
		before, err := s.Get(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Move(t.Context(), base, time.Now().Add(2*time.Hour).UnixMilli(), "shop"); !errors.Is(err, full) {
			t.Errorf("move: %v", err)
		}
		if after, err := s.Get(t.Context(), base); err != nil || after != before {
			t.Errorf("%+v, %v, before %+v", after, err, before)
		}
		if with, _ := r.hinted(t, before); with != 0 {
			t.Error("the refused move left a hint")
		}
		if _, err := s.Cancel(t.Context(), base); err != nil {
			t.Errorf("cancel: %v", err)
		}
	})
}

// slowHeads is a store that takes a second to read each head.
type slowHeads struct{ engine.Schedules }

func (s slowHeads) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	time.Sleep(time.Second)
	return s.Schedules.Head(ctx, base)
}

// A page of schedules reads its heads at the same time.
func TestListReadsHeadsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		var want []notify.Base
		for i := range 100 {
			x := engine.Schedule{Base: notify.NewBase(time.Now().Add(time.Duration(-i) * time.Second)), Caller: "shop", FireAt: time.Now().Add(time.Hour).UnixMilli()}
			want = append(want, x.Base)
			if err := r.store.Schedules().Put(t.Context(), []engine.Schedule{x}); err != nil {
				t.Fatal(err)
			}
		}
		r.cfg.Schedules = slowHeads{r.store.Schedules()}
		began := time.Now()
		vs, err := r.List(t.Context(), "shop", notify.Base{}, 100)
		if err != nil || len(vs) != len(want) {
			t.Fatal(len(vs), err)
		}
		for i := range vs {
			if vs[i].Base != want[i] {
				t.Fatalf("place %d holds %v", i, vs[i].Base)
			}
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("100 heads took %s", took)
		}
	})
}

// noPayloads is a store that refuses to read whole rows.
type noPayloads struct {
	engine.Timers
	t *testing.T
}

func (n noPayloads) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	n.t.Error("a forecast reads payloads")
	return n.Timers.Scan(ctx, p, after, until, max)
}

func TestForecastReadsNoPayloads(t *testing.T) {
	r := newRig()
	due := time.Now().Add(time.Hour).UnixMilli()
	x := engine.Timer{FireAt: due, ID: []byte("a"), Target: "notifications-push-bulk", Weight: 7, Payload: []byte("much")}
	if err := r.store.Timers().Put(t.Context(), notify.SpreadOver(shards), []engine.Timer{x}); err != nil {
		t.Fatal(err)
	}
	r.cfg.Timers = noPayloads{r.store.Timers(), t}
	sums, complete, err := r.Forecast(t.Context(), due-1000, due+1000, 10)
	if err != nil || !complete || len(sums) != 1 || sums[0].Count != 7 {
		t.Errorf("%+v %v %v", sums, complete, err)
	}
}

// A process whose clock is off cannot tell whether a schedule is due: it refuses to
// cancel or move it, and changes nothing.
func TestTouchNeedsAClockThatIsRight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		base := r.fan(t, time.Hour)
		off := notify.Unavailable("clock", 5*time.Second, errors.New("it is 2 s off"))
		r.cfg.Clock = func() error { return off }
		if _, err := r.Cancel(t.Context(), base); code(err) != "clock" {
			t.Errorf("a cancel: %v", err)
		}
		if _, err := r.Move(t.Context(), base, time.Now().Add(2*time.Hour).UnixMilli(), "shop"); code(err) != "clock" {
			t.Errorf("a move: %v", err)
		}
		if v, err := r.Get(t.Context(), base); err != nil || v.State == engine.ScheduleCancelled || len(r.ended) > 0 {
			t.Errorf("%+v, %v", v, err)
		}
		r.cfg.Clock = func() error { return nil }
		if _, err := r.Cancel(t.Context(), base); err != nil {
			t.Error(err)
		}
	})
}
