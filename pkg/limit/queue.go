package limit

import (
	"container/heap"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Queue orders requests that wait for capacity by category (otp first), then by place.
// The zero value is empty. It is not safe for concurrent use.
type Queue[T any] struct {
	heap  waitings[T]
	count uint64 // how many were ever added behind the others
}

// Waiting is a request in a Queue.
type Waiting[T any] struct {
	Value T

	category notify.Category
	place    uint64
	at       int // in the heap; -1 when it has left
}

// Add puts v behind all others of its category.
func (q *Queue[T]) Add(cat notify.Category, v T) *Waiting[T] {
	q.count++
	return q.AddAt(cat, q.count, v)
}

// AddAt puts v at a place among those of its category; the lowest is the first.
func (q *Queue[T]) AddAt(cat notify.Category, place uint64, v T) *Waiting[T] {
	w := &Waiting[T]{Value: v, category: cat, place: place}
	heap.Push(&q.heap, w)
	return w
}

// Len returns how many wait.
func (q *Queue[T]) Len() int { return len(q.heap) }

// First returns the one to be served next, or nil when none waits.
func (q *Queue[T]) First() *Waiting[T] {
	if len(q.heap) == 0 {
		return nil
	}
	return q.heap[0]
}

// Remove takes w out. It does nothing if w has left before.
func (q *Queue[T]) Remove(w *Waiting[T]) {
	if w.at >= 0 {
		heap.Remove(&q.heap, w.at)
	}
}

// waitings implements heap.Interface.
type waitings[T any] []*Waiting[T]

func (h waitings[T]) Len() int { return len(h) }
func (h waitings[T]) Less(i, j int) bool {
	if h[i].category != h[j].category {
		return h[i].category < h[j].category
	}
	return h[i].place < h[j].place
}
func (h waitings[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *waitings[T]) Push(x any) {
	w := x.(*Waiting[T])
	w.at = len(*h)
	*h = append(*h, w)
}
func (h *waitings[T]) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1], w.at = nil, -1
	*h = old[:len(old)-1]
	return w
}
