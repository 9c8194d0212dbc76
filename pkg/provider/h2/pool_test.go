package h2

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// load is how busy the server's end of a connection is.
type load struct{ busy, peak atomic.Int64 }

// answerAfter answers whatever comes, each after a latency.
func (p *peer) answerAfter(latency time.Duration) *load {
	type due struct {
		id uint32
		at time.Time
	}
	l, answers := &load{}, make(chan due, 10_000)
	p.t.Cleanup(func() { time.Sleep(latency) }) // until the last one has been told
	go func() {
		defer close(answers)
		for f := range p.frames {
			if f.Type == http2.FrameHeaders {
				if n := l.busy.Add(1); n > l.peak.Load() {
					l.peak.Store(n)
				}
			}
			if (f.Type == http2.FrameData || f.Type == http2.FrameHeaders) && f.ended() {
				answers <- due{f.StreamID, time.Now().Add(latency)}
			}
		}
	}()
	go func() {
		for a := range answers {
			time.Sleep(time.Until(a.at))
			l.busy.Add(-1)
			p.ok(a.id)
		}
	}()
	return l
}

func sized(n int) func(*Config) {
	return func(c *Config) {
		c.Size, c.Stagger, c.BackoffMin, c.BackoffMax = n, time.Second, time.Second, 30*time.Second
	}
}

// serve accepts n connections of so many streams, which answer after a latency.
func (w *world) serve(n int, streams uint32, latency time.Duration) []*load {
	w.t.Helper()
	var of []*load
	for range n {
		of = append(of, w.accept(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: streams}).answerAfter(latency))
	}
	return of
}

// answered sends n requests, which must all be answered.
func (w *world) answered(n int) {
	w.t.Helper()
	b, rs := w.submit(n, "x")
	w.wait(w.t.Context(), b, n)
	for _, r := range rs {
		if r.Status != 200 {
			w.t.Fatalf("%+v", r)
		}
	}
}

// Every stream that the servers allow is used, and none beyond; no connection is opened
// because the open ones are full.
func TestKeepsToStreams(t *testing.T) {
	pipeTest(t, sized(3), func(t *testing.T, w *world) {
		peers := w.serve(3, 7, 50*time.Millisecond)
		began := time.Now()
		w.answered(2100)
		if d := time.Since(began); d > 5200*time.Millisecond { // 2100 over 21 streams of 50 ms
			t.Errorf("the streams were not used: %v", d)
		}
		for _, p := range peers {
			if p.peak.Load() != 7 {
				t.Errorf("%d streams of 7", p.peak.Load())
			}
		}
		if s := w.Stats(); s.InFlight != 0 || s.Waiting != 0 || s.Open != 3 || len(w.conns) != 0 {
			t.Errorf("%+v, %d more connections", s, len(w.conns))
		}
	})
}

// Until its first answer a connection gets one request at a time.
func TestWarms(t *testing.T) {
	pipeTest(t, sized(2), func(t *testing.T, w *world) {
		w.serve(2, 100, time.Second)
		b, _ := w.submit(50, "x")
		time.Sleep(500 * time.Millisecond)
		if s := w.Stats(); s.InFlight != 2 || s.Waiting != 48 {
			t.Errorf("before the first answer: %+v", s)
		}
		time.Sleep(time.Second)
		if s := w.Stats(); s.InFlight != 48 || s.Waiting != 0 {
			t.Errorf("after it: %+v", s)
		}
		w.wait(t.Context(), b, 50)
	})
}

// SETTINGS that raise the limit release waiting requests. Lowered limits are respected.
func TestFollowsSettings(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		p := w.accept(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		l := p.answerAfter(time.Second)
		w.answered(1)
		b, _ := w.submit(20, "x")
		limit := func(n uint32, within time.Duration) {
			t.Helper()
			p.write(func() error { return p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: n}) })
			time.Sleep(within)
		}
		time.Sleep(500 * time.Millisecond)
		if s := w.Stats(); s.InFlight != 1 {
			t.Errorf("limit 1: %+v", s)
		}
		limit(10, time.Millisecond)
		if s := w.Stats(); s.InFlight != 10 {
			t.Errorf("limit 10: %+v", s)
		}
		limit(2, 1100*time.Millisecond) // the ten are done
		l.peak.Store(0)
		w.wait(t.Context(), b, 20)
		if n := l.peak.Load(); n > 2 {
			t.Errorf("limit 2: %d at once", n)
		}
	})
}

