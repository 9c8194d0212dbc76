package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func users(t *testing.T, s *Store, user string, limit int) (ids []string) {
	t.Helper()
	var cur engine.HistoryCursor
	for {
		page, next, err := s.User(t.Context(), engine.HistoryQuery{User: user, Before: cur, Limit: limit})
		must(t, err)
		for _, f := range page {
			if string(f.User) != user {
				t.Fatalf("listing of %s holds %s", user, f.User)
			}
			ids = append(ids, f.ID.String())
		}
		if next == nil {
			return ids
		}
		cur = next
	}
}

func TestFindInTailAndSegment(t *testing.T) {
	t.Parallel()
	s, stop := open(t, Config{Dir: t.TempDir(), BufferBytes: 1})
	fan := envelope(baseAt(now, 1), 3, 0, "c", receiver{0, "ann"}, receiver{2, "bob"}, receiver{7, "cid"})
	single := envelope(baseAt(now, 2), 3, 0, "c", receiver{0, "ann"})
	single.FanOut = false
	derived := envelope(baseAt(now, 3), 3, 0, "c", receiver{0, "ann"})
	derived.Attempt = 1
	must(t, s.Append(t.Context(), record(3, 10, fan), record(3, 11, single), record(3, 12, derived)))
	must(t, s.Append(t.Context(), Record{Topic: topic, Partition: 3, Offset: 13, Value: []byte("junk")}))
	cut := envelope(baseAt(now, 4), 3, 0, "c", receiver{0, "ann"}, receiver{1, "bob"})
	cut.Receivers = cut.Receivers[:len(cut.Receivers)-1]
	must(t, s.Append(t.Context(), record(3, 14, cut)))
	if at := s.partOf(Part{Topic: topic, Partition: 3}).appendedTo.Load(); at != 15 {
		t.Errorf("behind two records nobody can read comes %d", at)
	}
	// Fed again: skipped.
	must(t, s.Append(t.Context(), record(3, 10, fan)))

	check := func(s *Store) {
		t.Helper()
		f, err := s.Find(t.Context(), notify.ID{Base: baseAt(now, 1), Index: 2, FanOut: true})
		must(t, err)
		if string(f.User) != "bob" || f.Pos != 1 || f.Offset != 10 || f.LogPart != 3 || f.Topic != topic || f.Envelope.Count != 3 {
			t.Fatalf("found %+v", f)
		}
		if f, err = s.Find(t.Context(), notify.ID{Base: baseAt(now, 2)}); err != nil || string(f.User) != "ann" || f.Offset != 11 {
			t.Fatalf("found %+v, %v", f, err)
		}
		for _, id := range []notify.ID{
			{Base: baseAt(now, 1), Index: 1, FanOut: true}, // a rejected item
			{Base: baseAt(now, 1)},                         // the request, not a receiver
			{Base: baseAt(now, 2), FanOut: true},           // a single has no index
			{Base: baseAt(now, 3), FanOut: true},           // derived
			{Base: baseAt(now, 9), FanOut: true},
		} {
			if _, err := s.Find(t.Context(), id); notify.KindOf(err) != notify.KindNotFound {
				t.Fatalf("%v: %v", id, err)
			}
		}
		want := []string{notify.ID{Base: baseAt(now, 2)}.String(), notify.ID{Base: baseAt(now, 1), FanOut: true}.String()}
		if got := users(t, s, "ann", 10); !slices.Equal(got, want) {
			t.Fatalf("ann got %v, not %v", got, want)
		}
		var each []string
		must(t, s.Each(t.Context(), baseAt(now, 1), func(f *engine.Found) error {
			each = append(each, fmt.Sprintf("%d:%d:%s", f.ID.Index, f.Pos, f.User))
			return nil
		}))
		if got := strings.Join(each, " "); got != "0:0:ann 2:1:bob 7:2:cid" {
			t.Fatalf("each gave %s", got)
		}
		boom := errors.New("boom")
		if err := s.Each(t.Context(), baseAt(now, 1), func(*engine.Found) error { return boom }); !errors.Is(err, boom) {
			t.Fatalf("each returned %v", err)
		}
	}
	check(s)
	if off := s.Sealed()[Part{topic, 3}]; off != 0 {
		t.Fatalf("sealed %d before anything was", off)
	}
	sealNow(t, s)
	check(s)
	if off := s.Sealed()[Part{topic, 3}]; off != 15 {
		t.Fatalf("sealed up to %d, not 15", off)
	}
	stop()
	again, _ := open(t, Config{Dir: s.cfg.Dir})
	check(again)
	if off := again.Resume()[Part{topic, 3}]; off != 15 {
		t.Fatalf("resumes at %d, not 15", off)
	}
}

