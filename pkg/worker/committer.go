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

// Committer writes outcome rows in groups. One durable Put writes all rows that wait. Rows with the
// same key are written in the order in which Commit received them. A row whose context has ended is
// dropped.
type Committer struct {
	cfg   CommitterConfig
	lanes []chan pendingRow // one queue for each Put that may be under way

	mu      sync.Mutex      // guards stalled
	stalled []time.Duration // by lane: how long the store has refused the lane's rows; 0: the store works
}

// CommitterConfig configures a Committer.
type CommitterConfig struct {
	Put   func(ctx context.Context, rows []notify.Row) error
	Group int // largest number of rows in one Put; default 1,024
	// Queue is the largest number of rows that wait, default 4,096. When the queue is full, Commit
	// blocks the worker.
	Queue int
	// Lanes is the number of Puts that may be in progress at the same time, default 1. Rows of one
	// chunk always use the same lane. With a store that answers over a network, more lanes reduce
	// the time that rows wait.
	Lanes  int
	Logger *slog.Logger
	// Stalled is called with the time for which the store has been refusing rows, and with 0 when
	// the store works again. Stalled must not block.
	Stalled func(time.Duration)
}

// pendingRow is a row that waits to be written.
type pendingRow struct {
	ctx  context.Context // context of the partition; after the context has ended, the row is dropped
	row  notify.Row
	done func()
}

// NewCommitter returns a committer. The caller must run Run, which writes the rows.
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
	c := &Committer{cfg: cfg, lanes: make([]chan pendingRow, cfg.Lanes), stalled: make([]time.Duration, cfg.Lanes)}
	for i := range c.lanes {
		c.lanes[i] = make(chan pendingRow, max(cfg.Queue/cfg.Lanes, 1))
	}
	return c
}

// Commit adds a row to the queue. When the row is durable, a goroutine of the committer calls the
// function done, which must not block. Commit returns ctx's error if ctx has ended, or if ctx ends
// while the queue is full.
func (c *Committer) Commit(ctx context.Context, row notify.Row, done func()) error {
	// Check ctx first: if the queue has room and ctx has ended, the select below chooses at random.
	// After its context has ended, a partition must write nothing more. The answers of its calls
	// were dropped, so the claims must stay in the row.
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c.laneOf(&row.Key.Chunk) <- pendingRow{ctx, row, done}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// laneOf returns the queue for the rows of a chunk.
func (c *Committer) laneOf(chunk *notify.Chunk) chan pendingRow {
	return c.lanes[notify.Mix(chunkHash(chunk))%uint64(len(c.lanes))]
}

// Run writes rows until ctx ends. It repeats a failed Put until the Put succeeds. During that time
// no record is marked as done, and workers block at the full queue.
func (c *Committer) Run(ctx context.Context) error {
	var g errgroup.Group
	for lane := range c.lanes {
		g.Go(func() error { return c.run(ctx, lane) })
	}
	return g.Wait()
}

// run writes the rows of one lane.
func (c *Committer) run(ctx context.Context, lane int) error {
	in := c.lanes[lane]
	var group []pendingRow
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
			group[i] = pendingRow{}
		}
		clear(rows)
	}
}

// put writes the rows of a group. It returns the rows that it wrote, or nil if ctx has ended.
// Before each try, put drops the rows of partitions that this process has lost. The next owner of
// such a partition may already have continued from the stored rows.
func (c *Committer) put(ctx context.Context, lane int, group []pendingRow, rows []notify.Row) ([]pendingRow, []notify.Row) {
	var since time.Time
	for pause := (notify.Pause{Most: time.Second}); ; {
		group = slices.DeleteFunc(group, func(x pendingRow) bool { return x.ctx.Err() != nil })
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
				c.reportStalled(lane, 0)
				c.cfg.Logger.Info("the status store accepts outcomes again", "after", time.Since(since))
			}
			return group, rows
		}
		if since.IsZero() {
			since = time.Now()
			c.cfg.Logger.Error("the status store refuses outcomes; workers wait, will try again", "rows", len(rows), "err", err)
		}
		c.reportStalled(lane, time.Since(since))
		if !pause.Wait(ctx) {
			return nil, nil
		}
	}
}

// reportStalled notes how long a lane's rows have been refused, and reports the longest such time
// of all lanes.
func (c *Committer) reportStalled(lane int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalled[lane] = d
	c.cfg.Stalled(slices.Max(c.stalled))
}
