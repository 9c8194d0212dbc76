package h2

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Verdict says what an answer means for its connection.
type Verdict uint8

const (
	// NoVerdict: the answer does not show anything about the connection.
	NoVerdict Verdict = iota
	// Proven: the server accepted our credentials. Before the first such answer, a connection
	// carries one request at a time.
	Proven
	// Unproven: the server refused our credentials.
	Unproven
	// Leave: the server wants the client to close the connection.
	Leave
)

// Config configures a Pool. Dial and Judge are required; the other fields have defaults.
type Config struct {
	// Dial opens a connection that speaks HTTP/2; see Dialer.
	Dial func(ctx context.Context) (net.Conn, error)
	// Size is the number of connections to keep open.
	Size int `default:"1"`
	// Stagger is the minimum time between opening two connections. Default 0.
	Stagger time.Duration
	// BackoffMin and BackoffMax limit the time between attempts to connect. The time doubles with
	// each failure.
	BackoffMin time.Duration `default:"500ms"`
	BackoffMax time.Duration `default:"30s"`
	// Timeout is the time limit of one exchange, from the first byte of the request to the end of
	// the answer. It also limits how long Run waits for requests after its context has ended.
	Timeout time.Duration `default:"10s"`
	// DialTimeout is the time limit of Dial and the exchange of the first frames together.
	DialTimeout time.Duration `default:"5s"`
	// A connection sends a PING if no byte has come from the server for the time PingAfter.
	// PingTimeout is the time limit for the answer to the PING.
	PingAfter   time.Duration `default:"30s"`
	PingTimeout time.Duration `default:"10s"`
	// WriteTimeout is the time limit of one write.
	WriteTimeout time.Duration `default:"10s"`
	// Admit is called right before a request is sent. If it returns an error, the request is not
	// sent and ends as Withheld. Admit must be cheap. nil: every request is sent.
	Admit func() error
	// Judge returns what an answer means for its connection. It is called with the connection's
	// lock held. It is not called for a status of 200 on a connection that is already Proven.
	Judge func(r *Request) Verdict
	// Log gets errors of connections. Default: they are not logged.
	Log *slog.Logger `default:"discard"`

	firstID uint32 // first stream id of a connection, for tests
}

// Pool keeps a fixed number of connections open (Config.Size) and sends queued requests on them. If
// all connections are full, requests wait; the pool opens no further connections. It is safe for
// concurrent use.
//
// Lock order: a goroutine that needs both locks takes a connection's lock before the pool's lock.
type Pool struct {
	cfg      Config
	ready    atomic.Pointer[[]*conn] // connections that accept requests; the slice is replaced, never changed
	waiting  atomic.Int64            // number of queued requests
	inFlight atomic.Int64            // number of requests on connections
	nextWake atomic.Uint64           // increased by wakeConns, so that each call begins at another connection
	idleCh   chan struct{}           // contains a token after inFlight falls to 0; after its context has ended, Run waits for the token

	mu        sync.Mutex
	queue     queue
	openConns map[*conn]struct{} // all open connections, including draining ones
	nextDial  time.Time
	dialErr   error // error of the last attempt to connect; nil: connected, or not tried yet
	stopped   bool
}

// New returns a pool. The pool opens its connections when Run runs. Before that, requests wait in
// the queue.
func New(cfg Config) *Pool {
	cfg = setting.Fill(cfg)
	cfg.firstID = max(1, cfg.firstID)
	p := &Pool{cfg: cfg, idleCh: make(chan struct{}, 1), openConns: map[*conn]struct{}{}}
	p.ready.Store(new([]*conn))
	return p
}

// Stats is the state of a pool.
type Stats struct {
	Open     int // connections that accept requests
	Streams  int // requests that these connections may carry at the same time, including those in flight
	InFlight int
	Waiting  int // requests that wait for a stream
}

// Stats returns the current state.
func (p *Pool) Stats() Stats {
	s := Stats{InFlight: int(p.inFlight.Load()), Waiting: int(p.waiting.Load())}
	for _, c := range *p.ready.Load() {
		c.mu.Lock()
		if s.Open++; c.proven {
			s.Streams += c.maxStreams
		} else {
			s.Streams += min(1, c.maxStreams)
		}
		c.mu.Unlock()
	}
	return s
}

// Submit queues requests. Each request is returned through b exactly once, with or without an
// answer. The caller must not use a request before it is returned.
func (p *Pool) Submit(b *Batch, rs ...*Request) {
	if len(rs) == 0 {
		return
	}
	for _, r := range rs {
		r.reset()
		r.batch, r.tries = b, 0
	}
	p.mu.Lock()
	err := p.unavailableErr()
	if err == nil && !b.cancelled.Load() {
		for _, r := range rs {
			p.queue.pushBack(r)
		}
		p.waiting.Store(int64(p.queue.n))
		p.mu.Unlock()
		p.wakeConns(len(rs))
		return
	}
	p.mu.Unlock()
	for _, r := range rs {
		r.Failure = Cancelled
		if err != nil {
			r.Failure, r.Err = NoConnection, err
		}
	}
	b.add(rs)
}

