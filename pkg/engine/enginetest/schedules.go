package enginetest

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"reflect"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func schedule(b notify.Base, caller string, fire int64) engine.Schedule {
	return engine.Schedule{
		Base: b, Caller: caller, Campaign: "cmp_1", User: "ann", Channel: notify.SMS, Category: notify.Marketing,
		FireAt: fire, Created: 500, Expires: fire + 1000, Partition: 7, Partitions: 12, BlockSize: 8192,
		Receivers: 100_000, Accepted: 99_990, FanOut: true,
	}
}

func compareBases(a, b notify.Base) int { return bytes.Compare(a[:], b[:]) }

func getHead(t T, s engine.Schedules, b notify.Base) (engine.ScheduleHead, bool) {
	t.Helper()
	h, ok, err := s.Head(bg, b)
	must(t, err)
	return h, ok
}

func swapHead(t T, s engine.Schedules, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool) {
	t.Helper()
	stored, won, err := s.Swap(bg, old, h)
	must(t, err)
	return stored, won
}

// Schedules runs the suite of engine.Schedules.
func Schedules(t *testing.T, open Opener[engine.Schedules]) {
	get := func(t T, s engine.Schedules, b notify.Base) (engine.Schedule, bool) {
		t.Helper()
		x, ok, err := s.Get(bg, b)
		must(t, err)
		return x, ok
	}
	t.Run("Put stores schedules", func(t *testing.T) {
		s, reopen := open(t)
		a, b := schedule(base(1, 1), "shop", 1000), engine.Schedule{Base: base(1, 2)}
		// If an engine does not store a field, this test can only notice it if the field
		// has a value. So every field must have a value.
		for v, i := reflect.ValueOf(a), 0; i < v.NumField(); i++ {
			if v.Field(i).IsZero() {
				t.Errorf("the schedule of this suite has no %s", v.Type().Field(i).Name)
			}
		}
		must(t, s.Put(bg, []engine.Schedule{a, b}))
		must(t, s.Put(bg, nil))
		if reopen != nil {
			s = reopen()
		}
		for _, want := range []engine.Schedule{a, b} {
			got, ok := get(t, s, want.Base)
			same(t, "ok", ok, true)
			same(t, "schedule", got, want)
		}
		_, ok := get(t, s, base(1, 3))
		same(t, "another", ok, false)
	})
	t.Run("Storing the same Base again changes nothing", func(t *testing.T) {
		s, reopen := open(t)
		first, again := schedule(base(1, 1), "shop", 1000), schedule(base(1, 1), "thief", 5)
		must(t, s.Put(bg, []engine.Schedule{first, again}))
		if reopen != nil {
			s = reopen()
		}
		must(t, s.Put(bg, []engine.Schedule{again}))
		got, _ := get(t, s, first.Base)
		same(t, "schedule", got, first)
		same(t, "list", val(s.List(bg, "shop", notify.Base{}, 10))(t), []engine.Schedule{first})
		same(t, "list of another", val(s.List(bg, "thief", notify.Base{}, 10))(t), []engine.Schedule{})
		same(t, "purged", val(s.Purge(bg, 1000, 10))(t), 0)
		same(t, "purged later", val(s.Purge(bg, 1001, 10))(t), 1)
	})
	t.Run("List returns at most max schedules of a caller, newest first, beginning after the schedule with the base lastBase", func(t *testing.T) {
		s, _ := open(t)
		list := func(caller string, after notify.Base, max int) (out []engine.Schedule) {
			return val(s.List(bg, caller, after, max))(t)
		}
		a, b, c := schedule(base(1, 1), "shop", 10), schedule(base(2, 0), "shop", 5), schedule(base(9, 0), "shop", 1)
		other, prefix := schedule(base(3, 0), "bank", 10), schedule(base(4, 0), "sho", 10)
		must(t, s.Put(bg, []engine.Schedule{b, other, a, c, prefix}))
		same(t, "newest first", list("shop", notify.Base{}, 10), []engine.Schedule{c, b, a})
		same(t, "max", list("shop", notify.Base{}, 2), []engine.Schedule{c, b})
		same(t, "max 0", list("shop", notify.Base{}, 0), []engine.Schedule{})
		same(t, "after", list("shop", c.Base, 10), []engine.Schedule{b, a})
		same(t, "after one that is not there", list("shop", base(3, 0), 10), []engine.Schedule{b, a})
		same(t, "after the last", list("shop", a.Base, 10), []engine.Schedule{})
		same(t, "of all", list("", notify.Base{}, 10), []engine.Schedule{c, prefix, other, b, a})
		same(t, "of all after", list("", other.Base, 1), []engine.Schedule{b})
		same(t, "of nobody", list("x", notify.Base{}, 10), []engine.Schedule{})
	})
	t.Run("Hint stores hints, and storing the same hint again changes nothing; Hints returns the bases of the hints in a partition", func(t *testing.T) {
		s, reopen := open(t)
		p, next, other := engine.TimerPartition{Bucket: 7, Shard: 3}, engine.TimerPartition{Bucket: 8, Shard: 3}, engine.TimerPartition{Bucket: 7, Shard: 4}
		must(t, s.Hint(bg, []engine.Hint{{Partition: p, Base: base(1, 1)}, {Partition: p, Base: base(1, 2)}, {Partition: next, Base: base(1, 3)}}))
		must(t, s.Hint(bg, []engine.Hint{{Partition: p, Base: base(1, 1)}, {Partition: other, Base: base(1, 4)}}))
		must(t, s.Hint(bg, nil))
		if reopen != nil {
			s = reopen()
		}
		hints := func(p engine.TimerPartition) []notify.Base { return sorted(val(s.Hints(bg, p))(t), compareBases) }
		same(t, "hints", hints(p), []notify.Base{base(1, 1), base(1, 2)})
		same(t, "of the next minute", hints(next), []notify.Base{base(1, 3)})
		same(t, "of another shard", hints(other), []notify.Base{base(1, 4)})
		same(t, "none", hints(engine.TimerPartition{Bucket: 6, Shard: 3}), []notify.Base{})
	})
	t.Run("a schedule, a hint or a head without a base is notify.KindInvalid and nothing is stored", func(t *testing.T) {
		s, _ := open(t)
		wantKind(t, s.Put(bg, []engine.Schedule{schedule(base(1, 1), "shop", 1), {}}), notify.KindInvalid)
		same(t, "schedules", val(s.List(bg, "", notify.Base{}, 10))(t), []engine.Schedule{})
		wantKind(t, s.Hint(bg, []engine.Hint{{Base: base(1, 1)}, {}}), notify.KindInvalid)
		same(t, "hints", val(s.Hints(bg, engine.TimerPartition{}))(t), []notify.Base{})
		_, _, err := s.Swap(bg, 0, engine.ScheduleHead{})
		wantKind(t, err, notify.KindInvalid)
	})
	headSuite(t, open)
	t.Run("Purge removes schedules, with their heads, whose fire time is earlier than beforeMs", func(t *testing.T) {
		s, reopen := open(t)
		untouched, cancelled := schedule(base(1, 1), "shop", 1000), schedule(base(1, 2), "shop", 1000)
		later, earlier := schedule(base(1, 3), "shop", 1000), schedule(base(1, 4), "shop", 9000)
		own, back := schedule(base(2, 1), "bank", 7000), schedule(base(2, 2), "bank", 7000)
		must(t, s.Put(bg, []engine.Schedule{untouched, cancelled, later, earlier, own, back}))
		swapHead(t, s, 0, engine.ScheduleHead{Base: cancelled.Base, State: engine.ScheduleCancelled, FireAt: 1000})
		swapHead(t, s, 0, engine.ScheduleHead{Base: own.Base, State: engine.ScheduleCancelled}) // its FireAt is 0: the schedule's FireAt is valid
		swapHead(t, s, 0, engine.ScheduleHead{Base: back.Base, State: engine.SchedulePending, FireAt: 3})
		swapHead(t, s, 1, engine.ScheduleHead{Base: back.Base, State: engine.ScheduleCancelled})
		swapHead(t, s, 0, engine.ScheduleHead{Base: later.Base, State: engine.SchedulePending, Gen: 1, FireAt: 5000})
		swapHead(t, s, 0, engine.ScheduleHead{Base: earlier.Base, State: engine.SchedulePending, Gen: 1, FireAt: 2000})
		same(t, "at its time", val(s.Purge(bg, 1000, 10))(t), 0)
		same(t, "purged", val(s.Purge(bg, 1001, 10))(t), 2)
		if reopen != nil {
			s = reopen()
		}
		same(t, "left", val(s.List(bg, "shop", notify.Base{}, 10))(t), []engine.Schedule{earlier, later})
		_, ok := get(t, s, cancelled.Base)
		same(t, "schedule", ok, false)
		_, ok = getHead(t, s, cancelled.Base)
		same(t, "its head", ok, false)
		_, ok = getHead(t, s, later.Base)
		same(t, "another's head", ok, true)
		same(t, "moved forward", val(s.Purge(bg, 2001, 10))(t), 1)
		same(t, "moved back, too early", val(s.Purge(bg, 5000, 10))(t), 0)
		same(t, "moved back", val(s.Purge(bg, 5001, 10))(t), 1)
		same(t, "its own, too early", val(s.Purge(bg, 7000, 10))(t), 0)
		_, ok = getHead(t, s, own.Base)
		same(t, "its head", ok, true)
		same(t, "its own", val(s.Purge(bg, 7001, 10))(t), 2)
		same(t, "no more", val(s.Purge(bg, math.MaxInt64, 10))(t), 0)
		must(t, s.Put(bg, []engine.Schedule{untouched})) // the same base can be stored again
		same(t, "again", val(s.Purge(bg, math.MaxInt64, 10))(t), 1)
	})
	t.Run("Purge keeps a head whose last fire time is later, also if there is no schedule", func(t *testing.T) {
		s, _ := open(t)
		_, won := swapHead(t, s, 0, engine.ScheduleHead{Base: base(1, 1), State: engine.SchedulePending, FireAt: 1000})
		same(t, "first", won, true)
		_, won = swapHead(t, s, 1, engine.ScheduleHead{Base: base(1, 1), State: engine.SchedulePending, FireAt: 5000})
		same(t, "moved", won, true)
		same(t, "schedules purged", val(s.Purge(bg, 2000, 10))(t), 0)
		_, ok := getHead(t, s, base(1, 1))
		same(t, "head is there", ok, true)
		same(t, "schedules purged later", val(s.Purge(bg, 5001, 10))(t), 0)
		_, ok = getHead(t, s, base(1, 1))
		same(t, "head is there later", ok, false)
	})
	t.Run("Purge removes at most max", func(t *testing.T) {
		s, _ := open(t)
		for i := range 10 {
			must(t, s.Put(bg, []engine.Schedule{schedule(base(1, uint64(i)), "shop", int64(i))}))
		}
		same(t, "none", val(s.Purge(bg, 8, 0))(t), 0)
		for _, want := range []int{3, 3, 2, 0} {
			same(t, "purged", val(s.Purge(bg, 8, 3))(t), want)
		}
		same(t, "left", len(val(s.List(bg, "shop", notify.Base{}, 20))(t)), 2)
	})
	t.Run("model", func(t *testing.T) { schedulesModel(t, open) })
}

