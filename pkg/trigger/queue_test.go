package trigger

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

// heapQueue is engine.Queue in memory, quick with many messages. It passes the
// suite of the contract.
type heapQueue struct {
	maxReceives int

	mu      sync.Mutex
	seq     uint64
	byRef   map[string]*queued // by receipt
	heap    []*queued          // by visible, then age; the dead are not in it
	dead    []*queued
	changed chan struct{}
}

type queued struct {
	engine.Delivery
	seq     uint64
	visible time.Time
	held    bool
	at      int
}

func newHeapQueue(maxReceives int) *heapQueue {
	return &heapQueue{maxReceives: maxReceives, byRef: map[string]*queued{}, changed: make(chan struct{})}
}

func (q *heapQueue) Len() int { return len(q.heap) }
func (q *heapQueue) Less(i, j int) bool {
	a, b := q.heap[i], q.heap[j]
	return cmp.Or(a.visible.Compare(b.visible), cmp.Compare(a.seq, b.seq)) < 0
}
func (q *heapQueue) Swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].at, q.heap[j].at = i, j
}
func (q *heapQueue) Push(x any) {
	m := x.(*queued)
	m.at = len(q.heap)
	q.heap = append(q.heap, m)
}
func (q *heapQueue) Pop() any {
	m := q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	m.at = -1
	return m
}

// sweepAll is sweep for whoever asks for all of the dead.
func (q *heapQueue) sweepAll(now time.Time) {
	for i := 0; i < len(q.heap); {
		if m := q.heap[i]; !m.visible.After(now) && m.Receives >= q.maxReceives {
			q.bury(heap.Remove(q, i).(*queued))
			i = 0
			continue
		}
		i++
	}
}

// bury gives a dead message a receipt of its own: the one it was received with
// is over.
func (q *heapQueue) bury(m *queued) {
	delete(q.byRef, m.Receipt)
	m.Receipt = fmt.Sprintf("dead-%d", m.seq)
	q.byRef[m.Receipt] = m
	q.dead = append(q.dead, m)
}

// sweep sets apart what was received too often. Must be called with mu held.
func (q *heapQueue) sweep(now time.Time) {
	for len(q.heap) > 0 && !q.heap[0].visible.After(now) && q.heap[0].Receives >= q.maxReceives {
		q.bury(heap.Pop(q).(*queued))
	}
}

func (q *heapQueue) Enqueue(ctx context.Context, ms []engine.Message) error {
	for _, m := range ms {
		if m.Delay < 0 || m.Delay > engine.MaxQueueDelay || len(m.Body) > 64<<10 {
			return notify.Invalid("bad_message", "delay", "out of range")
		}
	}
	if ctx.Err() != nil {
		return notify.Unavailable("queue", 0, ctx.Err())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, m := range ms {
		q.seq++
		x := &queued{Delivery: engine.Delivery{Body: append([]byte(nil), m.Body...), Enqueued: now}, seq: q.seq, visible: now.Add(m.Delay)}
		heap.Push(q, x)
	}
	q.signal()
	return nil
}

func (q *heapQueue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *heapQueue) Receive(ctx context.Context, most int, visibility time.Duration) ([]engine.Delivery, error) {
	if visibility <= 0 || visibility > 12*time.Hour {
		return nil, notify.Invalid("bad_message", "visibility", "out of range")
	}
	if most <= 0 {
		return nil, nil
	}
	for ctx.Err() == nil {
		q.mu.Lock()
		now := time.Now()
		var out []engine.Delivery
		for q.sweep(now); len(out) < most && len(q.heap) > 0 && !q.heap[0].visible.After(now); q.sweep(now) {
			m := q.heap[0]
			delete(q.byRef, m.Receipt)
			m.Receives++
			m.Receipt = fmt.Sprintf("%d-%d", m.seq, m.Receives)
			q.byRef[m.Receipt] = m
			m.held, m.visible = true, now.Add(visibility)
			heap.Fix(q, 0)
			d := m.Delivery
			d.Body = append([]byte(nil), d.Body...)
			out = append(out, d)
		}
		changed, wait := q.changed, 12*time.Hour
		if len(q.heap) > 0 {
			wait = q.heap[0].visible.Sub(now)
		}
		q.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return nil, nil
}

// named calls fn with the message of a receipt that is not over.
func (q *heapQueue) named(ctx context.Context, receipts []string, fn func(*queued)) error {
	if ctx.Err() != nil {
		return notify.Unavailable("queue", 0, ctx.Err())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range receipts {
		if m := q.byRef[r]; m != nil && m.held && m.visible.After(time.Now()) {
			fn(m)
		}
	}
	q.signal()
	return nil
}

func (q *heapQueue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if visibility <= 0 || visibility > 12*time.Hour {
		return notify.Invalid("bad_message", "visibility", "out of range")
	}
	return q.named(ctx, receipts, func(m *queued) {
		m.visible = time.Now().Add(visibility)
		heap.Fix(q, m.at)
	})
}

func (q *heapQueue) Ack(ctx context.Context, receipts []string) error {
	if ctx.Err() != nil {
		return notify.Unavailable("queue", 0, ctx.Err())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.sweepAll(now)
	for _, r := range receipts {
		m := q.byRef[r]
		switch {
		case m == nil:
		case m.at >= 0 && m.held && m.visible.After(now):
			heap.Remove(q, m.at)
			delete(q.byRef, r)
		case m.at < 0: // dead
			for i, x := range q.dead {
				if x == m {
					q.dead = append(q.dead[:i:i], q.dead[i+1:]...)
					break
				}
			}
			delete(q.byRef, r)
		}
	}
	return nil
}

func (q *heapQueue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if delay < 0 || delay > engine.MaxQueueDelay {
		return notify.Invalid("bad_message", "delay", "out of range")
	}
	return q.named(ctx, []string{receipt}, func(m *queued) {
		m.held, m.visible = false, time.Now().Add(delay)
		heap.Fix(q, m.at)
	})
}

func (q *heapQueue) Depth(ctx context.Context) (d engine.QueueDepth, err error) {
	if ctx.Err() != nil {
		return d, notify.Unavailable("queue", 0, ctx.Err())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.sweep(now)
	d.Dead = len(q.dead)
	for _, m := range q.heap {
		switch {
		case !m.visible.After(now) && m.Receives >= q.maxReceives:
			d.Dead++
		case !m.visible.After(now):
			if d.Ready++; d.Oldest.IsZero() || m.Enqueued.Before(d.Oldest) {
				d.Oldest = m.Enqueued
			}
		case m.held:
			d.InFlight++
		default:
			d.Delayed++
		}
	}
	return d, nil
}

func (q *heapQueue) Dead(ctx context.Context, most int) (out []engine.Delivery, err error) {
	if ctx.Err() != nil {
		return nil, notify.Unavailable("queue", 0, ctx.Err())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweepAll(time.Now())
	slices.SortFunc(q.dead, func(a, b *queued) int { return cmp.Compare(a.seq, b.seq) })
	for i := 0; i < min(len(q.dead), most); i++ {
		out = append(out, q.dead[i].Delivery)
	}
	return out, nil
}

func TestHeapQueue(t *testing.T) {
	t.Parallel()
	enginetest.Queue(t, func(enginetest.T) (engine.Queue, func() engine.Queue) {
		return newHeapQueue(enginetest.QueueReceives), nil
	})
}
