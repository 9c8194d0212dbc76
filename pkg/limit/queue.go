package limit

import (
	"container/heap"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Queue orders requests that wait for capacity. Requests of a more urgent category are first (otp
// before all others). Within a category the request with the lowest place is first. The zero value
// is empty. A Queue is not safe for concurrent use.
type Queue[T any] struct {
	heap      waitingHeap[T]
	lastPlace uint64 // the place that the latest call of Add gave
}

// Waiting is a request in a Queue.
type Waiting[T any] struct {
	Value T

	category  notify.Category
	place     uint64
	heapIndex int // index in the heap; -1 after Remove
}

// Add appends v after all other requests of its category.
func (q *Queue[T]) Add(cat notify.Category, v T) *Waiting[T] {
	q.lastPlace++
	return q.AddAt(cat, q.lastPlace, v)
}

// AddAt inserts v at a place among the requests of its category. The request with the lowest place
// is served first.
func (q *Queue[T]) AddAt(cat notify.Category, place uint64, v T) *Waiting[T] {
	w := &Waiting[T]{Value: v, category: cat, place: place}
	heap.Push(&q.heap, w)
	return w
}

// Len returns how many requests wait.
func (q *Queue[T]) Len() int { return len(q.heap) }

// First returns the request to serve next, or nil if none waits.
func (q *Queue[T]) First() *Waiting[T] {
	if len(q.heap) == 0 {
		return nil
	}
	return q.heap[0]
}

// Remove removes w from the queue. It does nothing if w is not in the queue any more.
func (q *Queue[T]) Remove(w *Waiting[T]) {
	if w.heapIndex >= 0 {
		heap.Remove(&q.heap, w.heapIndex)
	}
}

// waitingHeap implements heap.Interface.
type waitingHeap[T any] []*Waiting[T]

func (h waitingHeap[T]) Len() int { return len(h) }
func (h waitingHeap[T]) Less(i, j int) bool {
	if h[i].category != h[j].category {
		return h[i].category < h[j].category
	}
	return h[i].place < h[j].place
}
func (h waitingHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}
func (h *waitingHeap[T]) Push(x any) {
	w := x.(*Waiting[T])
	w.heapIndex = len(*h)
	*h = append(*h, w)
}
func (h *waitingHeap[T]) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1], w.heapIndex = nil, -1
	*h = old[:len(old)-1]
	return w
}
