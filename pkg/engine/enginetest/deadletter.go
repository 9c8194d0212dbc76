package enginetest

import (
	"cmp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func letter(n int) engine.DeadLetter {
	id := notify.ID{Base: base(1000, uint64(n))}
	trace := "" // only letters with an odd n have a trace
	if n%2 == 1 {
		id.FanOut, id.Index = true, uint32(n)
		trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	}
	return engine.DeadLetter{
		ID: id, Epoch: 1,
		Caller: "shop", Campaign: "cmp_1", Channel: "sms", Category: "otp", User: "u" + strconv.Itoa(n), Template: "t",
		Class: "permanent", Code: "twilio_21610", Provider: "twilio:AC1", Attempts: 4,
		FirstFailed: 1000, LastFailed: int64(2000 + n), Expires: 9000,
		Chunk: notify.Chunk{Base: base(1000, uint64(n)), Partition: 5, Block: 6},
		Topic: "notifications-sms", Partition: 5, Offset: 77, State: "dead", Until: int64(100_000 + n),
		Trace: trace, Extra: map[string]any{"region": "eu"},
	}
}

// DeadLetters runs the suite of engine.DeadLetters.
func DeadLetters(t *testing.T, open Opener[engine.DeadLetters]) {
	t.Run("Put stores dead letters", func(t *testing.T) {
		s, reopen := open(t)
		a, b := letter(1), letter(2)
		must(t, s.Put(bg, []engine.DeadLetter{a, b}))
		must(t, s.Put(bg, nil))
		if reopen != nil {
			s = reopen()
		}
		a.Seq, b.Seq, a.Ord, b.Ord = 1, 2, 1, 2
		same(t, "a", val(s.Get(bg, a.ID, 1))(t), a)
		same(t, "b", val(s.Get(bg, b.ID, 1))(t), b)
	})
	t.Run("Put: the same (ID, Epoch) again changes nothing", func(t *testing.T) {
		s, reopen := open(t)
		a, again := letter(1), letter(1)
		again.State, again.Caller, again.LastFailed, again.Until, again.Code = "replayed", "other", 9, 9, "other"
		must(t, s.Put(bg, []engine.DeadLetter{a}))
		must(t, s.Put(bg, []engine.DeadLetter{again}))
		if reopen != nil {
			s = reopen()
		}
		a.Seq, a.Ord = 1, 1
		same(t, "letter", val(s.Get(bg, a.ID, 1))(t), a)
		must(t, s.Put(bg, []engine.DeadLetter{letter(5), {ID: letter(5).ID, Epoch: 1, State: "discarded"}}))
		five := letter(5)
		five.Seq, five.Ord = 2, 2
		same(t, "twice in one call", val(s.Get(bg, five.ID, 1))(t), five)
		same(t, "feed", val(s.Feed(bg, "shop", 0, 10))(t), []engine.DeadLetter{a, five})
	})
	t.Run("Put after Move does not change a moved dead letter", func(t *testing.T) {
		s, _ := open(t)
		a := letter(1)
		must(t, s.Put(bg, []engine.DeadLetter{a}))
		same(t, "moved", val(s.Move(bg, []engine.LetterMove{{ID: a.ID, Epoch: 1, From: "dead", To: "replayed", Job: "j"}}))(t), []bool{true})
		must(t, s.Put(bg, []engine.DeadLetter{a})) // as if the log were read again after a crash
		got := val(s.Get(bg, a.ID, 1))(t)
		same(t, "state", got.State+" "+got.Job, "replayed j")
	})
	t.Run("Move applies each move whose From and FromJob match", func(t *testing.T) {
		s, reopen := open(t)
		a, b, c := letter(1), letter(2), letter(3)
		must(t, s.Put(bg, []engine.DeadLetter{a, b}))
		move := func(d engine.DeadLetter, from, fromJob, to, job string) engine.LetterMove {
			return engine.LetterMove{ID: d.ID, Epoch: d.Epoch, From: from, FromJob: fromJob, To: to, Job: job}
		}
		same(t, "moved", val(s.Move(bg, []engine.LetterMove{
			move(a, "dead", "", "replayed", "j1"), move(a, "dead", "", "discarded", "j1"), move(c, "dead", "", "replayed", "j1"),
		}))(t), []bool{true, false, false})
		if reopen != nil {
			s = reopen()
		}
		same(t, "moved once", val(s.Move(bg, []engine.LetterMove{
			move(a, "dead", "", "discarded", "j2"), move(a, "replayed", "j2", "dead", ""), move(b, "dead", "j1", "replayed", "j1"),
		}))(t), []bool{false, false, false})
		got := val(s.Get(bg, a.ID, 1))(t)
		same(t, "a", got.State+" "+got.Job, "replayed j1")
		same(t, "back", val(s.Move(bg, []engine.LetterMove{move(a, "replayed", "j1", "dead", "")}))(t), []bool{true})
		got = val(s.Get(bg, a.ID, 1))(t)
		a.Seq, a.Ord = 1, 1
		same(t, "as it was", got, a)
		same(t, "none", val(s.Move(bg, nil))(t), []bool{})
	})
	t.Run("of many concurrent moves of one dead letter one is applied", func(t *testing.T) {
		s, _ := open(t)
		a := letter(1)
		must(t, s.Put(bg, []engine.DeadLetter{a}))
		var won atomic.Int32
		together(16, func(i int) {
			moved, err := s.Move(bg, []engine.LetterMove{{ID: a.ID, Epoch: 1, From: "dead", To: "replayed", Job: strconv.Itoa(i)}})
			if err != nil {
				t.Error(err)
			} else if moved[0] {
				won.Add(1)
			}
		})
		same(t, "winners", won.Load(), int32(1))
	})
	t.Run("Walk calls fn with the dead letters that have Ord in (afterOrd, lastOrd], in ascending order of Ord", func(t *testing.T) {
		s, reopen := open(t)
		same(t, "last of none", val(s.Last(bg))(t), uint64(0))
		for i := range 9 {
			l := letter(20 - i)
			l.Caller = []string{"a", "b"}[i%2]
			must(t, s.Put(bg, []engine.DeadLetter{l, l}))
		}
		same(t, "purged", val(s.Purge(bg, 100_012))(t), 1) // the 9th dead letter
		if reopen != nil {
			s = reopen()
		}
		must(t, s.Put(bg, []engine.DeadLetter{letter(30)}))
		same(t, "last", val(s.Last(bg))(t), uint64(10))
		for _, r := range [][3]uint64{{0, 1 << 62, 9}, {0, 0, 0}, {2, 5, 3}, {5, 2, 0}, {7, 9, 1}, {9, ^uint64(0), 1}} {
			n, last := uint64(0), r[0]
			must(t, s.Walk(bg, r[0], r[1], func(d *engine.DeadLetter) error {
				if d.Ord <= last || d.Ord > r[1] || d.Chunk.Block != 6 {
					t.Fatalf("Walk returned Ord %d after Ord %d; the range is (%d, %d]", d.Ord, last, r[0], r[1])
				}
				n, last = n+1, d.Ord
				return nil
			}))
			same(t, "walked", n, r[2])
		}
		checkStops(t, func(fn func(*engine.DeadLetter) error) error { return s.Walk(bg, 0, 100, fn) })
	})
	t.Run("another epoch is another dead letter", func(t *testing.T) {
		s, _ := open(t)
		a, b := letter(1), letter(1)
		b.Epoch = 2
		must(t, s.Put(bg, []engine.DeadLetter{a, b}))
		same(t, "feed", len(val(s.Feed(bg, "shop", 0, 10))(t)), 2)
	})
	t.Run("Each new dead letter gets the next Seq of its caller", func(t *testing.T) {
		s, reopen := open(t)
		for i := range 6 {
			l := letter(i)
			l.Caller = []string{"a", "b"}[i%2]
			must(t, s.Put(bg, []engine.DeadLetter{l}))
			must(t, s.Put(bg, []engine.DeadLetter{l})) // gets no new number
			if reopen != nil && i == 3 {
				s = reopen()
			}
			same(t, "seq", val(s.Get(bg, l.ID, 1))(t).Seq, uint64(i/2+1))
		}
		val(s.Purge(bg, 1<<60))(t)
		if reopen != nil {
			s = reopen()
		}
		l := letter(9)
		l.Caller = "a"
		must(t, s.Put(bg, []engine.DeadLetter{l}))
		same(t, "seq after all were purged", val(s.Get(bg, l.ID, 1))(t).Seq, uint64(4))
	})
	t.Run("Get returns notify.KindNotFound if the dead letter does not exist", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Put(bg, []engine.DeadLetter{letter(1)}))
		_, err := s.Get(bg, letter(1).ID, 2)
		wantKind(t, err, notify.KindNotFound)
		_, err = s.Get(bg, letter(2).ID, 1)
		wantKind(t, err, notify.KindNotFound)
	})
	t.Run("Feed returns a caller's dead letters with Seq > afterSeq, in ascending order of Seq", func(t *testing.T) {
		s, _ := open(t)
		for i := range 10 {
			l := letter(20 - i)
			if i == 4 {
				l.Caller = "shopper"
			}
			must(t, s.Put(bg, []engine.DeadLetter{l}))
		}
		var seqs []uint64
		for _, l := range val(s.Feed(bg, "shop", 3, 4))(t) {
			same(t, "caller", l.Caller, "shop")
			seqs = append(seqs, l.Seq)
		}
		same(t, "seqs", seqs, []uint64{4, 5, 6, 7})
		same(t, "end", val(s.Feed(bg, "shop", 9, 4))(t), []engine.DeadLetter{})
		same(t, "nobody", val(s.Feed(bg, "sho", 0, 4))(t), []engine.DeadLetter{})
	})
	t.Run("a reader that follows the feed during concurrent puts misses no dead letter", func(t *testing.T) {
		s, _ := open(t)
		const writers, each = 4, 40
		together(writers+1, func(i int) {
			if i < writers {
				for n := range each {
					if err := s.Put(bg, []engine.DeadLetter{letter(i*each + n)}); err != nil {
						t.Error(err)
					}
				}
				return
			}
			for last := uint64(0); last < writers*each; {
				page, err := s.Feed(bg, "shop", last, 7)
				if err != nil {
					t.Error(err)
					return
				}
				for _, l := range page {
					if l.Seq != last+1 {
						t.Errorf("Feed returned Seq %d directly after Seq %d", l.Seq, last)
						return
					}
					last = l.Seq
				}
			}
		})
	})
	t.Run("List returns dead letters that f selects", func(t *testing.T) {
		s, _ := open(t)
		a, b := letter(1), letter(2)
		b.Caller, b.Channel, b.Category, b.Class, b.Code, b.Provider, b.Template, b.State = "c", "push", "digest", "k", "co", "p", "te", "replayed"
		must(t, s.Put(bg, []engine.DeadLetter{a, b}))
		a.Seq, b.Seq, a.Ord, b.Ord = 1, 1, 1, 2
		ofC := func(d *engine.DeadLetter) bool { return d.Caller == "c" }
		for _, f := range []engine.DeadLetterFilter{{Want: ofC}, {Since: 2002}, {Since: 2002, Until: 2003}, {Since: 2002, Want: ofC}} {
			got, next, err := s.List(bg, f, nil, 10)
			must(t, err)
			same(t, "letters", got, []engine.DeadLetter{b})
			same(t, "cursor", len(next), 0)
		}
		for _, f := range []engine.DeadLetterFilter{
			{Until: 2001}, {Since: 2003}, {Until: 2002, Want: ofC}, {Since: 2002, Until: 2002},
			{Want: func(*engine.DeadLetter) bool { return false }},
		} {
			got, _, err := s.List(bg, f, nil, 10)
			must(t, err)
			same(t, "none", got, []engine.DeadLetter{})
		}
		seen := map[string]engine.DeadLetter{} // Want must get the whole dead letter
		_, _, err := s.List(bg, engine.DeadLetterFilter{Want: func(d *engine.DeadLetter) bool { seen[d.Caller] = *d; return true }}, nil, 10)
		must(t, err)
		same(t, "shown", seen, map[string]engine.DeadLetter{a.Caller: a, b.Caller: b})
		got, _, err := s.List(bg, engine.DeadLetterFilter{Until: 2002}, nil, 10)
		must(t, err)
		same(t, "until", got, []engine.DeadLetter{a})
	})
	t.Run("newest first, after the cursor; a nil cursor begins the listing, and List returns a nil cursor at the end", func(t *testing.T) {
		s, _ := open(t)
		for i := range 9 {
			l := letter(i)
			l.LastFailed = int64(2000 + i/3) // several letters have the same time
			must(t, s.Put(bg, []engine.DeadLetter{l}))
		}
		for _, size := range []int{1, 2, 3, 9, 10} {
			var users []string
			var cursor []byte
			prev := int64(1 << 60)
			for {
				page, next, err := s.List(bg, engine.DeadLetterFilter{}, cursor, size)
				must(t, err)
				for _, l := range page {
					users = append(users, l.User)
					if l.LastFailed > prev {
						t.Fatalf("List returned a dead letter with LastFailed %d after one with %d", l.LastFailed, prev)
					}
					prev = l.LastFailed
				}
				if cursor = next; cursor == nil {
					break
				}
			}
			if len(users) != 9 {
				t.Fatalf("with pages of %d, List returned %d of 9 dead letters: %v", size, len(users), users)
			}
		}
	})
	t.Run("Purge removes dead letters with Until <= nowMs and returns how many it removed", func(t *testing.T) {
		s, reopen := open(t)
		for i := range 5 {
			must(t, s.Put(bg, []engine.DeadLetter{letter(i)}))
		}
		same(t, "purged", val(s.Purge(bg, 100_001))(t), 2)
		if reopen != nil {
			s = reopen()
		}
		same(t, "again", val(s.Purge(bg, 100_001))(t), 0)
		_, err := s.Get(bg, letter(1).ID, 1)
		wantKind(t, err, notify.KindNotFound)
		same(t, "feed", len(val(s.Feed(bg, "shop", 0, 10))(t)), 3)
		got, _, err := s.List(bg, engine.DeadLetterFilter{}, nil, 10)
		must(t, err)
		same(t, "list", len(got), 3)
	})
	t.Run("model", func(t *testing.T) { deadLettersModel(t, open) })
}

