package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ledger knows what the providers were given: the simulators' over HTTP
// (Simulators), or an Observer in this process.
type Ledger interface {
	// begin remembers what came before the run.
	begin(ctx context.Context) error
	// came counts what came since.
	came(ctx context.Context) (came, error)
	// missing counts what was promised and came, and names the first of what did
	// not: at most so many.
	missing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error)
	// times calls f with the moment each promised message came first; sampled: of a
	// part of them, because they are too many.
	times(ctx context.Context, p *promises, f func(d *due, at time.Time, n int64)) (sampled bool, err error)
}

// came is what a ledger counted.
type came struct {
	ids        int64 // distinct messages
	duplicates int64
	reordered  int64
	examples   []string // of duplicates
}

const (
	// quietFor is how long nothing must arrive for what is missing to count as lost.
	quietFor = 10 * time.Second
	// maxAsked is of how many that are missing the server is asked one by one.
	maxAsked = 1000
)

// StateOf asks the server where a notification or trigger stands; notify.None: it
// knows of none.
type StateOf func(ctx context.Context, id string) (notify.State, error)

// waitForBacklog waits until what was accepted was delivered.
func (r *Run) waitForBacklog(ctx context.Context, limit time.Duration) {
	if r.cfg.Ledger == nil {
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		if c, err := r.cfg.Ledger.came(ctx); err == nil && c.ids >= r.promised.total() {
			return
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
}

// drain settles, and gives up after Grace when the run is stopped.
func (r *Run) drain(ctx context.Context, stopped <-chan struct{}) (settled, error) {
	r.c.drains()
	limit, hurried := r.s.Drain.of(), false
	select {
	case <-stopped:
		limit, hurried = min(limit, r.cfg.Grace), true
	default:
	}
	dctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	if !hurried {
		go func() {
			select {
			case <-stopped:
				r.why("stopped by the user while it drained")
				cancel()
			case <-done:
			}
		}()
	}
	found, err := r.settle(dctx, limit, hurried)
	if err != nil && dctx.Err() != nil && ctx.Err() == nil { // stopped in the middle
		return r.settle(ctx, 0, true)
	}
	if err != nil {
		return found, fmt.Errorf("ledger: %w", err)
	}
	return found, nil
}

// failedMessages is how many messages were in requests without a good answer.
func (r *Run) failedMessages() (n int64) {
	for _, s := range r.steps {
		n += s.lapsed.Load()
	}
	return n
}

// settled is what the drain found.
type settled struct {
	LedgerResult
	took time.Duration // from the end of sending to the last delivery
}

// settle waits until everything acknowledged was delivered, or limit is over, and
// then compares one by one. What is missing while nothing comes in is lost, unless
// the server says that it waits, for a provider that is away, say, or has ended.
// Absence needs complete evidence: what was still moving when the time was over is
// pending, and what is left after a stop in the middle unverified.
func (r *Run) settle(ctx context.Context, limit time.Duration, hurried bool) (settled, error) {
	l, p := r.cfg.Ledger, &r.promised
	c := settled{LedgerResult: LedgerResult{Checked: true, Expected: p.total()}}
	began := time.Now()
	still, last, quiet := time.Now(), int64(-1), false
	heard := began // when somebody last said that more will come
	var got came
	var asked time.Time // when what came was last compared
	for {
		var err error
		if got, err = l.came(ctx); err != nil {
			return c, err
		}
		if got.ids != last {
			still, last, heard = time.Now(), got.ids, time.Now()
		}
		quiet = time.Since(still) > quietFor
		over := time.Since(began) > limit
		// What others send, the other segments say, is counted too: enough has come
		// when it is what was promised.
		if !over && got.ids >= c.Expected && time.Since(asked) >= time.Second {
			delivered, _, err := l.missing(ctx, p, 0)
			if err != nil {
				return c, err
			}
			over, asked = delivered >= c.Expected, time.Now()
		}
		if !over && time.Since(heard) > quietFor && time.Since(began) > limit/2 {
			_, ids, err := l.missing(ctx, p, 10)
			if err != nil {
				return c, err
			}
			if open, _ := ask(ctx, ids, r.cfg.State); open > 0 {
				heard = time.Now()
			} else {
				over = true
			}
		}
		if over {
			c.took = still.Sub(began)
			break
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	c.Duplicates, c.Reordered = got.duplicates, got.reordered
	most := maxAsked
	if hurried {
		most = 20 // somebody waits
	}
	delivered, ids, err := l.missing(ctx, p, most)
	if err != nil {
		return c, err
	}
	c.Delivered = delivered
	missing := c.Expected - c.Delivered
	open, ended := ask(ctx, ids, r.cfg.State)
	switch rest := missing - int64(len(ids)); { // too many to ask of each: they fare like those
	case rest <= 0:
	case open > 0:
		open += rest
	case ended > 0:
		ended += rest
	}
	c.Ended = min(ended, missing)
	c.Pending = min(open, missing-c.Ended)
	switch left := missing - c.Ended - c.Pending; {
	case quiet:
		c.Lost = left
	case hurried:
		c.Unverified = left
	default:
		c.Pending += left
	}
	c.Examples = append(ids[:min(len(ids), 10)], got.examples[:min(len(got.examples), 10)]...)
	// What came although nobody promised it; requests that failed may have been
	// stored all the same.
	unknown := r.failedMessages() + r.feeds.unreported(got.ids)
	if r.cfg.Segment.N < 2 { // of a segment, it is what the others sent
		c.Unexpected = max(got.ids-c.Delivered-unknown, 0)
	}
	if !r.expects(notify.Failed) && c.Ended > 0 {
		c.Unexpected += c.Ended
	}
	return c, nil
}

// ask counts those of ids that are on their way, and those that ended without
// having been delivered. Where the server cannot say, they are neither.
func ask(ctx context.Context, ids []string, state StateOf) (open, ended int64) {
	if state == nil {
		return 0, 0
	}
	for _, id := range ids {
		switch s, err := state(ctx, id); {
		case err != nil || s == notify.None:
		case !s.Terminal():
			open++
		case s != notify.Sent && s != notify.Delivered:
			ended++
		}
	}
	return open, ended
}

// expects reports whether a state is no surprise for the scenario.
func (r *Run) expects(s notify.State) bool {
	for _, e := range r.s.Expect {
		if p, ok := notify.ParseState(e); ok && p == s {
			return true
		}
	}
	return false
}

// promises remembers what was acknowledged, to ask for it in the end: 32 bytes a
// single message, 64 a fan-out.
type promises struct {
	keep bool // somebody will ask

	mu      sync.Mutex
	n       int64 // messages
	singles []promise
	fans    []promise
	others  []otherPromise       // triggers
	byBase  map[notify.Base]*due // of those not joined yet, where deliveries are watched
	watch   bool
}

// promise is a single notification or a fan-out.
type promise struct {
	base     notify.Base
	due             // of it
	count    uint32 // receivers; 0: a single
	rejected uint32
}

// due says when a message was to be sent, and when it was for.
type due struct {
	intended time.Duration // since the run's start
	at       int64         // ns since 1970, of what was for later; 0: for at once
	step     *stepRun
}

type otherPromise struct {
	id string
	due
}

func (p *promises) add(s *stepRun, r *Request, a *Ack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Count > 0 {
		p.n += int64(a.Count - a.Rejected)
	} else {
		p.n += int64(a.Accepted)
	}
	if !p.keep {
		return
	}
	d := due{intended: r.Intended, step: s}
	if at, later := s.data.later(uint64(r.N), r.Intended); later || r.kind == kindTrigger {
		d.at = at.UnixNano()
	}
	if a.Count > 0 {
		p.fans = append(p.fans, promise{base: a.Base, due: d, count: uint32(a.Count), rejected: uint32(a.Rejected)})
		p.note(a.Base, d)
		return
	}
	for _, id := range a.IDs {
		if n, err := notify.ParseID(id); err == nil && !n.Fan {
			p.singles = append(p.singles, promise{base: n.Base, due: d})
			p.note(n.Base, d)
		} else {
			p.others = append(p.others, otherPromise{id, d})
		}
	}
}

func (p *promises) note(b notify.Base, d due) {
	if p.watch {
		p.byBase[b] = &d
	}
}

func (p *promises) total() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}
