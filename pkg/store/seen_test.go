package store_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const window = time.Minute

// shared is the filter of several processes: it can be emptied under them.
type shared struct{ now atomic.Pointer[memory.Filter] }

func (f *shared) Add(ctx context.Context, ids []uint64) error { return f.now.Load().Add(ctx, ids) }
func (f *shared) Incomplete(ctx context.Context) error        { return f.now.Load().Incomplete(ctx) }
func (f *shared) Seen(ctx context.Context, ids []uint64) ([]bool, time.Time, error) {
	return f.now.Load().Seen(ctx, ids)
}

func (f *shared) empty(t T) {
	next, err := memory.NewFilter(1000, window)
	if err != nil {
		t.Fatal(err)
	}
	f.now.Store(next)
}

// reads counts the keys that are read of a store.
type reads struct {
	engine.Status
	n int
}

func (r *reads) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	r.n += len(keys)
	return r.Status.Get(ctx, keys)
}

// rig is a worker's process over a store and a filter.
type rig struct {
	*store.Seen
	plan  *faulty.Plan
	store *reads
	heal  []func()
}

func (r *rig) fail(rule faulty.Rule) { r.heal = append(r.heal, r.plan.Add(rule)) }

func (r *rig) well() {
	for _, heal := range r.heal {
		heal()
	}
	r.heal = nil
}

// T is a test or a run of a model.
type T interface {
	Helper()
	Cleanup(func())
	Errorf(string, ...any)
	Fatal(...any)
}

// faultyFilter is a filter whose calls fail as a plan says.
type faultyFilter struct {
	store.Filter
	plan *faulty.Plan
}

func (w faultyFilter) Add(ctx context.Context, ids []uint64) error {
	return w.plan.Do(ctx, "Filter.Add", func() error { return w.Filter.Add(ctx, ids) })
}

func (w faultyFilter) Seen(ctx context.Context, ids []uint64) ([]bool, time.Time, error) {
	return faulty.Get2(ctx, w.plan, "Filter.Seen", func() ([]bool, time.Time, error) { return w.Filter.Seen(ctx, ids) })
}

func (w faultyFilter) Incomplete(ctx context.Context) error {
	return w.plan.Do(ctx, "Filter.Incomplete", func() error { return w.Filter.Incomplete(ctx) })
}

func start(t T, status engine.Status, f store.Filter) *rig {
	r := &rig{plan: faulty.NewPlan(1), store: &reads{Status: status}}
	r.Seen = store.NewSeen(r.store, faultyFilter{f, r.plan}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Errorf("%v", err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return r
}

func keyMade(at time.Time) notify.RowKey {
	return notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(at), Partition: 3, Block: 1}}
}

func claim(t T, r *rig, k notify.RowKey) {
	t.Helper()
	if err := r.Put(context.Background(), []notify.Row{{Key: k, Count: 1, StartedUpTo: 1}}); err != nil {
		t.Fatal(err)
	}
}

// look returns whether there is a row, and whether it was read to know.
func lookEach(t T, r *rig, k notify.RowKey) (found, read bool) {
	t.Helper()
	before := r.store.n
	rows, err := r.Get(context.Background(), []notify.RowKey{k})
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	return rows[0].Key == k, r.store.n > before
}

func want(t T, r *rig, what string, k notify.RowKey, found, read bool) {
	t.Helper()
	if f, rd := lookEach(t, r, k); f != found || rd != read {
		t.Errorf("%s: found %v, read %v; want %v, %v", what, f, rd, found, read)
	}
}

// bubble is two processes over one store and one filter, well after both began.
func bubble(t *testing.T, fn func(t *testing.T, a, b *rig, f *shared)) {
	synctest.Test(t, func(t *testing.T) {
		f := &shared{}
		f.empty(t)
		store := memory.New().Status()
		a, b := start(t, store, f), start(t, store, f)
		time.Sleep(10 * time.Second)
		fn(t, a, b, f)
	})
}

func TestWhatIsSurelyNewIsNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *rig, _ *shared) {
		k, old := keyMade(time.Now()), keyMade(time.Now().Add(-time.Minute))
		want(t, a, "new", k, false, false)
		want(t, a, "of before the filter", old, false, true)
		claim(t, a, k)
		want(t, a, "claimed here", k, true, true)
		want(t, b, "claimed by another", k, true, true)
		next := k
		next.Attempt++
		want(t, b, "its next attempt", next, false, false)
		receipt := notify.ReceiptKey(k, 0, 0, notify.Delivered)
		want(t, b, "a receipt", receipt, false, true)
		if s := a.Stats(); s.Believed != 1 || s.Read != 2 || s.Added != 1 || s.False != 0 {
			t.Errorf("%+v", s)
		}
		if rows, err := a.Get(context.Background(), nil); len(rows) != 0 || err != nil {
			t.Error(rows, err)
		}
	})
}

// The filter does not answer: rows are read, claims are made, and what it was
// not told of is read by everybody when it is back.
func TestFilterDown(t *testing.T) {
	for _, lost := range []faulty.Loss{faulty.NotApplied, faulty.Applied} {
		bubble(t, func(t *testing.T, a, b *rig, _ *shared) {
			a.fail(faulty.Rule{Method: "Filter.*", Err: faulty.ErrDown, Lost: lost})
			k := keyMade(time.Now())
			claim(t, a, k)
			want(t, a, "while it is away", k, true, true)
			if s := a.Stats(); !s.Off || s.Missed != 1 || s.Blind != 1 {
				t.Errorf("%+v", s)
			}
			time.Sleep(10 * time.Second)
			late := keyMade(time.Now())
			claim(t, a, late)
			a.well()
			time.Sleep(2 * time.Second)
			want(t, b, "claimed without it", k, true, true)
			want(t, b, "claimed without it later", late, true, true)
			time.Sleep(2 * time.Second)
			want(t, a, "new, and it is back", keyMade(time.Now()), false, false)
			if s := a.Stats(); s.Off {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A filter that was emptied knows that it knows nothing.
func TestFilterEmptied(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *rig, f *shared) {
		k, fast := keyMade(time.Now()), keyMade(time.Now().Add(900*time.Millisecond)) // whoever made it has a fast clock
		claim(t, a, k)
		claim(t, a, fast)
		f.empty(t)
		want(t, b, "claimed before", k, true, true)
		want(t, b, "claimed before", fast, true, true)
		time.Sleep(2 * time.Second)
		want(t, b, "new", keyMade(time.Now()), false, false)
	})
}

// A slow filter costs one timeout, not one a call.
func TestFilterSlow(t *testing.T) {
	bubble(t, func(t *testing.T, a, _ *rig, _ *shared) {
		a.fail(faulty.Rule{Method: "Filter.*", Hook: func(ctx context.Context, _ string) { <-ctx.Done() }, Err: errors.New("slow")})
		began := time.Now()
		for range 100 {
			k := keyMade(time.Now())
			claim(t, a, k)
			want(t, a, "claimed", k, true, true)
		}
		if d := time.Since(began); d > 250*time.Millisecond {
			t.Errorf("200 calls took %v", d)
		}
		a.well()
		time.Sleep(5 * time.Second)
		want(t, a, "new, and it is fast again", keyMade(time.Now()), false, false)
	})
}

// Whatever the filter does, Get answers as the store would.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			f := &shared{}
			f.empty(rt)
			store := memory.New().Status()
			rigs := []*rig{start(rt, store, f), start(rt, store, f)}
			var keys []notify.RowKey
			some := func(rt *rapid.T) *rig { return rapid.SampledFrom(rigs).Draw(rt, "process") }
			rt.Repeat(map[string]func(*rapid.T){
				"make": func(*rapid.T) { keys = append(keys, keyMade(time.Now())) },
				"claim": func(rt *rapid.T) {
					if len(keys) > 0 {
						claim(t, some(rt), rapid.SampledFrom(keys).Draw(rt, "key"))
					}
				},
				"fail": func(rt *rapid.T) {
					some(rt).fail(faulty.Rule{
						Method: rapid.SampledFrom([]string{"Filter.*", "Filter.Add", "Filter.Seen", "Filter.Incomplete"}).Draw(rt, "method"),
						Times:  rapid.IntRange(0, 3).Draw(rt, "times"), Err: faulty.ErrDown,
						Lost: rapid.SampledFrom([]faulty.Loss{faulty.Applied, faulty.NotApplied}).Draw(rt, "lost"),
					})
				},
				// Both come back: what one of them could not tell is told.
				"well": func(*rapid.T) {
					for _, r := range rigs {
						r.well()
					}
					time.Sleep(2 * time.Second)
				},
				"empty": func(rt *rapid.T) { f.empty(rt) },
				"pass":  func(rt *rapid.T) { time.Sleep(time.Duration(rapid.IntRange(0, 40).Draw(rt, "s")) * time.Second) },
				"": func(rt *rapid.T) {
					for _, r := range rigs {
						if rigs[0].Stats().Off || rigs[1].Stats().Off {
							return // until it has told what is missing, others may be wrong
						}
						want, _ := store.Get(context.Background(), keys)
						got, err := r.Get(context.Background(), keys)
						if err != nil {
							rt.Fatal(err)
						}
						for i := range want {
							if want[i].Key != got[i].Key {
								rt.Fatalf("key %d: %v, want %v", i, got[i].Key, want[i].Key)
							}
						}
					}
				},
			})
		})
	})
}

