package history

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// listed is a receiver as the model knows it.
type listed struct {
	base         notify.Base
	first, index uint32
	caller       string
}

func compareListed(a, b listed) int {
	if c := bytes.Compare(b.base[:], a.base[:]); c != 0 {
		return c
	}
	if a.first != b.first {
		return int(a.first) - int(b.first)
	}
	return int(a.index) - int(b.index)
}

// TestListAgainstFilter lists random requests page by page, while segments are sealed,
// merged and read again after a restart, and compares with a filter over all that was
// appended. Bounds are small, so that pages end for each of them.
func TestListAgainstFilter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := rng(rapid.Uint64().Draw(rt, "seed"))
		cfg := Config{Dir: "/h", FS: newMem(), MergeCount: 2, SegmentReceivers: rapid.IntRange(1, 30).Draw(rt, "segment"), BufferBytes: 300}
		s, stop, err := runStore(cfg)
		must(t, err)
		defer func() { stop() }()
		var log [2][]Record
		var all []listed
		write := func(ms int64) {
			part := int32(r.IntN(2))
			recs := log[part]
			rec := Record{}
			if len(recs) > 0 && r.IntN(6) == 0 { // a copy of an earlier chunk
				rec = recs[r.IntN(len(recs))]
				rec.Offset = int64(len(recs))
			} else {
				// Scheduled ones come to the log long after their request; requests of
				// one time and chunks of one request follow each other.
				base := baseAt(ms, uint64(r.IntN(4)))
				block := uint32(len(recs))
				caller := []string{"shop", "bank"}[r.IntN(2)]
				var rs []receiver
				for i := range 1 + r.IntN(5) {
					rs = append(rs, receiver{uint32(part)*1000 + block*10 + uint32(2*i), fmt.Sprint("u", i)})
				}
				for _, x := range rs {
					all = append(all, listed{base, rs[0].index, x.index, caller})
				}
				rec = record(part, int64(len(recs)), envelope(base, uint16(part), block, caller, rs...))
			}
			rec.Time = now
			log[part] = append(recs, rec)
			must(t, s.Append(t.Context(), rec))
		}
		for range rapid.IntRange(0, 40).Draw(rt, "before") {
			write(now + int64(r.IntN(20)))
			if r.IntN(8) == 0 {
				sealNow(t, s)
			}
		}
		want := slices.Clone(all)
		q := engine.ListQuery{
			Since: rapid.SampledFrom([]int64{0, now + 3}).Draw(rt, "since"),
			Until: rapid.SampledFrom([]int64{0, now + 15}).Draw(rt, "until"),
		}
		caller := rapid.SampledFrom([]string{"", "shop"}).Draw(rt, "caller")
		limit := rapid.IntRange(1, 5).Draw(rt, "limit")
		most := listBounds{
			chunks: rapid.IntRange(1, 5).Draw(rt, "chunks"), receivers: rapid.IntRange(1, 7).Draw(rt, "receivers"),
			bytes: rapid.SampledFrom([]int64{1, 300, 1 << 20}).Draw(rt, "bytes"), rows: 1 << 20,
		}
		var got []listed
		for pages := 0; ; pages++ {
			if pages > 3*len(want)+50 {
				rt.Fatalf("%d pages of %d receivers", pages, len(want))
			}
			s.listBounds = most
			n, bodies := 0, 0
			q.Want = func(e *notify.Envelope) bool { bodies++; return caller == "" || e.Caller == caller }
			next, err := s.List(t.Context(), q, func(f *engine.Found) (bool, error) {
				if n == limit {
					return false, nil
				}
				n++
				first, _ := indexBounds(f.Envelope.Receivers)
				got = append(got, listed{f.ID.Base, first, f.ID.Index, f.Envelope.Caller})
				if rd, ok := receiverAt(f.Envelope.Receivers, f.Pos); !ok || rd.Index != f.ID.Index || !bytes.Equal(rd.User, f.User) {
					rt.Errorf("%v: not at position %d", f.ID, f.Pos)
				}
				return true, nil
			})
			must(t, err)
			if bodies > most.chunks || most.bytes == 1 && bodies > 1 || n > most.receivers {
				rt.Fatalf("one page read %d bodies and %d receivers of %+v", bodies, n, most)
			}
			if next == nil {
				break
			}
			q.After = next
			switch r.IntN(6) {
			case 0:
				sealNow(t, s)
			case 1:
				sealNow(t, s)
				_, err := s.mergeOnce(t.Context())
				must(t, err)
			case 2: // what comes now is before the page
				write(now + 100)
			case 3:
				must(t, stop())
				s, stop, err = runStore(cfg)
				must(t, err)
				for p, recs := range log {
					must(t, s.Append(context.Background(), recs[min(s.Resume()[Part{topic, int32(p)}], int64(len(recs))):]...))
				}
			}
		}
		slices.SortFunc(want, compareListed)
		want = slices.DeleteFunc(want, func(x listed) bool {
			ms := x.base.Time().UnixMilli()
			return ms < q.Since || q.Until != 0 && ms >= q.Until || caller != "" && x.caller != caller
		})
		if !slices.Equal(got, want) {
			rt.Fatalf("listed %d, want %d\n%v\n%v", len(got), len(want), got, want)
		}
	})
}

