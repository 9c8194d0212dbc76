package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

// TestOneProcessFindsOutForAll: what all processes together ask for a figure does not grow
// with their number, all know it, and another finds it out when the finder is cut off.
func TestOneProcessFindsOutForAll(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{2, 20} {
		synctest.Test(t, func(t *testing.T) {
			beats, lease := memory.NewHeartbeats(), memory.NewLease()
			ctx, stop := context.WithCancel(t.Context())
			var asked atomic.Int64
			var finder atomic.Int32
			knows := make([]atomic.Int64, processes)
			plans := make([]*faulty.Plan, processes)
			done := make(chan struct{}, 2*processes)
			for i := range processes {
				plans[i] = faulty.NewPlan(1)
				f := &Figure[int64]{Beats: beats, Lease: faulty.NewLease(lease, plans[i]), Owner: fmt.Sprint("p", i), Name: "lag", Log: slog.New(slog.DiscardHandler)}
				find := f.Find(2*time.Second, func(context.Context) (int64, error) {
					finder.Store(int32(i))
					return asked.Add(1), nil
				})
				for _, part := range []func(context.Context) error{find, f.Follow(knows[i].Store)} {
					go func() {
						defer func() { done <- struct{}{} }()
						if err := part(ctx); err != nil {
							t.Error(err)
						}
					}()
				}
			}
			settle := func(what string) {
				t.Helper()
				before := asked.Load()
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := asked.Load() - before; n < 29 || n > 31 {
					t.Errorf("%d processes, %s: asked %d times in a minute, want 30", processes, what, n)
				}
				for i := range knows {
					if behind := asked.Load() - knows[i].Load(); behind > 2 {
						t.Errorf("%d processes, %s: p%d is %d values behind", processes, what, i, behind)
					}
				}
			}
			settle("at rest")
			first := finder.Load()
			plans[first].Add(faulty.Rule{Method: "*", Err: faulty.ErrDown})
			time.Sleep(aloneTTL + 2*aloneRenew)
			settle("after the finder has lost the lease")
			if finder.Load() == first {
				t.Error("one finds out that has lost the lease")
			}
			stop()
			for range 2 * processes {
				<-done
			}
		})
	}
}

// TestTheLatestFigureCounts: a finder that was paused and beats still does not hide what its
// successor told.
func TestTheLatestFigureCounts(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			f := &Figure[int]{Beats: memory.NewHeartbeats(), Name: "lag"}
			for i, owner := range names {
				if _, err := f.Beats.Beat(t.Context(), f.groupName(), owner, fmt.Sprint(i), figureTTL); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
			ctx, stop := context.WithCancel(t.Context())
			err := f.Follow(func(v int) {
				if v != 1 {
					t.Errorf("%v: told %d", names, v)
				}
				stop()
			})(ctx)
			if err != nil {
				t.Error(err)
			}
		})
	}
}
