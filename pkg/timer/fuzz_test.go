package timer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
)

// expected is the simple model of one schedule: what its owner was told by the answers.
type expected struct {
	schedule
	name      string
	gen       uint32
	fireAt    int64
	cancelled bool
	// maybe means that an answer was lost. So the schedule may be cancelled, or have the next
	// generation.
	maybe    bool
	unstored bool // create was not answered: nothing is promised
}

// TestRandomSchedules runs random schedules, cancels and reschedules through crashes, pauses, clock
// steps, delayed writes and outages of everything. It compares the released timers with a model
// that knows only the answers. Every schedule that was not cancelled fires: all its chunks, in one
// generation, and none early. A cancelled schedule never fires.
func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Draw before the bubble begins, because rapid ends a case with a panic.
		ops := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				op: rapid.IntRange(0, 19).Draw(rt, "op"), a: rapid.IntRange(0, 1<<16).Draw(rt, "a"),
				b: rapid.IntRange(0, 1<<16).Draw(rt, "b"), ms: rapid.OneOf(
					rapid.IntRange(-120_000, 2_000), rapid.IntRange(0, 10_000), rapid.IntRange(0, 300_000)).Draw(rt, "ms"),
			}
		}), 1, 40).Draw(rt, "ops")
		nodes := rapid.IntRange(1, 3).Draw(rt, "nodes")
		cfg := Config{
			Shards:     rapid.IntRange(1, 4).Draw(rt, "shards"),
			MaxPending: rapid.SampledFrom([]int{16, 1000}).Draw(rt, "max pending"),
			Batch:      rapid.SampledFrom([]int{2, 512}).Draw(rt, "batch"),
		}
		var faults []string
		synctest.Test(t, func(t *testing.T) { faults = randomSchedules(t, cfg, nodes, ops) })
		for _, f := range faults {
			rt.Error(f)
		}
	})
}

// step is one operation; a, b and ms are its arguments.
type step struct{ op, a, b, ms int }

func of[T any](list []T, k int) T { return list[k%len(list)] }

func randomSchedules(t *testing.T, cfg Config, nodes int, ops []step) []string {
	s := newSim(t, func(c *Config) { *c = cfg })
	s.slack = 500 * time.Millisecond
	names := []string{"a", "b", "c"}[:nodes]
	for _, name := range names {
		s.start(name)
	}
	v := s.service()
	var all []*expected
	var undo []func()
	for _, o := range ops {
		node := s.nodes[of(names, o.a)]
		at := time.Now().UnixMilli() + int64(o.ms)
		pause := time.Duration(abs(o.ms)) * time.Millisecond
		var x *expected
		if len(all) > 0 {
			x = of(all, o.a)
		}
		switch {
		case o.op <= 4:
			x := &expected{name: fmt.Sprint(len(all)), fireAt: at}
			var err error
			x.schedule, err = v.create(1+o.b%3, at)
			x.unstored = err != nil
			all = append(all, x)
		case o.op <= 6:
			if x != nil {
				x.cancel(v)
			}
		case o.op <= 8:
			if x != nil {
				x.reschedule(v, at)
			}
		case o.op == 9:
			node.crash()
			wait(pause / 2)
			s.start(node.name)
		case o.op == 10:
			node.freeze()
			wait(pause / 10)
			node.thaw()
		case o.op == 11:
			node.halt()
			s.start(node.name)
		case o.op == 12:
			node.step.Store(int64(of([]time.Duration{0, 400 * time.Millisecond, -400 * time.Millisecond, time.Hour, -time.Hour, 90 * time.Second, -90 * time.Second}, o.b)))
		case o.op == 13:
			slow := []string{"Timers.Put", "Schedules.Swap", "Timers.Shard", "Schedules.Hint", "Queue.Enqueue"}
			v.plan.Add(faulty.Rule{Method: of(slow, o.b), Times: 1, Hook: sleepHook(pause)})
		case o.op == 14:
			p := v.plan
			if o.b%2 == 0 {
				p = node.plan
			}
			broken := []string{
				"Timers.*", "Schedules.*", "Queue.*", "Lease.*", "Timers.Put", "Timers.Scan", "Timers.Advance", "Timers.Drop",
				"Timers.TakeOver", "Schedules.Swap", "Schedules.Head", "Schedules.Hints", "Queue.Enqueue", "Queue.Ack",
			}
			undo = append(undo, p.Add(faulty.Rule{
				Method: of(broken, o.b/2), Times: 1 + o.a%20, Err: faulty.ErrDown, Lost: of([]faulty.Loss{faulty.NotApplied, faulty.Applied}, o.ms&1),
			}))
		case o.op == 15:
			s.lease.empty()
		case o.op == 16:
			s.setLogDown(true)
			wait(pause / 4)
			s.setLogDown(false)
		default:
			wait(pause / 4)
		}
	}
	for _, f := range undo {
		f()
	}
	for _, n := range s.nodes {
		n.step.Store(0)
	}
	wait(10 * time.Minute)
	for _, x := range all {
		s.check(x)
	}
	for _, n := range s.nodes {
		n.halt()
	}
	// The next owner removes what a write has left in a closed minute.
	z := s.start("z")
	wait(2 * time.Minute)
	if left := s.rows.left(); left != 0 {
		s.failf("%d rows left", left)
	}
	if n := z.e.Pending(); n != 0 {
		s.failf("%d timers pending", n)
	}
	z.halt()
	for _, x := range all {
		s.check(x)
	}
	return s.faults
}

func abs(n int) int { return max(n, -n) }

// cancel asks the service to cancel the schedule, and checks that the answer is one that is
// possible.
func (x *expected) cancel(v *service) {
	if x.unstored || x.maybe {
		return
	}
	switch a := v.cancel(x.schedule); {
	case a == done:
		x.cancelled = true
	case a == unknown:
		x.maybe = true
	case !x.cancelled && time.Now().UnixMilli() <= x.fireAt-v.w.cfg.Guard().Milliseconds():
		v.s.failf("%s: too late to cancel %v before it is due", x.name, time.Until(time.UnixMilli(x.fireAt)))
	}
}

func (x *expected) reschedule(v *service, at int64) {
	if x.unstored || x.maybe {
		return
	}
	switch a := v.reschedule(x.schedule, at); {
	case a == done && x.cancelled:
		v.s.failf("%s: rescheduled although it was cancelled", x.name)
	case a == done:
		x.gen++
		x.fireAt = at
	case a == unknown:
		x.maybe = true
	}
}

// check compares the released timers of a schedule with what was promised.
func (s *sim) check(x *expected) {
	fired := func(gen uint32) (n int) {
		for c := range x.chunks {
			if len(s.of(rowOf(x.base, c, gen))) > 0 {
				n++
			}
		}
		return n
	}
	s.mu.Lock()
	gens := len(s.fanned[x.base])
	s.mu.Unlock()
	if gens > 1 {
		s.failf("%s: %d generations were released", x.name, gens)
	}
	switch n := fired(x.gen); {
	case x.unstored:
	case x.maybe:
		if next := fired(x.gen + 1); n > 0 && n < x.chunks || next > 0 && next < x.chunks {
			s.failf("%s: %d and %d of %d chunks were released", x.name, n, next, x.chunks)
		}
	case x.cancelled && gens > 0:
		s.failf("%s was cancelled, and released", x.name)
	case x.cancelled:
	case n != x.chunks:
		s.failf("%s (due %v ago, generation %d): %d of %d chunks were released", x.name, time.Since(time.UnixMilli(x.fireAt)), x.gen, n, x.chunks)
	}
}
