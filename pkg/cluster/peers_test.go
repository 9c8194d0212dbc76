package cluster

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/memory"
)

// TestSharesAddUp: dispatchers divide a caller's limit, and never have more
// together than it allows, whoever comes and goes.
func TestSharesAddUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		beats := memory.NewHeartbeats()
		type one struct {
			*Peers
			stop    context.CancelFunc
			running atomic.Bool
			done    chan struct{}
		}
		start := func(name string) *one {
			ctx, stop := context.WithCancel(t.Context())
			o := &one{Peers: NewPeers(beats, "dispatchers", name), stop: stop, done: make(chan struct{})}
			go func() {
				defer close(o.done)
				_ = o.DelayStart(10*time.Second, func(ctx context.Context) error {
					o.running.Store(true)
					<-ctx.Done()
					o.running.Store(false)
					return nil
				})(ctx)
			}()
			return o
		}
		sum := func(limit int, of ...*one) (n int) {
			for _, o := range of {
				if o.running.Load() {
					n += o.Share(limit)
				}
			}
			return n
		}
		a := start("a")
		synctest.Wait()
		if !a.running.Load() || a.Share(100) != 100 {
			t.Fatalf("the first one: running %v, share %d", a.running.Load(), a.Share(100))
		}
		b, c := start("b"), start("c")
		for range 30 {
			time.Sleep(time.Second)
			synctest.Wait()
			if n := sum(100, a, b, c); n > 100 {
				t.Fatalf("%d of 100", n)
			}
		}
		if !b.running.Load() || !c.running.Load() || sum(100, a, b, c) != 100 || sum(7, a, b, c) != 7 {
			t.Errorf("at rest %d of 100, %d of 7", sum(100, a, b, c), sum(7, a, b, c))
		}
		// An emptied Redis: each sees itself alone for a moment.
		for _, name := range []string{"a", "b", "c"} {
			_ = beats.Leave(t.Context(), "dispatchers", name)
		}
		a.beatAndRead(t.Context())
		if n := sum(100, a, b, c); n > 100 {
			t.Errorf("%d of 100 after the heartbeats were forgotten", n)
		}
		b.stop()
		<-b.done
		time.Sleep(peerTTL + 3*time.Second)
		synctest.Wait()
		if n := sum(100, a, c); n != 100 {
			t.Errorf("%d of 100 when one has left", n)
		}
		a.stop()
		c.stop()
		<-a.done
		<-c.done
	})
}
