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

// Dispatcher receives messages and makes the calls. What is done about a message,
// step by step, stands in steps.go; which call comes next in lanes.go.
//
// Nothing is acknowledged before what follows from it is durable, so a crash at any
// point leaves a message that leads back to the row.
type Dispatcher struct {
	cfg   DispatcherConfig
	terms terms
	lanes lanes

	// Works that wait for their step, which is done for many of them at a time.
	reads    [2]*batcher // stepRead, by line: on time is not behind the backlog
	claims   *batcher    // stepClaim
	outcomes *batcher    // stepSettle, stepReturn, stepBuried
	letters  *batcher    // stepBury
	timers   *batcher    // stepPark
	messages *batcher    // stepPutOff, stepAck

	on       context.Context // ends when a stop has waited long enough
	jobs     chan *work      // claimed, for goroutines that are free
	idlers   atomic.Int64
	calls    sync.WaitGroup
	draining chan struct{} // closed when no call may start any more

	mu       sync.Mutex
	held     map[*work]struct{}    // every message in memory
	ids      map[notify.Base]*work // one per trigger that is being worked on
	idle     chan struct{}         // closed when draining and nothing is held
	room     chan struct{}         // something was let go
	batches  uint64                // taken
	stopping bool

	toldNewer atomic.Bool // the log has the line about rows of a newer release
}

// NewDispatcher returns a Dispatcher; it starts nothing.
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
		terms: terms{
			schedule: cfg.Schedule, lease: cfg.Lease, skew: cfg.Skew, maxAge: cfg.MaxAge,
			maxRetryAfter: cfg.MaxRetryAfter, maxLost: cfg.MaxLost,
		},
		draining: make(chan struct{}), jobs: make(chan *work),
		held: map[*work]struct{}{}, ids: map[notify.Base]*work{}, idle: make(chan struct{}), room: make(chan struct{}, 1),
	}
	d.lanes = lanes{d: d, byCaller: map[string]*lane{}, byDigest: map[uint64]*lane{}}
	for _, b := range []**batcher{&d.reads[onTime], &d.reads[backlog], &d.claims, &d.outcomes, &d.letters, &d.timers, &d.messages} {
		*b = &batcher{most: cfg.Batch, wake: make(chan struct{}, 1)}
	}
	d.outcomes.linger, d.messages.linger = lingerFor, lingerFor
	return d, nil
}

// lingerFor is how long outcomes and acknowledgements wait for company: nobody
// waits for them, and a commit of five costs as much as one of fifty.
const lingerFor = 5 * time.Millisecond

// receiversAtOnce is how many batches are received at a time: each may wait for the
// disk once.
const receiversAtOnce = 3

// Run receives and calls until ctx ends; then it gives back what was not
// started, lets calls under way end, writes their outcomes, and returns nil. It
// may be called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	on, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	d.on = on
	var wg sync.WaitGroup
	start := func(n int, b *batcher, do func(context.Context, []*work)) {
		for range n {
			wg.Go(func() { b.run(on, do) })
		}
	}
	start(2, d.reads[onTime], d.read)
	start(1, d.reads[backlog], d.read)
	start(2, d.claims, d.claim)
	start(2, d.outcomes, d.swap)
	start(1, d.letters, d.bury)
	start(1, d.timers, d.park)
	start(2, d.messages, d.answer)
	wg.Go(func() { d.heartbeat(on) })
	wg.Go(func() { d.lanes.slacken(on) })
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
		d.cfg.Logger.Warn("stopped with triggers under way: they are called again when their claims run out")
	}
	cancel()
	wg.Wait()
	d.calls.Wait()
	d.cfg.Egress.Close()
	return nil
}

// receive takes messages in until ctx ends.
func (d *Dispatcher) receive(ctx context.Context) {
	var pause notify.Pause
	for d.waitForRoom(ctx) {
		if d.cfg.Clock() != nil {
			pause.Wait(ctx)
			continue
		}
		ds, err := d.cfg.Queue.Receive(ctx, d.cfg.Batch, d.cfg.Visibility)
		if err != nil {
			d.cfg.Logger.Warn("delay queue: receive", slog.Any("error", err))
			pause.Wait(ctx)
			continue
		}
		pause = notify.Pause{}
		d.take(ds)
	}
}

