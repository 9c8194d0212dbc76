package trigger

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Dispatcher receives messages and makes the calls. The steps of a message are in steps.go. The
// code in lanes.go decides which call is made next.
//
// A message is acknowledged only after all its effects are durable. So a crash at any point leaves
// a message that leads back to the row.
type Dispatcher struct {
	cfg   DispatcherConfig
	rules callRules
	lanes lanes

	// Work that waits for its step. Each batcher runs its step for many messages at a time. There
	// are two batchers for stepRead, one for each lineKind, so that messages on time do not wait
	// for the backlog.
	reads    [2]*batcher // stepRead, by lineKind
	claims   *batcher    // stepClaim
	outcomes *batcher    // stepSettle, stepReturn, stepBuried
	letters  *batcher    // stepBury
	timers   *batcher    // stepPark
	messages *batcher    // stepPutOff, stepAck

	runCtx   context.Context // ends after a stop: when no message is in memory, or after the time Drain
	jobs     chan *work      // claimed work, for idle goroutines in runCalls
	idlers   atomic.Int64
	calls    sync.WaitGroup
	draining chan struct{} // closed when no further call may start

	mu         sync.Mutex
	held       map[*work]struct{}    // every message in memory
	inProgress map[notify.Base]*work // by trigger: the message that is being processed
	idle       chan struct{}         // closed when stopping is true and held is empty
	heldFreed  chan struct{}         // gets a token when messages were removed from held
	batches    uint64                // number of batches received
	stopping   bool

	newerLogged atomic.Bool // the log message about rows of a newer release was written
}

// NewDispatcher returns a Dispatcher. It starts no goroutine.
func NewDispatcher(cfg DispatcherConfig) (*Dispatcher, error) {
	if cfg.Egress == nil {
		return nil, cfg.validate()
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Breaker = breakerConfig(cfg.Breaker, cfg.Egress.cfg.Timeout)
	if _, err := limit.NewBreaker(time.Now(), cfg.Breaker); err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg,
		rules: callRules{
			schedule: cfg.Schedule, lease: cfg.Lease, skew: cfg.Skew, maxAge: cfg.MaxAge,
			maxRetryAfter: cfg.MaxRetryAfter, maxLost: cfg.MaxLost,
		},
		draining: make(chan struct{}), jobs: make(chan *work),
		held: map[*work]struct{}{}, inProgress: map[notify.Base]*work{}, idle: make(chan struct{}), heldFreed: make(chan struct{}, 1),
	}
	d.lanes = lanes{d: d, byCaller: map[string]*lane{}, byDigest: map[uint64]*lane{}}
	for _, b := range []**batcher{&d.reads[lineOnTime], &d.reads[lineBacklog], &d.claims, &d.outcomes, &d.letters, &d.timers, &d.messages} {
		*b = &batcher{maxBatch: cfg.Batch, wake: make(chan struct{}, 1)}
	}
	d.outcomes.linger, d.messages.linger = lingerFor, lingerFor
	return d, nil
}

// lingerFor is how long outcomes and acknowledgements wait for more of the same kind. No caller
// waits for them, and a store needs as long to write five of them as to write fifty.
const lingerFor = 5 * time.Millisecond

// receiversAtOnce is how many goroutines receive batches at the same time. One goroutine would be
// too slow, because each receive may wait for the disk once.
const receiversAtOnce = 3

// Run receives messages and makes calls until ctx ends. Then it returns to the queue all messages
// whose calls have not started. It waits until calls in progress end and their outcomes are
// written, but at most for the configured time Drain. It returns nil. Run may be called only once.
func (d *Dispatcher) Run(ctx context.Context) error {
	on, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	d.runCtx = on
	var wg sync.WaitGroup
	start := func(n int, b *batcher, do func(context.Context, []*work)) {
		for range n {
			wg.Go(func() { b.run(on, do) })
		}
	}
	start(2, d.reads[lineOnTime], d.readRows)
	start(1, d.reads[lineBacklog], d.readRows)
	start(2, d.claims, d.claimRows)
	start(2, d.outcomes, d.swapRows)
	start(1, d.letters, d.writeDeadLetters)
	start(1, d.timers, d.writeIndexRows)
	start(2, d.messages, d.putOffAndAck)
	wg.Go(func() { d.extendHeld(on) })
	wg.Go(func() { d.lanes.runThinning(on) })
	var receivers sync.WaitGroup
	for range receiversAtOnce {
		receivers.Go(func() { d.receive(ctx) })
	}
	receivers.Wait()
	d.drain()
	limit := time.NewTimer(d.cfg.Drain)
	defer limit.Stop()
	select {
	case <-d.idle:
	case <-limit.C:
		d.cfg.Logger.Warn("stopped before all calls in progress had ended and their outcomes were written; these triggers are called again when their claims expire")
	}
	cancel()
	wg.Wait()
	d.calls.Wait()
	d.cfg.Egress.Close()
	return nil
}

// receive receives messages from the queue until ctx ends.
func (d *Dispatcher) receive(ctx context.Context) {
	var pause notify.Pause
	for d.waitForRoom(ctx) {
		if d.cfg.Clock() != nil {
			pause.Wait(ctx)
			continue
		}
		ds, err := d.cfg.Queue.Receive(ctx, d.cfg.Batch, d.cfg.Visibility)
		if err != nil {
			d.cfg.Logger.Warn("cannot receive messages from the delay queue", slog.Any("error", err))
			pause.Wait(ctx)
			continue
		}
		pause = notify.Pause{}
		d.acceptDeliveries(ds)
	}
}

