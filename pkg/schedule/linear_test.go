package schedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

// opInput and opOutput are one operation on one schedule, as its client, or who
// receives its releases, saw it.
type opInput struct {
	base notify.Base
	what string // create, cancel, move, get; decide, release by a timer engine
	at   int64  // create, move: when it is to be due
	gen  uint32 // release, decide: of the row
}

type opOutput struct {
	code   string // "ok", "unknown", or an error's
	state  engine.ScheduleState
	gen    uint32
	fireAt int64
	wall   int64 // when the answer came, ms since 1970
}

type modelState struct {
	state  engine.ScheduleState // 0: there is none
	gen    uint32
	fireAt int64
	silent bool // released by an engine that did not read the head, which does not show it
}

var scheduleModel = (&porcupine.NondeterministicModel{
	Partition:         enginetest.ByKey(func(in opInput) notify.Base { return in.base }),
	Init:              func() []any { return []any{modelState{}} },
	Step:              func(s, in, out any) []any { return modelStep(s.(modelState), in.(opInput), out.(opOutput)) },
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}).ToModel()

var guard = timer.Config{}.Guard()

// modelStep returns what a schedule may be after an operation that was answered so;
// none: it cannot have been.
func modelStep(s modelState, in opInput, out opOutput) []any {
	one := func(next modelState, legal bool) []any {
		if !legal {
			return nil
		}
		return []any{next}
	}
	pending := s.state == engine.SchedulePending
	switch in.what {
	case "create":
		return one(modelState{state: engine.SchedulePending, fireAt: in.at}, s.state == 0)
	case "get":
		as := s
		if s.silent && out.state == engine.SchedulePending {
			as.state = engine.SchedulePending
		}
		return one(s, as.state == out.state && as.gen == out.gen && as.fireAt == out.fireAt)
	case "decide": // the head was swapped
		return one(modelState{state: engine.ScheduleReleased, gen: in.gen, fireAt: s.fireAt}, (pending || s.silent) && s.gen == in.gen)
	case "release": // again, or without a swap
		return one(modelState{engine.ScheduleReleased, in.gen, s.fireAt, pending || s.silent}, s.gen == in.gen && (pending && in.gen == 0 || s.state == engine.ScheduleReleased))
	}
	cancelled, moved := s, s
	cancelled.state = engine.ScheduleCancelled
	moved.gen, moved.fireAt = out.gen, in.at
	switch {
	case in.what == "cancel" && out.code == "ok":
		return one(cancelled, pending || s.state == engine.ScheduleCancelled)
	case in.what == "cancel" && out.code == "unknown" && pending:
		return []any{s, cancelled}
	case in.what == "move" && out.code == "ok":
		return one(moved, pending && (out.gen > s.gen || out.gen == s.gen && s.fireAt == in.at))
	case out.code == "unknown" && in.what == "move" && pending:
		next := []any{s}
		for gen := s.gen + 1; gen < s.gen+8; gen++ { // it has not said which one
			moved.gen = gen
			next = append(next, moved)
		}
		return next
	case out.code == "unknown":
		return []any{s}
	case out.code == "cancelled":
		return one(s, s.state == engine.ScheduleCancelled)
	case out.code == "too_late":
		return one(s, s.state == engine.ScheduleReleased || pending && out.wall+guard.Milliseconds() >= s.fireAt)
	}
	return nil
}

// history is services and timer engines over one store, whose calls are slow and sometimes fail, and
// the clients that record what they see.
type history struct {
	enginetest.History[opInput, opOutput]
	t     *testing.T
	store *memory.Store
	lax   bool // swaps do not compare; nothing but the history is checked

	mu     sync.Mutex
	rng    *rand.Rand
	bases  []notify.Base
	fired  map[notify.Base]map[uint32]int // rows released, by generation
	forget func(ctx context.Context, shards notify.Spread, ts []engine.Timer) error
}

func (h *history) random(n int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(n)
}

// flaky are the schedules as one process sees them.
type flaky struct {
	engine.Schedules
	h      *history
	engine bool
}

func (h *history) linger() { time.Sleep(time.Duration(h.random(30)) * time.Millisecond) }

func (h *history) slip() (fail, applied bool) { return h.random(10) == 0, h.random(2) == 0 }

var errDown = notify.Unavailable("schedules", 0, nil)

func (f flaky) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	f.h.linger()
	if fail, _ := f.h.slip(); fail {
		return engine.ScheduleHead{}, false, errDown
	}
	h, ok, err := f.Schedules.Head(ctx, base)
	f.h.linger()
	return h, ok, err
}

func (f flaky) Hint(ctx context.Context, hs []engine.Hint) error {
	f.h.linger()
	if f.h.random(15) == 0 {
		time.Sleep(time.Duration(f.h.random(8000)) * time.Millisecond)
	}
	if fail, _ := f.h.slip(); fail {
		return errDown
	}
	return f.Schedules.Hint(ctx, hs)
}

