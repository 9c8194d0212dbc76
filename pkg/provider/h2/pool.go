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

// Verdict is what an answer says of its connection.
type Verdict uint8

const (
	// NoVerdict: nothing.
	NoVerdict Verdict = iota
	// Proven: our credentials are good. Until then a connection carries one
	// request at a time.
	Proven
	// Unproven: they were refused.
	Unproven
	// Leave: the server wants the connection to be given up.
	Leave
)

// Config of a Pool. Dial and Judge are required, the rest has defaults.
type Config struct {
	// Dial opens a connection that speaks HTTP/2; see Dialer.
	Dial func(ctx context.Context) (net.Conn, error)
	// Size is how many connections are kept open.
	Size int `default:"1"`
	// Stagger is the least time between opening two of them. Default none.
	Stagger time.Duration
	// BackoffMin and BackoffMax bound the doubling time between attempts to
	// connect.
	BackoffMin time.Duration `default:"500ms"`
	BackoffMax time.Duration `default:"30s"`
	// Timeout of one exchange from its first byte to the end of the answer, and of the end of
	// Run.
	Timeout time.Duration `default:"10s"`
	// DialTimeout bounds Dial and the first frames together.
	DialTimeout time.Duration `default:"5s"`
	// PingAfter is the silence after which a connection is asked whether it
	// lives, PingTimeout how long it may take to say so.
	PingAfter   time.Duration `default:"30s"`
	PingTimeout time.Duration `default:"10s"`
	// WriteTimeout is how long one write may take.
	WriteTimeout time.Duration `default:"10s"`
	// Admit is asked right before a request is sent; an error withholds it. It
	// must be cheap. Default: everything is sent.
	Admit func() error
	// Judge says what an answer means for its connection. It is asked while the
	// connection waits, but not for a 200 on one that is Proven.
	Judge func(r *Request) Verdict
	// Log gets connection trouble. Default: nowhere.
	Log *slog.Logger `default:"discard"`

	firstID uint32 // of a connection's streams, for tests
}

// Pool keeps Size connections open and sends what is queued on them. It never
// opens another because those are full. It is safe for concurrent use.
//
// Locks are taken in this order: a connection's, then the pool's.
type Pool struct {
	cfg     Config
	ready   atomic.Pointer[[]*conn] // those that take requests
	waiting atomic.Int64            // requests queued
	busy    atomic.Int64            // requests on connections
	next    atomic.Uint64           // where kick begins
	idle    chan struct{}           // signalled when busy falls to 0 after the end

	mu       sync.Mutex
	queue    queue
	all      map[*conn]struct{} // also those that have left
	nextDial time.Time
	down     error // why there is no connection; nil: not known yet
	stopped  bool
}

// New returns a pool. It connects once Run runs; until then requests wait.
func New(cfg Config) *Pool {
	cfg = setting.Fill(cfg)
	cfg.firstID = max(1, cfg.firstID)
	p := &Pool{cfg: cfg, idle: make(chan struct{}, 1), all: map[*conn]struct{}{}}
	p.ready.Store(new([]*conn))
	return p
}

// Stats is the state of a pool.
type Stats struct {
	Open     int // connections that take requests
	Streams  int // how many requests they take together now
	InFlight int
	Waiting  int // requests that wait for a stream
}

// Stats returns the state of the pool now.
func (p *Pool) Stats() Stats {
	s := Stats{InFlight: int(p.busy.Load()), Waiting: int(p.waiting.Load())}
	for _, c := range *p.ready.Load() {
		c.mu.Lock()
		if s.Open++; c.proven {
			s.Streams += c.limit
		} else {
			s.Streams += min(1, c.limit)
		}
		c.mu.Unlock()
	}
	return s
}