// waitForRoom stops the receive loop while far too many messages are in memory. That happens only
// while the stores are down. If a receiver does not answer, its messages are returned to the queue
// long before memory is full. waitForRoom returns false when ctx has ended.
func (d *Dispatcher) waitForRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		d.mu.Lock()
		full := len(d.held) >= (1+unreadShare)*d.cfg.MaxQueued+d.cfg.MaxInFlight
		d.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-d.heldFreed:
		case <-ctx.Done():
		}
	}
	return false
}

// youngerWait is how long a message is put off if an older message of the same trigger is being
// processed.
const youngerWait = 2 * time.Second

// newerWait is how long a message of a newer release is put off, so that another process may
// receive it.
const newerWait = 30 * time.Second

// acceptDeliveries registers deliveries and sends them to their first step. All messages of a
// trigger lead to the same row. So while one message of a trigger is being processed,
// acceptDeliveries puts off or drops other messages of that trigger.
func (d *Dispatcher) acceptDeliveries(ds []engine.Delivery) {
	var first, newer, unreadable, twice, copies []*work
	d.mu.Lock()
	d.batches++
	for i := range ds {
		w := &work{delivery: ds[i], batch: d.batches}
		d.held[w] = struct{}{}
		var ok bool
		if w.msg, ok = decodeMessage(ds[i].Body); !ok {
			if b := ds[i].Body; len(b) > 1 && b[0] > messageVersion && b[1] == messageKind {
				w.delay, w.keepBody = newerWait, true
				newer = append(newer, w)
				continue
			}
			// The message is damaged, or it is not a message of a trigger. Put it off again and
			// again, until the queue moves it to its dead messages, where operators can find it. So
			// it is not lost and blocks no other message.
			w.delay, w.keepReceives = time.Minute, true
			unreadable = append(unreadable, w)
			continue
		}
		other := d.inProgress[w.msg.base]
		if other == nil {
			d.inProgress[w.msg.base], w.registered = w, true
			first = append(first, w)
			continue
		}
		// The message of this trigger that is being processed (other) may be the same message as
		// this delivery, received again because its visibility timeout ended. If this delivery were
		// acknowledged, the trigger could be lost.
		if other.batch != w.batch && w.delivery.Enqueued.Equal(other.delivery.Enqueued) {
			w.delay, w.keepReceives = d.cfg.Visibility, true
			twice = append(twice, w)
			continue
		}
		// Normally this delivery is only a copy of other and may be dropped. The message other is
		// acknowledged only after all its effects are durable, and a message that replaces it is
		// not treated as a copy (see forgetInProgress). But a much younger delivery must be kept.
		// The message other may soon be dropped because its row is missing, and the younger message
		// may belong to a later write that stores the row.
		if younger := w.delivery.Enqueued.Sub(other.delivery.Enqueued) > d.cfg.Orphan/4; younger || w.msg.gen != other.msg.gen {
			w.delay = youngerWait
			twice = append(twice, w)
			continue
		}
		copies = append(copies, w)
	}
	d.mu.Unlock()
	d.cfg.Events.dropped("unreadable", len(unreadable))
	d.send(stepPutOff, unreadable...)
	d.putOff(CauseNewer, newer...)
	d.putOff(CauseLeased, twice...)
	d.drop("copy", copies...)
	d.send(stepRead, d.lanes.awaitRow(first)...)
}

// forgetInProgress removes the triggers of messages from the in-progress set. Call it before the
// successors of the messages are written, that is, the messages or index rows that replace them.
// Otherwise a successor could be received before the old message is acknowledged, and would be
// treated as a copy.
func (d *Dispatcher) forgetInProgress(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		d.forgetInProgressLocked(w)
	}
}

func (d *Dispatcher) forgetInProgressLocked(w *work) {
	if w.registered {
		w.registered = false
		delete(d.inProgress, w.msg.base)
	}
}

// releaseHeld removes messages from memory.
func (d *Dispatcher) releaseHeld(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		delete(d.held, w)
		d.forgetInProgressLocked(w)
	}
	select {
	case d.heldFreed <- struct{}{}:
	default:
	}
	d.closeIdleLocked()
}

// closeIdleLocked closes the channel idle if a stop has begun and no message is in memory. d.mu
// must be held.
func (d *Dispatcher) closeIdleLocked() {
	if !d.stopping || len(d.held) > 0 {
		return
	}
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}

// extendHeld extends the visibility timeout of the messages in memory, so that they are not
// received again.
func (d *Dispatcher) extendHeld(ctx context.Context) {
	for notify.Sleep(ctx, d.cfg.Visibility/3) {
		d.mu.Lock()
		receipts := make([]string, 0, len(d.held))
		for w := range d.held {
			receipts = append(receipts, w.delivery.Receipt)
		}
		d.mu.Unlock()
		for some := range slices.Chunk(receipts, 1000) {
			if err := d.cfg.Queue.Extend(ctx, some, d.cfg.Visibility); err != nil && ctx.Err() == nil {
				// A message that is received twice does no harm, because the row decides.
				d.cfg.Logger.Warn("cannot extend the visibility timeout of messages in the delay queue", slog.Any("error", err))
				break
			}
		}
	}
}

// drain returns to the queue all messages whose calls have not started. After drain no further call
// starts.
func (d *Dispatcher) drain() {
	close(d.draining)
	back := d.lanes.stop()
	d.mu.Lock()
	d.stopping = true
	d.closeIdleLocked()
	d.mu.Unlock()
	d.putOff(CauseShutdown, back...)
}
