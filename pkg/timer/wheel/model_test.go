package wheel

import (
	"cmp"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// entry is a timer of the model: a plain list sorted when it is needed.
type entry struct {
	at     time.Time
	id     int
	handle Handle
}

// pair runs the same operations on a wheel and on the model and compares all
// they say.
type pair struct {
	t     failer
	w     *Wheel[int]
	now   time.Time // of the latest Advance
	model []entry   // pending, in the order added
	stale []Handle
	ids   int
}

// failer is what testing.T and rapid.T have in common here.
type failer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newPair(t failer, now time.Time) *pair {
	return &pair{t: t, w: New[int](now), now: now}
}

func (p *pair) add(at time.Time) {
	at = inRange(at)
	p.ids++
	h := p.w.Add(at, p.ids)
	p.model = append(p.model, entry{at, p.ids, h})
	p.check()
}

func (p *pair) cancel(k int) {
	if len(p.model) == 0 {
		return
	}
	k %= len(p.model)
	h := p.model[k].handle
	if !p.w.Cancel(h) {
		p.t.Fatalf("Cancel of pending timer %d: false", p.model[k].id)
	}
	p.model = slices.Delete(p.model, k, k+1)
	p.stale = append(p.stale, h)
	p.check()
}

func (p *pair) cancelStale(k int) {
	if len(p.stale) > 0 && p.w.Cancel(p.stale[k%len(p.stale)]) {
		p.t.Fatal("Cancel of a stale handle: true")
	}
	p.check()
}

// advance moves both to now. In fire it adds and cancels as react says.
func (p *pair) advance(now time.Time, react func(fired int)) {
	now = inRange(now)
	var want []entry // what is due now
	if now.UnixMilli() >= p.now.UnixMilli() {
		p.now = now
		for _, e := range p.model {
			if !roundUp(e.at).After(now) {
				want = append(want, e)
			}
		}
		slices.SortStableFunc(want, func(a, b entry) int { return a.at.Compare(b.at) })
	}
	p.w.Advance(now, func(at time.Time, id int) {
		if at.After(now) {
			p.t.Fatalf("timer %d fired early: at %v, now %v", id, at, now)
		}
		// Those that react cancelled are not pending any more.
		for len(want) > 0 && !slices.ContainsFunc(p.model, func(e entry) bool { return e.id == want[0].id }) {
			want = want[1:]
		}
		if len(want) == 0 {
			p.t.Fatalf("timer %d fired, none was due", id)
		}
		if want[0].id != id || !want[0].at.Equal(at) {
			p.t.Fatalf("fired %d at %v, want %d at %v", id, at, want[0].id, want[0].at)
		}
		want = want[1:]
		k := slices.IndexFunc(p.model, func(e entry) bool { return e.id == id })
		p.stale = append(p.stale, p.model[k].handle)
		p.model = slices.Delete(p.model, k, k+1)
		if p.w.Cancel(p.stale[len(p.stale)-1]) {
			p.t.Fatalf("timer %d cancelled while it fired", id)
		}
		react(id)
	})
	for _, e := range want {
		if slices.ContainsFunc(p.model, func(m entry) bool { return m.id == e.id }) {
			p.t.Fatalf("timer %d at %v did not fire at %v", e.id, e.at, now)
		}
	}
	p.check()
}

// rewind sets both clocks back.
func (p *pair) rewind(now time.Time) {
	now = inRange(now)
	p.w.Rewind(now)
	if now.Before(p.now) {
		p.now = now
	}
	p.check()
}

// deleteEvery removes the timers whose id is a multiple of k.
func (p *pair) deleteEvery(k int) {
	want := 0
	p.model = slices.DeleteFunc(p.model, func(e entry) bool {
		if e.id%k != 0 {
			return false
		}
		want++
		p.stale = append(p.stale, e.handle)
		return true
	})
	if got := p.w.DeleteFunc(func(id int) bool { return id%k == 0 }); got != want {
		p.t.Fatalf("DeleteFunc removed %d, want %d", got, want)
	}
	p.check()
}

func (p *pair) check() {
	if p.w.Len() != len(p.model) {
		p.t.Fatalf("Len = %d, want %d", p.w.Len(), len(p.model))
	}
	next, ok := p.w.Next()
	if ok != (len(p.model) > 0) {
		p.t.Fatalf("Next says %v with %d pending", ok, len(p.model))
	}
	if !ok {
		return
	}
	first := slices.MinFunc(p.model, func(a, b entry) int { return a.at.Compare(b.at) })
	may := roundUp(first.at)
	if may.Before(p.now) {
		may = p.now // it is late and fires in the next Advance
	}
	if next.After(may) {
		p.t.Fatalf("Next = %v, but a timer may fire at %v", next, may)
	}
}

// inRange keeps a time where Add takes it as it is; TestFarFuture looks beyond.
func inRange(t time.Time) time.Time {
	if t.Year() > 2261 {
		return time.Date(2261, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	}
	if t.Year() < 1679 {
		return time.Date(1679, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return t
}

func roundUp(t time.Time) time.Time {
	if r := t.Truncate(Resolution); r.Equal(t) {
		return r
	}
	return t.Truncate(Resolution).Add(Resolution)
}

// spans are distances where slots and levels begin and end.
var spans = []time.Duration{
	0, 1, Resolution - 1, Resolution, 255 * Resolution, 256 * Resolution, 257 * Resolution,
	65_535 * Resolution, 65_536 * Resolution, 65_537 * Resolution,
	1 << 24 * Resolution, 1<<24*Resolution + 1, 1 << 32 * Resolution, 100 * 365 * 24 * time.Hour,
}

func TestAgainstSortedList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		start := time.Unix(rapid.Int64Range(-1<<33, 1<<32).Draw(rt, "start"), rapid.Int64Range(0, 1e9-1).Draw(rt, "ns"))
		p := newPair(rt, start)
		distance := rapid.OneOf(
			rapid.Map(rapid.IntRange(-20_000_000, 20_000_000), func(ns int) time.Duration { return time.Duration(ns) }),
			rapid.Map(rapid.IntRange(-100, 70_000), func(ms int) time.Duration { return time.Duration(ms) * Resolution }),
			rapid.Map(rapid.IntRange(-100, 100_000), func(s int) time.Duration { return time.Duration(s) * time.Second }),
			rapid.SampledFrom(spans),
		)
		react := func(int) {
			switch rapid.IntRange(0, 5).Draw(rt, "react") {
			case 0:
				p.add(p.now.Add(distance.Draw(rt, "in fire")))
			case 1:
				p.cancel(rapid.IntRange(0, 1<<20).Draw(rt, "cancel in fire"))
			case 2:
				p.cancelStale(rapid.IntRange(0, 1<<20).Draw(rt, "stale in fire"))
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"add":     func(rt *rapid.T) { p.add(p.now.Add(distance.Draw(rt, "at"))) },
			"add two": func(rt *rapid.T) { d := distance.Draw(rt, "at"); p.add(p.now.Add(d)); p.add(p.now.Add(d)) },
			"cancel":  func(rt *rapid.T) { p.cancel(rapid.IntRange(0, 1<<20).Draw(rt, "which")) },
			"rewind":  func(rt *rapid.T) { p.rewind(p.now.Add(-distance.Draw(rt, "back"))) },
			"delete":  func(rt *rapid.T) { p.deleteEvery(rapid.IntRange(1, 5).Draw(rt, "every")) },
			"stale":   func(rt *rapid.T) { p.cancelStale(rapid.IntRange(0, 1<<20).Draw(rt, "which")) },
			"advance": func(rt *rapid.T) { p.advance(p.now.Add(distance.Draw(rt, "by")), react) },
			"next": func(*rapid.T) {
				if at, ok := p.w.Next(); ok {
					p.advance(at, react)
				}
			},
		})
	})
}

// FuzzAgainstSortedList reads operations from bytes: an opcode and a distance
// of up to 7 bytes each, of which 42 bits count.
func FuzzAgainstSortedList(f *testing.F) {
	f.Add([]byte{0x10, 5, 0x10, 5, 0x23, 1, 0x18, 0xff, 0xff, 3, 0x40})
	f.Add([]byte{0x30, 0, 0, 0, 1, 0x43, 0x30, 0, 0, 0, 1, 0x43, 0x00, 0x43})
	f.Fuzz(func(t *testing.T, ops []byte) {
		p := newPair(t, time.Unix(1_800_000_000, 999_999))
		next := func() (op byte, d int64) {
			op = ops[0]
			n := min(int(op>>4), len(ops)-1, 7)
			var b [8]byte
			copy(b[:], ops[1:1+n])
			ops = ops[1+n:]
			return op & 15, int64(binary.LittleEndian.Uint64(b[:])) & (1<<42 - 1) // 139 years of ms
		}
		for steps := 0; len(ops) > 0 && steps < 300; steps++ {
			switch op, d := next(); op {
			case 0, 1, 2, 3:
				p.add(p.now.Add(time.Duration(d) * Resolution))
			case 4, 5:
				p.add(p.now.Add(time.Duration(d)))
			case 6:
				p.add(p.now.Add(-time.Duration(d)))
			case 7, 8:
				p.cancel(int(d))
			case 9:
				p.cancelStale(int(d))
			case 10:
				p.advance(p.now.Add(-time.Duration(d)), func(int) {})
			case 11:
				p.advance(p.now.Add(time.Duration(d)), func(int) {})
			case 12:
				if at, ok := p.w.Next(); ok {
					p.advance(at, func(int) {})
				}
			case 13:
				p.rewind(p.now.Add(-time.Duration(d)))
			case 14:
				p.deleteEvery(1 + int(d%7))
			default:
				p.advance(p.now.Add(time.Duration(d)*Resolution), func(id int) {
					switch id % 4 {
					case 0:
						p.cancel(id)
					case 1:
						p.add(p.now.Add(time.Duration(cmp.Compare(id, 50)) * time.Duration(id) * time.Second))
					}
				})
			}
		}
	})
}
