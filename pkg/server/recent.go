package server

import "sync"

// recent is a bounded map that forgets what was not asked for lately: two
// generations, of which the older is dropped when the younger is full. Every
// operation is O(1), and no list is touched by a hit, which is what a request
// makes.
type recent[K comparable, V any] struct {
	max int // entries of one generation

	mu         sync.Mutex
	young, old map[K]V
}

func newRecent[K comparable, V any](max int) *recent[K, V] {
	return &recent[K, V]{max: max, young: map[K]V{}}
}

func (r *recent[K, V]) get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.look(k)
}

// look finds k and keeps it in the younger generation. It needs the lock.
func (r *recent[K, V]) look(k K) (V, bool) {
	if v, ok := r.young[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.store(k, v)
	}
	return v, ok
}

func (r *recent[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store(k, v)
}

// putNew stores v unless somebody was faster, and returns what is stored.
func (r *recent[K, V]) putNew(k K, v V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.look(k); ok {
		return was
	}
	r.store(k, v)
	return v
}

func (r *recent[K, V]) drop(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.young, k)
	delete(r.old, k)
}

func (r *recent[K, V]) store(k K, v V) {
	if len(r.young) >= r.max {
		if _, ok := r.young[k]; !ok {
			r.old, r.young = r.young, make(map[K]V, r.max/4)
		}
	}
	r.young[k] = v
}
