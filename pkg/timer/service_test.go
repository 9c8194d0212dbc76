package timer

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
)

// service treats schedules as the service of scheduled notifications does, which DESIGN.md
// describes: hint, clock, rows, head. It stands for a process of its own.
type service struct {
	s     *sim
	w     *Engine
	plan  *faulty.Plan
	heads engine.Schedules
	now   func() time.Time
	made  uint64
}

// schedule is one request with several chunks.
type schedule struct {
	base   notify.Base
	chunks int
}

func (s *sim) service() *service {
	w, plan := s.writer()
	return &service{s: s, w: w, plan: plan, heads: w.cfg.Schedules, now: time.Now}
}

// baseOf returns the same base for the same number in every run. So the shards are the same, too.
func baseOf(made uint64) notify.Base {
	b := notify.Base{1}
	binary.BigEndian.PutUint64(b[8:], made)
	return b
}

func rowOf(base notify.Base, chunk int, gen uint32) string {
	return fmt.Sprintf("%s/%d/%d", base, chunk, gen)
}

// timers returns the rows of a generation.
func (x schedule) timers(gen uint32, fireAt int64) (ts []engine.Timer) {
	for c := range x.chunks {
		ts = append(ts, engine.Timer{
			FireAt: fireAt, ID: []byte(rowOf(x.base, c, gen)), Kind: KindEnvelope, Target: "topic",
			Payload: []byte("payload"), Head: x.base, Gen: gen, Weight: 1,
		})
	}
	return ts
}

func (v *service) create(chunks int, fireAt int64) (schedule, error) {
	ctx := context.Background()
	v.made++
	x := schedule{baseOf(v.made), chunks}
	return x, v.w.ParkScheduled(ctx, []engine.Schedule{{Base: x.base, FireAt: fireAt, Created: v.now().UnixMilli()}}, x.timers(0, fireAt))
}

// answer is the answer to a cancel or reschedule.
type answer string

const (
	done    answer = "ok"
	tooLate answer = "too late"
	unknown answer = "unknown" // an error: the change may still take effect
)

// touch writes a hint for the rows of the present generation, checks the clock, and returns the
// head to swap.
func (v *service) touch(x schedule) (engine.ScheduleHead, answer) {
	ctx := context.Background()
	sched, _, err := v.heads.Get(ctx, x.base)
	if err != nil {
		return engine.ScheduleHead{}, unknown
	}
	h, ok, err := v.heads.Head(ctx, x.base)
	if err != nil {
		return h, unknown
	}
	if !ok {
		h = engine.ScheduleHead{Base: x.base, State: engine.SchedulePending, FireAt: sched.FireAt}
	}
	if h.FireAt == 0 {
		h.FireAt = sched.FireAt
	}
	if h.State != engine.SchedulePending {
		return h, tooLate
	}
	var hints []engine.Hint
	for _, t := range x.timers(h.Gen, h.FireAt) {
		hints = append(hints, engine.Hint{
			Partition: engine.TimerPartition{Bucket: t.FireAt / 60_000, Shard: engine.ShardOf(t.ID, notify.SpreadOver(v.s.base.Shards))}, Base: x.base,
		})
	}
	if err := v.heads.Hint(ctx, hints); err != nil {
		return h, unknown
	}
	if v.now().UnixMilli() > h.FireAt-v.w.cfg.Guard().Milliseconds() {
		return h, tooLate
	}
	return h, done
}

func (v *service) cancel(x schedule) answer {
	h, a := v.touch(x)
	if a != done {
		return a
	}
	return v.swap(h, func(h *engine.ScheduleHead) { h.State = engine.ScheduleCancelled })
}

func (v *service) reschedule(x schedule, fireAt int64) answer {
	h, a := v.touch(x)
	if a != done {
		return a
	}
	// The generation is the version that the head gets by this change, as in pkg/schedule. So no
	// generation is used twice.
	gen := uint32(h.Version) + 1
	if err := v.w.Park(context.Background(), x.timers(gen, fireAt)); err != nil {
		return unknown
	}
	return v.swap(h, func(h *engine.ScheduleHead) { h.Gen, h.FireAt = gen, fireAt })
}

// swap tries once. If another call has changed the head, this call has lost.
func (v *service) swap(h engine.ScheduleHead, change func(*engine.ScheduleHead)) answer {
	old := h.Version
	change(&h)
	h.At = v.now().UnixMilli()
	_, won, err := v.heads.Swap(context.Background(), old, h)
	switch {
	case err != nil:
		return unknown
	case !won:
		return tooLate
	}
	return done
}
