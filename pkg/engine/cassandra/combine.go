package cassandra

import (
	"context"
	"sync"
)

// combiner joins plain writes to the same partition. While a write to a partition is running, later
// writes to that partition wait. When the write ends, all waiting writes are sent as one request,
// so many callers that write to one partition cause few requests. If no write to the partition is
// running, a write is sent at once. Each statement contains its own timestamp, so a statement that
// waits does not win over a statement that was made later. A combiner is safe for concurrent use.
type combiner struct {
	write func(ctx context.Context, sets [][]stmt) error

	mu sync.Mutex
	// next contains the waiting statements, by partition. A partition has an entry while a
	// write to it is running. The entry is nil if no statement waits.
	next map[string]*combined
	runs sync.WaitGroup // goroutines of handOver
}

// combined contains the statements of several callers, one set for each caller. combiner.mu guards
// sets until takeNext takes this value out of the combiner. After that, the goroutine that called
// takeNext owns sets. err may be read after done is closed.
type combined struct {
	sets [][]stmt
	done chan struct{}
	err  error
}

// submit writes statements of a partition and returns when they are stored. If it returns
// an error, for example because ctx has ended, the statements may still be stored.
func (c *combiner) submit(ctx context.Context, part string, stmts ...stmt) error {
	c.mu.Lock()
	waiting, busy := c.next[part]
	if !busy {
		if c.next == nil {
			c.next = map[string]*combined{}
		}
		c.next[part] = nil
		c.mu.Unlock()
		defer c.handOver(context.WithoutCancel(ctx), part)
		return c.write(ctx, [][]stmt{stmts})
	}
	if waiting == nil {
		waiting = &combined{done: make(chan struct{})}
		c.next[part] = waiting
	}
	waiting.sets = append(waiting.sets, stmts)
	c.mu.Unlock()
	select {
	case <-waiting.done:
		return waiting.err
	case <-ctx.Done():
		return translate(ctx.Err())
	}
}

// handOver is called when a write to a partition has ended. If statements wait for that
// partition, it starts a goroutine that writes them.
func (c *combiner) handOver(ctx context.Context, part string) {
	if g := c.takeNext(part); g != nil {
		c.runs.Go(func() {
			for ; g != nil; g = c.takeNext(part) {
				g.err = c.write(ctx, g.sets)
				close(g.done)
			}
		})
	}
}

// takeNext removes the statements that wait for a partition and returns them. If no
// statements wait, it returns nil, and the next submit to the partition writes at once.
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

// writeSets writes the statements of one partition.
func writeSets(ctx context.Context, s *Store, sets [][]stmt) error {
	at := s.clock.now()
	for _, b := range joinSets(sets) {
		if err := s.write(ctx, at, b...); err != nil {
			return err
		}
	}
	return nil
}

// joinSets joins sets of statements into few batches. If a set fits into one batch,
// joinSets does not split it, so that its statements become visible together.
func joinSets(sets [][]stmt) (out [][]stmt) {
	var together []stmt
	size := 0
	for _, set := range sets {
		n := 0
		for i := range set {
			n += set[i].size()
		}
		if n > maxBatch {
			out = append(out, splitBatches(set)...)
			continue
		}
		if size+n > maxBatch {
			out, together, size = append(out, together), nil, 0
		}
		together, size = append(together, set...), size+n
	}
	if size > 0 {
		out = append(out, together)
	}
	return out
}
