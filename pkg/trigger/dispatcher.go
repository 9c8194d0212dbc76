package trigger

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// DispatcherConfig of a Dispatcher. Triggers, Callers, Queue, Later, Dead and
// Egress are required; the zero value of the others means their default.
type DispatcherConfig struct {
	Triggers engine.Triggers
	Callers  engine.Callers
	// Queue brings the messages that ToQueue enqueues. Its MaxReceives must be
	// 8 or more.
	Queue  engine.Queue
	Later  Later
	Dead   DeadLog
	Egress *Egress
	// Census hears of triggers that end. Default: nobody does.
	Census *Census

	// CallerInFlight is how many calls of a caller run at a time, unless its own
	// record says otherwise: its bulkhead. Default 100.
	CallerInFlight int
	// MaxInFlight is how many calls run at a time in all. As they get scarce,
	// every caller's share shrinks; one call each is always allowed, so that
	// callers that hang cannot shut others out. Default 4,096.
	MaxInFlight int
	// MaxQueued is how many messages wait in memory for a place in all; one
	// caller's may be as many as are still free. Default 8,192.
	MaxQueued int
	// Batch is how many messages are received, read and written at a time.
	// Default 256.
	Batch int
	// Visibility of a received message; it is extended while the message is
	// held. Default 30 s.
	Visibility time.Duration
	// Lease of a claim, at least the egress's Timeout and 5 s. After it anyone
	// may claim again. Default 30 s.
	Lease time.Duration
	// Skew is how far the clocks of two machines may be apart. Default 2 s.
	Skew time.Duration
	// Schedule are the waits between attempts of triggers without one of their
	// own. Default DefaultSchedule.
	Schedule []time.Duration
	// MaxRetryAfter is the longest Retry-After that is honoured. Default 1 h.
	MaxRetryAfter time.Duration
	// Hold is the longest wait that stays in the queue; longer ones become index
	// rows. Default 10 s, at most engine.MaxQueueDelay.
	Hold time.Duration
	// MaxAge is how long a trigger may be put off, beside the waits of its
	// schedule, before it is FAILED. Default 72 h.
	MaxAge time.Duration
	// MaxLost is how many claims of a trigger may run out, because whoever made
	// the call died, before it is FAILED. Default 10.
	MaxLost int
	// Orphan is how long a message waits for its state row. Default 1 min; not
	// less than the Service's.
	Orphan time.Duration
	// PolicyAge is how old a caller's record may be when a call starts. Default
	// 1 s; below 0: read for every batch and call.
	PolicyAge time.Duration
	// Drain is how long a stop waits for what is under way. Default 20 s.
	Drain time.Duration
	// Breaker of each caller. Default: more than half of at least 10 calls in
	// 30 s failing opens it for 60 s; 3 probes.
	Breaker limit.BreakerConfig
	// Events are told what happened. Default: nothing.
	Events Events
	// Logger gets failures of the stores, which are tried again. Default:
	// discarded.
	Logger *slog.Logger

	hit  func(string) // fault.Hit, or a test's
	post poster       // the egress's, or a test's
}

// poster makes one call.
type poster func(ctx context.Context, u *url.URL, header http.Header, body []byte) result

