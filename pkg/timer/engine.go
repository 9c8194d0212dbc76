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

// Engine owns the shards whose leases it gets, and releases their timers. Park may be called from
// any goroutine, even before Run.
//
// For each owned shard a tenure loads timers and closes minutes. The releaser publishes the loaded
// timers of all shards. One mutex guards both, because when a shard is lost, its tenure and its
// loaded timers must be removed in one step.
type Engine struct {
	cfg   Config
	began time.Time // start of the monotonic clock, which measures how long leases are trusted

	writer      *writer
	releaser    *releaser
	heads       *headReader
	near        *nearLine
	members     *membership
	housekeeper *housekeeper

	shardGained chan struct{}    // gets a token after each take-over; wakes the housekeeper
	scans       [2]chan struct{} // limits concurrent page reads, by lane

	counters   counters
	complaints complaints

	mu sync.Mutex
	// tenures has an entry for each shard; nil: this engine does not own the shard. A new shard gets
	// its entry before its goroutine keepShard starts.
	tenures      []*tenure
	watermarkEnd []int64 // by shard: end of the watermark's minute when last read, ms since 1970
	owned        int
}

// New returns an engine. It starts no goroutine.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg: cfg, began: time.Now(), shardGained: make(chan struct{}, 1),
		scans: [2]chan struct{}{make(chan struct{}, 8), make(chan struct{}, 4)},
	}
	e.addShards()
	e.writer, e.releaser, e.heads, e.near = &writer{e}, newReleaser(e), &headReader{e}, &nearLine{e}
	e.members, e.housekeeper = &membership{Engine: e, handOvers: map[uint16]string{}, standbyChanged: make(chan struct{})}, &housekeeper{Engine: e}
	e.complaints.log = cfg.Logger
	return e
}

// Run competes for the shards until ctx ends. It loads, releases and closes the timers of the
// shards that it owns. When ctx ends, it gives back its leases and returns nil. While the store,
// the log or the lease service is down, Run retries. After it has lost a shard, it competes for the
// shard again. Run must be called only once.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { e.compete(ctx, g); return nil })
	g.Go(func() error { e.watchOthers(ctx); return nil })
	g.Go(func() error { e.releaser.run(ctx); return nil })
	if e.cfg.Queue != nil {
		for range 2 {
			g.Go(func() error { e.near.consume(ctx); return nil })
		}
	}
	if e.cfg.Heartbeats != nil {
		g.Go(func() error { e.members.runHeartbeats(ctx); return nil })
	}
	if e.cfg.Cold != nil {
		g.Go(func() error { e.housekeeper.promote(ctx); return nil })
	}
	if e.cfg.Schedules != nil {
		g.Go(func() error { e.housekeeper.purge(ctx); return nil })
	}
	return g.Wait()
}

// compete starts a goroutine (keepShard) for each shard, also for shards that are added later,
// until ctx ends.
func (e *Engine) compete(ctx context.Context, g *errgroup.Group) {
	for kept, wait := 0, time.Duration(0); notify.Sleep(ctx, wait); wait = e.cfg.Poll {
		for e.addShards(); kept < e.shards(); kept++ {
			n := uint16(kept)
			g.Go(func() error { e.keepShard(ctx, n); return nil })
		}
	}
}

// addShards extends the lists tenures and watermarkEnd by the shards that were added to the spread.
// If it cannot read the number of shards, it does nothing.
func (e *Engine) addShards() {
	spread, err := e.cfg.Spread()
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.tenures) < spread.Most() {
		e.tenures = append(e.tenures, nil)
		e.watermarkEnd = append(e.watermarkEnd, e.now()) // the current time, until the watermark is read
	}
}

// shards returns how many shards this engine knows.
func (e *Engine) shards() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.tenures)
}

// tenureOfLocked returns this engine's tenure of a shard, or nil. The caller holds mu.
func (e *Engine) tenureOfLocked(n uint16) *tenure {
	if int(n) >= len(e.tenures) {
		return nil
	}
	return e.tenures[n]
}

