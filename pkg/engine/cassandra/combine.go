package cassandra

import (
	"context"
	"sync"
)

// combiner joins plain writes to one partition. While a write to it is under way, the next
// ones wait. When it ends, all that waited are sent as one request. So many callers that
// write to one partition cost the cluster few requests. A write to an idle partition is sent
// at once. Each statement carries its own timestamp. Safe for concurrent use.
type combiner struct {
	write func(ctx context.Context, sets [][]stmt) error

	mu sync.Mutex
	// next holds the statements that wait, by partition. It has an entry for a partition
	// while a write to it is under way; nil if nothing waits.
	next map[string]*combined
	runs sync.WaitGroup // goroutines of handOver
}

// combined is the statements of several callers, one set for each. combiner.mu guards sets
// until takeNext returns them to the goroutine that writes them. err may be read once done is
// closed.
type combined struct {
	sets [][]stmt
	done chan struct{}
	err  error
}

// submit writes statements of a partition and returns when they are stored. If it returns an
// error, also because ctx has ended, they may be stored.
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

// handOver starts a goroutine that writes the statements that wait for a partition whose
// write has ended.
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

// takeNext returns the statements that wait for a partition. If none wait, it returns nil and
// the partition is idle.
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

// joinSets joins sets to few batches. It does not split a set that fits into one batch, so
// that the set becomes visible as a whole.
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
