package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// logModel is the log and the answers that follow from it.
type logModel struct {
	recs  [3][]Record
	ids   map[notify.ID]string // receiver by id
	bases []notify.Base
	users int
}

func newModel(users int) *logModel { return &logModel{ids: map[notify.ID]string{}, users: users} }

// write appends a random record to the log of a partition.
func (m *logModel) write(r *rand.Rand) Record {
	p := r.IntN(3)
	off := int64(len(m.recs[p]))
	var rec Record
	switch kind := r.IntN(20); {
	case kind == 0:
		rec = Record{Topic: topic, Partition: int32(p), Offset: off, Value: []byte("junk"), Time: now}
	case kind == 1 && off > 0: // the same chunk again
		rec = m.recs[p][r.IntN(int(off))]
		rec.Offset = off
	default:
		n := 1 + r.IntN(6)
		if kind < 8 {
			n = 1
		}
		base := baseAt(now+int64(r.IntN(50)), r.Uint64())
		if len(m.bases) > 0 && kind > 15 { // another chunk of a request
			base = m.bases[r.IntN(len(m.bases))]
		}
		block := uint32(off)
		var rs []receiver
		for i := range n {
			rs = append(rs, receiver{uint32(p) + 3*(block*10+uint32(i)), fmt.Sprint("u", r.IntN(m.users))})
		}
		e := envelope(base, uint16(p), block, "c", rs...)
		if kind == 2 {
			e.Attempt = 1
		} else {
			for _, x := range rs {
				m.ids[e.ID(x.index)] = x.user
			}
			m.bases = append(m.bases, base)
		}
		rec = record(int32(p), off, e)
		rec.Time = now
	}
	m.recs[p] = append(m.recs[p], rec)
	return rec
}

// check compares everything a store answers with the log.
func (m *logModel) check(s *Store, limit int) error {
	ctx := context.Background()
	want := map[string][]notify.ID{}
	perBase := map[notify.Base]int{}
	for id, user := range m.ids {
		want[user] = append(want[user], id)
		perBase[id.Base]++
		f, err := s.Find(ctx, id)
		if err != nil || string(f.User) != user {
			return fmt.Errorf("find %v: %q, %w; want %s", id, f.User, err, user)
		}
	}
	for u := range m.users {
		user := fmt.Sprint("u", u)
		ids := want[user]
		slices.SortFunc(ids, func(a, b notify.ID) int {
			if c := bytes.Compare(b.Base[:], a.Base[:]); c != 0 {
				return c
			}
			return int(b.Index) - int(a.Index)
		})
		var got []notify.ID
		for cur := engine.HistoryCursor(nil); ; {
			page, next, err := s.User(ctx, engine.HistoryQuery{User: user, Limit: limit, Before: cur})
			if err != nil {
				return err
			}
			for _, f := range page {
				got = append(got, f.ID)
			}
			if cur = next; cur == nil {
				break
			}
		}
		if !slices.Equal(got, ids) {
			return fmt.Errorf("%s: %d ids, want %d\n%v\n%v", user, len(got), len(ids), got, ids)
		}
	}
	for base, n := range perBase {
		got := 0
		err := s.Each(ctx, base, func(f *engine.Found) error {
			if m.ids[f.ID] != string(f.User) {
				return fmt.Errorf("each gave %v to %s, not %s", f.ID, f.User, m.ids[f.ID])
			}
			got++
			return nil
		})
		if err != nil || got != n {
			return fmt.Errorf("each of %v: %d of %d, %w", base, got, n, err)
		}
	}
	if d := s.Damaged(); d != nil {
		return fmt.Errorf("damaged: %v", d)
	}
	return nil
}

// feed gives a store the log from where it resumes.
func (m *logModel) feed(s *Store) error {
	resume := s.Resume()
	for p, recs := range m.recs {
		if err := s.Append(context.Background(), recs[min(resume[Part{topic, int32(p)}], int64(len(recs))):]...); err != nil {
			return err
		}
	}
	return nil
}

func runStore(cfg Config) (*Store, func() error, error) {
	s, err := Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, s.Close())
	}), nil
}

func TestAgainstMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := rng(rapid.Uint64().Draw(rt, "seed"))
		cfg := Config{
			Dir: "/h", FS: newMem(), MergeCount: 3,
			SegmentReceivers: rapid.IntRange(1, 30).Draw(rt, "receivers"),
			BufferBytes:      rapid.SampledFrom([]int{1, 300, 1 << 20}).Draw(rt, "buffer"),
		}
		m := newModel(5)
		s, stop, err := runStore(cfg)
		must(t, err)
		defer func() { stop() }()
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(rt, "n") {
					must(t, s.Append(t.Context(), m.write(r)))
				}
			},
			"seal": func(*rapid.T) { sealNow(t, s) },
			"merge": func(*rapid.T) {
				sealNow(t, s)
				_, err := s.mergeOnce(t.Context())
				must(t, err)
			},
			"restart": func(*rapid.T) {
				must(t, stop())
				s, stop, err = runStore(cfg)
				must(t, err)
				must(t, m.feed(s))
			},
			"": func(rt *rapid.T) {
				if err := m.check(s, rapid.IntRange(1, 5).Draw(rt, "limit")); err != nil {
					rt.Fatal(err)
				}
			},
		})
	})
}

// Readers see everything appended before, whatever is sealed and merged under
// them.
func TestConcurrentReaders(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir(), SegmentReceivers: 20, BufferBytes: 500, MergeCount: 3})
	const n = 600
	progress := make(chan int, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for top := range progress {
				id := notify.ID{Base: baseAt(now, uint64(top/2)), Index: 1, FanOut: true}
				if f, err := s.Find(ctx, id); err != nil || string(f.User) != fmt.Sprint("u", top/2) {
					t.Errorf("%v: %q %v", id, f.User, err)
				}
				var cur engine.HistoryCursor
				got := 0
				for {
					page, next, err := s.User(ctx, engine.HistoryQuery{User: "ann", Limit: 100, Before: cur})
					if err != nil {
						t.Error(err)
						return
					}
					got += len(page)
					if cur = next; cur == nil {
						break
					}
				}
				if got <= top {
					t.Errorf("%d of at least %d", got, top+1)
				}
			}
		})
	}
	for i := range n {
		must(t, s.Append(ctx, record(0, int64(i), envelope(baseAt(now, uint64(i)), 0, 0, "c", receiver{0, "ann"}, receiver{1, fmt.Sprint("u", i)}))))
		if i%10 == 0 {
			progress <- i
		}
		if i%40 == 0 {
			_, err := s.mergeOnce(ctx)
			must(t, err)
		}
	}
	close(progress)
	wg.Wait()
}

// Whatever a file holds, reading it ends without a panic.
func FuzzSegment(f *testing.F) {
	mem := newMem()
	s, stop, err := runStore(Config{Dir: "/h", FS: mem})
	must(f, err)
	var rs []receiver
	for i := range 40 {
		rs = append(rs, receiver{uint32(i), fmt.Sprint("u", i%7)})
	}
	id := notify.ID{Base: baseAt(now, 1), Index: 3, FanOut: true}
	must(f, s.Append(f.Context(), record(0, 0, envelope(id.Base, 0, 0, "c", rs...)), record(0, 1, envelope(baseAt(now, 2), 0, 0, "c", rs[:2]...))))
	sealNow(f, s)
	must(f, stop())
	names, err := mem.List("/h")
	must(f, err)
	if len(names) != 1 {
		f.Fatal(names)
	}
	whole, err := mem.fs.UnsafeGetFileDataBuffer("/h/" + names[0])
	must(f, err)
	whole = slices.Clone(whole)
	f.Add(whole, 0, []byte{})
	f.Add(whole, len(whole)/2, []byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte, at int, patch []byte) {
		b = slices.Clone(b)
		if at >= 0 && at < len(b) {
			copy(b[at:], patch)
		}
		mem := newMem()
		must(t, mem.MkdirAll("/h"))
		file, err := mem.Create("/h/" + names[0])
		must(t, err)
		_, err = file.WriteAt(b, 0)
		must(t, err)
		file.Close()
		s, err := Open(Config{Dir: "/h", FS: mem})
		must(t, err)
		defer s.Close()
		s.Find(t.Context(), id)
		s.User(t.Context(), engine.HistoryQuery{User: "u3", Limit: 10})
		s.Each(t.Context(), id.Base, func(*engine.Found) error { return nil })
		s.Verify(t.Context())
		s.mergeOnce(t.Context())
	})
}
