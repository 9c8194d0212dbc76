package timer

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Engine owns shards, as many as it can get, and releases their timers. Park may
// be called from any goroutine, also before Run.
//
// The tenures of the shards load timers and close minutes; the releaser publishes what
// they have loaded. One lock guards both: a shard that is lost takes its timers along.
type Engine struct {
	cfg   Config
	began time.Time // of the monotonic clock that trust is measured by

	writer      *writer
	releaser    *releaser
	heads       *heads
	near        *nearLine
	members     *membership
	housekeeper *housekeeper

	gained chan struct{}    // a shard was taken over
	scans  [2]chan struct{} // bounds the pages being read, by lane

	count  counters
	troubl complaints

	mu      sync.Mutex
	tenures []*tenure // by shard; nil: not owned. A shard that was added has no place before its keeper starts.
	water   []int64   // by shard: the end of its watermark when it was last seen, ms since 1970
	owned   int
}

// New returns an engine that starts nothing.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, began: time.Now(), gained: make(chan struct{}, 1),
		scans: [2]chan struct{}{make(chan struct{}, 8), make(chan struct{}, 4)},
	}
	e.addShards()
	e.writer, e.releaser, e.heads, e.near = &writer{e}, newReleaser(e), &heads{e}, &nearLine{e}
	e.members, e.housekeeper = &membership{Engine: e, moves: map[uint16]string{}, change: make(chan struct{})}, &housekeeper{Engine: e}
	e.troubl.log = cfg.Logger
	return e
}

// Run competes for the shards, and loads, releases and closes what it owns,
// until ctx ends; it returns nil then, with its leases given back. A store, log
// or lease that is away is asked again; a shard that is lost is somebody
// else's; nothing of that ends it. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { e.compete(ctx, g); return nil })
	g.Go(func() error { e.watch(ctx); return nil })
	g.Go(func() error { e.releaser.run(ctx); return nil })
	if e.cfg.Queue != nil {
		for range 2 {
			g.Go(func() error { e.near.consume(ctx); return nil })
		}
	}
	if e.cfg.Heartbeats != nil {
		g.Go(func() error { e.members.beat(ctx); return nil })
	}
	if e.cfg.Cold != nil {
		g.Go(func() error { e.housekeeper.promote(ctx); return nil })
	}
	if e.cfg.Schedules != nil {
		g.Go(func() error { e.housekeeper.purge(ctx); return nil })
	}
	return g.Wait()
}

// compete starts a keeper of each shard, also of those that are added before ctx ends.
func (e *Engine) compete(ctx context.Context, g *errgroup.Group) {
	for kept, wait := 0, time.Duration(0); notify.Sleep(ctx, wait); wait = e.cfg.Poll {
		for e.addShards(); kept < e.shards(); kept++ {
			n := uint16(kept)
			g.Go(func() error { e.keep(ctx, n); return nil })
		}
	}
}

// addShards makes places for shards that were added. While it is not known how many
// there are, those that were known stay.
func (e *Engine) addShards() {
	spread, err := e.cfg.Spread()
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.tenures) < spread.Most() {
		e.tenures = append(e.tenures, nil)
		e.water = append(e.water, e.now()) // no look has seen it move since
	}
}

// shards is how many shards there are, as far as this engine knows.
func (e *Engine) shards() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.tenures)
}

// tenureLocked returns this engine's tenure of a shard, nil if it has none.
func (e *Engine) tenureLocked(n uint16) *tenure {
	if int(n) >= len(e.tenures) {
		return nil
	}
	return e.tenures[n]
}

// Share returns this engine's part of what all engines may do together, from 0 to 1: the
// part of the shards that it owns. A shard has one owner at most, so the parts of all
// engines never add up to more than 1, whichever engine starts, stops or is cut off.
func (e *Engine) Share() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shareLocked()
}

func (e *Engine) shareLocked() float64 {
	return float64(e.owned) / float64(max(len(e.tenures), 1))
}

// Park stores timers; nil means that each is durable in a place where its
// shard's owner will find it. One whose time has passed is released at once.
// After an error any of them may be stored: the caller parks them again.
func (e *Engine) Park(ctx context.Context, ts []engine.Timer) error { return e.writer.park(ctx, ts) }

// ParkScheduled stores schedules and their timers as Park does, no schedule
// later than its timers: in one commit where the store can and none is cold.
func (e *Engine) ParkScheduled(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	return e.writer.parkScheduled(ctx, ss, ts)
}

// entry is a timer in the wheel, in the backlog, or on its way out.
type entry struct {
	t    engine.Timer
	due  int64 // t.FireAt, or earlier for a row that was written again under a later key
	m    *minute
	lane Lane // OnTime or CatchUp: whose room it takes
	ask  question
}

// question is what has to be found out before an entry is released.
type question uint8

const (
	askNothing question = iota
	askHints            // whether it is hinted: it went into the wheel without a scan
	askHead             // what its head says
)

// fifo is a queue of due entries that never blocks who fills it: MaxPending
// bounds it. Who takes from it gets all that came meanwhile, up to a batch, so
// that a slow Publish makes larger batches.
type fifo struct {
	cut  func([]*entry) int // how many of the first make one batch
	mu   sync.Mutex
	q    []*entry
	some chan struct{}
}

func newFifo(cut func([]*entry) int) *fifo { return &fifo{cut: cut, some: make(chan struct{}, 1)} }

func (f *fifo) push(due []*entry) {
	if len(due) == 0 {
		return
	}
	f.mu.Lock()
	f.q = append(f.q, due...)
	f.mu.Unlock()
	signal(f.some)
}

func (f *fifo) pop() (batch []*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.cut(f.q)
	if n == 0 {
		return nil
	}
	batch = slices.Clone(f.q[:n])
	clear(f.q[:n])
	if f.q = f.q[n:]; len(f.q) > 0 {
		signal(f.some) // for the next who takes
	}
	return batch
}

// each calls fn with every batch until ctx ends.
func (f *fifo) each(ctx context.Context, fn func([]*entry)) {
	for ctx.Err() == nil {
		if batch := f.pop(); batch != nil {
			fn(batch)
			continue
		}
		select {
		case <-f.some:
		case <-ctx.Done():
		}
	}
}

// backlog is a heap of entries, the earliest due first.
type backlog []*entry

func (b backlog) Len() int           { return len(b) }
func (b backlog) Less(i, j int) bool { return b[i].due < b[j].due }
func (b backlog) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *backlog) Push(x any)        { *b = append(*b, x.(*entry)) }
func (b *backlog) Pop() any {
	old := *b
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*b = old[:len(old)-1]
	return x
}

// deleteFunc removes entries.
func (b *backlog) deleteFunc(del func(*entry) bool) {
	kept := (*b)[:0]
	for _, x := range *b {
		if !del(x) {
			kept = append(kept, x)
		}
	}
	clear((*b)[len(kept):])
	*b = kept
	heap.Init(b)
}

// signal leaves a token in a channel of one place.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// now is the wall clock in ms since 1970.
func (e *Engine) now() int64 { return e.cfg.Wall().UnixMilli() }

// clock is the monotonic clock.
func (e *Engine) clock() time.Duration { return time.Since(e.began) }

// clockOff reports whether the clock forbids owning anything: a fast one fires
// early, and closes minutes that others still write to.
func (e *Engine) clockOff() bool { return e.offset().Abs() > e.cfg.MaxClockOffset }

func (e *Engine) offset() time.Duration {
	if e.cfg.ClockOffset == nil {
		return 0
	}
	return e.cfg.ClockOffset()
}
