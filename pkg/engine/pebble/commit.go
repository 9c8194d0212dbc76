package pebble

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	pebbledb "github.com/cockroachdb/pebble/v2"
)

// A group is closed when it holds this much; the next writer waits until it
// was taken. It bounds memory and the time one fsync covers.
const (
	maxGroupOps   = 4096
	maxGroupBytes = 4 << 20

	// maxSyncing bounds the groups that wait for an fsync behind the one being
	// synced. Runs with 0, 1, 3 and 8 did not differ beyond the disk's noise; few
	// make larger groups (64 writers: 22, 15, 10, 5 calls a group), less CPU a call.
	maxSyncing = 1

	// insert makes a batch of its own of at least this many rows. Each such batch has a
	// goroutine that puts it into the memtable, so all cores can work at once.
	minAlone = 64
)

// committer merges the writes of all goroutines into one batch at a time: while
// one group is being written, the next fills. It also gives what the contracts
// need: groups become visible, durable and answered in the order they were
// filled, so versions and sequence numbers handed out while filling are never
// seen out of order.
type committer struct {
	db     *pebbledb.DB
	opts   *pebbledb.WriteOptions
	latch  *latch
	wake   chan struct{} // 1: a group has something
	exited chan struct{}

	groups, writes atomic.Uint64
	alone          sync.WaitGroup // of insert

	mu      sync.Mutex
	filling *group
	closed  bool
}

// group is what one batch holds.
type group struct {
	tx
	after []func(error)
	taken chan struct{} // closed when the committer took it
	done  chan struct{} // closed when err is set
	err   error
}

// tx is the batch being filled.
type tx struct{ b *pebbledb.Batch }

// The batch only refuses what is larger than 4 GiB, by a panic.

func (t tx) set(key, value []byte)       { _ = t.b.Set(key, value, nil) }
func (t tx) insert(key, value []byte)    { _ = t.b.Merge(key, value, nil) }
func (t tx) delete(key []byte)           { _ = t.b.Delete(key, nil) }
func (t tx) deleteRange(from, to []byte) { _ = t.b.DeleteRange(from, to, nil) }

func newCommitter(db *pebbledb.DB, opts *pebbledb.WriteOptions, l *latch) *committer {
	c := &committer{
		db: db, opts: opts, latch: l,
		wake: make(chan struct{}, 1), exited: make(chan struct{}),
	}
	c.filling = c.newGroup()
	return c
}

func (c *committer) newGroup() *group {
	return &group{
		tx:    tx{c.db.NewBatchWithSize(16 << 10)},
		taken: make(chan struct{}), done: make(chan struct{}),
	}
}

// Settled implements rows.Batch. When the store fails, fn may never run.
func (g *group) Settled(fn func(error)) { g.after = append(g.after, fn) }

// write adds what fill puts to the next group and waits until it is durable.
// fill runs under the committer's lock: no I/O, no waiting.
func (c *committer) write(ctx context.Context, fill func(*group)) error {
	g, err := c.join(ctx, fill)
	if err != nil {
		return err
	}
	return c.wait(ctx, g)
}

// insert is write for rows that need no order among writes, so that a large call need
// not queue behind others. rows is how many fill puts.
func (c *committer) insert(ctx context.Context, rows int, fill func(*group)) error {
	if rows < minAlone {
		return c.write(ctx, fill)
	}
	if err := ctx.Err(); err != nil {
		return ended(ctx)
	}
	g := c.newGroup()
	fill(g)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return translate(errClosed)
	}
	c.alone.Add(1)
	c.mu.Unlock()
	c.writes.Add(1)
	go func() { // after a failure of the disk this never ends: see freeze
		g.err = c.apply(g.b)
		c.finish(g)
		c.alone.Done()
	}()
	return c.wait(ctx, g)
}

// wait returns when g is durable, and earlier when ctx ends or the store fails.
func (c *committer) wait(ctx context.Context, g *group) error {
	select {
	case <-g.done:
		return g.err
	default:
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return ended(ctx)
	case <-c.latch.failed:
		return translate(c.latch.cause())
	}
}

// join adds what fill puts to the next group, and returns the group.
func (c *committer) join(ctx context.Context, fill func(*group)) (*group, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, ended(ctx)
		}
		if err := c.latch.cause(); err != nil {
			return nil, translate(err)
		}
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, translate(errClosed)
		}
		g := c.filling
		if g.b.Count() < maxGroupOps && g.b.Len() < maxGroupBytes {
			fill(g)
			c.mu.Unlock()
			c.writes.Add(1)
			select {
			case c.wake <- struct{}{}:
			default: // it knows
			}
			return g, nil
		}
		c.mu.Unlock()
		select {
		case <-g.taken:
		case <-ctx.Done():
		case <-c.latch.failed:
		}
	}
}

// run writes groups until close was called and everything is written. A group
// that is in the log and waits for its fsync does not hold up the next one:
// the disk is never idle while there is work.
func (c *committer) run() {
	syncing := make(chan *group, maxSyncing)
	go c.settle(syncing)
	defer close(syncing)
	for range c.wake {
		c.mu.Lock()
		g, closed := c.filling, c.closed
		c.filling = c.newGroup()
		c.mu.Unlock()
		close(g.taken)
		g.err = c.apply(g.b)
		syncing <- g
		if closed {
			return
		}
	}
}

// apply puts a group into the log and the memtable.
func (c *committer) apply(b *pebbledb.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("commit: %v", r)
			c.latch.trip(err)
		}
	}()
	if err := c.latch.cause(); err != nil || b.Empty() {
		return err
	}
	c.groups.Add(1)
	if c.opts.GetSync() {
		err = c.db.ApplyNoSyncWait(b, c.opts)
	} else {
		err = c.db.Apply(b, c.opts)
	}
	if err != nil {
		c.latch.trip(err)
	}
	return err
}

// settle waits for the fsync of each group, in their order, and tells its
// writers.
func (c *committer) settle(syncing <-chan *group) {
	defer close(c.exited)
	for g := range syncing {
		c.finish(g)
	}
}

func (c *committer) finish(g *group) {
	if g.err == nil && !g.b.Empty() && c.opts.GetSync() {
		if g.err = g.b.SyncWait(); g.err != nil {
			c.latch.trip(g.err)
		}
	}
	if g.err == nil {
		g.err = g.b.Close()
	}
	g.err = translate(g.err)
	for _, fn := range g.after {
		fn(g.err)
	}
	close(g.done)
}

// close refuses new writes and waits for those that were accepted.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	ended := make(chan struct{})
	go func() {
		<-c.exited
		c.alone.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-c.latch.failed:
	}
}
