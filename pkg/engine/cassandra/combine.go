package cassandra

import (
	"context"
	"slices"
	"sync"
)

// combiner joins plain writes of one partition: while one of them is under way, those that
// come wait, and go together as the next. So a partition that many callers write to
// costs the cluster a request for many rows when it is busy, and nobody waits for others
// when it is not. Each statement carries its own timestamp. Safe for concurrent use.
type combiner struct {
	write func(ctx context.Context, stmts []stmt) error

	mu sync.Mutex
	// next is what waits, by partition. A partition is in it while a write is under way,
	// with nil where nothing waits.
	next map[string]*combined
	runs sync.WaitGroup
}

// combined is the statements of several callers. stmts is guarded by combiner.mu until
// the write begins; err may be read once done is closed.
type combined struct {
	stmts []stmt
	done  chan struct{}
	err   error
}

// do writes statements of a partition and returns when they are stored. After an error, or
// when ctx ends first, they may be stored.
func (c *combiner) do(ctx context.Context, part string, stmts ...stmt) error {
	c.mu.Lock()
	waiting, busy := c.next[part]
	if !busy {
		if c.next == nil {
			c.next = map[string]*combined{}
		}
		c.next[part] = nil
		c.mu.Unlock()
		defer c.handOver(context.WithoutCancel(ctx), part)
		return c.write(ctx, stmts)
	}
	if waiting == nil {
		waiting = &combined{done: make(chan struct{})}
		c.next[part] = waiting
	}
	waiting.stmts = append(waiting.stmts, stmts...)
	c.mu.Unlock()
	select {
	case <-waiting.done:
		return waiting.err
	case <-ctx.Done():
		return translate(ctx.Err())
	}
}

// handOver begins the write of what waits for a partition whose write has ended.
func (c *combiner) handOver(ctx context.Context, part string) {
	if g := c.takeNext(part); g != nil {
		c.runs.Go(func() {
			for ; g != nil; g = c.takeNext(part) {
				g.err = c.write(ctx, g.stmts)
				close(g.done)
			}
		})
	}
}

// takeNext returns what waits for a partition; nil: nothing, and the partition is free.
func (c *combiner) takeNext(part string) *combined {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.next[part]
	if g == nil {
		delete(c.next, part)
		return nil
	}
	c.next[part] = nil
	return g
}

// writeParts writes statements of one partition in as few requests as they fit.
func writeParts(ctx context.Context, s *Store, stmts []stmt) error {
	at := s.clock.now()
	for _, b := range split(slices.Clip(stmts)) {
		if err := s.write(ctx, at, b...); err != nil {
			return err
		}
	}
	return nil
}
