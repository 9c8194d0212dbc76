package provider

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// fakeConn stands for an *http.ClientConn: a stream ends a moment after its
// answer, as there.
type fakeConn struct {
	pool *fakeServer

	mu     sync.Mutex
	max    int
	busy   int
	peak   int
	goAway bool
	closed bool
	hook   func(*http.ClientConn)
}

type fakeServer struct {
	latency time.Duration
	max     int  // streams of new connections
	refuse  bool // dials fail
	mute    bool // the state hook never runs

	mu    sync.Mutex
	conns []*fakeConn
	dials []time.Time
}

func (s *fakeServer) dial(context.Context) (clientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials = append(s.dials, time.Now())
	if s.refuse {
		return nil, errors.New("refused")
	}
	c := &fakeConn{pool: s, max: s.max}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *fakeServer) opened() []*fakeConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

func (s *fakeServer) dialed() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.dials)
}

// set changes the connection's state.
func (c *fakeConn) set(streams int, goAway bool) {
	c.change(func() { c.max, c.goAway = streams, goAway })
}

func (c *fakeConn) most() (peak, max int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak, c.max
}

func (c *fakeConn) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	if c.goAway || c.closed {
		c.mu.Unlock()
		return nil, errors.New("http2: client conn not usable")
	}
	c.busy++
	c.peak = max(c.peak, c.busy)
	c.mu.Unlock()
	if !sleep(req.Context(), c.pool.latency) {
		return nil, req.Context().Err()
	}
	if c.Err() != nil { // closed meanwhile
		return nil, errors.New("http2: client connection force closed via ClientConn.Close")
	}
	go func() { // the stream ends after the answer
		sleep(context.Background(), time.Millisecond)
		c.change(func() { c.busy-- })
	}()
	return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
}

// change runs f and then the hook, which sees a change of state.
func (c *fakeConn) change(f func()) {
	c.mu.Lock()
	f()
	hook := c.hook
	c.mu.Unlock()
	if hook != nil && !c.pool.mute {
		hook(nil)
	}
}

func (c *fakeConn) Available() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goAway || c.closed {
		return 0
	}
	return max(0, c.max-c.busy)
}

func (c *fakeConn) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	return c.busy
}

func (c *fakeConn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("closed")
	}
	return nil
}

func (c *fakeConn) Close() error {
	c.change(func() { c.closed = true })
	return nil
}

func (c *fakeConn) SetStateHook(f func(*http.ClientConn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = f
}

// poolTest runs f with a pool of size connections to s.
func poolTest(t *testing.T, size int, s *fakeServer, f func(t *testing.T, p *connPool)) {
	synctest.Test(t, func(t *testing.T) {
		p := &connPool{
			size: size, dial: s.dial, stagger: time.Second, backoff: [2]time.Duration{time.Second, 30 * time.Second},
			drain: 10 * time.Second, log: slog.New(slog.DiscardHandler), idle: make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { p.run(ctx) })
		f(t, p)
		cancel()
		wg.Wait()
		time.Sleep(time.Minute) // streams that end late
		for _, c := range s.opened() {
			if c.Err() == nil {
				t.Error("a connection was left open")
			}
		}
	})
}

var testURL = &url.URL{Scheme: "https", Host: "x", Path: "/"}

// use makes one request.
func use(ctx context.Context, p *connPool, cat notify.Category) *notify.Result {
	_, lost := p.post(ctx, cat, "test", time.Minute, testURL, http.Header{}, []byte("x"), func(*answer) connState { return connProven })
	return lost
}

func many(t *testing.T, p *connPool, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if lost := use(t.Context(), p, notify.Transactional); lost != nil {
				t.Errorf("%+v", lost)
			}
		})
	}
	wg.Wait()
}

func TestPoolKeepsToStreams(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: 50 * time.Millisecond, max: 7}
	poolTest(t, 3, s, func(t *testing.T, p *connPool) {
		time.Sleep(10 * time.Second)
		start := time.Now()
		many(t, p, 2100)
		// 2100 over 21 streams of 50 ms
		if d := time.Since(start); d > 6200*time.Millisecond {
			t.Errorf("the streams were not used: %v", d)
		}
		if len(s.opened()) != 3 {
			t.Errorf("%d connections", len(s.opened()))
		}
		// (a stream ends up to 1 ms after its answer, in which RoundTrip of the
		// real connection waits: the fake counts it as one more)
		for _, c := range s.opened() {
			if peak, limit := c.most(); peak > 2*limit {
				t.Errorf("%d streams of %d", peak, limit)
			}
		}
		if st := p.state(); st.InFlight != 0 || st.Waiting != 0 || st.Open != 3 {
			t.Errorf("%+v", st)
		}
	})
}

// The state hook coalesces events and may leave one out: streams given back are
// handed on without it.
func TestPoolWithoutHook(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: 50 * time.Millisecond, max: 7, mute: true}
	poolTest(t, 1, s, func(t *testing.T, p *connPool) {
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 70 {
			wg.Go(func() {
				if lost := use(ctx, p, notify.Transactional); lost != nil {
					t.Errorf("%+v", lost)
				}
			})
		}
		wg.Wait()
	})
}

