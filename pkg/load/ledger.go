package load

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Ledger reports which messages the providers received. Shards reads the ledgers of simulators over
// HTTP. Observer is a ledger in this process.
type Ledger interface {
	// markStart records the arrivals before the run, so that later counts leave them out.
	markStart(ctx context.Context) error
	// countArrivals counts the arrivals since markStart. If final is true, it also waits for counts
	// that a simulator computes later, such as the order of messages.
	countArrivals(ctx context.Context, final bool) (arrivalCounts, error)
	// joinArrivals matches the arrivals since its last call with the promised messages. It calls f
	// with the moment at which each promised message first arrived. It may be called during the
	// run.
	joinArrivals(ctx context.Context, p *promises, f onArrival) error
	// listMissing returns the number of promised messages that arrived, and at most limit ids of
	// promised messages that did not arrive. It uses only arrivals that joinArrivals has read.
	listMissing(ctx context.Context, p *promises, limit int) (delivered int64, ids []string, err error)
	// joinTriggerCalls calls f for each promised trigger, with the moment at which the trigger's
	// callback was made. The run calls joinTriggerCalls once, at the end.
	joinTriggerCalls(ctx context.Context, p *promises, f onArrival) error
}

// onArrival is called when messages of one promise have arrived. The parameter n is the number of
// these messages, and the parameter at is the time at which they arrived. Several goroutines may
// call it at the same time.
type onArrival func(d *dueMoment, at time.Time, n int64)

// arrivalCounts holds what a ledger counted since the start of the run.
type arrivalCounts struct {
	ids        int64 // distinct messages
	duplicates int64
	reordered  int64
	examples   []string // ids of duplicates
}

const (
	// quietFor is the time without any arrival after which missing messages count as lost.
	quietFor = 10 * time.Second
	// maxStatesAsked is a limit: the run asks the server for the states of at most this many missing
	// messages.
	maxStatesAsked = 1000
)

// StateOf asks the server for the state of a notification or trigger. It returns notify.None if
// the server does not know the id.
type StateOf func(ctx context.Context, id string) (notify.State, error)

// waitForBacklog waits until all accepted messages were delivered, or until the time limit has
// passed.
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

// drain waits until the messages were delivered, and then counts what happened to each message
// (settleLedger). The channel stopped is closed when the user stops the run. If the user stopped
// the run before the drain, drain waits for at most Config.Grace. If the user stops the run during
// the drain, drain counts at once.
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
				r.why("stopped by the user during the drain")
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

// failedMessages returns the number of messages in requests without a good answer.
func (r *Run) failedMessages() (n int64) {
	for _, s := range r.steps {
		n += s.lapsed.Load()
	}
	return n
}

// drainResult holds the counts and the length of the drain.
type drainResult struct {
	LedgerResult
	drainTook time.Duration // from the end of sending to the last delivery
}

// settleLedger waits until every acknowledged message was delivered, or until the time limit has
// passed. Then it counts the missing messages:
//   - as ended, if the server has a terminal state for the message;
//   - as pending, if the server says that the message still waits, for example for a provider that
//     is down;
//   - else as lost, if no message has arrived for the time quietFor;
//   - else as pending, because messages still arrived until the end of the wait. If the user stopped
//     the drain (hurried is true), they count as unverified instead.
func (r *Run) settleLedger(ctx context.Context, limit time.Duration, hurried bool) (drainResult, error) {
	l, p := r.cfg.Ledger, &r.promised
	c := drainResult{LedgerResult: LedgerResult{Checked: true, Expected: p.total()}}
	began := time.Now()
	still, last, quiet := time.Now(), int64(-1), false
	heard := began // when an arrival or the server last showed that more messages will arrive
	var got arrivalCounts
	var asked time.Time         // when the arrivals were last compared with the promises
	var comparing time.Duration // how long that comparison took
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
		// got.ids also counts messages of other senders, such as other segments. So compare the
		// arrivals with the promises before the wait ends.
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
		// Call countArrivals after listMissing: its count of duplicates includes the messages that
		// listMissing found at two ledgers.
		got, err = l.countArrivals(ctx, true)
	}
	if err != nil {
		return c, err
	}
	c.Delivered, c.Duplicates, c.Reordered = delivered, got.duplicates, got.reordered
	missing := c.Expected - c.Delivered
	open, ended := askStates(ctx, ids, r.cfg.State)
	// rest is the number of missing messages for which the server was not asked. Assume that they
	// have the same state as the messages for which it was asked.
	switch rest := missing - int64(len(ids)); {
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
	// A message is unexpected if it arrived without an acknowledgement. But the server may have
	// stored messages of failed requests. So subtract the number of messages in these requests.
	unknown := r.failedMessages() + r.feeds.unreported(got.ids)
	if r.cfg.Segment.N < 2 { // the count of one segment of several includes the messages of the other segments
		c.Unexpected = max(got.ids-c.Delivered-unknown, 0)
	}
	if !r.expects(notify.Failed) && c.Ended > 0 {
		c.Unexpected += c.Ended
	}
	return c, nil
}

// join matches all arrivals with all promises, including the promises in files.
func (r *Run) join(ctx context.Context) error {
	if err := r.cfg.Ledger.joinArrivals(ctx, &r.promised, r.c.recordArrival); err != nil {
		return err
	}
	return r.promised.joinFiles(r.c.recordArrival)
}

// joinAndList calls join, and then returns the results of Ledger.listMissing.
func (r *Run) joinAndList(ctx context.Context, most int) (delivered int64, ids []string, err error) {
	if err := r.join(ctx); err != nil {
		return 0, nil, err
	}
	return r.cfg.Ledger.listMissing(ctx, &r.promised, most)
}

// askStates asks the server for the states of messages. The result open is the number of messages
// that are not in a terminal state. The result ended is the number of messages that ended without
// delivery. Neither includes messages that the server does not know.
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
