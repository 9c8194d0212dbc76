package enginetest

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	minute = engine.MinuteMs
	day    = engine.DayMs
)

func timer(fire int64, id string) engine.Timer {
	return engine.Timer{FireAt: fire, ID: []byte(id), Kind: 7, Target: "notifications-push", Payload: []byte("payload of " + id)}
}

// scanAll reads all rows of a partition, in pages of two rows.
func scanAll(t T, s engine.TimerTable, p engine.TimerPartition) (out []engine.Timer) {
	t.Helper()
	var c engine.TimerCursor
	for {
		page := val(s.Scan(bg, p, c, math.MaxInt64, 2))(t)
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		last := page[len(page)-1]
		c = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
}

// withoutPayloads removes the payloads from ts and returns ts.
func withoutPayloads(ts []engine.Timer) []engine.Timer {
	for i := range ts {
		ts[i].Payload = nil
	}
	return ts
}

// Timers runs the suite of engine.Timers.
func Timers(t *testing.T, open Opener[engine.Timers]) {
	timerTableSuite(t, minute, func(t T) (engine.TimerTable, func() engine.TimerTable) {
		s, reopen := open(t)
		if reopen == nil {
			return s, nil
		}
		return s, func() engine.TimerTable { return reopen() }
	})
	shardSuite(t, open)
	t.Run("model of shards", func(t *testing.T) { shardsModel(t, open) })
}

// ColdTimers runs the suite of engine.ColdTimers.
func ColdTimers(t *testing.T, open Opener[engine.ColdTimers]) { timerTableSuite(t, day, open) }

// timerTableSuite runs the suite of engine.TimerTable. The parameter length is the length
// of a bucket in ms.
func timerTableSuite(t *testing.T, length int64, open Opener[engine.TimerTable]) {
	t.Run("Put stores timers", func(t *testing.T) {
		s, reopen := open(t)
		bare := engine.Timer{FireAt: 0, ID: bytes.Repeat([]byte{0xff}, 64)}
		ts := []engine.Timer{bare, timer(1000, "a"), timer(1000, "b"), timer(2000, "a")}
		ts[3].Head, ts[3].Gen, ts[3].Weight = base(5, 1), 3, 8300
		must(t, s.Put(bg, notify.SpreadOver(1), ts))
		must(t, s.Put(bg, notify.SpreadOver(1), nil))
		same(t, "timers", scanAll(t, s, engine.TimerPartition{}), ts)
		if reopen != nil {
			same(t, "timers after a restart", scanAll(t, reopen(), engine.TimerPartition{}), ts)
		}
	})
	t.Run("Storing the same (FireAt, ID) again changes nothing", func(t *testing.T) {
		s, reopen := open(t)
		first, again := timer(1000, "a"), timer(1000, "a")
		again.Payload, again.Kind, again.Head, again.Gen = []byte("other"), 9, base(1, 1), 1
		must(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{first, again}))
		must(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{again}))
		same(t, "timers", scanAll(t, s, engine.TimerPartition{}), []engine.Timer{first})
		if reopen != nil {
			s = reopen()
			must(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{again}))
			same(t, "timers after a restart", scanAll(t, s, engine.TimerPartition{}), []engine.Timer{first})
		}
	})
	t.Run("ID decides the shard", func(t *testing.T) {
		s, _ := open(t)
		var ts []engine.Timer
		for i := range 200 {
			ts = append(ts, timer(1000, "id"+strconv.Itoa(i)), timer(length+1000, "id"+strconv.Itoa(i)))
		}
		must(t, s.Put(bg, notify.SpreadOver(8), ts))
		total := 0
		for shard := range uint16(8) {
			one := scanAll(t, s, engine.TimerPartition{Shard: shard})
			for i := range one {
				same(t, "shard", engine.ShardOf(one[i].ID, notify.SpreadOver(8)), shard)
			}
			two := scanAll(t, s, engine.TimerPartition{Bucket: 1, Shard: shard})
			if len(one) != len(two) || len(one) < 5 {
				t.Fatalf("shard %d has %d and %d of 200 timers", shard, len(one), len(two))
			}
			for i := range one {
				same(t, "id", one[i].ID, two[i].ID)
			}
			total += len(one)
		}
		same(t, "timers", total, 200)
	})
	t.Run("Scan returns up to max rows after the cursor with FireAt <= until, in order", func(t *testing.T) {
		s, _ := open(t)
		a, b, c, d := timer(1000, "a"), timer(1000, "ab"), timer(1000, "b"), timer(2000, "a")
		must(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{d, c, b, a, timer(length, "next")}))
		scan := func(c engine.TimerCursor, until int64, max int) []engine.Timer {
			return val(s.Scan(bg, engine.TimerPartition{}, c, until, max))(t)
		}
		same(t, "all", scan(engine.TimerCursor{}, math.MaxInt64, 10), []engine.Timer{a, b, c, d})
		same(t, "max", scan(engine.TimerCursor{}, math.MaxInt64, 2), []engine.Timer{a, b})
		same(t, "max 0", scan(engine.TimerCursor{}, math.MaxInt64, 0), []engine.Timer{})
		same(t, "until", scan(engine.TimerCursor{}, 1999, 10), []engine.Timer{a, b, c})
		same(t, "until itself", scan(engine.TimerCursor{}, 2000, 10), []engine.Timer{a, b, c, d})
		same(t, "after", scan(engine.TimerCursor{FireAt: 1000, ID: []byte("a")}, math.MaxInt64, 10), []engine.Timer{b, c, d})
		same(t, "after a row that is gone", scan(engine.TimerCursor{FireAt: 1000, ID: []byte("aa")}, math.MaxInt64, 10), []engine.Timer{b, c, d})
		same(t, "after a time", scan(engine.TimerCursor{FireAt: 2000}, math.MaxInt64, 10), []engine.Timer{d})
		same(t, "after the end", scan(engine.TimerCursor{FireAt: length + 1, ID: []byte("z")}, math.MaxInt64, 10), []engine.Timer{})
	})
	t.Run("Buckets returns the buckets of shard in [from, to] that contain rows, in ascending order", func(t *testing.T) {
		s, _ := open(t)
		var ts []engine.Timer
		for _, m := range []int64{9, 3, 4, 1000} {
			ts = append(ts, timer(m*length, "a"), timer(m*length+length-1, "b"))
		}
		must(t, s.Put(bg, notify.SpreadOver(1), ts))
		same(t, "some", val(s.Buckets(bg, 0, 4, 9))(t), []int64{4, 9})
		same(t, "all", val(s.Buckets(bg, 0, 0, math.MaxInt64))(t), []int64{3, 4, 9, 1000})
		same(t, "none", val(s.Buckets(bg, 0, 5, 8))(t), []int64{})
		same(t, "turned", val(s.Buckets(bg, 0, 9, 3))(t), []int64{})
		same(t, "other shard", val(s.Buckets(bg, 1, 0, 2000))(t), []int64{})
	})
	t.Run("Drop removes a partition", func(t *testing.T) {
		s, reopen := open(t)
		keep, next := timer(length-1, "a"), timer(2*length, "a")
		gone := []engine.Timer{timer(length, "a"), timer(2*length-1, "z")}
		must(t, s.Put(bg, notify.SpreadOver(1), append([]engine.Timer{keep, next}, gone...)))
		must(t, s.Drop(bg, engine.TimerPartition{Bucket: 1}))
		same(t, "minutes", val(s.Buckets(bg, 0, 0, 10))(t), []int64{0, 2})
		if reopen != nil {
			s = reopen()
			same(t, "minutes after a restart", val(s.Buckets(bg, 0, 0, 10))(t), []int64{0, 2})
		}
		must(t, s.Put(bg, notify.SpreadOver(1), gone[:1])) // the same timer can be stored again
		same(t, "again", scanAll(t, s, engine.TimerPartition{Bucket: 1}), gone[:1])
	})
	t.Run("Pending calls fn with every stored timer", func(t *testing.T) {
		s, _ := open(t)
		var ts []engine.Timer
		for i := range 20 {
			ts = append(ts, timer(int64(i)*length, "id"+strconv.Itoa(i)))
		}
		must(t, s.Put(bg, notify.SpreadOver(4), ts))
		got := collect(t, func(fn func(*engine.Timer) error) error { return s.Pending(bg, fn) })
		same(t, "timers", sorted(got, func(a, b engine.Timer) int { return cmp.Compare(a.FireAt, b.FireAt) }), ts)
		checkStops(t, func(fn func(*engine.Timer) error) error { return s.Pending(bg, fn) })
	})
	t.Run("a bad timer is notify.KindInvalid and nothing is stored", func(t *testing.T) {
		s, _ := open(t)
		for _, bad := range []engine.Timer{{FireAt: -1, ID: []byte("a")}, {FireAt: 1}, {FireAt: 1, ID: make([]byte, 65)}} {
			wantKind(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{timer(1, "ok"), bad}), notify.KindInvalid)
		}
		wantKind(t, s.Put(bg, notify.SpreadOver(0), []engine.Timer{timer(1, "ok")}), notify.KindInvalid)
		same(t, "timers", scanAll(t, s, engine.TimerPartition{}), []engine.Timer{})
	})
	t.Run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T) {
		s, _ := open(t)
		a := timer(1, "a")
		must(t, s.Put(bg, notify.SpreadOver(1), []engine.Timer{a}))
		a.ID[0], a.Payload[0] = 'x', 'x'
		got := scanAll(t, s, engine.TimerPartition{})
		same(t, "timers", got, []engine.Timer{timer(1, "a")})
		got[0].ID[0], got[0].Payload[0] = 'y', 'y'
		same(t, "timers again", scanAll(t, s, engine.TimerPartition{}), []engine.Timer{timer(1, "a")})
	})
	t.Run("model", func(t *testing.T) { timersModel(t, length, open) })
}