func headSuite(t *testing.T, open Opener[engine.Schedules]) {
	h := engine.ScheduleHead{Base: base(1, 1), State: engine.SchedulePending, Gen: 3, FireAt: 60_000, At: 12, MovedAt: 11, MovedBy: "shop", Moves: 2}
	t.Run("Swap stores h with Version oldVersion+1 if the stored version is oldVersion (0: no head), and returns the new head and true", func(t *testing.T) {
		s, reopen := open(t)
		_, ok := getHead(t, s, h.Base)
		same(t, "before", ok, false)
		want := h
		for v := range uint64(3) {
			h := h
			h.Gen, h.Version = uint32(v), 77 // Swap ignores h.Version
			want.Gen, want.Version = h.Gen, v+1
			stored, won := swapHead(t, s, v, h)
			same(t, "won", won, true)
			same(t, "stored", stored, want)
			if reopen != nil {
				s = reopen()
			}
			got, ok := getHead(t, s, h.Base)
			same(t, "ok", ok, true)
			same(t, "head", got, want)
		}
		_, ok = getHead(t, s, base(1, 2))
		same(t, "another", ok, false)
	})
	t.Run("otherwise Swap returns the stored head and false", func(t *testing.T) {
		s, _ := open(t)
		stored, won := swapHead(t, s, 1, h)
		same(t, "won without a head", won, false)
		same(t, "stored", stored, engine.ScheduleHead{})
		_, ok := getHead(t, s, h.Base)
		same(t, "head", ok, false)
		first, _ := swapHead(t, s, 0, h)
		for _, old := range []uint64{0, 2} {
			other := h
			other.State = engine.ScheduleCancelled
			stored, won := swapHead(t, s, old, other)
			same(t, "won", won, false)
			same(t, "stored", stored, first)
		}
		got, _ := getHead(t, s, h.Base)
		same(t, "head", got, first)
	})
	t.Run("of many concurrent swaps of one version one wins, and the others get its head", func(t *testing.T) {
		s, _ := open(t)
		for v := range uint64(4) {
			var won atomic.Int32
			var given [16]engine.ScheduleHead
			together(16, func(i int) {
				h := h
				h.Gen = uint32(i)
				stored, ok, err := s.Swap(bg, v, h)
				if err != nil {
					t.Error(err)
				}
				if ok {
					won.Add(1)
				}
				given[i] = stored
			})
			same(t, "winners", won.Load(), int32(1))
			got, _ := getHead(t, s, h.Base)
			for i := range given {
				same(t, "given", given[i], got)
			}
		}
	})
	t.Run("Head sees every Swap that returned before the call", func(t *testing.T) {
		s, _ := open(t)
		together(8, func(int) {
			for range 20 {
				h, _, err := s.Head(bg, h.Base)
				if err != nil {
					t.Error(err)
					return
				}
				next := h
				next.Base, next.Gen = base(1, 1), h.Gen+1
				stored, won, err := s.Swap(bg, h.Version, next)
				if err != nil {
					t.Error(err)
					return
				}
				if won && stored.Version != h.Version+1 || !won && stored.Version <= h.Version {
					t.Errorf("Swap of version %d returned %v and the head %+v", h.Version, won, stored)
				}
				if got, _, err := s.Head(bg, next.Base); err != nil || won && got.Version < stored.Version {
					t.Errorf("Head returned %+v after a Swap stored %+v; the error is %v", got, stored, err)
				}
			}
		})
		got, _ := getHead(t, s, h.Base)
		same(t, "one generation a swap that won", uint64(got.Gen), got.Version)
	})
}

