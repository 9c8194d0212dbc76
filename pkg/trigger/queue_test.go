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
	lanes   [2]messageHeap     // on time, and backlog; the dead are not in them
	turn    int                // messages received from the on-time lane since the last one from the backlog, while both lanes had messages
	dead    int
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

// messageHeap orders a lane by the field visible, then by age.
type messageHeap []*queued

func (h messageHeap) Len() int { return len(h) }
func (h messageHeap) Less(i, j int) bool {
	return cmp.Or(h[i].visible.Compare(h[j].visible), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h messageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *messageHeap) Push(x any) {
	m := x.(*queued)
	m.at = len(*h)
	*h = append(*h, m)
}
func (h *messageHeap) Pop() any {
	m := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	m.at = -1
	return m
}

func (h messageHeap) ready(now time.Time) bool { return len(h) > 0 && !h[0].visible.After(now) }

// lane returns the lane of a message.
func (q *heapQueue) lane(m *queued) *messageHeap {
	if m.Backlog {
		return &q.lanes[1]
	}
	return &q.lanes[0]
}

// pick returns the lane whose turn it is, or nil if no lane has a ready message. Must be called
// with mu held.
func (q *heapQueue) pick(now time.Time) *messageHeap {
	q.sweep(now)
	prompt, late := q.lanes[0].ready(now), q.lanes[1].ready(now)
	switch {
	case prompt && late:
		if q.turn++; q.turn < engine.BacklogShare {
			return &q.lanes[0]
		}
		q.turn = 0
		return &q.lanes[1]
	case prompt:
		return &q.lanes[0]
	case late:
		return &q.lanes[1]
	}
	return nil
}

// sweepAll does the same as sweep, for a caller that wants all dead messages.
func (q *heapQueue) sweepAll(now time.Time) {
	for l := range q.lanes {
		h := &q.lanes[l]
		for i := 0; i < len(*h); {
			if m := (*h)[i]; !m.visible.After(now) && m.Receives >= q.maxReceives {
				q.bury(heap.Remove(h, i).(*queued))
				i = 0
				continue
			}
			i++
		}
	}
}

// bury counts a dead message and forgets it.
func (q *heapQueue) bury(m *queued) {
	delete(q.byRef, m.Receipt)
	q.dead++
}

// sweep sets apart the messages that were received too often. Must be called with mu held.
func (q *heapQueue) sweep(now time.Time) {
	for l := range q.lanes {
		for h := &q.lanes[l]; h.ready(now) && (*h)[0].Receives >= q.maxReceives; {
			q.bury(heap.Pop(h).(*queued))
		}
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
		x := &queued{Delivery: engine.Delivery{Body: append([]byte(nil), m.Body...), Enqueued: now, Backlog: m.Backlog}, seq: q.seq, visible: now.Add(m.Delay)}
		heap.Push(q.lane(x), x)
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
		for len(out) < most {
			h := q.pick(now)
			if h == nil {
				break
			}
			m := (*h)[0]
			delete(q.byRef, m.Receipt)
			m.Receives++
			m.Receipt = fmt.Sprintf("%d-%d", m.seq, m.Receives)
			q.byRef[m.Receipt] = m
			m.held, m.visible = true, now.Add(visibility)
			heap.Fix(h, 0)
			d := m.Delivery
			d.Body = append([]byte(nil), d.Body...)
			out = append(out, d)
		}
		changed, wait := q.changed, 12*time.Hour
		for _, h := range q.lanes {
			if len(h) > 0 {
				wait = min(wait, h[0].visible.Sub(now))
			}
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

// named calls fn with the message of each receipt that is still valid.
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
		heap.Fix(q.lane(m), m.at)
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
		if m := q.byRef[r]; m != nil && m.held && m.visible.After(now) {
			heap.Remove(q.lane(m), m.at)
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
		heap.Fix(q.lane(m), m.at)
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
	d.Dead = q.dead
	for _, m := range slices.Concat(q.lanes[0], q.lanes[1]) {
		over := !m.visible.After(now) && m.Receives >= q.maxReceives
		if m.Backlog && !over {
			d.Backlog++
		}
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

func TestHeapQueue(t *testing.T) {
	t.Parallel()
	enginetest.Queue(t, func(enginetest.T) (engine.Queue, func() engine.Queue) {
		return newHeapQueue(enginetest.QueueReceives), nil
	})
}
