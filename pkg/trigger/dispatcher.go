package trigger

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Dispatcher receives messages and makes the calls. One message's way:
//
//	receive ─> read ─> (caller's queue) ─> claim ─> call ─> outcome ─> ack
//	             │            │                                │
//	             └── drop, put off, give up, dead letter <─────┘
//
// Reads, claims, outcomes and acks are written in batches, and some claims ahead
// of the places for their calls (ahead.go). A call costs 67 to 73 us of processor,
// the receiver's share included, where net/http alone takes 40 to 44 and an
// earlier dispatcher took 89 (make bench ONLY=P8, the same busy machine). Nothing is
// acknowledged before what follows from it is durable, so a crash at any point
// leaves a message that leads back to the row.
type Dispatcher struct {
	cfg   DispatcherConfig
	terms terms

	reads    [2]*batcher[*work] // rows to read and judge, by line
	claims   *batcher[*work]    // rows to claim
	swaps    *batcher[*work]    // rows to swap for work.next, then work.then
	letters  *batcher[*work]    // dead letters to append
	index    *batcher[*work]    // index rows to write, then ack
	puts     *batcher[*work]    // messages to put off by work.delay
	acks     *batcher[*work]    // messages to acknowledge
	on       context.Context    // ends when a stop has waited long enough
	jobs     chan *work         // claimed, for goroutines that are free
	idlers   atomic.Int64
	calls    sync.WaitGroup
	draining chan struct{} // closed when no call may start any more

	mu       sync.Mutex
	lanes    map[string]*lane
	digests  map[uint64]*lane      // of their callers
	held     map[*work]struct{}    // every message in memory
	ids      map[notify.Base]*work // one per trigger that is being worked on
	inFlight int                   // calls under way, and claims for them
	queued   [2]int                // over all lanes, by line
	bytes    [2]int                // of their rows
	idle     chan struct{}         // closed when draining and nothing is held
	room     chan struct{}         // something was let go
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
	if _, err := newCircuit(time.Now(), cfg.Breaker); err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg,
		terms: terms{
			schedule: cfg.Schedule, lease: cfg.Lease, skew: cfg.Skew, maxAge: cfg.MaxAge,
			maxRetryAfter: cfg.MaxRetryAfter, maxLost: cfg.MaxLost,
		},
		reads: [2]*batcher[*work]{newBatcher[*work](cfg.Batch), newBatcher[*work](cfg.Batch)}, claims: newBatcher[*work](cfg.Batch), swaps: newBatcher[*work](cfg.Batch),
		letters: newBatcher[*work](cfg.Batch), index: newBatcher[*work](cfg.Batch), puts: newBatcher[*work](cfg.Batch), acks: newBatcher[*work](cfg.Batch),
		draining: make(chan struct{}), jobs: make(chan *work), lanes: map[string]*lane{}, digests: map[uint64]*lane{}, held: map[*work]struct{}{}, ids: map[notify.Base]*work{},
		idle: make(chan struct{}), room: make(chan struct{}, 1),
	}
	d.swaps.linger, d.acks.linger = lingerFor, lingerFor
	return d, nil
}

// lingerFor is how long outcomes and acknowledgements wait for company: nobody
// waits for them, and a commit of five costs as much as one of fifty.
const lingerFor = 2 * time.Millisecond

// work is a message in memory and what is being done about it. One goroutine at
// a time has it.
type work struct {
	d     engine.Delivery
	msg   message
	alone bool // ids has its trigger
	row   engine.Trigger
	lane  *lane

	claimed time.Time      // before the claim was written: the lease is trusted from here
	slot    bool           // it has a place among the calls under way
	next    engine.Trigger // what to swap the row for
	then    func()         // once the swap has won
	delay   time.Duration  // how long to put the message off
	why     string         // cause of that, where it is a deferral
	keep    bool           // put off as the message it is, with the receives it has
	asIs    bool           // put off with the body it has: a newer release wrote it or its row
}

// Run receives and calls until ctx ends; then it gives back what was not
// started, lets calls under way end, writes their outcomes, and returns nil. It
// may be called once.
func (d *Dispatcher) Run(ctx context.Context) error {
	on, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	d.on = on
	var wg sync.WaitGroup
	stage := func(n int, b *batcher[*work], fn func(context.Context, []*work)) {
		for range n {
			wg.Go(func() { b.run(on, func(ws []*work) { fn(on, ws) }) })
		}
	}
	stage(2, d.reads[onTime], d.read)
	stage(1, d.reads[backlog], d.read)
	stage(2, d.claims, d.claim)
	stage(2, d.swaps, d.swap)
	stage(1, d.letters, d.bury)
	stage(1, d.index, d.park)
	stage(2, d.puts, d.putOff)
	stage(1, d.acks, d.ack)
	wg.Go(func() { d.heartbeat(on) })
	wg.Go(func() { d.slacken(on) })
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

// receiversAtOnce is how many batches are received at a time: each waits for the
// disk once, for what it says of its messages.
const receiversAtOnce = 3

// receive takes messages in until ctx ends.
func (d *Dispatcher) receive(ctx context.Context) {
	pause := backoff{}
	for ctx.Err() == nil {
		if !d.waitForRoom(ctx) {
			return
		}
		if d.cfg.Clock() != nil {
			pause.wait(ctx)
			continue
		}
		ds, err := d.cfg.Queue.Receive(ctx, d.cfg.Batch, d.cfg.Visibility)
		if err != nil {
			d.cfg.Logger.Warn("delay queue: receive", slog.Any("error", err))
			pause.wait(ctx)
			continue
		}
		pause = backoff{}
		d.take(ds)
	}
}

// look lets messages have their rows read, those on time not behind the backlog.
func (d *Dispatcher) look(ws ...*work) {
	var by [2][]*work
	for _, w := range ws {
		by[w.line()] = append(by[w.line()], w)
	}
	for l, ws := range by {
		d.reads[l].add(ws...)
	}
}

// waitForRoom holds the receive loop back while far more is held than can be
// queued: the stores are away. A caller that hangs cannot bring it there, its
// messages are put off long before.
func (d *Dispatcher) waitForRoom(ctx context.Context) bool {
	for {
		d.mu.Lock()
		full := len(d.held) >= 2*d.cfg.MaxQueued+d.cfg.MaxInFlight
		d.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-d.room:
		case <-ctx.Done():
			return false
		}
	}
}

