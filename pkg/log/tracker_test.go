package log

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order in which records are done, the mark is the offset of the first record that is
// not done, and never goes back.
func TestTrackerMarkIsTheFirstNotDone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Int64Range(0, 1000).Draw(t, "start")
		tr := newTracker(start)
		next, last := start, start
		var all []*Msg
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				gaps := rapid.SliceOfN(rapid.Int64Range(0, 3), 1, 2000).Draw(t, "gaps") // 0: contiguous
				msgs := make([]*Msg, len(gaps))
				for i, gap := range gaps {
					next += gap
					msgs[i] = &Msg{Record: Record{Offset: next}, owner: &loneOwner{}}
					next++
				}
				tr.add(msgs)
				all = append(all, msgs...)
			},
			"done": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip()
				}
				from := rapid.IntRange(0, len(all)-1).Draw(t, "from")
				n := rapid.IntRange(1, len(all)-from).Draw(t, "n")
				for _, m := range all[from : from+n] {
					m.Done()
				}
				tr.advance()
			},
			"": func(t *rapid.T) {
				want, waiting := last, 0
				for i, m := range all {
					if !m.IsDone() {
						waiting = len(all) - i
						break
					}
					want = m.Offset + 1
				}
				if tr.low != want || tr.low < last || len(tr.pending)-tr.head != waiting {
					t.Fatalf("low %d, want %d (was %d); waiting %d, want %d", tr.low, want, last, len(tr.pending)-tr.head, waiting)
				}
				for len(all) > 0 && all[0].IsDone() {
					all = all[1:]
				}
				last = tr.low
			},
		})
	})
}

// 4 ns a record (2 cores, load 8).
func BenchmarkTracker(b *testing.B) {
	const n = 10_000
	slab := make([]Msg, n)
	msgs := make([]*Msg, n)
	for i := range slab {
		msgs[i] = &slab[i]
		slab[i].done.Store(true)
	}
	tr := newTracker(0)
	for b.Loop() {
		tr.add(msgs)
		tr.advance()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
}
