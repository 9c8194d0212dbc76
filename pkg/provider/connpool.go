package provider

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// clientConn is what the pool needs of an *http.ClientConn.
type clientConn interface {
	http.RoundTripper
	// Available and InFlight together are the server's limit of streams, live.
	Available() int
	InFlight() int
	Err() error
	Close() error
	SetStateHook(func(*http.ClientConn))
}

// connPool keeps size HTTP/2 connections open and hands out their streams, the
// least busy connection first. It never opens another connection because the
// open ones are full.
//
// A connection takes one request at a time until one was answered with our
// token accepted: a server may allow a single stream until then (APNs does),
// and before its SETTINGS arrive any number would be a guess. The first real
// item is that request.
//
// Streams are counted here and not by Reserve: a stream ends in the transport a
// little after its answer, the state hook may coalesce, and a reservation that
// failed in between would wait for an event that never comes. Taking too many
// for a moment is harmless, because RoundTrip of an http.ClientConn waits for
// the server's limit.
type connPool struct {
	size    int
	dial    func(ctx context.Context) (clientConn, error)
	stagger time.Duration // least time between two dials of the pool
	backoff [2]time.Duration
	drain   time.Duration // how long Run waits for requests in flight
	log     *slog.Logger

	hold hold

	mu       sync.Mutex
	conns    []*pooledConn
	waiters  limit.Queue[streamWaiter]
	inflight int // on all connections, also on connections that left the pool
	idle     chan struct{}
	nextDial time.Time
	down     error // why there is no connection; nil: not known yet
	stopped  bool
}

func newConnPool(size int, stagger, backoffMin, backoffMax time.Duration, e Endpoint, base *url.URL, log *slog.Logger) *connPool {
	t := e.transport(http2Only)
	scheme, address := base.Scheme, hostPort(base)
	return &connPool{
		size: size, stagger: stagger, backoff: [2]time.Duration{backoffMin, backoffMax},
		drain: e.Timeout, log: log, idle: make(chan struct{}, 1),
		dial: func(ctx context.Context) (clientConn, error) {
			ctx, cancel := context.WithTimeout(ctx, e.DialTimeout)
			defer cancel()
			cc, err := t.NewClientConn(ctx, scheme, address)
			if err != nil {
				return nil, err // (not cc: a nil *ClientConn is no nil interface)
			}
			return cc, nil
		},
	}
}

type pooledConn struct {
	cc       clientConn
	limit    int
	inflight int
	proven   bool
	out      bool          // takes nothing more
	gone     chan struct{} // closed with out
}

// streamWaiter is sent the connection that has a free stream for a request. It has room
// for one, and is closed when the pool went down.
type streamWaiter chan *pooledConn

// connState is what an answer said about its connection.
type connState uint8

const (
	connUnknown connState = iota // no answer
	connProven                   // it was answered, our credentials are good
	connRefused                  // our credentials were refused
	connLeave                    // the server wants it to be closed
)

func (p *connPool) unavailable() error {
	err := p.down
	if p.stopped {
		err = context.Canceled
	}
	var after time.Duration
	if d := time.Until(p.nextDial); d > 0 {
		after = d
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "no_connection", Msg: "no connection", RetryAfter: after, Err: err}
}

