package enginetest

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func spilled(n int) engine.Spilled {
	return engine.Spilled{Topic: "notifications-sms", Key: []byte("user"), Part: int32(n % 3), Value: []byte("value " + strconv.Itoa(n)), At: int64(1000 + n)}
}

// withSeqs returns the expected records (want) with the sequence numbers (Seq) of the records in
// peeked, because a test does not know these numbers. It fails the test if the numbers in peeked
// are not ascending.
func withSeqs(t T, peeked, want []engine.Spilled) []engine.Spilled {
	t.Helper()
	out := append([]engine.Spilled(nil), want...)
	for i := range peeked {
		if i > 0 && peeked[i].Seq <= peeked[i-1].Seq {
			t.Fatalf("Peek returned seq %d after seq %d", peeked[i].Seq, peeked[i-1].Seq)
		}
		if i < len(out) {
			out[i].Seq = peeked[i].Seq
		}
	}
	return out
}

// spill has the same methods as intake.Spill. It is needed because this package cannot
// import the package intake.
type spill interface {
	Push(ctx context.Context, recs []engine.Spilled, limit int64) error
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
	Drop(ctx context.Context, seq uint64) error
	Stats(ctx context.Context) (records, bytes, oldest int64, err error)
}

func stats(t T, s spill) [3]int64 {
	t.Helper()
	records, bytes, oldest, err := s.Stats(bg)
	must(t, err)
	return [3]int64{records, bytes, oldest}
}

// Spill runs the suite of intake.Spill.
func Spill[E spill](t *testing.T, open Opener[E]) {
	const roomy = 1 << 30
	t.Run("Push stores records in order", func(t *testing.T) {
		s, reopen := open(t)
		want := []engine.Spilled{spilled(1), spilled(2), spilled(3)}
		must(t, s.Push(bg, want[:2], roomy))
		must(t, s.Push(bg, want[2:], roomy))
		must(t, s.Push(bg, nil, 0))
		if reopen != nil {
			s = reopen()
		}
		got := val(s.Peek(bg, 10))(t)
		same(t, "records", got, withSeqs(t, got, want))
	})
	t.Run("Push returns notify.KindUnavailable and stores nothing if the buffer would exceed limit bytes", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Push(bg, []engine.Spilled{spilled(1)}, roomy))
		before := stats(t, s)
		one := before[1]
		wantKind(t, s.Push(bg, []engine.Spilled{spilled(2), spilled(3)}, 3*one-1), notify.KindUnavailable)
		same(t, "stats", stats(t, s), before)
		must(t, s.Push(bg, []engine.Spilled{spilled(2), spilled(3)}, 3*one))
		wantKind(t, s.Push(bg, []engine.Spilled{spilled(4)}, 3*one), notify.KindUnavailable)
		same(t, "records", len(val(s.Peek(bg, 10))(t)), 3)
	})
	t.Run("concurrent calls of Push do not exceed the limit", func(t *testing.T) {
		s, _ := open(t)
		must(t, s.Push(bg, []engine.Spilled{spilled(1)}, roomy))
		one := stats(t, s)[1]
		together(16, func(int) {
			if err := s.Push(bg, []engine.Spilled{spilled(1)}, 10*one); err != nil && notify.KindOf(err) != notify.KindUnavailable {
				t.Error(err)
			}
		})
		got := stats(t, s)
		same(t, "records and bytes", [2]int64(got[:2]), [2]int64{10, 10 * one})
	})
	t.Run("Peek returns the oldest max records", func(t *testing.T) {
		s, _ := open(t)
		for i := range 10 {
			must(t, s.Push(bg, []engine.Spilled{spilled(i)}, roomy))
		}
		got := val(s.Peek(bg, 3))(t)
		same(t, "records", got, withSeqs(t, got, []engine.Spilled{spilled(0), spilled(1), spilled(2)}))
		same(t, "none", val(s.Peek(bg, 0))(t), []engine.Spilled{})
		got[0].Value[0] = 'x' // returned slices belong to the caller
		same(t, "again", val(s.Peek(bg, 1))(t)[0].Value, spilled(0).Value)
	})
	t.Run("Drop removes the records up to seq", func(t *testing.T) {
		s, reopen := open(t)
		must(t, s.Push(bg, []engine.Spilled{spilled(1), spilled(2), spilled(3)}, roomy))
		all := val(s.Peek(bg, 10))(t)
		must(t, s.Drop(bg, all[0].Seq-1))
		must(t, s.Drop(bg, all[1].Seq))
		must(t, s.Drop(bg, all[1].Seq))
		if reopen != nil {
			s = reopen()
		}
		same(t, "records", val(s.Peek(bg, 10))(t), all[2:])
		same(t, "how many", stats(t, s)[0], int64(1))
	})
	t.Run("Seq still ascends after a Drop of all records and a restart", func(t *testing.T) {
		s, reopen := open(t)
		last := uint64(0)
		for i := range 4 {
			must(t, s.Push(bg, []engine.Spilled{spilled(i)}, roomy))
			got := val(s.Peek(bg, 10))(t)
			if len(got) != 1 || got[0].Seq <= last {
				t.Fatalf("Peek returned %+v, want one record with a seq greater than %d", got, last)
			}
			last = got[0].Seq
			must(t, s.Drop(bg, last))
			if reopen != nil {
				s = reopen()
			}
		}
	})
	t.Run("Stats returns the number of records and bytes, and when the oldest record was spilled", func(t *testing.T) {
		s, reopen := open(t)
		same(t, "empty", stats(t, s), [3]int64{})
		must(t, s.Push(bg, []engine.Spilled{spilled(1)}, roomy))
		one := stats(t, s)
		must(t, s.Push(bg, []engine.Spilled{spilled(2)}, roomy))
		if reopen != nil {
			s = reopen()
		}
		same(t, "two", stats(t, s), [3]int64{2, 2 * one[1], 1001})
		must(t, s.Drop(bg, val(s.Peek(bg, 1))(t)[0].Seq))
		same(t, "one", stats(t, s), [3]int64{1, one[1], 1002})
		must(t, s.Drop(bg, 1<<60))
		same(t, "none", stats(t, s), [3]int64{})
	})
	t.Run("records that are pushed during concurrent drops are kept in order, once", func(t *testing.T) {
		s, _ := open(t)
		const writers, each = 4, 50
		var mu sync.Mutex
		drained := map[string]int{}
		var last uint64
		drain := func() {
			mu.Lock()
			defer mu.Unlock()
			recs, err := s.Peek(bg, 7)
			if err != nil || len(recs) == 0 {
				return
			}
			for _, r := range recs {
				if r.Seq <= last {
					t.Errorf("Peek returned seq %d after seq %d", r.Seq, last)
				}
				last = r.Seq
				drained[string(r.Value)]++
			}
			if err := s.Drop(bg, last); err != nil {
				t.Error(err)
			}
		}
		together(writers+2, func(i int) {
			for n := range each {
				if i >= writers {
					drain()
				} else if err := s.Push(bg, []engine.Spilled{spilled(i*each + n)}, roomy); err != nil {
					t.Error(err)
				}
			}
		})
		for stats(t, s)[0] > 0 {
			drain()
		}
		for i := range writers * each {
			same(t, "times drained", drained[string(spilled(i).Value)], 1)
		}
		same(t, "stats", stats(t, s), [3]int64{})
	})
	t.Run("model", func(t *testing.T) { spillModel(t, open) })
}