func (f flaky) Swap(ctx context.Context, old uint64, next engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	f.h.linger()
	fail, applied := f.h.slip()
	if fail && !applied {
		return engine.ScheduleHead{}, false, errDown
	}
	call := f.h.Tick()
	got, won, err := f.Schedules.Swap(ctx, old, next)
	if f.engine && won && next.State == engine.ScheduleReleased {
		f.h.Add(100, opInput{base: next.Base, what: "decide", gen: next.Gen}, call, opOutput{code: "ok"})
	}
	f.h.linger()
	if fail {
		time.Sleep(time.Duration(f.h.random(300)) * time.Millisecond) // others go on meanwhile
		return engine.ScheduleHead{}, false, errDown
	}
	return got, won, err
}

// publish is where releases arrive.
func (h *history) publish(_ context.Context, ts []engine.Timer) error {
	call := h.Tick()
	h.linger()
	if fail, _ := h.slip(); fail {
		return errDown
	}
	now := time.Now().UnixMilli()
	for _, t := range ts {
		if t.FireAt > now {
			h.t.Errorf("%s was released %d ms early", t.Head, t.FireAt-now)
		}
		h.mu.Lock()
		if h.fired[t.Head] == nil {
			h.fired[t.Head] = map[uint32]int{}
		}
		h.fired[t.Head][t.Gen]++
		h.mu.Unlock()
		h.Add(101, opInput{base: t.Head, what: "release", gen: t.Gen}, call, opOutput{code: "ok"})
	}
	return nil
}

// heads are the schedules as they are stored.
func (h *history) heads() engine.Schedules {
	if h.lax {
		return lax{h.store.Schedules()}
	}
	return h.store.Schedules()
}

// service is a process that schedules, cancels and moves.
func (h *history) service(w *timer.Engine) *Service {
	return New(Config{
		Schedules: flaky{h.heads(), h, false}, Timers: h.store.Timers(), Cold: h.store.ColdTimers(), Shards: engine.FixedShards(2),
		Park: w.Park, Store: w.ParkScheduled, Forget: h.forget, Guard: guard,
		Ended: func(context.Context, []engine.Timer) error { return nil },
	})
}

// answer is what a client knows after a call.
func answer(v View, err error) opOutput {
	wall := time.Now().UnixMilli()
	switch e, _ := err.(*notify.Error); {
	case err == nil:
		return opOutput{"ok", v.State, v.Gen, v.FireAt, wall}
	case notify.KindOf(err) == notify.KindUnavailable || e == nil:
		return opOutput{code: "unknown", wall: wall}
	default:
		return opOutput{code: e.Code, wall: wall}
	}
}

func (h *history) note(client int, in opInput, call int64, out opOutput) {
	h.Note(client, in, call, out, out.code != "unknown")
}

// create schedules a notification, or a fan-out of a few chunks.
func (h *history) create(s *Service, client int) {
	now := time.Now()
	base, at := notify.NewBase(now), now.Add(5*time.Second+time.Duration(h.random(12_000))*time.Millisecond).UnixMilli()
	x := engine.Schedule{Base: base, Caller: "shop", Channel: notify.SMS, Category: notify.Alert, FireAt: at, Created: now.UnixMilli(), Partition: 3, Receivers: 1, Accepted: 1}
	ts := []engine.Timer{timerOf(notify.Chunk{Base: base, Partition: 3}, at, 0, false)}
	if h.random(3) == 0 {
		x.FanOut, x.Partitions, x.BlockSize, x.Receivers, x.Accepted = true, 3, 4, 3, 3
		ts = nil
		for i := range uint32(3) {
			ts = append(ts, timerOf(notify.Chunk{Base: base, Partition: uint16(i)}, at, i, true))
		}
	}
	call := h.Tick()
	if err := s.Put(context.Background(), []engine.Schedule{x}, ts); err != nil {
		return // no client learns its id
	}
	h.Add(client, opInput{base: base, what: "create", at: at}, call, opOutput{code: "ok"})
	h.mu.Lock()
	h.bases = append(h.bases, base)
	h.mu.Unlock()
}

// client does random things to schedules.
func (h *history) client(s *Service, n, ops int) {
	ctx := context.Background()
	for range ops {
		if h.random(2) == 0 {
			time.Sleep(time.Duration(h.random(800)) * time.Millisecond)
		}
		h.mu.Lock()
		var base notify.Base
		known := len(h.bases)
		if known > 0 {
			base = h.bases[h.rng.IntN(known)]
		}
		h.mu.Unlock()
		if known == 0 || known < 8 && h.random(3) == 0 {
			h.create(s, n)
			continue
		}
		call := h.Tick()
		switch h.random(8) {
		case 0:
			v, err := s.Cancel(ctx, base)
			h.note(n, opInput{base: base, what: "cancel"}, call, answer(v, err))
		case 1, 2, 3:
			at := time.Now().Add(time.Duration(h.random(20_000)) * time.Millisecond).UnixMilli()
			if h.random(2) == 0 {
				at -= at % 2000 // several move it to the same time
			}
			at = max(at, time.Now().UnixMilli())
			v, err := s.Move(ctx, base, at, "shop")
			h.note(n, opInput{base: base, what: "move", at: at}, call, answer(v, err))
		default:
			h.get(s, n, base, call)
		}
	}
}

