package enginetest

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

const day = 86_400_000

// wholeDay reads a day of shard 0 to its end in pages of two.
func wholeDay(t T, s engine.ColdTimers, shard uint16, d int64) (out []engine.Timer) {
	t.Helper()
	var c engine.TimerCursor
	for {
		page := val(s.Scan(bg, shard, d, c, 2))(t)
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		last := page[len(page)-1]
		c = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
}

// ColdTimers runs the suite of engine.ColdTimers.
func ColdTimers(t *testing.T, open Opener[engine.ColdTimers]) {
	t.Run("Put stores timers", func(t *testing.T) {
		s, reopen := open(t)
		ts := []engine.Timer{{FireAt: 0, ID: bytes.Repeat([]byte{0xff}, 64)}, timer(1000, "a"), timer(1000, "b"), timer(day-1, "a")}
		ts[3].Head, ts[3].Gen, ts[3].Weight = base(5, 1), 3, 8300
		must(t, s.Put(bg, 1, ts))
		must(t, s.Put(bg, 1, nil))
		same(t, "timers", wholeDay(t, s, 0, 0), ts)
		if reopen != nil {
			same(t, "timers after a restart", wholeDay(t, reopen(), 0, 0), ts)
		}
	})
	t.Run("each in shard ShardOf(ID, shards)", func(t *testing.T) {
		s, _ := open(t)
		var ts []engine.Timer
		for i := range 100 {
			ts = append(ts, timer(1000, "id"+strconv.Itoa(i)))
		}
		must(t, s.Put(bg, 8, ts))
		total := 0
		for shard := range uint16(8) {
			for _, x := range wholeDay(t, s, shard, 0) {
				same(t, "shard", engine.ShardOf(x.ID, 8), shard)
				total++
			}
		}
		same(t, "timers", total, 100)
	})
	t.Run("Storing the same (FireAt, ID) again changes nothing", func(t *testing.T) {
		s, reopen := open(t)
		first, again := timer(1000, "a"), timer(1000, "a")
		again.Payload, again.Gen = []byte("other"), 9
		must(t, s.Put(bg, 1, []engine.Timer{first, again}))
		if reopen != nil {
			s = reopen()
		}
		must(t, s.Put(bg, 1, []engine.Timer{again}))
		same(t, "timers", wholeDay(t, s, 0, 0), []engine.Timer{first})
	})
	t.Run("Scan returns up to max rows of a day of a shard behind after, in order of fire time, then id", func(t *testing.T) {
		s, _ := open(t)
		a, b, c, d := timer(day+1000, "a"), timer(day+1000, "ab"), timer(day+1000, "b"), timer(2*day-1, "a")
		must(t, s.Put(bg, 1, []engine.Timer{d, timer(2*day, "next"), c, b, a, timer(day-1, "before")}))
		scan := func(c engine.TimerCursor, max int) []engine.Timer { return val(s.Scan(bg, 0, 1, c, max))(t) }
		same(t, "all", scan(engine.TimerCursor{}, 10), []engine.Timer{a, b, c, d})
		same(t, "max", scan(engine.TimerCursor{}, 2), []engine.Timer{a, b})
		same(t, "max 0", scan(engine.TimerCursor{}, 0), []engine.Timer{})
		same(t, "after", scan(engine.TimerCursor{FireAt: day + 1000, ID: []byte("a")}, 10), []engine.Timer{b, c, d})
		same(t, "after a row that is gone", scan(engine.TimerCursor{FireAt: day + 1000, ID: []byte("aa")}, 10), []engine.Timer{b, c, d})
		same(t, "after a time", scan(engine.TimerCursor{FireAt: 2*day - 1}, 10), []engine.Timer{d})
		same(t, "after the end", scan(engine.TimerCursor{FireAt: 2*day + 1, ID: []byte("z")}, 10), []engine.Timer{})
		same(t, "another shard", val(s.Scan(bg, 1, 1, engine.TimerCursor{}, 10))(t), []engine.Timer{})
	})
	t.Run("Days returns the days of a shard up to and including to that hold rows, ascending", func(t *testing.T) {
		s, _ := open(t)
		for _, d := range []int64{40, 31, 32, 20_000} {
			must(t, s.Put(bg, 1, []engine.Timer{timer(d*day, "a"), timer(d*day+day-1, "b")}))
		}
		same(t, "some", val(s.Days(bg, 0, 40))(t), []int64{31, 32, 40})
		same(t, "fewer", val(s.Days(bg, 0, 39))(t), []int64{31, 32})
		same(t, "all", val(s.Days(bg, 0, math.MaxInt64))(t), []int64{31, 32, 40, 20_000})
		same(t, "none", val(s.Days(bg, 0, 30))(t), []int64{})
		same(t, "before 1970", val(s.Days(bg, 0, -1))(t), []int64{})
		same(t, "another shard", val(s.Days(bg, 1, 100))(t), []int64{})
	})
	t.Run("Drop removes a day of a shard", func(t *testing.T) {
		s, reopen := open(t)
		keep, next := timer(day-1, "a"), timer(2*day, "a")
		gone := []engine.Timer{timer(day, "a"), timer(2*day-1, "z")}
		must(t, s.Put(bg, 1, append([]engine.Timer{keep, next}, gone...)))
		must(t, s.Drop(bg, 1, 1))
		same(t, "another shard's", val(s.Days(bg, 0, 10))(t), []int64{0, 1, 2})
		must(t, s.Drop(bg, 0, 1))
		if reopen != nil {
			s = reopen()
		}
		same(t, "days", val(s.Days(bg, 0, 10))(t), []int64{0, 2})
		must(t, s.Put(bg, 1, gone[:1])) // a new timer is stored all the same
		same(t, "again", wholeDay(t, s, 0, 1), gone[:1])
	})
	t.Run("Pending calls fn with every stored timer", func(t *testing.T) {
		s, _ := open(t)
		var ts []engine.Timer
		for i := range 20 {
			ts = append(ts, timer(int64(i)*day, "id"+strconv.Itoa(i)))
		}
		must(t, s.Put(bg, 4, ts))
		got := collect(t, func(fn func(*engine.Timer) error) error { return s.Pending(bg, fn) })
		same(t, "timers", sorted(got, func(a, b engine.Timer) int { return cmp.Compare(a.FireAt, b.FireAt) }), ts)
		stops(t, func(fn func(*engine.Timer) error) error { return s.Pending(bg, fn) })
	})
	t.Run("a bad timer is notify.KindInvalid and nothing is stored", func(t *testing.T) {
		s, _ := open(t)
		for _, bad := range []engine.Timer{{FireAt: -1, ID: []byte("a")}, {FireAt: 1}, {FireAt: 1, ID: make([]byte, 65)}} {
			wantKind(t, s.Put(bg, 1, []engine.Timer{timer(1, "ok"), bad}), notify.KindInvalid)
		}
		wantKind(t, s.Put(bg, 0, []engine.Timer{timer(1, "ok")}), notify.KindInvalid)
		same(t, "timers", wholeDay(t, s, 0, 0), []engine.Timer{})
	})
	t.Run("model", func(t *testing.T) { coldModel(t, open) })
}

func coldModel(t *testing.T, open Opener[engine.ColdTimers]) {
	model(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		m := memory.New().ColdTimers()
		shard, days := rapid.Uint16Range(0, 2), rapid.Int64Range(0, 3)
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				ts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) engine.Timer {
					x := timer(days.Draw(rt, "day")*day+rapid.SampledFrom([]int64{0, 1, day - 1}).Draw(rt, "ms"), rapid.StringMatching(`[ab]{1,3}`).Draw(rt, "id"))
					x.Kind, x.Gen = rapid.Uint8().Draw(rt, "kind"), rapid.Uint32().Draw(rt, "gen")
					return x
				}), 0, 4).Draw(rt, "timers")
				must(rt, s.Put(bg, 3, ts))
				must(rt, m.Put(bg, 3, ts))
			},
			"scan": func(rt *rapid.T) {
				sh, d, n := shard.Draw(rt, "shard"), days.Draw(rt, "day"), rapid.IntRange(0, 5).Draw(rt, "max")
				c := engine.TimerCursor{FireAt: rapid.Int64Range(0, 4*day).Draw(rt, "after"), ID: []byte(rapid.StringMatching(`[ab]{0,2}`).Draw(rt, "id"))}
				same(rt, "Scan", val(s.Scan(bg, sh, d, c, n))(rt), val(m.Scan(bg, sh, d, c, n))(rt))
				same(rt, "Outline", outline(val(s.Outline(bg, sh, d, c, n))(rt)), outline(val(m.Outline(bg, sh, d, c, n))(rt)))
			},
			"days": func(rt *rapid.T) {
				sh, to := shard.Draw(rt, "shard"), rapid.Int64Range(-1, 4).Draw(rt, "to")
				same(rt, "Days", val(s.Days(bg, sh, to))(rt), val(m.Days(bg, sh, to))(rt))
			},
			"drop": func(rt *rapid.T) {
				sh, d := shard.Draw(rt, "shard"), days.Draw(rt, "day")
				must(rt, s.Drop(bg, sh, d))
				must(rt, m.Drop(bg, sh, d))
			},
			"look": func(rt *rapid.T) {
				for sh := range uint16(3) {
					for d := range int64(4) {
						same(rt, "day", wholeDay(rt, s, sh, d), wholeDay(rt, m, sh, d))
					}
				}
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