// youngerWait is how long a message stays away that came while an older one of
// its trigger is worked on.
const youngerWait = 2 * time.Second

// take makes work of deliveries. Of a trigger that is being worked on no second
// message is looked at: the first leads to the same row.
func (d *Dispatcher) take(ds []engine.Delivery) {
	var read, unread, twice, copies []*work
	d.mu.Lock()
	before := make(map[notify.Base]*work, len(ds)) // of earlier batches
	for i := range ds {
		w := &work{d: ds[i]}
		d.held[w] = struct{}{}
		var ok bool
		if w.msg, ok = decodeMessage(ds[i].Body); !ok {
			unread = append(unread, w)
			continue
		}
		first := d.ids[w.msg.base]
		if first == nil {
			d.ids[w.msg.base], w.alone = w, true
			before[w.msg.base] = w
			read = append(read, w)
			continue
		}
		// A copy may go: what the first leads to is durable before the first is
		// acknowledged, and is not this one (unname). But it may be the first itself, received again because its
		// visibility ended, and then acknowledging it could lose the trigger.
		other := before[w.msg.base] == first || !w.d.Enqueued.Equal(first.d.Enqueued)
		// Nor one that is much younger: the first may be about to be dropped as an
		// orphan, and this one be of a writer that came later and stores the row.
		younger := w.d.Enqueued.Sub(first.d.Enqueued) > d.cfg.Orphan/4
		if other && !younger && w.msg.gen == first.msg.gen {
			copies = append(copies, w)
			continue
		}
		if other {
			w.delay = youngerWait
		}
		twice = append(twice, w)
	}
	d.mu.Unlock()
	newer := 0
	for _, w := range unread {
		if b := w.d.Body; len(b) > 1 && b[0] > messageVersion && b[1] == messageKind {
			newer++
			w.delay, w.asIs = newerWait, true
			continue
		}
		// Of another kind, or damaged. It is put off until the queue sets it
		// apart, where people find it: never lost, never in anybody's way.
		w.delay, w.keep = time.Minute, true
	}
	for _, w := range twice {
		if w.delay == 0 {
			w.delay, w.keep = d.cfg.Visibility, true
		}
	}
	d.cfg.Events.dropped("unreadable", len(unread)-newer)
	d.cfg.Events.deferred(CauseNewer, newer)
	d.cfg.Events.dropped("copy", len(copies))
	d.cfg.Events.deferred(CauseLeased, len(twice))
	d.puts.add(unread...)
	d.puts.add(twice...)
	d.acks.add(copies...)
	d.look(d.skim(read)...)
}

// unname makes messages ones whose trigger is worked on no more. It comes before
// their successor is written: that one may be received before they are
// acknowledged, and must not be taken for a copy of what is about to go.
func (d *Dispatcher) unname(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		if w.alone {
			w.alone = false
			delete(d.ids, w.msg.base)
		}
	}
}

// forget lets messages go.
func (d *Dispatcher) forget(ws []*work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range ws {
		delete(d.held, w)
		if w.alone {
			delete(d.ids, w.msg.base)
		}
	}
	select {
	case d.room <- struct{}{}:
	default:
	}
	if d.stopping && len(d.held) == 0 {
		d.closeIdleLocked()
	}
}

func (d *Dispatcher) closeIdleLocked() {
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}

// heartbeat keeps the messages in memory from being received again.
func (d *Dispatcher) heartbeat(ctx context.Context) {
	t := time.NewTicker(d.cfg.Visibility / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		receipts := make([]string, 0, len(d.held))
		for w := range d.held {
			receipts = append(receipts, w.d.Receipt)
		}
		d.mu.Unlock()
		for len(receipts) > 0 {
			n := min(len(receipts), 1000)
			if err := d.cfg.Queue.Extend(ctx, receipts[:n], d.cfg.Visibility); err != nil && ctx.Err() == nil {
				// A message received twice is no harm: the row decides.
				d.cfg.Logger.Warn("delay queue: extend", slog.Any("error", err))
				break
			}
			receipts = receipts[n:]
		}
	}
}

// drain gives back what was not started and lets no call start any more.
func (d *Dispatcher) drain() {
	d.mu.Lock()
	d.stopping = true
	close(d.draining)
	var back []*work
	for _, l := range d.lanes {
		waiting := l.clearLocked()
		for _, w := range waiting {
			d.queuedLocked(l, w, -1)
		}
		back = append(back, waiting...)
		d.returnLocked(l, CauseShutdown, 0)
	}
	if len(d.held) == 0 {
		d.closeIdleLocked()
	}
	d.mu.Unlock()
	for _, w := range back {
		w.delay = 0
	}
	d.cfg.Events.deferred(CauseShutdown, len(back))
	d.puts.add(back...)
}