// Share returns this engine's share of the work of all engines, from 0 to 1: the number of shards
// that it owns, divided by the number of all shards. A shard has at most one owner, even while
// engines start, stop or lose their connection. So the shares of all engines never add up to more
// than 1.
func (e *Engine) Share() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shareLocked()
}

func (e *Engine) shareLocked() float64 {
	return float64(e.owned) / float64(max(len(e.tenures), 1))
}

// Park stores timers. If it returns nil, every timer is durable, and the owner of its shard will
// release it. A timer whose time has passed is released at once. If Park returns an error, some of
// the timers may be stored, and the caller must park all of them again.
func (e *Engine) Park(ctx context.Context, ts []engine.Timer) error { return e.writer.park(ctx, ts) }

// ParkScheduled stores schedules and their timers. For the timers it does what Park does. It stores
// the schedules before the timers, or in the same commit if no timer is cold and the store supports
// this.
func (e *Engine) ParkScheduled(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	return e.writer.parkScheduled(ctx, ss, ts)
}

// entry is a timer that is in the wheel, in the backlog, or being published. Engine.mu guards it.
// But while a goroutine of the releaser has the entry in a batch, that goroutine owns it.
type entry struct {
	timer engine.Timer
	// due is the time at which the timer is due. It is normally timer.FireAt. It is earlier if the
	// row was stored again under a later minute (see parked).
	due     int64
	minute  *minute
	lane    Lane // OnTime or CatchUp: the lane whose room the entry uses
	pending headQuestion
}

// headQuestion says what the releaser must find out before it releases an entry.
type headQuestion uint8

const (
	needNothing headQuestion = iota // nothing
	// Find out if the schedule has a hint. The entry went into the wheel without a scan, so the hints
	// of its partition were not read.
	needHints
	needHead // what the head of its schedule says
)

// entryQueue is a queue of due entries. push never blocks. The length is bounded only by
// MaxPending. pop returns all waiting entries, but not more than one batch. So while Publish is
// slow, batches get larger.
type entryQueue struct {
	cut    func([]*entry) int // returns how many entries, counted from the first, make one batch
	mu     sync.Mutex
	q      []*entry
	filled chan struct{}
}

func newFifo(cut func([]*entry) int) *entryQueue {
	return &entryQueue{cut: cut, filled: make(chan struct{}, 1)}
}

func (f *entryQueue) push(due []*entry) {
	if len(due) == 0 {
		return
	}
	f.mu.Lock()
	f.q = append(f.q, due...)
	f.mu.Unlock()
	wakeUp(f.filled)
}

func (f *entryQueue) pop() (batch []*entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.cut(f.q)
	if n == 0 {
		return nil
	}
	batch = slices.Clone(f.q[:n])
	clear(f.q[:n])
	if f.q = f.q[n:]; len(f.q) > 0 {
		wakeUp(f.filled) // wake the next goroutine that pops
	}
	return batch
}

// eachBatch calls fn with every batch until ctx ends.
func (f *entryQueue) eachBatch(ctx context.Context, fn func([]*entry)) {
	for ctx.Err() == nil {
		if batch := f.pop(); batch != nil {
			fn(batch)
			continue
		}
		select {
		case <-f.filled:
		case <-ctx.Done():
		}
	}
}

// backlog is a heap of entries, earliest due first.
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

// deleteFunc removes the entries for which del returns true.
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

// wakeUp puts a token into a channel of capacity 1, unless the channel has a token already.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// now returns the time of the wall clock in ms since 1970.
func (e *Engine) now() int64 { return e.cfg.Wall().UnixMilli() }

// clock returns the time of the monotonic clock since the engine was made.
func (e *Engine) clock() time.Duration { return time.Since(e.began) }

// clockOff reports whether the clock is too wrong to own shards. An engine with a fast clock would
// release timers early, and would close minutes into which other engines still write.
func (e *Engine) clockOff() bool { return e.offset().Abs() > e.cfg.MaxClockOffset }

func (e *Engine) offset() time.Duration {
	if e.cfg.ClockOffset == nil {
		return 0
	}
	return e.cfg.ClockOffset()
}
