package pebble

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	pebbledb "github.com/cockroachdb/pebble/v2"
)

const (
	// A group is full when it has this many rows or bytes. The next writer then waits until the
	// goroutine of run replaces the full group by an empty group. The two limits bound the memory
	// of a group and the work of one fsync.
	maxGroupOps   = 4096
	maxGroupBytes = 4 << 20

	// maxSyncing is how many groups may wait while the fsync of another group runs. The values
	// 0, 1, 3 and 8 were measured. Writes took equally long with all four values. With 64
	// writers a group contained 22, 15, 10 and 5 calls. A small value gives larger groups, so
	// each call uses less CPU.
	maxSyncing = 1

	// minOwnBatch is the smallest number of rows for which insertUnordered makes a separate
	// batch. A separate goroutine puts each such batch into the memtable, so all cores can
	// work at the same time.
	minOwnBatch = 64
)

// committer merges the writes of all goroutines into groups. Each group is one batch. While one
// group is being written, writers fill the next group. Groups become visible and durable in the
// order in which they were filled, and their writers get answers in the same order. The versions
// and sequence numbers that pkg/store puts into rows are assigned while a group is filled. So no
// reader sees them out of order.
//
// A group has three owners, one after the other. First the writers fill it while they hold
// mu. Then the goroutine of run applies it. Last, the goroutine of syncGroups waits for
// the fsync of the group and answers its writers.
type committer struct {
	db    *pebbledb.DB
	opts  *pebbledb.WriteOptions
	latch *latch
	wake  chan struct{} // of size 1; contains a value when the group filling has rows or the field closed is true
	// exited is closed by syncGroups when it has finished the last group after close was
	// called.
	exited chan struct{}

	groups, writes atomic.Uint64
	ownBatches     sync.WaitGroup // separate batches of insertUnordered that are not finished

	mu      sync.Mutex // guards the fields filling and closed, and the content of the group in filling
	filling *group
	closed  bool // no more writes are accepted
}

// group is one batch and the callers that wait for it.
type group struct {
	tx
	onSettled []func(error)
	taken     chan struct{} // closed when the group accepts no more rows
	done      chan struct{} // closed when err is set
	err       error         // the writers may read err after done is closed
}

// tx puts rows into a batch.
type tx struct{ b *pebbledb.Batch }

// These methods ignore the errors of the batch because the batch always returns nil. A
// batch panics if it becomes larger than 4 GiB.

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

// Settled implements rows.Batch. If the store fails, the group possibly never calls fn.
func (g *group) Settled(fn func(error)) { g.onSettled = append(g.onSettled, fn) }

// write calls fill to add rows to the next group and waits until the group is durable. fill
// runs while mu is held, so it must do no I/O and must not wait. write returns an error if
// ctx ends or the store fails. The rows may be stored although write returned an error.
func (c *committer) write(ctx context.Context, fill func(*group)) error {
	g, err := c.addToGroup(ctx, fill)
	if err != nil {
		return err
	}
	return c.waitDurable(ctx, g)
}

// insertUnordered writes rows whose order relative to other writes does not matter. The function
// fill adds numRows rows. A call with few rows does the same as write. A call with many rows gets a
// separate batch, so it does not wait for other writes.
func (c *committer) insertUnordered(ctx context.Context, numRows int, fill func(*group)) error {
	if numRows < minOwnBatch {
		return c.write(ctx, fill)
	}
	if err := ctx.Err(); err != nil {
		return contextError(ctx)
	}
	g := c.newGroup()
	fill(g)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return translate(errClosed)
	}
	c.ownBatches.Add(1)
	c.mu.Unlock()
	c.writes.Add(1)
	go func() { // after a failure of the disk this goroutine may never end: see freeze
		g.err = c.apply(g.b)
		c.finishGroup(g)
		c.ownBatches.Done()
	}()
	return c.waitDurable(ctx, g)
}

// waitDurable waits until g is durable. If ctx ends or the store fails before that, it
// returns an error.
func (c *committer) waitDurable(ctx context.Context, g *group) error {
	select {
	case <-g.done:
		return g.err
	default:
	}
	select {
	case <-g.done:
		return g.err
	case <-ctx.Done():
		return contextError(ctx)
	case <-c.latch.failed:
		return translate(c.latch.cause())
	}
}

// addToGroup calls fill to add rows to the next group, and returns that group.
func (c *committer) addToGroup(ctx context.Context, fill func(*group)) (*group, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, contextError(ctx)
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
			default: // wake holds a value already
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

// run is the goroutine that applies groups and sends each group to syncGroups. While a group
// waits for its fsync, run applies the next group, so the disk is never idle while writes wait.
// After close was called, run ends when it has applied every accepted write.
func (c *committer) run() {
	syncing := make(chan *group, maxSyncing)
	go c.syncGroups(syncing)
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

// apply writes a batch to the write-ahead log and the memtable. It does not wait for the fsync.
// After an error or a panic of Pebble, the latch stops all writes of the store.
func (c *committer) apply(b *pebbledb.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the write of a batch failed: %v", r)
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

// syncGroups finishes the groups that it gets from run, in order. It ends when run closes
// the channel syncing.
func (c *committer) syncGroups(syncing <-chan *group) {
	defer close(c.exited)
	for g := range syncing {
		c.finishGroup(g)
	}
}

// finishGroup waits for the fsync of g, calls the functions that Settled has registered,
// and wakes the writers.
func (c *committer) finishGroup(g *group) {
	if g.err == nil && !g.b.Empty() && c.opts.GetSync() {
		if g.err = g.b.SyncWait(); g.err != nil {
			c.latch.trip(g.err)
		}
	}
	if g.err == nil {
		g.err = g.b.Close()
	}
	g.err = translate(g.err)
	for _, fn := range g.onSettled {
		fn(g.err)
	}
	close(g.done)
}

// close refuses new writes. It waits until the accepted writes are durable or the store has
// failed.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	finished := make(chan struct{})
	go func() {
		<-c.exited
		c.ownBatches.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-c.latch.failed:
	}
}