// acquire waits for a free stream; codes are served before bulk. The caller gives it
// back with release.
func (p *connPool) acquire(ctx context.Context, cat notify.Category) (*pooledConn, error) {
	p.mu.Lock()
	if c := p.pick(); c != nil {
		p.take(c)
		p.mu.Unlock()
		return c, nil
	}
	if p.stopped || (len(p.conns) == 0 && p.down != nil) {
		err := p.unavailable()
		p.mu.Unlock()
		return nil, err
	}
	w := p.waiters.Add(cat, make(streamWaiter, 1))
	p.mu.Unlock()
	select {
	case c, ok := <-w.Value:
		if !ok {
			p.mu.Lock()
			defer p.mu.Unlock()
			return nil, p.unavailable()
		}
		return c, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.waiters.Remove(w)
	p.mu.Unlock()
	select {
	case c, ok := <-w.Value: // it was granted in the same moment
		if ok {
			p.release(c, connUnknown)
		}
	default:
	}
	return nil, ctx.Err()
}

func (p *connPool) pick() *pooledConn {
	var best *pooledConn
	for _, c := range p.conns {
		if c.inflight < c.gate() && (best == nil || c.inflight < best.inflight) {
			best = c
		}
	}
	return best
}

func (c *pooledConn) gate() int {
	if !c.proven {
		return min(1, c.limit)
	}
	return c.limit
}

func (p *connPool) take(c *pooledConn) {
	c.inflight++
	p.inflight++
}

// release gives a stream back and says what its answer said of the connection.
func (p *connPool) release(c *pooledConn, s connState) {
	p.mu.Lock()
	c.inflight--
	p.inflight--
	switch s {
	case connProven:
		c.proven = true
	case connRefused:
		c.proven = false
	case connLeave:
		p.remove(c)
	}
	p.refresh(c)
	p.grant()
	last := c.out && c.inflight == 0
	if p.stopped && p.inflight == 0 {
		select {
		case p.idle <- struct{}{}:
		default:
		}
	}
	p.mu.Unlock()
	if last {
		c.cc.Close() // runs the state hook, so not under the lock
	}
}

// refresh reads the server's limit. In this order: a stream that ends between
// the two readings makes the limit one too high, which is harmless, and never a
// living connection look dead.
func (p *connPool) refresh(c *pooledConn) {
	if c.out {
		return
	}
	inflight, available := c.cc.InFlight(), c.cc.Available()
	switch {
	case available > 0:
		c.limit = inflight + available
	case c.cc.Err() != nil || inflight == 0:
		p.remove(c) // closed, or after a GOAWAY the last stream has ended
	case inflight < c.limit:
		c.limit = inflight // the limit was lowered, or a GOAWAY came
	}
}

func (p *connPool) remove(c *pooledConn) {
	if c.out {
		return
	}
	c.out = true
	close(c.gone)
	for i := range p.conns {
		if p.conns[i] == c {
			p.conns = append(p.conns[:i], p.conns[i+1:]...)
			break
		}
	}
}

// grant serves waiters in order while there are streams.
func (p *connPool) grant() {
	for w := p.waiters.First(); w != nil; w = p.waiters.First() {
		c := p.pick()
		if c == nil {
			return
		}
		p.take(c)
		p.waiters.Remove(w)
		w.Value <- c
	}
}

func (p *connPool) failWaiters() {
	for w := p.waiters.First(); w != nil; w = p.waiters.First() {
		p.waiters.Remove(w)
		close(w.Value)
	}
}

// changed is the state hook: SETTINGS came, or the connection broke.
func (p *connPool) changed(c *pooledConn) {
	p.mu.Lock()
	p.refresh(c)
	p.grant()
	p.mu.Unlock()
}

// post makes one request on some connection and lets judge say what the answer
// means for it. What a server did not look at is sent again, on another
// connection where this one is closing. Without an answer it returns the result
// to report.
func (p *connPool) post(ctx context.Context, cat notify.Category, provider string, timeout time.Duration, u *url.URL, h http.Header, payload []byte,
	judge func(*answer) connState) (answer, *notify.Result) {
	for try := 1; ; try++ {
		c, err := p.acquire(ctx, cat)
		if err != nil {
			r := failed(ctx, provider, err)
			return answer{}, &r
		}
		if err := p.hold.err(); err != nil { // it may have come while we waited
			p.release(c, connUnknown)
			r := failed(ctx, provider, err)
			return answer{}, &r
		}
		ans, fail := exchange(ctx, c.cc, timeout, u, h, payload)
		if fail == nil {
			p.release(c, judge(&ans))
			return ans, nil
		}
		state := connUnknown
		if fail.closing {
			state = connLeave
		}
		p.release(c, state)
		if !fail.elsewhere || try == 3 || ctx.Err() != nil {
			r := fail.result(provider)
			return answer{}, &r
		}
	}
}