func TestSmallSegmentIsSmall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	e := envelope(baseAt(now, 1), 0, 0, "c", receiver{0, "ann"})
	must(t, s.Append(t.Context(), record(0, 0, e)))
	sealNow(t, s)
	files := segFiles(t, dir)
	if len(files) != 1 {
		t.Fatal(files)
	}
	if n := fileSize(t, files[0]); n > 1024 {
		t.Fatalf("a segment of one receiver takes %d bytes", n)
	}
}

func TestBarrierMakesAMissWait(t *testing.T) {
	t.Parallel()
	tp := Part{topic, 0}
	asked := make(chan struct{})
	s, _ := open(t, Config{Dir: t.TempDir(), MaxWait: time.Minute, Barrier: func(context.Context) (map[Part]int64, error) {
		close(asked)
		return map[Part]int64{tp: 6}, nil
	}})
	go func() {
		<-asked // the miss has happened
		s.Append(context.Background(), record(0, 5, envelope(baseAt(now, 1), 0, 0, "c", receiver{0, "ann"})))
	}()
	f, err := s.Find(t.Context(), notify.ID{Base: baseAt(now, 1), FanOut: true})
	if err != nil || string(f.User) != "ann" {
		t.Fatalf("found %v, %v", f, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Sync(ctx, map[Part]int64{tp: 7}); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("an offset that never comes: %v", err)
	}
	s.Advance(tp, 7)
	must(t, s.Sync(t.Context(), map[Part]int64{tp: 7, {topic, 9}: 0}))
}

// A reader that is behind, or a log that does not say where it ends, is not
// waited for beyond MaxWait.
func TestTheBarrierHasATimeLimit(t *testing.T) {
	t.Parallel()
	tp := Part{topic, 0}
	for name, barrier := range map[string]func(context.Context) (map[Part]int64, error){
		"behind": func(context.Context) (map[Part]int64, error) { return map[Part]int64{tp: 6}, nil },
		"silent": func(ctx context.Context) (map[Part]int64, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		s, _ := open(t, Config{Dir: t.TempDir(), Barrier: barrier, MaxWait: time.Millisecond})
		_, err := s.Find(t.Context(), notify.ID{Base: baseAt(now, 1)})
		if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) <= 0 {
			t.Errorf("%s: Find: %v", name, err)
		}
		err = s.Each(t.Context(), baseAt(now, 1), func(*engine.Found) error { return nil })
		if notify.KindOf(err) != notify.KindUnavailable || notify.RetryAfterOf(err) <= 0 {
			t.Errorf("%s: Each: %v", name, err)
		}
	}
}

func TestPagesWithEqualTimes(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir(), SegmentReceivers: 7})
	var want []string
	r := rng(1)
	off := [3]int64{}
	for i := range 200 {
		base := baseAt(now+int64(i/40), uint64(i)) // 40 requests a millisecond
		var rs []receiver
		for x := range 1 + r.IntN(3) {
			rs = append(rs, receiver{uint32(2 * x), "ann"}, receiver{uint32(2*x + 1), fmt.Sprint(i)})
			want = append(want, notify.ID{Base: base, Index: uint32(2 * x), FanOut: true}.String())
		}
		p := int32(r.IntN(3))
		must(t, s.Append(t.Context(), record(p, off[p], envelope(base, uint16(p), 0, "c", rs...))))
		off[p]++
		if i%10 == 0 { // a repeated request: the same chunk once more
			must(t, s.Append(t.Context(), record(p, off[p], envelope(base, uint16(p), 0, "c", rs...))))
			off[p]++
		}
	}
	slices.SortFunc(want, func(a, b string) int {
		x, _ := notify.ParseID(a)
		y, _ := notify.ParseID(b)
		if c := strings.Compare(y.Base.String(), x.Base.String()); c != 0 {
			return c
		}
		return int(y.Index) - int(x.Index)
	})
	for _, limit := range []int{1, 3, 7, 1000} {
		if got := users(t, s, "ann", limit); !slices.Equal(got, want) {
			t.Fatalf("pages of %d: %d ids, want %d", limit, len(got), len(want))
		}
	}
	_, cur, err := s.User(t.Context(), engine.HistoryQuery{User: "ann", Limit: 1})
	must(t, err)
	if _, _, err := s.User(t.Context(), engine.HistoryQuery{User: "bob", Limit: 1, Before: cur}); notify.KindOf(err) != notify.KindInvalid {
		t.Fatalf("another user's cursor: %v", err)
	}
	if _, _, err := s.User(t.Context(), engine.HistoryQuery{User: "bob", Limit: 1001}); notify.KindOf(err) != notify.KindInvalid {
		t.Fatalf("limit: %v", err)
	}
	none, cur, err := s.User(t.Context(), engine.HistoryQuery{User: "ann", Caller: "other", Limit: 5})
	if err != nil || len(none) != 0 || cur != nil {
		t.Fatalf("another caller sees %d, %v, %v", len(none), cur, err)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, stop := open(t, Config{Dir: dir})
	old := baseAt(now-2*time.Hour.Milliseconds(), 1)
	must(t, s.Append(t.Context(), record(0, 4, envelope(old, 0, 0, "c", receiver{0, "ann"}))))
	sealNow(t, s)
	stop()
	s, err := Open(Config{Dir: dir, Retention: time.Hour}) // nothing runs: expire is called here
	must(t, err)
	must(t, s.Append(t.Context(), record(0, 5, envelope(baseAt(now, 2), 0, 0, "c", receiver{0, "ann"}))))
	if got := users(t, s, "ann", 5); len(got) != 2 {
		t.Fatalf("%v", got)
	}
	behind := time.Now().Add(-24 * time.Hour)
	s.cfg.RemovalTime = func(context.Context) (time.Time, error) { return behind, nil }
	must(t, s.expireNow(t.Context()))
	if got := users(t, s, "ann", 5); len(got) != 2 {
		t.Fatalf("removed by the clock, not by the time that removal goes by: %v", got)
	}
	behind = time.Now()
	must(t, s.expireNow(t.Context()))
	if got := users(t, s, "ann", 5); len(got) != 1 {
		t.Fatalf("%v", got)
	}
	if n := len(segFiles(t, dir)); n != 0 {
		t.Fatalf("%d files are left", n)
	}
	if _, err := s.Find(t.Context(), notify.ID{Base: old, FanOut: true}); notify.KindOf(err) != notify.KindGone {
		t.Fatalf("past retention: %v", err)
	}
	if _, err := s.Find(t.Context(), notify.ID{Base: baseAt(now, 9), FanOut: true}); notify.KindOf(err) != notify.KindNotFound {
		t.Fatalf("never there: %v", err)
	}
	must(t, s.Close())
	again, _ := open(t, Config{Dir: dir, Retention: time.Hour})
	if off := again.Resume()[Part{topic, 0}]; off != 5 {
		t.Fatalf("the sealed offset went with its segment: resumes at %d", off)
	}
}

func TestAgeSealsQuietPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(Config{Dir: "/h", FS: newMem(), SegmentAge: time.Minute})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		must(t, s.Append(ctx, record(0, 0, envelope(baseAt(now, 1), 0, 0, "c", receiver{0, "ann"}))))
		derived := envelope(baseAt(now, 2), 1, 0, "c", receiver{0, "ann"})
		derived.Deferrals = 1
		must(t, s.Append(ctx, record(1, 0, derived)))
		<-time.After(30 * time.Second)
		if got := s.Sealed(); got[Part{topic, 0}] != 0 || got[Part{topic, 1}] != 0 {
			t.Errorf("sealed too early: %v", got)
		}
		<-time.After(2 * time.Minute)
		if got := s.Sealed(); got[Part{topic, 0}] != 1 || got[Part{topic, 1}] != 1 {
			t.Errorf("not sealed: %v", got)
		}
		cancel()
		must(t, <-done)
		s.Close()
		// Only the derived record moved partition 1: the offset is kept.
		again, err := Open(s.cfg)
		must(t, err)
		if got := again.Resume(); got[Part{topic, 0}] != 1 || got[Part{topic, 1}] != 1 {
			t.Errorf("after a start: %v", got)
		}
		again.Close()
	})
}

func TestMerge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, stop := open(t, Config{Dir: dir, MergeCount: 4})
	var offs [3]int64
	for i := range 12 {
		for p := range int32(3) {
			must(t, s.Append(t.Context(), record(p, offs[p], envelope(baseAt(now+int64(i), uint64(p)), uint16(p), 0, "c",
				receiver{0, "ann"}, receiver{1, fmt.Sprintf("u%d-%d", i, p)}))))
			offs[p]++
		}
		sealNow(t, s)
	}
	before := users(t, s, "ann", 7)
	v := s.acquireView() // a reader that began before the merge
	for {
		merged, err := s.mergeOnce(t.Context())
		must(t, err)
		if !merged {
			break
		}
	}
	if n := len(segFiles(t, dir)); n > 6 {
		t.Fatalf("%d files after merging 36", n)
	}
	for _, seg := range v.segs {
		var r row
		must(t, seg.row(0, &r))
		_, err := seg.body(&r)
		must(t, err)
	}
	v.release()
	check := func(s *Store) {
		t.Helper()
		if got := users(t, s, "ann", 7); !slices.Equal(got, before) || len(got) != 36 {
			t.Fatalf("the merge changed the listing: %d of %d", len(got), len(before))
		}
		f, err := s.Find(t.Context(), notify.ID{Base: baseAt(now+5, 2), Index: 1, FanOut: true})
		if err != nil || string(f.User) != "u5-2" || f.LogPart != 2 || f.Offset != 5 {
			t.Fatalf("found %+v, %v", f, err)
		}
		for p := range int32(3) {
			if off := s.Sealed()[Part{topic, p}]; off != 12 {
				t.Fatalf("partition %d sealed up to %d", p, off)
			}
		}
		must(t, s.Verify(t.Context()))
		if d := s.Damaged(); d != nil {
			t.Fatal(d)
		}
	}
	check(s)
	stop()
	again, _ := open(t, Config{Dir: dir})
	check(again)
}