// TestListBounds reads no more rows of sealed segments than one call may, whatever the
// cursor, and waits where others read.
func TestListBounds(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir(), MergeCount: 100})
	for i := range int64(6) {
		// The last one was scheduled before all others: its segment reaches far back.
		must(t, s.Append(t.Context(), record(0, i, envelope(baseAt(now+i%5, uint64(i)), 0, uint32(i), "c", receiver{0, "ann"}))))
		sealNow(t, s)
	}
	s.listBounds.rows, s.listBounds.chunks = 3, 2
	all := func(*engine.Found) (bool, error) { return true, nil }
	next, err := s.List(t.Context(), engine.ListQuery{}, all)
	if err != nil || next == nil {
		t.Fatalf("%v, %v: two of six lie in the newest segments", next, err)
	}
	s.listBounds.chunks = 4
	if _, err := s.List(t.Context(), engine.ListQuery{}, all); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("%v: four chunks need more than three rows", err)
	}
	if _, err := s.List(t.Context(), engine.ListQuery{Since: now + 4}, all); err != nil {
		t.Errorf("%v: what is asked for is in one segment", err)
	}
	s.listBounds = defaultListBounds
	for _, c := range []engine.HistoryCursor{{1}, make([]byte, listCursor)} {
		if _, err := s.List(t.Context(), engine.ListQuery{After: c}, all); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("cursor %v: %v", c, err)
		}
	}
	for range maxLists {
		s.listTokens <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.List(ctx, engine.ListQuery{}, all); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("%v while others read", err)
	}
}

// TestListPassesDamage lists a chunk from its second copy when the first is damaged.
func TestListPassesDamage(t *testing.T) {
	t.Parallel()
	mem := newMem()
	s, _ := open(t, Config{Dir: "/h", FS: mem, MergeCount: 100})
	e := envelope(baseAt(now, 1), 0, 0, "c", receiver{0, "ann"}, receiver{1, "bob"})
	for i := range int64(2) {
		must(t, s.Append(t.Context(), record(0, i, e)))
		sealNow(t, s)
	}
	names, err := mem.List("/h")
	must(t, err)
	for _, name := range names {
		if num, ok := segmentNumber(name); ok && num == s.view.segs[0].meta.Num {
			b, err := mem.fs.UnsafeGetFileDataBuffer("/h/" + name)
			must(t, err)
			b[len(fileHeader)+recordHeader] ^= 1
		}
	}
	var got []string
	_, err = s.List(t.Context(), engine.ListQuery{}, func(f *engine.Found) (bool, error) {
		got = append(got, string(f.User))
		return true, nil
	})
	must(t, err)
	if !slices.Equal(got, []string{"ann", "bob"}) || s.Damaged() == nil {
		t.Errorf("listed %v, damaged %v", got, s.Damaged())
	}
}