// schedulesModel compares an engine with a model: some maps.
func schedulesModel(t *testing.T, open Opener[engine.Schedules]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		stored, heads := map[notify.Base]engine.Schedule{}, map[notify.Base]engine.ScheduleHead{}
		hints := map[engine.Hint]bool{}
		// lastFire returns the fire time of the head, or of the schedule if the head has no
		// fire time. It returns 0 if neither a head nor a schedule is stored.
		lastFire := func(b notify.Base) int64 { return cmp.Or(heads[b].FireAt, stored[b].FireAt) }
		list := func(caller string, after notify.Base, max int) []engine.Schedule {
			var out []engine.Schedule
			for b, x := range stored {
				if (caller == "" || x.Caller == caller) && (after.IsZero() || compareBases(b, after) < 0) {
					out = append(out, x)
				}
			}
			out = sorted(out, func(a, b engine.Schedule) int { return compareBases(b.Base, a.Base) })
			return out[:min(max, len(out))]
		}
		bases := rapid.Custom(func(rt *rapid.T) notify.Base { return base(1, rapid.Uint64Range(0, 4).Draw(rt, "base")) })
		callers := rapid.SampledFrom([]string{"", "a", "ab"})
		times := rapid.Int64Range(0, 6)
		parts := rapid.Custom(func(rt *rapid.T) engine.TimerPartition {
			return engine.TimerPartition{Bucket: rapid.Int64Range(0, 1).Draw(rt, "minute"), Shard: rapid.Uint16Range(0, 1).Draw(rt, "shard")}
		})
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				ss := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) engine.Schedule {
					return schedule(bases.Draw(rt, "base"), callers.Draw(rt, "caller"), times.Draw(rt, "fire"))
				}), 0, 3).Draw(rt, "schedules")
				must(rt, s.Put(bg, ss))
				for _, x := range ss {
					if _, ok := stored[x.Base]; !ok {
						stored[x.Base] = x
					}
				}
			},
			"hint": func(rt *rapid.T) {
				h := engine.Hint{Partition: parts.Draw(rt, "partition"), Base: bases.Draw(rt, "base")}
				must(rt, s.Hint(bg, []engine.Hint{h}))
				hints[h] = true
			},
			"swap": func(rt *rapid.T) {
				h := engine.ScheduleHead{Base: bases.Draw(rt, "base"), State: engine.ScheduleState(rapid.Uint8Range(1, 3).Draw(rt, "state")), FireAt: times.Draw(rt, "fire")}
				old := rapid.Uint64Range(0, 3).Draw(rt, "old")
				got, won := swapHead(rt, s, old, h)
				same(rt, "Swap won", won, heads[h.Base].Version == old)
				if won {
					h.Version = old + 1
					heads[h.Base] = h
				}
				same(rt, "Swap", got, heads[h.Base])
			},
			"list": func(rt *rapid.T) {
				caller, after, n := callers.Draw(rt, "caller"), bases.Draw(rt, "after"), rapid.IntRange(0, 4).Draw(rt, "max")
				same(rt, "List", val(s.List(bg, caller, after, n))(rt), list(caller, after, n))
			},
			"purge": func(rt *rapid.T) {
				before, n := times.Draw(rt, "before"), len(stored)
				maps.DeleteFunc(stored, func(b notify.Base, _ engine.Schedule) bool {
					gone := lastFire(b) < before
					if gone {
						delete(heads, b)
					}
					return gone
				})
				maps.DeleteFunc(heads, func(b notify.Base, h engine.ScheduleHead) bool { // heads without a schedule
					_, ok := stored[b]
					return !ok && h.FireAt != 0 && h.FireAt < before
				})
				same(rt, "Purge", val(s.Purge(bg, before, 100))(rt), n-len(stored))
			},
			"look": func(rt *rapid.T) {
				same(rt, "schedules", val(s.List(bg, "", notify.Base{}, 100))(rt), list("", notify.Base{}, 100))
				for n := range uint64(5) {
					want, wantOK := heads[base(1, n)]
					got, ok := getHead(rt, s, base(1, n))
					same(rt, "head is there", ok, wantOK)
					same(rt, "head", got, want)
				}
				for n := range int64(4) {
					p := engine.TimerPartition{Bucket: n / 2, Shard: uint16(n % 2)}
					var want []notify.Base
					for h := range hints {
						if h.Partition == p {
							want = append(want, h.Base)
						}
					}
					same(rt, "hints", sorted(val(s.Hints(bg, p))(rt), compareBases), sorted(want, compareBases))
				}
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}

