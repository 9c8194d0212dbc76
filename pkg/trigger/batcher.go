package trigger

import (
	"context"
	"sync"
	"time"
)

// batcher collects what must be written and hands it on in batches: while one
// batch is being written the next one gathers. Its list is bounded by whoever
// adds to it.
type batcher[T any] struct {
	most int // of a batch
	wake chan struct{}
	// linger is how long a small batch is waited for to grow; 0: not at all.
	linger time.Duration

	mu    sync.Mutex
	items []T
}

func newBatcher[T any](most int) *batcher[T] {
	return &batcher[T]{most: most, wake: make(chan struct{}, 1)}
}

func (b *batcher[T]) add(xs ...T) {
	if len(xs) == 0 {
		return
	}
	b.mu.Lock()
	b.items = append(b.items, xs...)
	b.mu.Unlock()
	b.rouse()
}

func (b *batcher[T]) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the next batch, nil when there is none.
func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.items), b.most)
	if n == 0 {
		return nil
	}
	out := b.items[:n:n]
	if b.items = b.items[n:]; len(b.items) == 0 {
		b.items = nil
	} else {
		b.rouse() // for another worker
	}
	return out
}

// small reports whether there is something, and little.
func (b *batcher[T]) small() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items) > 0 && len(b.items) < b.most/4
}

// run hands batches to fn until ctx ends. Several may run at a time.
func (b *batcher[T]) run(ctx context.Context, fn func([]T)) {
	for {
		if b.linger > 0 && b.small() {
			select {
			case <-time.After(b.linger):
			case <-ctx.Done():
			}
		}
		batch := b.take()
		if batch != nil {
			fn(batch)
			continue
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
	}
}
