package timer

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/timer/wheel"
)

// Engine owns shards, as many as it can get, and releases their timers. Park may
// be called from any goroutine, also before Run.
type Engine struct {
	cfg    Config
	writer *Writer
	began  time.Time // of the monotonic clock that trust is measured by

	wake   chan struct{}    // something went into the wheel
	late   chan struct{}    // something went into the backlog
	gained chan struct{}    // a shard was taken over
	onTime *fifo            // due, from the wheel
	asked  *fifo            // due, and a head has to be asked
	scans  [2]chan struct{} // bounds the pages being read, by lane

	count  counters
	troubl complaints

	mu      sync.Mutex
	wheel   *wheel.Wheel[*entry]
	backlog backlog // what is caught up, by due time
	// Entries that are due until then were loaded before the clock was set back, so
	// their schedules may have been touched since. ms since 1970.
	askUntil int64
	tenures  []*tenure  // by shard; nil: not owned
	overdue  []promoted // what the purge waits for
	water    []int64    // by shard: the end of its watermark when it was last seen, ms since 1970
	owned    int
	moves    map[uint16]string // shards to hand over, with their new owners
	members  membership
	caught   rate // catch-up releases
}

// New returns an engine that starts nothing.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, began: time.Now(),
		wake: make(chan struct{}, 1), late: make(chan struct{}, 1), gained: make(chan struct{}, 1),
		scans: [2]chan struct{}{make(chan struct{}, 8), make(chan struct{}, 4)},
		wheel: wheel.New[*entry](cfg.Wall().UnixMilli()), tenures: make([]*tenure, cfg.Shards), water: make([]int64, cfg.Shards), moves: map[uint16]string{},
	}
	for n := range e.water {
		e.water[n] = cfg.Wall().UnixMilli() // nobody has seen it move since
	}
	e.onTime, e.asked = newFifo(e.cut), newFifo(e.cut)
	e.troubl.log = cfg.Logger
	e.writer = newWriter(cfg, e)
	return e
}

// Run competes for the shards, and loads, releases and closes what it owns,
// until ctx ends; it returns nil then, with its leases given back. A store, log
// or lease that is away is asked again; a shard that is lost is somebody
// else's; nothing of that ends it. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for n := range e.cfg.Shards {
		g.Go(func() error { e.keep(ctx, uint16(n)); return nil })
	}
	g.Go(func() error { e.watch(ctx); return nil })
	g.Go(func() error { e.release(ctx); return nil })
	for range e.cfg.Publishers {
		g.Go(func() error { e.onTime.each(ctx, func(b []*entry) { e.hand(ctx, OnTime, b) }); return nil })
	}
	for range 2 {
		g.Go(func() error { e.asked.each(ctx, func(b []*entry) { e.ask(ctx, OnTime, b) }); return nil })
	}
	paced := make(chan []*entry)
	g.Go(func() error { e.pace(ctx, paced); return nil })
	for range e.cfg.CatchUpPublishers {
		g.Go(func() error { e.drain(ctx, paced); return nil })
	}
	if e.cfg.Queue != nil {
		for range 2 {
			g.Go(func() error { e.consume(ctx); return nil })
		}
	}
	if e.cfg.Heartbeats != nil {
		g.Go(func() error { e.beat(ctx); return nil })
	}
	if e.cfg.Cold != nil {
		g.Go(func() error { e.promote(ctx); return nil })
	}
	if e.cfg.Schedules != nil {
		g.Go(func() error { e.purge(ctx); return nil })
	}
	return g.Wait()
}

// Park stores timers as Writer.Park does, and knows of this engine's own shards
// what a Writer has to ask the store for.
func (e *Engine) Park(ctx context.Context, ts []engine.Timer) error { return e.writer.Park(ctx, ts) }

// ParkScheduled stores schedules and their timers as Writer.ParkScheduled does.
func (e *Engine) ParkScheduled(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	return e.writer.ParkScheduled(ctx, ss, ts)
}

// Writer returns the writer behind Park.
func (e *Engine) Writer() *Writer { return e.writer }

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
