package trigger

import (
	"context"
	"sync"
	"time"
)

// batcher collects works and hands them on in batches: while one batch is being
// written the next one gathers. Its list is bounded by the messages in memory.
type batcher struct {
	most   int           // of a batch
	linger time.Duration // how long a small batch waits for company; 0: not at all
	wake   chan struct{}

	mu    sync.Mutex
	works []*work
}

func (b *batcher) add(ws ...*work) {
	if len(ws) == 0 {
		return
	}
	b.mu.Lock()
	b.works = append(b.works, ws...)
	b.mu.Unlock()
	b.rouse()
}

func (b *batcher) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the next batch, nil when there is none.
func (b *batcher) take() []*work {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.works), b.most)
	if n == 0 {
		return nil
	}
	out := b.works[:n:n]
	if b.works = b.works[n:]; len(b.works) == 0 {
		b.works = nil
	} else {
		b.rouse() // for another goroutine
	}
	return out
}

// run hands batches to do until ctx ends. Several goroutines may run it.
func (b *batcher) run(ctx context.Context, do func(context.Context, []*work)) {
	for {
		if b.linger > 0 && b.small() {
			select {
			case <-time.After(b.linger):
			case <-ctx.Done():
			}
		}
		if batch := b.take(); batch != nil {
			do(ctx, batch)
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
	}
}

// small reports whether there is something, and little.
func (b *batcher) small() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.works) > 0 && len(b.works) < b.most/2
}