// A server that cannot be reached answers everybody at once, is tried ever more slowly,
// and is found again.
func TestDown(t *testing.T) {
	var refuse atomic.Bool
	refuse.Store(true)
	var dials atomic.Int64
	pipeTest(t, func(c *Config) {
		sized(2)(c)
		dial := c.Dial
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			if dials.Add(1); refuse.Load() {
				return nil, errors.New("refused")
			}
			return dial(ctx)
		}
	}, func(t *testing.T, w *world) {
		time.Sleep(10 * time.Second)
		began := time.Now()
		b, rs := w.submit(1, "x")
		w.wait(t.Context(), b, 1)
		if down, ok := errors.AsType[*Down](rs[0].Err); rs[0].Failure != NoConnection || !ok || down.Err.Error() != "refused" || time.Since(began) > 0 {
			t.Errorf("%+v after %v", rs[0], time.Since(began))
		}
		time.Sleep(10 * time.Minute)
		if n := dials.Load(); n < 40 || n > 120 {
			t.Errorf("%d dials in 10 minutes", n)
		}
		refuse.Store(false)
		began = time.Now()
		w.serve(1, 10, time.Millisecond)
		if d := time.Since(began); d > 31*time.Second {
			t.Errorf("found again after %v", d)
		}
		w.answered(10)
	})
}

// Connections are opened one after the other.
func TestStaggers(t *testing.T) {
	var mu sync.Mutex
	var dials []time.Time
	pipeTest(t, func(c *Config) {
		sized(5)(c)
		dial := c.Dial
		c.Dial = func(ctx context.Context) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials = append(dials, time.Now())
			return dial(ctx)
		}
	}, func(t *testing.T, w *world) {
		w.serve(5, 10, time.Millisecond)
		time.Sleep(20 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(dials) != 5 {
			t.Fatalf("%d dials", len(dials))
		}
		for i := 1; i < 5; i++ {
			if d := dials[i].Sub(dials[i-1]); d < time.Second {
				t.Errorf("dial %d after %v", i, d)
			}
		}
	})
}

// A batch that is cancelled at any moment leaves nothing behind and does not affect others.
func TestAbandoned(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		w.serve(1, 1, time.Second)
		var wg sync.WaitGroup
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%3)*time.Second)
			wg.Go(func() {
				defer cancel()
				b, _ := w.submit(1, "x")
				w.wait(ctx, b, 1)
			})
		}
		wg.Wait()
		time.Sleep(5 * time.Second)
		if s := w.Stats(); s.InFlight != 0 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		w.answered(3)
	})
}

// Run lets requests on connections finish, and hands back the ones that wait.
func TestDrains(t *testing.T) {
	pipeTest(t, nil, func(t *testing.T, w *world) {
		w.serve(1, 1, 5*time.Second)
		b, rs := w.submit(2, "x")
		synctest.Wait()
		began := time.Now()
		w.stop()
		w.wait(t.Context(), b, 2)
		if d := time.Since(began); rs[0].Status != 200 || rs[1].Failure != NoConnection || d != 5*time.Second {
			t.Errorf("%+v, %+v after %v", rs[0], rs[1], d)
		}
	})
}

// All streams of 50 ms are taken, and nine times as many bulk requests wait for one: as
// with FCM's 1,000 streams and workers.push.in_flight 10,000, here a tenth of both. A code
// waits for the next free stream. In the order of arrival it took 500 ms.
func TestCodesDoNotWaitForBulk(t *testing.T) {
	pipeTest(t, sized(10), func(t *testing.T, w *world) {
		w.serve(10, 10, 50*time.Millisecond)
		w.answered(100) // all are proven
		ctx, stop := context.WithCancel(t.Context())
		var bulk sync.WaitGroup
		for range 1000 {
			bulk.Go(func() {
				b := NewBatch()
				b.Rank = 5
				for r := newRequest("x"); ctx.Err() == nil; {
					w.Submit(b, r)
					w.wait(ctx, b, 1)
				}
			})
		}
		time.Sleep(time.Second)
		began := time.Now()
		code := NewBatch()
		r := newRequest("x")
		w.Submit(code, r)
		waiting := w.Stats().Waiting
		w.wait(t.Context(), code, 1)
		if took := time.Since(began); took > 150*time.Millisecond || waiting < 800 || r.Status != 200 {
			t.Errorf("a code took %v behind %d bulk requests: %+v", took, waiting, r)
		}
		stop()
		bulk.Wait()
	})
}
