package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Committer writes outcome rows in groups: everything that waits goes into one
// durable Put. Rows of one key are written in the order they were handed in,
// and a row is dropped if its context has ended.
type Committer struct {
	cfg   CommitterConfig
	lanes []chan commit

	mu      sync.Mutex
	stalled []time.Duration // by lane
}

// CommitterConfig of a Committer.
type CommitterConfig struct {
	Put   func(ctx context.Context, rows []notify.Row) error
	Group int // rows a Put at most: 1,024
	Queue int // rows that may wait: 4,096; more block their workers
	// Lanes is how many Puts may be under way at once: 1. Rows of one chunk go through one
	// lane. A store that answers over a network is waited for less with more of them.
	Lanes  int
	Logger *slog.Logger
	// Stalled is told how long the store has been refusing, 0 when it is well. It must not block.
	Stalled func(time.Duration)
}

type commit struct {
	ctx  context.Context // of the partition
	row  notify.Row
	done func()
}

// NewCommitter returns a committer that works while Run runs.
func NewCommitter(cfg CommitterConfig) *Committer {
	if cfg.Group == 0 {
		cfg.Group = 1024
	}
	if cfg.Queue == 0 {
		cfg.Queue = 4096
	}
	cfg.Lanes = max(cfg.Lanes, 1)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Stalled == nil {
		cfg.Stalled = func(time.Duration) {}
	}
	c := &Committer{cfg: cfg, lanes: make([]chan commit, cfg.Lanes), stalled: make([]time.Duration, cfg.Lanes)}
	for i := range c.lanes {
		c.lanes[i] = make(chan commit, max(cfg.Queue/cfg.Lanes, 1))
	}
	return c
}

// Commit hands in a row; done is called from a goroutine of the committer once it
// is durable, and must not block. It returns ctx's error if ctx has ended, or
// ends while the queue is full.
func (c *Committer) Commit(ctx context.Context, row notify.Row, done func()) error {
	// The select below picks at random when the queue has room and ctx has ended.
	// A partition whose context has ended must write nothing more: its calls were
	// dropped unsettled, and their claims have to stand.
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.lane(&row.Key.Chunk) <- commit{ctx, row, done}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lane returns where the rows of a chunk wait.
func (c *Committer) lane(of *notify.Chunk) chan commit {
	return c.lanes[notify.Mix(chunkHash(of))%uint64(len(c.lanes))]
}

// Run writes until ctx ends. A store that refuses is asked again until it
// takes the rows: nothing is marked meanwhile, and workers stop at a full queue.
func (c *Committer) Run(ctx context.Context) error {
	var g errgroup.Group
	for lane := range c.lanes {
		g.Go(func() error { return c.run(ctx, lane) })
	}
	return g.Wait()
}

// run writes what comes through one lane.
func (c *Committer) run(ctx context.Context, lane int) error {
	in := c.lanes[lane]
	var group []commit
	var rows []notify.Row
	for {
		group, rows = group[:0], rows[:0]
		select {
		case x := <-in:
			group = append(group, x)
		case <-ctx.Done():
			return nil
		}
	drain:
		for len(group) < c.cfg.Group {
			select {
			case x := <-in:
				group = append(group, x)
			default:
				break drain
			}
		}
		if group, rows = c.put(ctx, lane, group, rows); group == nil {
			return nil
		}
		for i := range group {
			group[i].done()
			group[i] = commit{}
		}
		clear(rows)
	}
}

// put writes a group's rows and returns the written rows; nil: ctx has ended.
// Before each try it drops the rows of partitions that are gone: their next owner
// has begun anew from what is stored.
func (c *Committer) put(ctx context.Context, lane int, group []commit, rows []notify.Row) ([]commit, []notify.Row) {
	var since time.Time
	for pause := (notify.Pause{Most: time.Second}); ; {
		group = slices.DeleteFunc(group, func(x commit) bool { return x.ctx.Err() != nil })
		rows = rows[:0]
		for i := range group {
			rows = append(rows, group[i].row)
		}
		var err error
		if len(rows) > 0 {
			err = c.cfg.Put(ctx, rows)
		}
		if err == nil {
			if !since.IsZero() {
				c.tellStalled(lane, 0)
				c.cfg.Logger.Info("status store is back", "after", time.Since(since))
			}
			return group, rows
		}
		if since.IsZero() {
			since = time.Now()
			c.cfg.Logger.Error("status store refuses outcomes; workers hold", "rows", len(rows), "err", err)
		}
		c.tellStalled(lane, time.Since(since))
		if !pause.Wait(ctx) {
			return nil, nil
		}
	}
}

// tellStalled tells of the lane that has been refused the longest.
func (c *Committer) tellStalled(lane int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled[lane] = d
	c.cfg.Stalled(slices.Max(c.stalled))
}