// Until the first answer, a connection gets one request at a time.
func TestPoolWarms(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: time.Second, max: 100}
	poolTest(t, 2, s, func(t *testing.T, p *connPool) {
		time.Sleep(10 * time.Second)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { use(t.Context(), p, notify.Transactional) })
		}
		time.Sleep(500 * time.Millisecond)
		if st := p.state(); st.InFlight != 2 || st.Waiting != 48 {
			t.Errorf("before the first answer: %+v", st)
		}
		time.Sleep(time.Second)
		if st := p.state(); st.InFlight != 48 || st.Waiting != 0 {
			t.Errorf("after it: %+v", st)
		}
		wg.Wait()
	})
}

// SETTINGS that raise the limit wake those who wait; lowered ones are kept to.
func TestPoolFollowsSettings(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: time.Second, max: 1}
	poolTest(t, 1, s, func(t *testing.T, p *connPool) {
		many(t, p, 1)
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		var done atomic.Int64
		for range 20 {
			wg.Go(func() { use(t.Context(), p, notify.Transactional); done.Add(1) })
		}
		time.Sleep(500 * time.Millisecond)
		if st := p.state(); st.InFlight != 1 {
			t.Errorf("limit 1: %+v", st)
		}
		s.opened()[0].set(10, false)
		synctest.Wait()
		if st := p.state(); st.InFlight != 10 {
			t.Errorf("limit 10: %+v", st)
		}
		s.opened()[0].set(2, false)
		time.Sleep(1100 * time.Millisecond) // the ten are done
		for p.state().Waiting > 0 {
			if st := p.state(); st.InFlight > 2 {
				t.Errorf("limit 2: %+v", st)
			}
			time.Sleep(100 * time.Millisecond)
		}
		wg.Wait()
		if done.Load() != 20 || len(s.opened()) != 1 {
			t.Errorf("%d done over %d connections", done.Load(), len(s.opened()))
		}
	})
}

// After a GOAWAY the connection finishes what it has, and another takes over.
func TestPoolGoAway(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: 10 * time.Second, max: 10}
	poolTest(t, 1, s, func(t *testing.T, p *connPool) {
		many(t, p, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			if lost := use(t.Context(), p, notify.Transactional); lost != nil {
				t.Errorf("what was under way: %+v", lost)
			}
		})
		synctest.Wait()
		s.opened()[0].set(10, true)
		many(t, p, 5)
		wg.Wait()
		if len(s.opened()) != 2 {
			t.Errorf("%d connections", len(s.opened()))
		}
		time.Sleep(time.Second)
		if s.opened()[0].Err() == nil {
			t.Error("the old one was not closed")
		}
	})
}

// A server that cannot be reached answers everybody at once, is tried ever more
// slowly, and is found again.
func TestPoolDown(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: time.Millisecond, max: 10, refuse: true}
	poolTest(t, 2, s, func(t *testing.T, p *connPool) {
		time.Sleep(10 * time.Second)
		start := time.Now()
		lost := use(t.Context(), p, notify.Transactional)
		if lost == nil || lost.Class != notify.ClassUnavailable || lost.Code != "no_connection" || time.Since(start) > 0 {
			t.Errorf("%+v after %v", lost, time.Since(start))
		}
		time.Sleep(10 * time.Minute)
		if n := len(s.dialed()); n < 40 || n > 120 {
			t.Errorf("%d dials in 10 minutes", n)
		}
		s.mu.Lock()
		s.refuse = false
		s.mu.Unlock()
		time.Sleep(31 * time.Second)
		many(t, p, 10)
	})
}

// Connections are opened one after the other.
func TestPoolStaggers(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: time.Millisecond, max: 10}
	poolTest(t, 5, s, func(t *testing.T, p *connPool) {
		time.Sleep(time.Minute)
		if len(s.dialed()) != 5 {
			t.Fatalf("%d dials", len(s.dialed()))
		}
		for i := 1; i < 5; i++ {
			if d := s.dialed()[i].Sub(s.dialed()[i-1]); d < time.Second {
				t.Errorf("dial %d after %v", i, d)
			}
		}
	})
}

// Whoever stops waiting leaves nothing behind, and takes nothing with them.
func TestPoolAbandoned(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: time.Second, max: 1}
	poolTest(t, 1, s, func(t *testing.T, p *connPool) {
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%3)*time.Second)
			wg.Go(func() { defer cancel(); use(ctx, p, notify.Transactional) })
		}
		wg.Wait()
		time.Sleep(5 * time.Second)
		if st := p.state(); st.InFlight != 0 || st.Waiting != 0 {
			t.Errorf("%+v", st)
		}
		many(t, p, 3)
	})
}

// Run lets what is in flight finish.
func TestPoolDrains(t *testing.T) {
	t.Parallel()
	s := &fakeServer{latency: 5 * time.Second, max: 10}
	lost := &notify.Result{}
	poolTest(t, 1, s, func(t *testing.T, p *connPool) {
		time.Sleep(time.Second)
		go func() { lost = use(context.Background(), p, notify.Transactional) }()
		synctest.Wait()
	})
	if lost != nil {
		t.Errorf("cut off: %+v", lost)
	}
}