// A look-up that fails makes only the process that asked read rows, and that for a
// second: the filter still knows of every claim.
func TestFailedLookUpLeavesTheFilterComplete(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *rig, _ *shared) {
		a.fail(faulty.Rule{Method: "Filter.Seen", Err: faulty.ErrDown})
		k := keyMade(time.Now())
		want(t, a, "new, and the filter does not answer", k, false, true)
		if !a.Stats().Off {
			t.Error("the filter is asked again at once")
		}
		a.well()
		claimed := keyMade(time.Now())
		claim(t, a, claimed)
		if s := a.Stats(); s.Added != 1 || s.Missed != 0 {
			t.Errorf("%+v", s)
		}
		want(t, b, "new, for another process", k, false, false)
		want(t, b, "claimed", claimed, true, true)
		time.Sleep(2 * time.Second)
		want(t, a, "new, a second later", k, false, false)
	})
}

// slowPuts is a store whose answers take a while, as all answers do for a process that
// gets little processor time.
type slowPuts struct {
	engine.Status
	after time.Duration
}

func (s slowPuts) Put(ctx context.Context, rows []notify.Row) error {
	time.Sleep(s.after) // of the bubble
	return s.Status.Put(ctx, rows)
}

// A claim waits for the filter as long as for the store, and a little longer.
func TestSlowProcessTellsTheFilter(t *testing.T) {
	for _, is := range []struct {
		filter time.Duration
		added  uint64
	}{{time.Second, 1}, {1249 * time.Millisecond, 1}, {1251 * time.Millisecond, 0}} {
		bubble(t, func(t *testing.T, _, _ *rig, f *shared) {
			a := start(t, slowPuts{memory.New().Status(), time.Second}, f)
			a.fail(faulty.Rule{Method: "Filter.Add", Hook: func(ctx context.Context, _ string) { notify.Sleep(ctx, is.filter) }})
			began := time.Now()
			claim(t, a, keyMade(time.Now()))
			if s, d := a.Stats(), time.Since(began); s.Added != is.added || d > 1250*time.Millisecond {
				t.Errorf("a filter that answers after %v: %+v after %v", is.filter, s, d)
			}
		})
	}
}
