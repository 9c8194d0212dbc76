package wheel

import (
	"cmp"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// entry is a timer of the model: a plain list sorted when it is needed.
type entry struct {
	at int64
	id int
}

func byTime(a, b entry) int { return cmp.Compare(a.at, b.at) }

// pair runs the same operations on a wheel and on the model and compares all
// they say.
type pair struct {
	t     failer
	w     *Wheel[int]
	now   int64   // of the latest Advance
	model []entry // pending, in the order added
	ids   int
}

// failer is what testing.T and rapid.T have in common here.
type failer interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newPair(t failer, now int64) *pair {
	return &pair{t: t, w: New[int](now), now: now}
}

func (p *pair) add(at int64) {
	p.ids++
	p.w.Add(at, p.ids)
	p.model = append(p.model, entry{inRange(at), p.ids})
	p.check()
}

func (p *pair) advance(now int64) {
	now = inRange(now)
	var want, left []entry
	if now >= p.now {
		p.now = now
		for _, e := range p.model {
			if e.at <= now {
				want = append(want, e)
			} else {
				left = append(left, e)
			}
		}
		slices.SortStableFunc(want, byTime)
		p.model = left
	}
	p.w.Advance(now, func(id int) {
		if len(want) == 0 {
			p.t.Fatalf("timer %d fired at %d, none was due", id, now)
		}
		if want[0].id != id {
			p.t.Fatalf("fired %d at %d, want %d of %d", id, now, want[0].id, want[0].at)
		}
		want = want[1:]
	})
	if len(want) > 0 {
		p.t.Fatalf("timer %d of %d did not fire at %d", want[0].id, want[0].at, now)
	}
	p.check()
}

// rewind sets both clocks back.
func (p *pair) rewind(now int64) {
	p.w.Rewind(now)
	p.now = min(p.now, inRange(now))
	p.check()
}

// deleteEvery removes the timers whose id is a multiple of k.
func (p *pair) deleteEvery(k int) {
	p.model = slices.DeleteFunc(p.model, func(e entry) bool { return e.id%k == 0 })
	p.w.DeleteFunc(func(id int) bool { return id%k == 0 })
	p.check()
}

func (p *pair) check() {
	if p.w.Now() != p.now {
		p.t.Fatalf("Now = %d, want %d", p.w.Now(), p.now)
	}
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
	// One that is late fires in the next Advance.
	if may := max(slices.MinFunc(p.model, byTime).at, p.now); next > may {
		p.t.Fatalf("Next = %v, but a timer may fire at %v", next, may)
	}
}

// spans are distances where slots and levels begin and end.
var spans = []int64{0, 1, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 24, 1<<24 + 1, 1 << 32, 1 << 40, latest}

func TestAgainstSortedList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(rt, rapid.Int64Range(0, 1<<42).Draw(rt, "start"))
		distance := rapid.OneOf(
			rapid.Int64Range(-20, 20),
			rapid.Int64Range(-100, 70_000),
			rapid.Map(rapid.Int64Range(-100, 100_000), func(s int64) int64 { return s * second }),
			rapid.SampledFrom(spans),
		)
		rt.Repeat(map[string]func(*rapid.T){
			"add":     func(rt *rapid.T) { p.add(p.now + distance.Draw(rt, "at")) },
			"add two": func(rt *rapid.T) { d := distance.Draw(rt, "at"); p.add(p.now + d); p.add(p.now + d) },
			"rewind":  func(rt *rapid.T) { p.rewind(p.now - distance.Draw(rt, "back")) },
			"delete":  func(rt *rapid.T) { p.deleteEvery(rapid.IntRange(1, 5).Draw(rt, "every")) },
			"advance": func(rt *rapid.T) { p.advance(p.now + distance.Draw(rt, "by")) },
			"next": func(*rapid.T) {
				if at, ok := p.w.Next(); ok {
					p.advance(at)
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
		p := newPair(t, 1_800_000_000_999)
		next := func() (op byte, d int64) {
			op = ops[0]
			n := min(int(op>>4), len(ops)-1, 7)
			var b [8]byte
			copy(b[:], ops[1:1+n])
			ops = ops[1+n:]
			return op & 15, int64(binary.LittleEndian.Uint64(b[:])) & (1<<42 - 1) // 139 years
		}
		for steps := 0; len(ops) > 0 && steps < 300; steps++ {
			switch op, d := next(); op {
			case 0, 1, 2, 3:
				p.add(p.now + d)
			case 4, 5:
				p.add(p.now + d%1000)
			case 6:
				p.add(p.now - d)
			case 7:
				p.advance(p.now - d)
			case 8, 9, 10:
				p.advance(p.now + d)
			case 11, 12:
				if at, ok := p.w.Next(); ok {
					p.advance(at)
				}
			case 13:
				p.rewind(p.now - d)
			default:
				p.deleteEvery(1 + int(d%7))
			}
		}
	})
}
