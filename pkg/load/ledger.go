package load

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ledger knows what the providers were given: the simulators' over HTTP (Shards), or an
// Observer in this process.
type Ledger interface {
	// begin remembers what came before the run.
	begin(ctx context.Context) error
	// came counts what came since; final: also what is compared later.
	came(ctx context.Context, final bool) (came, error)
	// times calls f with the moment each promised message came first, of what came
	// since the last call. It may be called while the run goes on.
	times(ctx context.Context, p *promises, f took) error
	// missing counts what was promised and came, and names the first of what did
	// not: at most so many. It knows what times has seen.
	missing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error)
	// last calls f likewise with what only the end tells: the calls of triggers. It is
	// called once.
	last(ctx context.Context, p *promises, f took) error
}

// took is told of messages of one promise that came at a moment. Several goroutines may
// call it.
type took func(d *due, at time.Time, n int64)

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
		if c, err := r.cfg.Ledger.came(ctx, false); err == nil && c.ids >= r.promised.total() {
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
	var asked time.Time         // when what came was last compared
	var comparing time.Duration // how long that took
	for {
		var err error
		if got, err = l.came(ctx, false); err != nil {
			return c, err
		}
		if got.ids != last {
			still, last, heard = time.Now(), got.ids, time.Now()
		}
		quiet = time.Since(still) > quietFor
		over := time.Since(began) > limit
		// What others send, the other segments say, is counted too: enough has come
		// when it is what was promised.
		if !over && got.ids >= c.Expected && time.Since(asked) >= max(time.Second, 10*comparing) {
			began := time.Now()
			delivered, _, err := r.compare(ctx, 0)
			if err != nil {
				return c, err
			}
			over, asked, comparing = delivered >= c.Expected, time.Now(), time.Since(began)
		}
		if !over && time.Since(heard) > quietFor && time.Since(began) > limit/2 {
			_, ids, err := r.compare(ctx, 10)
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
	most := maxAsked
	if hurried {
		most = 20 // somebody waits
	}
	delivered, ids, err := r.compare(ctx, most)
	if err == nil {
		got, err = l.came(ctx, true) // it knows now what came at two ledgers
	}
	if err != nil {
		return c, err
	}
	c.Delivered, c.Duplicates, c.Reordered = delivered, got.duplicates, got.reordered
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

// join joins all that came with all that was promised.
func (r *Run) join(ctx context.Context) error {
	if err := r.cfg.Ledger.times(ctx, &r.promised, r.c.took); err != nil {
		return err
	}
	return r.promised.joinFiles(r.c.took)
}

// compare joins, and returns what missing does.
func (r *Run) compare(ctx context.Context, most int) (delivered int64, ids []string, err error) {
	if err := r.join(ctx); err != nil {
		return 0, nil, err
	}
	return r.cfg.Ledger.missing(ctx, &r.promised, most)
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