func shardSuite(t *testing.T, open Opener[engine.Timers]) {
	t.Run("Shard returns the zero state before its first owner", func(t *testing.T) {
		s, _ := open(t)
		same(t, "state", val(s.Shard(bg, 5))(t), engine.ShardState{})
	})
	t.Run("TakeOver raises the term and stores the new owner, if the stored term is oldTerm", func(t *testing.T) {
		s, reopen := open(t)
		one := val(s.TakeOver(bg, 5, 0, "a"))(t)
		same(t, "first", one, engine.ShardState{Term: 1, Owner: "a"})
		two := val(s.TakeOver(bg, 5, 1, "b"))(t)
		same(t, "second", two, engine.ShardState{Term: 2, Owner: "b"})
		_, err := s.TakeOver(bg, 5, 1, "c")
		wantKind(t, err, notify.KindConflict)
		if reopen != nil {
			s = reopen()
		}
		same(t, "kept", val(s.Shard(bg, 5))(t), two)
		same(t, "others", val(s.Shard(bg, 6))(t), engine.ShardState{})
	})
	t.Run("of many concurrent take-overs of one term one wins", func(t *testing.T) {
		s, _ := open(t)
		var won atomic.Int32
		together(16, func(i int) {
			_, err := s.TakeOver(bg, 1, 0, strconv.Itoa(i))
			if err == nil {
				won.Add(1)
			} else if notify.KindOf(err) != notify.KindConflict {
				t.Error(err)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("Advance raises Closed and Watermark, and never lowers them", func(t *testing.T) {
		s, reopen := open(t)
		st := val(s.TakeOver(bg, 5, 0, "a"))(t)
		st.Closed, st.Watermark = 10, 8
		must(t, s.Advance(bg, 5, st))
		same(t, "closed", val(s.Closed(bg, 5))(t), int64(10))
		same(t, "closed, of another", val(s.Closed(bg, 6))(t), int64(0))
		must(t, s.Advance(bg, 5, engine.ShardState{Term: 1, Closed: 9, Watermark: 9}))
		if reopen != nil {
			s = reopen()
		}
		same(t, "state", val(s.Shard(bg, 5))(t), engine.ShardState{Term: 1, Owner: "a", Closed: 10, Watermark: 9})
		next := val(s.TakeOver(bg, 5, 1, "b"))(t)
		same(t, "taken over", next, engine.ShardState{Term: 2, Owner: "b", Closed: 10, Watermark: 9})
	})
	t.Run("if a writer stores a timer and then finds its minute open, the owner's scan after closing it finds the timer", func(t *testing.T) { lateWrites(t, open) })
	t.Run("Advance with a stale term is notify.KindConflict", func(t *testing.T) {
		s, _ := open(t)
		val(s.TakeOver(bg, 5, 0, "a"))(t)
		val(s.TakeOver(bg, 5, 1, "b"))(t)
		wantKind(t, s.Advance(bg, 5, engine.ShardState{Term: 1, Closed: 99}), notify.KindConflict)
		same(t, "closed", val(s.Shard(bg, 5))(t).Closed, int64(0))
	})
}

// lateWrites runs a writer and an owner at the same time. The writer stores a timer and
// then reads whether the timer's minute is closed. The owner closes the minute and then
// scans it. Either the writer must read that the minute is closed, or the owner must find
// the timer.
func lateWrites(t *testing.T, open Opener[engine.Timers]) {
	s, _ := open(t)
	st := val(s.TakeOver(bg, 0, 0, "a"))(t)
	for at := int64(1); at <= 40; at++ {
		p := engine.TimerPartition{Bucket: at}
		var closed int64
		var found []engine.Timer
		together(2, func(i int) {
			var err error
			if i == 0 {
				if err = s.Put(bg, notify.SpreadOver(1), []engine.Timer{{FireAt: at * minute, ID: []byte("x")}}); err == nil {
					closed, err = s.Closed(bg, 0)
				}
			} else if err = s.Advance(bg, 0, engine.ShardState{Term: st.Term, Closed: at}); err == nil {
				found, err = s.Scan(bg, p, engine.TimerCursor{}, (at+1)*minute, 10)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if closed < at && len(found) == 0 {
			t.Fatalf("minute %d: the writer read that the minute is open, but the owner found no timer in it", at)
		}
	}
}

// timerModel is a simple model of engine.TimerTable: a sorted list.
type timerModel struct {
	length int64
	shards notify.Spread
	timers []engine.Timer
}

func (m *timerModel) in(p engine.TimerPartition) func(engine.Timer) bool {
	return func(x engine.Timer) bool {
		return x.FireAt/m.length == p.Bucket && engine.ShardOf(x.ID, m.shards) == p.Shard
	}
}

func (m *timerModel) put(ts []engine.Timer) {
	for _, x := range ts {
		if !slices.ContainsFunc(m.timers, func(y engine.Timer) bool { return compareTimers(x, y) == 0 }) {
			m.timers = append(m.timers, x)
		}
	}
	slices.SortFunc(m.timers, compareTimers)
}

func compareTimers(a, b engine.Timer) int {
	return cmp.Or(cmp.Compare(a.FireAt, b.FireAt), bytes.Compare(a.ID, b.ID))
}

func (m *timerModel) scan(p engine.TimerPartition, after engine.TimerCursor, until int64, max int) (out []engine.Timer) {
	for _, x := range m.timers {
		behind := compareTimers(x, engine.Timer{FireAt: after.FireAt, ID: after.ID}) > 0
		if m.in(p)(x) && behind && x.FireAt <= until && len(out) < max {
			out = append(out, x)
		}
	}
	return out
}

func timersModel(t *testing.T, length int64, open Opener[engine.TimerTable]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		m := timerModel{length: length, shards: notify.SpreadOver(3)}
		bucket := rapid.Int64Range(0, 3)
		part := func(rt *rapid.T) engine.TimerPartition {
			return engine.TimerPartition{Bucket: bucket.Draw(rt, "bucket"), Shard: rapid.Uint16Range(0, 2).Draw(rt, "shard")}
		}
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				ts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) engine.Timer {
					tm := engine.Timer{
						FireAt: bucket.Draw(rt, "bucket")*length + rapid.SampledFrom([]int64{0, 1, 255, length - 1}).Draw(rt, "ms"),
						ID:     []byte(rapid.StringMatching(`[ab]{1,3}`).Draw(rt, "id")),
						Kind:   rapid.Uint8().Draw(rt, "kind"), Target: rapid.SampledFrom([]string{"", "t"}).Draw(rt, "target"),
					}
					if p := rapid.String().Draw(rt, "payload"); p != "" {
						tm.Payload = []byte(p)
					}
					if rapid.Bool().Draw(rt, "touchable") {
						tm.Head, tm.Gen, tm.Weight = base(1, rapid.Uint64().Draw(rt, "head")), rapid.Uint32().Draw(rt, "gen"), rapid.Uint32().Draw(rt, "weight")
					}
					return tm
				}), 0, 4).Draw(rt, "timers")
				must(rt, s.Put(bg, m.shards, ts))
				m.put(ts)
			},
			"scan": func(rt *rapid.T) {
				p := part(rt)
				c := engine.TimerCursor{FireAt: rapid.Int64Range(0, 4*length).Draw(rt, "after"), ID: []byte(rapid.StringMatching(`[ab]{0,2}`).Draw(rt, "id"))}
				until, n := rapid.Int64Range(0, 4*length).Draw(rt, "until"), rapid.IntRange(0, 5).Draw(rt, "max")
				want := m.scan(p, c, until, n)
				same(rt, "Scan", val(s.Scan(bg, p, c, until, n))(rt), want)
				same(rt, "ScanWithoutPayload", withoutPayloads(val(s.ScanWithoutPayload(bg, p, c, until, n))(rt)), withoutPayloads(slices.Clone(want)))
			},
			"buckets": func(rt *rapid.T) {
				shard, from, to := part(rt).Shard, rapid.Int64Range(-1, 4).Draw(rt, "from"), rapid.Int64Range(-1, 4).Draw(rt, "to")
				var want []int64
				for b := from; b <= to; b++ {
					if len(m.scan(engine.TimerPartition{Bucket: b, Shard: shard}, engine.TimerCursor{}, math.MaxInt64, 1)) > 0 {
						want = append(want, b)
					}
				}
				same(rt, "Buckets", val(s.Buckets(bg, shard, from, to))(rt), want)
			},
			"drop": func(rt *rapid.T) {
				p := part(rt)
				must(rt, s.Drop(bg, p))
				m.timers = slices.DeleteFunc(m.timers, m.in(p))
			},
			"pending": func(rt *rapid.T) {
				got := collect(rt, func(fn func(*engine.Timer) error) error { return s.Pending(bg, fn) })
				same(rt, "Pending", sorted(got, compareTimers), m.timers)
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}

func shardsModel(t *testing.T, open Opener[engine.Timers]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		stored := map[uint16]engine.ShardState{}
		shard, term := rapid.Uint16Range(0, 2), rapid.Uint64Range(0, 3)
		// wantedKind returns the kind of the error that a call with this shard and term
		// must return.
		wantedKind := func(sh uint16, term uint64) notify.Kind {
			if stored[sh].Term != term {
				return notify.KindConflict
			}
			return notify.KindOf(nil)
		}
		actions := map[string]func(*rapid.T){
			"takeover": func(rt *rapid.T) {
				sh, term := shard.Draw(rt, "shard"), term.Draw(rt, "term")
				got, err := s.TakeOver(bg, sh, term, "o")
				same(rt, "TakeOver error", notify.KindOf(err), wantedKind(sh, term))
				if err == nil {
					st := stored[sh]
					st.Term, st.Owner = term+1, "o"
					stored[sh] = st
					same(rt, "TakeOver", got, st)
				}
			},
			"advance": func(rt *rapid.T) {
				sh := shard.Draw(rt, "shard")
				to := engine.ShardState{Term: term.Draw(rt, "term"), Closed: rapid.Int64Range(-5, 5).Draw(rt, "closed"), Watermark: rapid.Int64Range(-5, 5).Draw(rt, "mark")}
				want := wantedKind(sh, to.Term)
				same(rt, "Advance", notify.KindOf(s.Advance(bg, sh, to)), want)
				if st := stored[sh]; want == notify.KindOf(nil) {
					st.Closed, st.Watermark = max(st.Closed, to.Closed), max(st.Watermark, to.Watermark)
					stored[sh] = st
				}
			},
			"": func(rt *rapid.T) {
				for sh := range uint16(3) {
					same(rt, "Shard", val(s.Shard(bg, sh))(rt), stored[sh])
				}
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