// Scheduling is an engine that stores timers and schedules together.
type Scheduling struct {
	Timers    engine.Timers
	Cold      engine.ColdTimers
	Schedules engine.Schedules
}

// Scheduled runs the suite of the methods of engine.Schedules that also store or remove timers.
func Scheduled(t *testing.T, open Opener[Scheduling]) {
	const minute = 60_000
	shards := notify.SpreadOver(2)
	row := func(id string, fire int64) engine.Timer {
		return engine.Timer{FireAt: fire, ID: []byte(id), Kind: 1, Target: "x", Payload: []byte("p"), Head: base(1, 1), Weight: 1}
	}
	in := func(t T, s Scheduling, x engine.Timer) (hot, cold int) {
		t.Helper()
		shard := engine.ShardOf(x.ID, shards)
		hot = len(val(s.Timers.Scan(bg, engine.TimerPartition{Bucket: x.FireAt / minute, Shard: shard}, engine.TimerCursor{}, x.FireAt, 10))(t))
		return hot, len(val(s.Cold.Scan(bg, engine.TimerPartition{Bucket: x.FireAt / day, Shard: shard}, engine.TimerCursor{}, math.MaxInt64, 10))(t))
	}
	t.Run("PutScheduled does Put and Timers.Put, all or none", func(t *testing.T) {
		s, reopen := open(t)
		x, row := schedule(base(1, 1), "shop", minute), row("a", minute)
		wantKind(t, s.Schedules.PutScheduled(bg, []engine.Schedule{x}, shards, []engine.Timer{row, {FireAt: 1}}), notify.KindInvalid)
		wantKind(t, s.Schedules.PutScheduled(bg, []engine.Schedule{{}}, shards, []engine.Timer{row}), notify.KindInvalid)
		same(t, "schedules of a refused one", val(s.Schedules.List(bg, "", notify.Base{}, 10))(t), []engine.Schedule{})
		hot, _ := in(t, s, row)
		same(t, "timers of a refused one", hot, 0)
		must(t, s.Schedules.PutScheduled(bg, []engine.Schedule{x}, shards, []engine.Timer{row}))
		must(t, s.Schedules.PutScheduled(bg, []engine.Schedule{schedule(x.Base, "thief", 1)}, shards, []engine.Timer{row}))
		if reopen != nil {
			s = reopen()
		}
		same(t, "schedules", val(s.Schedules.List(bg, "", notify.Base{}, 10))(t), []engine.Schedule{x})
		hot, _ = in(t, s, row)
		same(t, "timers", hot, 1)
	})
	t.Run("ForgetTimers removes rows from Timers and ColdTimers; hints stay until the partition is dropped", func(t *testing.T) {
		s, reopen := open(t)
		a, b := row("a", 5*minute), row("b", 5*minute)
		must(t, s.Timers.Put(bg, shards, []engine.Timer{a, b}))
		must(t, s.Cold.Put(bg, shards, []engine.Timer{a}))
		p := engine.TimerPartition{Bucket: 5, Shard: engine.ShardOf(a.ID, shards)}
		must(t, s.Schedules.Hint(bg, []engine.Hint{{Partition: p, Base: base(1, 1)}}))
		must(t, s.Schedules.ForgetTimers(bg, shards, []engine.Timer{a, row("a", minute), row("c", minute)}))
		must(t, s.Schedules.ForgetTimers(bg, shards, nil))
		if reopen != nil {
			s = reopen()
		}
		left := 0
		must(t, s.Timers.Pending(bg, func(x *engine.Timer) error { left++; same(t, "left", string(x.ID), "b"); return nil }))
		must(t, s.Cold.Pending(bg, func(*engine.Timer) error { left++; return nil }))
		same(t, "rows", left, 1)
		same(t, "hints", val(s.Schedules.Hints(bg, p))(t), []notify.Base{base(1, 1)})
		// Buckets also returns a partition that contains only hints, so that the caller
		// drops it.
		must(t, s.Schedules.ForgetTimers(bg, shards, []engine.Timer{b}))
		same(t, "minutes", val(s.Timers.Buckets(bg, p.Shard, 0, 9))(t), []int64{5})
		same(t, "minutes of others", len(val(s.Timers.Buckets(bg, 1-p.Shard, 0, 9))(t))+len(val(s.Timers.Buckets(bg, p.Shard, 6, 9))(t)), 0)
		must(t, s.Timers.Drop(bg, p))
		same(t, "minutes", len(val(s.Timers.Buckets(bg, p.Shard, 0, 9))(t)), 0)
		must(t, s.Timers.Put(bg, shards, []engine.Timer{a})) // the same timer can be stored again
		hot, _ := in(t, s, a)
		same(t, "again", hot, 1)
	})
}