// waitForRoom holds the receive loop back while far more is held than can be
// queued: the stores are away. A caller that hangs cannot bring it there, its
// messages are put off long before. It returns false when ctx has ended.
func (d *Dispatcher) waitForRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		d.mu.Lock()
		full := len(d.held) >= (1+unreadShare)*d.cfg.MaxQueued+d.cfg.MaxInFlight
		d.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-d.room:
		case <-ctx.Done():
		}
	}
	return false
}

// youngerWait is how long a message stays away that came while an older one of
// its trigger is worked on.
const youngerWait = 2 * time.Second

// newerWait is how long a message of a newer release stays away from this process, and
// from all others.
const newerWait = 30 * time.Second

// take makes work of deliveries. Of a trigger that is being worked on no second
// message is looked at: the first leads to the same row.
func (d *Dispatcher) take(ds []engine.Delivery) {
	var first, newer, unreadable, twice, copies []*work
	d.mu.Lock()
	d.batches++
	for i := range ds {
		w := &work{d: ds[i], batch: d.batches}
		d.held[w] = struct{}{}
		var ok bool
		if w.msg, ok = decodeMessage(ds[i].Body); !ok {
			if b := ds[i].Body; len(b) > 1 && b[0] > messageVersion && b[1] == messageKind {
				w.delay, w.asIs = newerWait, true
				newer = append(newer, w)
				continue
			}
			// Of another kind, or damaged. It is put off until the queue sets it
			// apart, where people find it: never lost, never in anybody's way.
			w.delay, w.keep = time.Minute, true
			unreadable = append(unreadable, w)
			continue
		}
		other := d.ids[w.msg.base]
		if other == nil {
			d.ids[w.msg.base], w.named = w, true
			first = append(first, w)
			continue
		}
		// It may be the other itself, received again because its visibility ended:
		// then acknowledging it could lose the trigger.
		if other.batch != w.batch && w.d.Enqueued.Equal(other.d.Enqueued) {
			w.delay, w.keep = d.cfg.Visibility, true
			twice = append(twice, w)
			continue
		}
		// A copy may go: what the other leads to is durable before the other is
		// acknowledged, and is not this one (unname). But not one that is much
		// younger: the other may be about to be dropped as an orphan, and this one
		// be of a writer that came later and stores the row.
		if younger := w.d.Enqueued.Sub(other.d.Enqueued) > d.cfg.Orphan/4; younger || w.msg.gen != other.msg.gen {
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

// unname says that the triggers of messages are worked on no more. It comes before
// the successors of the messages are written: a successor may be received before its
// message is acknowledged, and must not be taken for a copy of what is about to go.
func (d *Dispatcher) unname(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		d.unnameLocked(w)
	}
}

func (d *Dispatcher) unnameLocked(w *work) {
	if w.named {
		w.named = false
		delete(d.ids, w.msg.base)
	}
}

// forget lets messages go.
func (d *Dispatcher) forget(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		delete(d.held, w)
		d.unnameLocked(w)
	}
	select {
	case d.room <- struct{}{}:
	default:
	}
	d.closeIdleLocked()
}

// closeIdleLocked tells a stop once nothing is held any more.
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

// heartbeat keeps the messages in memory from being received again.
func (d *Dispatcher) heartbeat(ctx context.Context) {
	for notify.Sleep(ctx, d.cfg.Visibility/3) {
		d.mu.Lock()
		receipts := make([]string, 0, len(d.held))
		for w := range d.held {
			receipts = append(receipts, w.d.Receipt)
		}
		d.mu.Unlock()
		for some := range slices.Chunk(receipts, 1000) {
			if err := d.cfg.Queue.Extend(ctx, some, d.cfg.Visibility); err != nil && ctx.Err() == nil {
				// A message received twice is no harm: the row decides.
				d.cfg.Logger.Warn("delay queue: extend", slog.Any("error", err))
				break
			}
		}
	}
}

// drain gives back what was not started and lets no call start any more.
func (d *Dispatcher) drain() {
	close(d.draining)
	back := d.lanes.stop()
	d.mu.Lock()
	d.stopping = true
	d.closeIdleLocked()
	d.mu.Unlock()
	d.putOff(CauseShutdown, back...)
}