// Submit queues requests, whose answers come through b. Each comes back exactly
// once.
func (p *Pool) Submit(b *Batch, rs ...*Request) {
	if len(rs) == 0 {
		return
	}
	for _, r := range rs {
		r.reset()
		r.batch, r.tries = b, 0
	}
	p.mu.Lock()
	err := p.refusal()
	if err == nil && !b.cancelled.Load() {
		for _, r := range rs {
			p.queue.pushBack(r)
		}
		p.waiting.Store(int64(p.queue.n))
		p.mu.Unlock()
		p.kick(len(rs))
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

// refusal is why nothing can be queued. The lock is held.
func (p *Pool) refusal() error {
	switch {
	case p.stopped:
		return &Down{Err: context.Canceled}
	case p.down != nil && len(*p.ready.Load()) == 0:
		return &Down{RetryAfter: max(0, time.Until(p.nextDial)), Err: p.down}
	}
	return nil
}

// kick wakes connections with room for n requests.
func (p *Pool) kick(n int) {
	cs := *p.ready.Load()
	if n <= turn { // the least busy one
		var best *conn
		for _, c := range cs {
			if f := c.free.Load(); f > 0 && (best == nil || f > best.free.Load()) {
				best = c
			}
		}
		if best == nil {
			return
		}
		best.signal()
		if n -= int(min(turn, best.free.Load())); n <= 0 {
			return
		}
	}
	from := int(p.next.Add(1) % uint64(max(1, len(cs))))
	for i := range cs {
		c := cs[(from+i)%len(cs)]
		if f := c.free.Load(); f > 0 {
			c.signal()
			if n -= int(min(turn, f)); n <= 0 {
				return
			}
		}
	}
}

// take takes up to n requests off the queue.
func (p *Pool) take(to []*Request, n int) []*Request {
	if p.waiting.Load() == 0 {
		return to
	}
	p.mu.Lock()
	for r := p.queue.first(); n > 0 && r != nil; r = p.queue.first() {
		n--
		p.queue.remove(r)
		to = append(to, r)
	}
	p.busy.Add(int64(len(to)))
	p.waiting.Store(int64(p.queue.n))
	p.mu.Unlock()
	return to
}

// finished notes that n requests are on no connection any more.
func (p *Pool) finished(n int) {
	if p.busy.Add(int64(-n)) == 0 {
		select {
		case p.idle <- struct{}{}:
		default:
		}
	}
}

// tries is how often a request is begun at most.
const tries = 3

// requeue puts a request back to the front of its rank, unless it was tried
// often enough or nobody wants it any more.
func (p *Pool) requeue(r *Request) bool {
	if r.tries++; r.tries >= tries {
		return false
	}
	p.mu.Lock()
	if p.stopped || r.batch.cancelled.Load() || p.refusal() != nil {
		p.mu.Unlock()
		return false
	}
	r.reset()
	p.queue.pushFront(r)
	p.waiting.Store(int64(p.queue.n))
	p.mu.Unlock()
	p.finished(1)
	p.kick(1)
	return true
}

// abandon gives up what is left of a batch.
func (p *Pool) abandon(b *Batch) {
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
	all := make([]*conn, 0, len(p.all))
	for c := range p.all {
		all = append(all, c)
	}
	p.mu.Unlock()
	deliver(done)
	for _, c := range all {
		c.abandon(b)
	}
}

// fail hands back everything that is queued. The lock is held, and released.
func (p *Pool) fail(err error) {
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

// install lets a connection take requests.
func (p *Pool) install(c *conn) {
	p.mu.Lock()
	p.down = nil
	p.all[c] = struct{}{}
	list := append(slices.Clone(*p.ready.Load()), c)
	p.ready.Store(&list)
	p.mu.Unlock()
	c.mu.Lock()
	c.recount()
	c.mu.Unlock()
	c.signal()
}

// detach keeps further requests from a connection.
func (p *Pool) detach(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.ready.Load()), func(o *conn) bool { return o == c })
	p.ready.Store(&list)
}

// forget is the end of a connection.
func (p *Pool) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, c)
}