// TimersDropHints runs the tests of engine.Timers that use the hints of engine.Schedules.
func TimersDropHints(t *testing.T, open Opener[Scheduling]) {
	t.Run("Drop removes a partition and its hints", func(t *testing.T) {
		s, reopen := open(t)
		var hs []engine.Hint
		for shard := range uint16(2) {
			for minute := range int64(4) {
				hs = append(hs, engine.Hint{Partition: engine.TimerPartition{Bucket: minute, Shard: shard}, Base: base(1, uint64(minute))})
			}
		}
		gone := engine.TimerPartition{Bucket: 2, Shard: 1}
		hs = append(hs, engine.Hint{Partition: gone, Base: notify.Base(bytes.Repeat([]byte{0xff}, 16))})
		must(t, s.Schedules.Hint(bg, hs))
		must(t, s.Schedules.Put(bg, []engine.Schedule{schedule(base(1, 2), "shop", 2*minute)}))
		swapHead(t, s.Schedules, 0, engine.ScheduleHead{Base: base(1, 2), State: engine.SchedulePending, FireAt: 2 * minute})
		must(t, s.Timers.Drop(bg, gone))
		if reopen != nil {
			s = reopen()
		}
		for _, h := range hs {
			want := []notify.Base{h.Base}
			if h.Partition == gone {
				want = nil
			}
			same(t, "hints", val(s.Schedules.Hints(bg, h.Partition))(t), want)
		}
		_, ok := getHead(t, s.Schedules, base(1, 2))
		same(t, "the head", ok, true)
		must(t, s.Schedules.Hint(bg, []engine.Hint{{Partition: gone, Base: base(1, 9)}})) // a new hint can be stored
		same(t, "again", val(s.Schedules.Hints(bg, gone))(t), []notify.Base{base(1, 9)})
	})
}
