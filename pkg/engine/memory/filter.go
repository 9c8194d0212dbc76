package memory

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Filter is a Bloom filter of one process. It has two generations, and Add puts ids into the newer
// one. At the end of each window, the older generation is emptied and becomes the newer one. So
// the filter remembers an id for one to two windows.
//
// Seen also returns the time since which the filter is complete: the filter contains every id that
// was added after that time. A new filter is complete since its creation.
type Filter struct {
	window time.Duration
	hashes int // bits that an id sets

	mu   sync.Mutex  // guards the fields below
	gens [2][]uint64 // bits of the two generations
	// newestWindow is the number of the window of the newer generation. That generation is
	// gens[newestWindow&1].
	newestWindow  int64
	completeSince time.Time // when the filter was created, or the last call of Incomplete
}

// falsePositives is the share of false positives when both generations are full. A false
// positive is an id that was never added but that Seen reports as perhaps added.
const falsePositives = 0.02

// NewFilter returns an empty filter for up to rate ids per second. The filter remembers
// each id for at least a window. It uses 2.5 bytes of memory for each id. NewFilter returns
// notify.KindInvalid if rate is not greater than 0, if window is less than 1 s, or if
// rate*window is more than 2^31 ids.
func NewFilter(rate float64, window time.Duration) (*Filter, error) {
	n := rate * window.Seconds()
	if !(rate > 0) || window < time.Second || n > 1<<31 {
		return nil, notify.Invalid("bad_filter", "rate", fmt.Sprintf("a filter must have a rate above 0, a window of at least 1s, and at most 2^31 ids in a window; the rate is %g ids per second, the window %s", rate, window))
	}
	hashes := math.Ceil(math.Log2(2 / falsePositives))
	words := int(math.Max(math.Ceil(n*hashes/math.Ln2/64), 16))
	f := &Filter{window: window, hashes: int(hashes), completeSince: time.Now()}
	for i := range f.gens {
		f.gens[i] = make([]uint64, words)
	}
	f.newestWindow = f.completeSince.UnixNano() / int64(window)
	return f, nil
}

// advanceWindow empties the generations whose window is over. mu must be held.
func (f *Filter) advanceWindow() {
	now := max(time.Now().UnixNano()/int64(f.window), f.newestWindow)
	for range min(now-f.newestWindow, 2) {
		f.newestWindow++
		clear(f.gens[f.newestWindow&1])
	}
	if now > f.newestWindow { // both generations are empty, so the number may skip windows
		f.newestWindow = now
	}
}

// eachBit calls fn with each bit of an id. It stops when fn returns false.
func (f *Filter) eachBit(id uint64, fn func(word int, bit uint64) bool) {
	step := notify.Mix(id) | 1
	bits := uint64(len(f.gens[0])) * 64
	for range f.hashes {
		if at := id % bits; !fn(int(at/64), 1<<(at%64)) {
			return
		}
		id += step
	}
}

func (f *Filter) Add(ctx context.Context, ids []uint64) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advanceWindow()
	gen := f.gens[f.newestWindow&1]
	for _, id := range ids {
		f.eachBit(id, func(word int, bit uint64) bool { gen[word] |= bit; return true })
	}
	return nil
}

func (f *Filter) Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error) {
	if err := checkContext(ctx); err != nil {
		return nil, time.Time{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.advanceWindow()
	maybe = make([]bool, len(ids))
	for i, id := range ids {
		for _, gen := range f.gens {
			all := true
			f.eachBit(id, func(word int, bit uint64) bool {
				all = gen[word]&bit != 0
				return all
			})
			maybe[i] = maybe[i] || all
		}
	}
	complete = time.Unix(0, (f.newestWindow-1)*int64(f.window)) // when the window of the older generation began
	if f.completeSince.After(complete) {
		complete = f.completeSince
	}
	return maybe, complete, nil
}

func (f *Filter) Incomplete(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completeSince = time.Now()
	return nil
}