// deadLettersModel compares an engine with a model: a list in the order of Ord.
func deadLettersModel(t *testing.T, open Opener[engine.DeadLetters]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		var stored []engine.DeadLetter
		last, seqs := uint64(0), map[string]uint64{}
		where := func(l engine.DeadLetter) int {
			return slices.IndexFunc(stored, func(d engine.DeadLetter) bool { return d.ID == l.ID && d.Epoch == l.Epoch })
		}
		which := func(want func(*engine.DeadLetter) bool) (out []engine.DeadLetter) {
			for _, d := range stored {
				if want(&d) {
					out = append(out, d)
				}
			}
			return out
		}
		pick := func(rt *rapid.T, name string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, name) }
		ms := rapid.Int64Range(0, 6)
		gen := func(rt *rapid.T) engine.DeadLetter {
			l := letter(rapid.IntRange(0, 5).Draw(rt, "n"))
			l.Epoch = rapid.Uint16Range(0, 1).Draw(rt, "epoch")
			l.Caller, l.Code, l.State = pick(rt, "caller", "", "a", "ab"), pick(rt, "code", "x", "y"), pick(rt, "state", "dead", "replayed")
			l.LastFailed, l.Until = ms.Draw(rt, "failed"), ms.Draw(rt, "until")
			return l
		}
		actions := map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				ds := rapid.SliceOfN(rapid.Custom(gen), 0, 4).Draw(rt, "letters")
				must(rt, s.Put(bg, ds))
				for _, d := range ds {
					if where(d) < 0 {
						last++
						seqs[d.Caller]++
						d.Ord, d.Seq = last, seqs[d.Caller]
						stored = append(stored, d)
					}
				}
			},
			"get": func(rt *rapid.T) {
				l := gen(rt)
				got, err := s.Get(bg, l.ID, l.Epoch)
				if at := where(l); at >= 0 {
					must(rt, err)
					same(rt, "Get", got, stored[at])
				} else {
					wantKind(rt, err, notify.KindNotFound)
				}
			},
			"feed": func(rt *rapid.T) {
				c, after, n := gen(rt).Caller, rapid.Uint64Range(0, 5).Draw(rt, "after"), rapid.IntRange(0, 4).Draw(rt, "max")
				want := which(func(d *engine.DeadLetter) bool { return d.Caller == c && d.Seq > after })
				same(rt, "Feed", val(s.Feed(bg, c, after, n))(rt), want[:min(n, len(want))])
			},
			"list": func(rt *rapid.T) {
				caller, code, state := pick(rt, "fcaller", "", "a"), pick(rt, "fcode", "", "x"), pick(rt, "fstate", "", "dead")
				f := engine.DeadLetterFilter{Since: ms.Draw(rt, "since"), Until: ms.Draw(rt, "funtil"), Want: func(d *engine.DeadLetter) bool {
					return (caller == "" || d.Caller == caller) && (code == "" || d.Code == code) && (state == "" || d.State == state)
				}}
				want := sorted(which(f.Matches), func(a, b engine.DeadLetter) int {
					return cmp.Or(cmp.Compare(b.LastFailed, a.LastFailed), compareBases(a.ID.Base, b.ID.Base), cmp.Compare(a.Epoch, b.Epoch))
				})
				size := rapid.IntRange(1, 4).Draw(rt, "max")
				for cursor := []byte(nil); ; {
					page, next, err := s.List(bg, f, cursor, size)
					must(rt, err)
					n := min(size, len(want))
					same(rt, "List", page, want[:n])
					same(rt, "end", next == nil, n == len(want))
					if cursor, want = next, want[n:]; cursor == nil {
						return
					}
				}
			},
			"move": func(rt *rapid.T) {
				l, to := gen(rt), pick(rt, "to", "replayed", "discarded")
				at := where(l)
				moves := at >= 0 && stored[at].State == "dead" && stored[at].Job == ""
				same(rt, "Move", val(s.Move(bg, []engine.LetterMove{{ID: l.ID, Epoch: l.Epoch, From: "dead", To: to, Job: "j"}}))(rt), []bool{moves})
				if moves {
					stored[at].State, stored[at].Job = to, "j"
				}
			},
			"walk": func(rt *rapid.T) {
				after, upTo := rapid.Uint64Range(0, 8).Draw(rt, "after"), rapid.Uint64Range(0, 9).Draw(rt, "upTo")
				got := collect(rt, func(fn func(*engine.DeadLetter) error) error { return s.Walk(bg, after, upTo, fn) })
				same(rt, "Walk", got, which(func(d *engine.DeadLetter) bool { return d.Ord > after && d.Ord <= upTo }))
				same(rt, "Last", val(s.Last(bg))(rt), last)
			},
			"purge": func(rt *rapid.T) {
				now, before := ms.Draw(rt, "now")-3, len(stored)
				stored = slices.DeleteFunc(stored, func(d engine.DeadLetter) bool { return d.Until <= now })
				same(rt, "Purge", val(s.Purge(bg, now))(rt), before-len(stored))
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
