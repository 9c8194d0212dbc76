package simulator

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// quotaWindow limits how many units each key may use in a period. All periods have the same length.
// They begin at multiples of this length, plus the offset.
type quotaWindow struct {
	limit  uint64
	length time.Duration
	offset time.Duration

	mu   sync.Mutex // guards the fields below
	end  time.Time
	used map[uint64]uint64
}

func newWindow(limit uint64, length, offset time.Duration) *quotaWindow {
	return &quotaWindow{limit: limit, length: length, offset: offset, used: map[uint64]uint64{}}
}

// take uses n units of a key. If the key has fewer than n units left, take uses none and returns
// false.
func (w *quotaWindow) take(key string, n uint64, now time.Time) bool {
	k := xxhash.Sum64String(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startPeriod(now)
	if w.used[k]+n > w.limit {
		return false
	}
	w.used[k] += n
	return true
}

// left returns how many units a key has left in the current period, and when the period ends.
func (w *quotaWindow) left(key string, now time.Time) (uint64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.startPeriod(now)
	return w.limit - min(w.limit, w.used[xxhash.Sum64String(key)]), w.end
}

func (w *quotaWindow) startPeriod(now time.Time) {
	if now.Before(w.end) {
		return
	}
	w.end = now.Add(-w.offset).Truncate(w.length).Add(w.length + w.offset)
	clear(w.used)
}