func (c DispatcherConfig) withDefaults() DispatcherConfig {
	c.CallerInFlight = or(c.CallerInFlight, 100)
	c.MaxInFlight = or(c.MaxInFlight, 4096)
	c.MaxQueued = or(c.MaxQueued, 8192)
	c.Batch = or(c.Batch, 256)
	c.Visibility = or(c.Visibility, 30*time.Second)
	c.Lease = or(c.Lease, 30*time.Second)
	c.Skew = or(c.Skew, 2*time.Second)
	if len(c.Schedule) == 0 {
		c.Schedule = DefaultSchedule
	}
	c.MaxRetryAfter = or(c.MaxRetryAfter, time.Hour)
	c.Hold = or(c.Hold, 10*time.Second)
	c.MaxAge = or(c.MaxAge, 72*time.Hour)
	c.MaxLost = or(c.MaxLost, 10)
	c.Orphan = or(c.Orphan, time.Minute)
	c.PolicyAge = or(c.PolicyAge, time.Second)
	c.Drain = or(c.Drain, 20*time.Second)
	if c.Census == nil {
		c.Census = NewCensus(c.Triggers)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.hit == nil {
		c.hit = fault.Hit
	}
	if c.post == nil {
		c.post = c.Egress.post
	}
	return c
}

func (c DispatcherConfig) validate() error {
	switch {
	case c.Triggers == nil || c.Callers == nil || c.Queue == nil || c.Later == nil || c.Dead == nil || c.Egress == nil:
		return errors.New("trigger: Triggers, Callers, Queue, Later, Dead and Egress are required")
	case c.CallerInFlight < 1 || c.MaxInFlight < 1 || c.MaxQueued < 2 || c.Batch < 1 || c.MaxLost < 1:
		return errors.New("trigger: CallerInFlight, MaxInFlight, MaxQueued, Batch and MaxLost must be above 0")
	case c.Lease < c.Egress.cfg.Timeout+5*time.Second:
		return errors.New("trigger: Lease must be at least the egress's timeout and 5 s: a call must end within its claim")
	case c.Visibility < time.Second || c.Skew < 0 || c.MaxRetryAfter < 0 || c.MaxAge < 0 || c.Orphan < time.Second || c.Drain < 0:
		return errors.New("trigger: Visibility and Orphan must be at least 1 s, and no duration below 0")
	case c.Hold < 0 || c.Hold > engine.MaxQueueDelay:
		return errors.New("trigger: Hold must be from 0 to the longest delay of a queue")
	}
	return nil
}

// Dispatcher receives messages and makes the calls. One message's way:
//
//	receive ─> read ─> (caller's queue) ─> claim ─> call ─> outcome ─> ack
//	             │            │                                │
//	             └── drop, put off, give up, dead letter <─────┘
//
// Reads, claims, outcomes and acks are written in batches. Nothing is
// acknowledged before what follows from it is durable, so a crash at any point
// leaves a message that leads back to the row.
type Dispatcher struct {
	cfg   DispatcherConfig
	terms terms

	reads    *batcher[*work] // rows to read and judge
	claims   *batcher[*work] // rows to claim
	swaps    *batcher[*work] // rows to swap for work.next, then work.then
	letters  *batcher[*work] // dead letters to append
	index    *batcher[*work] // index rows to write, then ack
	puts     *batcher[*work] // messages to put off by work.delay
	acks     *batcher[*work] // messages to acknowledge
	on       context.Context // ends when a stop has waited long enough
	calls    sync.WaitGroup
	draining chan struct{} // closed when no call may start any more

	mu       sync.Mutex
	lanes    map[string]*lane
	held     map[*work]struct{}   // every message in memory
	ids      map[notify.Base]bool // their triggers
	inFlight int                  // calls under way, and claims for them
	queued   int                  // over all lanes
	idle     chan struct{}        // closed when draining and nothing is held
	room     chan struct{}        // something was let go
	stopping bool
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
	return &Dispatcher{
		cfg: cfg,
		terms: terms{
			schedule: cfg.Schedule, lease: cfg.Lease, skew: cfg.Skew, maxAge: cfg.MaxAge,
			maxRetryAfter: cfg.MaxRetryAfter, maxLost: cfg.MaxLost,
		},
		reads: newBatcher[*work](cfg.Batch), claims: newBatcher[*work](cfg.Batch), swaps: newBatcher[*work](cfg.Batch),
		letters: newBatcher[*work](cfg.Batch), index: newBatcher[*work](cfg.Batch), puts: newBatcher[*work](cfg.Batch), acks: newBatcher[*work](cfg.Batch),
		draining: make(chan struct{}), lanes: map[string]*lane{}, held: map[*work]struct{}{}, ids: map[notify.Base]bool{},
		idle: make(chan struct{}), room: make(chan struct{}, 1),
	}, nil
}

// work is a message in memory and what is being done about it. One goroutine at
// a time has it.
type work struct {
	d      engine.Delivery
	msg    message
	alone  bool // ids has its trigger
	row    engine.Trigger
	lane   *lane
	placed time.Time // when it joined its lane's queue

	claimed time.Time      // before the claim was written: the lease is trusted from here
	slot    bool           // it has a place among the calls under way
	next    engine.Trigger // what to swap the row for
	then    func()         // once the swap has won
	delay   time.Duration  // how long to put the message off
	why     string         // cause of that, where it is a deferral
	keep    bool           // put off as the message it is, with the receives it has
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
	stage(2, d.reads, d.read)
	stage(2, d.claims, d.claim)
	stage(2, d.swaps, d.swap)
	stage(1, d.letters, d.bury)
	stage(1, d.index, d.park)
	stage(2, d.puts, d.putOff)
	stage(1, d.acks, d.ack)
	wg.Go(func() { d.heartbeat(on) })
	d.receive(ctx)

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
	pause := backoff{}
	for ctx.Err() == nil {
		if !d.waitForRoom(ctx) {
			return
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

// take makes work of deliveries.
func (d *Dispatcher) take(ds []engine.Delivery) {
	read := make([]*work, 0, len(ds))
	var unread, twice []*work
	d.mu.Lock()
	for i := range ds {
		w := &work{d: ds[i]}
		msg, ok := decodeMessage(ds[i].Body)
		w.msg = msg
		d.held[w] = struct{}{}
		switch {
		case !ok:
			unread = append(unread, w)
		case d.ids[msg.base]:
			twice = append(twice, w)
		default:
			d.ids[msg.base], w.alone = true, true
			read = append(read, w)
		}
	}
	d.mu.Unlock()
	for _, w := range unread {
		// Of another kind or release. It is put off until the queue sets it
		// apart, where people find it: never lost, never in anybody's way.
		w.delay, w.keep = time.Minute, true
	}
	for _, w := range twice {
		// This may be the very message that is held, received again because its
		// visibility ended: acknowledging it could lose the trigger.
		w.delay, w.keep = d.cfg.Visibility, true
	}
	d.cfg.Events.dropped("unreadable", len(unread))
	d.cfg.Events.deferred(CauseLeased, len(twice))
	d.puts.add(unread...)
	d.puts.add(twice...)
	d.reads.add(read...)
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
		back = append(back, l.queue...)
		d.queued -= len(l.queue)
		l.queue = nil
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
