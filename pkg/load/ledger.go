package load

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ledger knows which messages the providers received. It is that of simulators, read over HTTP
// (Shards), or an Observer in this process.
type Ledger interface {
	// markStart notes what arrived before the run, so that it does not count.
	markStart(ctx context.Context) error
	// countArrivals counts the arrivals since markStart. With final it also waits for counts
	// that a simulator computes later, such as the order of messages.
	countArrivals(ctx context.Context, final bool) (arrivalCounts, error)
	// joinArrivals joins the arrivals since its last call with their promises. It calls f with
	// the moment at which each promised message first arrived. It may be called during the run.
	joinArrivals(ctx context.Context, p *promises, f onArrival) error
	// listMissing counts the promised messages that arrived, and returns the ids of at most
	// most that did not. It knows the arrivals that joinArrivals has read.
	listMissing(ctx context.Context, p *promises, most int) (delivered int64, ids []string, err error)
	// joinTriggerCalls calls f with the moment at which each promised trigger was called. It
	// is called once, at the end.
	joinTriggerCalls(ctx context.Context, p *promises, f onArrival) error
}

// onArrival is called with messages of one promise that arrived at a moment. Several goroutines
// may call it at a time.
type onArrival func(d *dueMoment, at time.Time, n int64)

// arrivalCounts is what a ledger counted since the start of the run.
type arrivalCounts struct {
	ids        int64 // distinct messages
	duplicates int64
	reordered  int64
	examples   []string // ids of duplicates
}

const (
	// quietFor is how long nothing must arrive before missing messages count as lost.
	quietFor = 10 * time.Second
	// maxStatesAsked is the most missing messages whose state the run asks the server for.
	maxStatesAsked = 1000
)

// StateOf asks the server for the state of a notification or trigger. It returns notify.None if
// the server does not know the id.
type StateOf func(ctx context.Context, id string) (notify.State, error)

// waitForBacklog waits until all accepted messages were delivered, or limit is over.
func (r *Run) waitForBacklog(ctx context.Context, limit time.Duration) {
	if r.cfg.Ledger == nil {
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		if c, err := r.cfg.Ledger.countArrivals(ctx, false); err == nil && c.ids >= r.promised.total() {
			return
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
}

// drain waits for deliveries and settles the ledger. When stopped is closed, it gives up after
// Config.Grace.
func (r *Run) drain(ctx context.Context, stopped <-chan struct{}) (drainResult, error) {
	r.c.startDrain()
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
	found, err := r.settleLedger(dctx, limit, hurried)
	if err != nil && dctx.Err() != nil && ctx.Err() == nil { // the user stopped the drain
		return r.settleLedger(ctx, 0, true)
	}
	if err != nil {
		return found, fmt.Errorf("ledger: %w", err)
	}
	return found, nil
}

// failedMessages returns how many messages were in requests without a good answer.
func (r *Run) failedMessages() (n int64) {
	for _, s := range r.steps {
		n += s.lapsed.Load()
	}
	return n
}

// drainResult is what the drain found.
type drainResult struct {
	LedgerResult
	drainTook time.Duration // from the end of sending to the last delivery
}

// settleLedger waits until every acknowledged message was delivered, or limit is over. Then it
// compares message by message.
//
// A missing message is lost if nothing arrives any more, unless the server says that it still
// waits (for a provider that is down, say) or has ended. Absence needs complete evidence: if
// messages still arrived when limit was over, the missing ones are pending. If the user stopped
// the drain (hurried), the missing ones are unverified.
func (r *Run) settleLedger(ctx context.Context, limit time.Duration, hurried bool) (drainResult, error) {
	l, p := r.cfg.Ledger, &r.promised
	c := drainResult{LedgerResult: LedgerResult{Checked: true, Expected: p.total()}}
	began := time.Now()
	still, last, quiet := time.Now(), int64(-1), false
	heard := began // when an arrival or the server last showed that more will come
	var got arrivalCounts
	var asked time.Time         // when the ledger was last compared
	var comparing time.Duration // how long the last comparison took
	for {
		var err error
		if got, err = l.countArrivals(ctx, false); err != nil {
			return c, err
		}
		if got.ids != last {
			still, last, heard = time.Now(), got.ids, time.Now()
		}
		quiet = time.Since(still) > quietFor
		over := time.Since(began) > limit
		// The count includes messages of other senders, such as other segments. So compare
		// before believing that all promised messages have arrived.
		if !over && got.ids >= c.Expected && time.Since(asked) >= max(time.Second, 10*comparing) {
			began := time.Now()
			delivered, _, err := r.joinAndList(ctx, 0)
			if err != nil {
				return c, err
			}
			over, asked, comparing = delivered >= c.Expected, time.Now(), time.Since(began)
		}
		if !over && time.Since(heard) > quietFor && time.Since(began) > limit/2 {
			_, ids, err := r.joinAndList(ctx, 10)
			if err != nil {
				return c, err
			}
			if open, _ := askStates(ctx, ids, r.cfg.State); open > 0 {
				heard = time.Now()
			} else {
				over = true
			}
		}
		if over {
			c.drainTook = still.Sub(began)
			break
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	most := maxStatesAsked
	if hurried {
		most = 20 // the user waits for the summary
	}
	delivered, ids, err := r.joinAndList(ctx, most)
	if err == nil {
		got, err = l.countArrivals(ctx, true) // listMissing has found messages that arrived at two ledgers
	}
	if err != nil {
		return c, err
	}
	c.Delivered, c.Duplicates, c.Reordered = delivered, got.duplicates, got.reordered
	missing := c.Expected - c.Delivered
	open, ended := askStates(ctx, ids, r.cfg.State)
	switch rest := missing - int64(len(ids)); { // not asked for one by one: assume that they are like the ones asked for
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
	// Unexpected messages arrived without an acknowledgement. Requests that failed may have been
	// stored all the same, so as many messages are expected.
	unknown := r.failedMessages() + r.feeds.unreported(got.ids)
	if r.cfg.Segment.N < 2 { // the count of a segment includes the messages of the others
		c.Unexpected = max(got.ids-c.Delivered-unknown, 0)
	}
	if !r.expects(notify.Failed) && c.Ended > 0 {
		c.Unexpected += c.Ended
	}
	return c, nil
}

// join joins all arrivals with all promises, those in files included.
func (r *Run) join(ctx context.Context) error {
	if err := r.cfg.Ledger.joinArrivals(ctx, &r.promised, r.c.recordArrival); err != nil {
		return err
	}
	return r.promised.joinFiles(r.c.recordArrival)
}

// joinAndList joins, and returns what Ledger.listMissing returns.
func (r *Run) joinAndList(ctx context.Context, most int) (delivered int64, ids []string, err error) {
	if err := r.join(ctx); err != nil {
		return 0, nil, err
	}
	return r.cfg.Ledger.listMissing(ctx, &r.promised, most)
}

// askStates asks the server for the states of ids. It returns how many are still open, and how
// many ended without delivery. It counts an id as neither if the server cannot say.
func askStates(ctx context.Context, ids []string, state StateOf) (open, ended int64) {
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

// expects reports whether the scenario expects messages to end in this state.
func (r *Run) expects(s notify.State) bool {
	for _, e := range r.s.Expect {
		if p, ok := notify.ParseState(e); ok && p == s {
			return true
		}
	}
	return false
}