// get looks at a schedule, and sometimes at its rows as well.
func (h *history) get(s *Service, n int, base notify.Base, call int64) {
	ctx := context.Background()
	v, err := s.Get(ctx, base)
	if err == nil && h.random(2) == 0 {
		h.linger()
		var ts []engine.Timer
		if v, ts, err = s.Timers(ctx, v); err == nil {
			due := time.UnixMilli(v.FireAt)
			if !h.lax && v.State == engine.SchedulePending && time.Until(due) > 0 && sumWeight(ts) != v.Accepted {
				h.t.Errorf("%s is pending until %v at generation %d, with %d of its %d receivers", base, due, v.Gen, sumWeight(ts), v.Accepted)
			}
			for i := range ts {
				if ts[i].Gen != v.Gen || ts[i].FireAt != v.FireAt {
					h.t.Errorf("%s at generation %d, a row of %d", base, v.Gen, ts[i].Gen)
				}
			}
		}
	}
	if err == nil {
		h.Add(n, opInput{base: base, what: "get"}, call, answer(v, nil))
	}
}

// oneHistory runs clients in three processes against two timer engines.
func oneHistory(t *testing.T, seed uint64, change func(*history, *timer.Config)) (ops []porcupine.Operation) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{t: t, store: memory.New(), rng: rand.New(rand.NewPCG(seed, 7)), fired: map[notify.Base]map[uint32]int{}}
		h.forget = func(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
			return h.store.Schedules().ForgetTimers(ctx, shards, ts)
		}
		cfg := timer.Config{
			Store: h.store.Timers(), Cold: h.store.ColdTimers(), Queue: h.store.Queue("near", 1000),
			Schedules: flaky{h.store.Schedules(), h, true}, Lease: memory.NewLease(), Shards: 2, Publish: h.publish,
			Cancelled: func(context.Context, []engine.Timer) error { return nil },
		}
		if change != nil {
			change(h, &cfg)
		}
		ctx, stop := context.WithCancel(context.Background())
		var engines, clients sync.WaitGroup
		var writers []*timer.Engine
		for _, name := range []string{"a", "b"} {
			cfg.Owner = name
			e := timer.New(cfg)
			writers = append(writers, e)
			engines.Go(func() {
				if err := e.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		own := cfg
		own.Schedules = flaky{h.store.Schedules(), h, false}
		writers = append(writers, timer.New(own))
		for n := range 8 {
			s := h.service(writers[n%len(writers)])
			clients.Go(func() { h.client(s, n, 40) })
		}
		clients.Wait()
		time.Sleep(3 * time.Minute)
		h.settled()
		stop()
		engines.Wait()
		known := map[notify.Base]bool{}
		for _, b := range h.bases {
			known[b] = true
		}
		ops = h.Operations(func(in opInput) bool { return known[in.base] })
	})
	return ops
}

// settled holds every schedule to its end: cancelled, or all of it released at
// the generation that counts and at no other.
func (h *history) settled() {
	if h.lax {
		return
	}
	for _, b := range h.bases {
		x, _, err := h.store.Schedules().Get(context.Background(), b)
		if err != nil {
			h.t.Fatal(err)
		}
		head, _, err := h.store.Schedules().Head(context.Background(), b)
		if err != nil {
			h.t.Fatal(err)
		}
		for gen, n := range h.fired[b] {
			if gen != head.Gen || head.State == engine.ScheduleCancelled {
				h.t.Errorf("%s: %d rows of generation %d were released; its head is %+v", b, n, gen, head)
			}
		}
		if n := h.fired[b][head.Gen]; head.State != engine.ScheduleCancelled && n < int(x.Accepted) {
			h.t.Errorf("%s: %d of %d rows were released; its head is %+v", b, n, x.Accepted, head)
		}
	}
}

// Histories of create, cancel, move, get and release, with stores that fail with
// and without having done what was asked, are linearizable per schedule.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	histories := 150
	if testing.Short() {
		histories = 10
	}
	enginetest.CheckHistories(t, scheduleModel, "schedule", histories, func(seed uint64) []porcupine.Operation { return oneHistory(t, seed, nil) },
		func(in, out any) string { return in.(opInput).what + " " + out.(opOutput).code },
		"create ok", "cancel ok", "cancel too_late", "cancel unknown", "move ok", "move too_late", "move cancelled", "move unknown", "get ok", "decide ok", "release ok")
}

// lax is a store whose swaps always win: the compare is missing.
type lax struct{ engine.Schedules }

func (l lax) Swap(ctx context.Context, _ uint64, next engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	h, _, err := l.Head(ctx, next.Base)
	if err != nil {
		return h, false, err
	}
	return l.Schedules.Swap(ctx, h.Version, next)
}

// The checker finds what it is there to find.
func TestLinearizableCatches(t *testing.T) {
	t.Parallel()
	enginetest.CheckFindsIllegal(t, scheduleModel, 20, func(seed uint64) []porcupine.Operation {
		return oneHistory(t, seed, func(h *history, _ *timer.Config) { h.lax = true })
	})
}
