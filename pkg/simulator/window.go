package simulator

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// window is a fixed-window limit per key: so many units a period, all given back
// at its end. Periods start at multiples of their length, plus offset.
type window struct {
	limit  uint64
	length time.Duration
	offset time.Duration

	mu   sync.Mutex
	end  time.Time
	used map[uint64]uint64
}

func newWindow(limit uint64, length, offset time.Duration) *window {
	return &window{limit: limit, length: length, offset: offset, used: map[uint64]uint64{}}
}

// take uses n units of key; false, with nothing used, when fewer are left.
func (w *window) take(key string, n uint64, now time.Time) bool {
	k := xxhash.Sum64String(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn(now)
	if w.used[k]+n > w.limit {
		return false
	}
	w.used[k] += n
	return true
}

// left returns the units left of key and when they are all back.
func (w *window) left(key string, now time.Time) (uint64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn(now)
	return w.limit - min(w.limit, w.used[xxhash.Sum64String(key)]), w.end
}

func (w *window) turn(now time.Time) {
	if now.Before(w.end) {
		return
	}
	w.end = now.Add(-w.offset).Truncate(w.length).Add(w.length + w.offset)
	clear(w.used)
}