// unavailableErr returns why no request can be queued, or nil. The caller holds mu.
func (p *Pool) unavailableErr() error {
	switch {
	case p.stopped:
		return &Down{Err: context.Canceled}
	case p.dialErr != nil && len(*p.ready.Load()) == 0:
		return &Down{RetryAfter: max(0, time.Until(p.nextDial)), Err: p.dialErr}
	}
	return nil
}

// wakeConns wakes the writers of connections that have room for n requests.
func (p *Pool) wakeConns(n int) {
	cs := *p.ready.Load()
	if n <= takeAtOnce { // choose the least busy connection
		var best *conn
		for _, c := range cs {
			if f := c.freeCount.Load(); f > 0 && (best == nil || f > best.freeCount.Load()) {
				best = c
			}
		}
		if best == nil {
			return
		}
		best.wakeWriter()
		if n -= int(min(takeAtOnce, best.freeCount.Load())); n <= 0 {
			return
		}
	}
	from := int(p.nextWake.Add(1) % uint64(max(1, len(cs))))
	for i := range cs {
		c := cs[(from+i)%len(cs)]
		if f := c.freeCount.Load(); f > 0 {
			c.wakeWriter()
			if n -= int(min(takeAtOnce, f)); n <= 0 {
				return
			}
		}
	}
}

// takeQueued removes up to n requests from the queue and appends them to dst, which must be empty.
func (p *Pool) takeQueued(dst []*Request, n int) []*Request {
	if p.waiting.Load() == 0 {
		return dst
	}
	p.mu.Lock()
	for r := p.queue.first(); n > 0 && r != nil; r = p.queue.first() {
		n--
		p.queue.remove(r)
		dst = append(dst, r)
	}
	p.inFlight.Add(int64(len(dst)))
	p.waiting.Store(int64(p.queue.n))
	p.mu.Unlock()
	return dst
}

// requestsLeft notes that n requests have ended or left their connections.
func (p *Pool) requestsLeft(n int) {
	if p.inFlight.Add(int64(-n)) == 0 {
		select {
		case p.idleCh <- struct{}{}:
		default:
		}
	}
}

// maxTries is how many times a request may be started, counted over all connections.
const maxTries = 3

// requeue puts a request back into the queue, before the other requests of its rank. It returns
// false if the request was tried maxTries times, its batch is cancelled, or the pool cannot send
// now.
func (p *Pool) requeue(r *Request) bool {
	if r.tries++; r.tries >= maxTries {
		return false
	}
	p.mu.Lock()
	if p.stopped || r.batch.cancelled.Load() || p.unavailableErr() != nil {
		p.mu.Unlock()
		return false
	}
	r.reset()
	p.queue.pushFront(r)
	p.waiting.Store(int64(p.queue.n))
	p.mu.Unlock()
	p.requestsLeft(1)
	p.wakeConns(1)
	return true
}

// cancelBatch cancels the requests of a batch that are queued or on connections.
func (p *Pool) cancelBatch(b *Batch) {
	b.cancelled.Store(true)
	var done []*Request
	p.mu.Lock()
	for r := p.queue.ranks[b.rank()].first; r != nil; {
		next := r.next
		if r.batch == b {
			p.queue.remove(r)
			r.Failure = Cancelled
			done = append(done, r)
		}
		r = next
	}
	p.waiting.Store(int64(p.queue.n))
	all := make([]*conn, 0, len(p.openConns))
	for c := range p.openConns {
		all = append(all, c)
	}
	p.mu.Unlock()
	deliver(done)
	for _, c := range all {
		c.cancelBatch(b)
	}
}

// failQueued ends every queued request as NoConnection. The caller holds mu. failQueued unlocks mu.
func (p *Pool) failQueued(err error) {
	var done []*Request
	for r := p.queue.first(); r != nil; r = p.queue.first() {
		p.queue.remove(r)
		r.Failure, r.Err = NoConnection, err
		done = append(done, r)
	}
	p.waiting.Store(0)
	p.mu.Unlock()
	deliver(done)
}

// addConn adds a connection that accepts requests.
func (p *Pool) addConn(c *conn) {
	p.mu.Lock()
	p.dialErr = nil
	p.openConns[c] = struct{}{}
	list := append(slices.Clone(*p.ready.Load()), c)
	p.ready.Store(&list)
	p.mu.Unlock()
	c.mu.Lock()
	c.publishFree()
	c.mu.Unlock()
	c.wakeWriter()
}

// removeReady removes a connection from the connections that accept requests.
func (p *Pool) removeReady(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.ready.Load()), func(o *conn) bool { return o == c })
	p.ready.Store(&list)
}

// removeConn removes a closed connection.
func (p *Pool) removeConn(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.openConns, c)
}