// spillModel compares an engine with a model: a slice.
func spillModel[E spill](t *testing.T, open Opener[E]) {
	runModel(t, func(rt *rapid.T) map[string]func(*rapid.T) {
		s, reopen := open(rt)
		var waiting []engine.Spilled
		size := func(rs []engine.Spilled) (n int64) {
			for _, r := range rs {
				n += int64(len(r.Topic) + len(r.Key) + len(r.Value))
			}
			return n
		}
		actions := map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				var recs []engine.Spilled
				for range rapid.IntRange(0, 3).Draw(rt, "n") {
					r := spilled(rapid.IntRange(0, 1000).Draw(rt, "record"))
					if rapid.Bool().Draw(rt, "bare") {
						r = engine.Spilled{Part: -1, At: r.At}
					}
					recs = append(recs, r)
				}
				limit := rapid.Int64Range(0, 200).Draw(rt, "limit")
				err := s.Push(bg, recs, limit)
				if add := size(recs); add > 0 && size(waiting)+add > limit {
					wantKind(rt, err, notify.KindUnavailable)
					return
				}
				must(rt, err)
				waiting = append(waiting, recs...)
			},
			"drop": func(rt *rapid.T) {
				if got := val(s.Peek(bg, 100))(rt); len(got) > 0 {
					i := rapid.IntRange(0, len(got)-1).Draw(rt, "i")
					must(rt, s.Drop(bg, got[i].Seq))
					waiting = waiting[i+1:]
				}
			},
			"": func(rt *rapid.T) {
				got, want := val(s.Peek(bg, 100))(rt), [3]int64{int64(len(waiting)), size(waiting)}
				if len(waiting) > 0 {
					want[2] = waiting[0].At
				}
				same(rt, "Peek", got, withSeqs(rt, got, waiting))
				same(rt, "Stats", stats(rt, s), want)
			},
		}
		if reopen != nil {
			actions["restart"] = func(rt *rapid.T) { sometimes(rt, func() { s = reopen() }) }
		}
		return actions
	})
}
