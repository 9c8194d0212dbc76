package trigger

import (
	"context"
	"sync"
	"time"
)

// batcher collects work and processes it in batches. While one batch is being processed, the next
// batch is collected. The collected work needs no limit here, because Dispatcher.waitForRoom
// limits the number of messages in memory.
type batcher struct {
	maxBatch int           // largest batch
	linger   time.Duration // how long a small batch waits for more work; 0: no wait
	wake     chan struct{} // gets a token when there is work

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
	b.wakeRun()
}

func (b *batcher) wakeRun() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the next batch, or nil.
func (b *batcher) take() []*work {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.works), b.maxBatch)
	if n == 0 {
		return nil
	}
	out := b.works[:n:n]
	if b.works = b.works[n:]; len(b.works) == 0 {
		b.works = nil
	} else {
		b.wakeRun() // wake another goroutine in run
	}
	return out
}

// run calls process with each batch until ctx ends. Several goroutines may call run.
func (b *batcher) run(ctx context.Context, process func(context.Context, []*work)) {
	for {
		if b.linger > 0 && b.isSmall() {
			select {
			case <-time.After(b.linger):
			case <-ctx.Done():
			}
		}
		if batch := b.take(); batch != nil {
			process(ctx, batch)
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
	}
}

// isSmall reports whether there is work, but less than half a batch.
func (b *batcher) isSmall() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.works) > 0 && len(b.works) < b.maxBatch/2
}