func TestDamageIsReportedByName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, stop := open(t, Config{Dir: dir})
	must(t, s.Append(t.Context(), record(0, 0, envelope(baseAt(now, 1), 0, 0, "c", receiver{0, "ann"}))))
	sealNow(t, s)
	must(t, s.Append(t.Context(), record(0, 1, envelope(baseAt(now, 2), 0, 0, "c", receiver{0, "bob"}))))
	sealNow(t, s)
	stop()
	files := segFiles(t, dir)
	whole, err := os.ReadFile(files[0])
	must(t, err)

	id := notify.ID{Base: baseAt(now, 1), FanOut: true}
	damage := func(name string, b []byte) {
		t.Helper()
		must(t, os.WriteFile(files[0], b, 0o644))
		s, err := Open(Config{Dir: dir})
		must(t, err)
		defer s.Close()
		must(t, s.Verify(t.Context())) // as Run does at its start
		f, ferr := s.Find(t.Context(), id)
		d := s.Damaged()
		if ferr == nil && string(f.User) != "ann" {
			t.Errorf("%s: found %q", name, f.User)
		}
		if ferr != nil && notify.KindOf(ferr) != notify.KindInternal {
			t.Errorf("%s: the answer hides the damage: %v", name, ferr)
		}
		if len(d) != 1 || !strings.HasSuffix(files[0], d[0].File) {
			t.Errorf("%s: damaged %v", name, d)
		}
		if f, err := s.Find(t.Context(), notify.ID{Base: baseAt(now, 2), FanOut: true}); err != nil || string(f.User) != "bob" {
			t.Errorf("%s: the other segment: %v", name, err)
		}
	}
	for n := 0; n < len(whole); n += 7 {
		damage(fmt.Sprintf("cut at %d", n), whole[:n])
	}
	for i := range whole {
		b := slices.Clone(whole)
		b[i] ^= 0x20
		damage(fmt.Sprintf("byte %d of %d", i, len(whole)), b)
	}
}

// TestCorruptChangesNothing checks that an unreadable chunk leaves no file behind.
func TestCorruptChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	cut := envelope(baseAt(now, 4), 3, 0, "c", receiver{0, "ann"}, receiver{1, "bob"})
	cut.Receivers = cut.Receivers[:len(cut.Receivers)-1]
	many := envelope(baseAt(now, 5), 3, 0, "c", receiver{0, "ann"})
	many.Count = 1 << 31
	must(t, s.Append(t.Context(), record(3, 10, cut), record(3, 11, many)))
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) > 1 { // its lock, or none
		t.Errorf("%v, %v", files, err)
	}
	if at := s.partOf(Part{Topic: topic, Partition: 3}).appendedTo.Load(); at != 12 {
		t.Errorf("behind them comes %d", at)
	}
}
