package deadletter

import (
	"context"
	"sync"
	"sync/atomic"
)

// Tail hands outcomes to whoever watches. It never holds a worker up: a watcher
// that does not keep up misses events, and is told how many.
type Tail[E any] struct {
	mu       sync.Mutex
	watchers map[*watcher[E]]struct{}
	n        atomic.Int32
}

type watcher[E any] struct {
	caller string
	ch     chan E
	missed atomic.Int64
}

// Watching reports whether anybody watches; while not, events need not be made.
func (t *Tail[E]) Watching() bool { return t.n.Load() > 0 }

// Publish hands e to the watchers of its caller, and to those of all callers.
func (t *Tail[E]) Publish(caller string, e E) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		if w.caller != "" && w.caller != caller {
			continue
		}
		select {
		case w.ch <- e:
		default:
			w.missed.Add(1)
		}
	}
}

// Subscribe returns the events of a caller (empty: of all) until ctx ends, and
// a function that tells how many were missed so far.
func (t *Tail[E]) Subscribe(ctx context.Context, caller string) (events <-chan E, missed func() int64) {
	w := &watcher[E]{caller: caller, ch: make(chan E, 1024)}
	t.mu.Lock()
	if t.watchers == nil {
		t.watchers = map[*watcher[E]]struct{}{}
	}
	t.watchers[w] = struct{}{}
	t.n.Add(1)
	t.mu.Unlock()
	context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, w)
		t.n.Add(-1)
		close(w.ch)
	})
	return w.ch, w.missed.Load
}
