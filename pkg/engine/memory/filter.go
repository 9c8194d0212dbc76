package memory

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Filter is a Bloom filter of one process, in two generations: what is added
// goes into the newer, and after a window the older is emptied and becomes the
// newer. It is complete since it was made.
type Filter struct {
	window time.Duration
	hashes int

	mu    sync.Mutex
	gens  [2][]uint64 // bits
	turn  int64       // window that gens[turn&1] belongs to
	since time.Time
}

// falsePositives is the share of ids never added that Seen takes for added,
// when both generations are full.
const falsePositives = 0.02

// NewFilter returns an empty filter for up to rate ids per second that are
// remembered for a window or longer; rate*window is at most 2^31 ids. It takes
// 2.5 bytes an id.
func NewFilter(rate float64, window time.Duration) (*Filter, error) {
	n := rate * window.Seconds()
	if !(rate > 0) || window < time.Second || n > 1<<31 {
		return nil, notify.Invalid("bad_filter", "rate", "a filter needs a rate above 0, a window of at least 1s, and at most 2^31 ids in it")
	}
	hashes := math.Ceil(math.Log2(2 / falsePositives))
	words := int(math.Max(math.Ceil(n*hashes/math.Ln2/64), 16))
	f := &Filter{window: window, hashes: int(hashes), since: time.Now()}
	for i := range f.gens {
		f.gens[i] = make([]uint64, words)
	}
	f.turn = f.since.UnixNano() / int64(window)
	return f, nil
}

// roll empties the generations whose window is over. Must be called with mu held.
func (f *Filter) roll() {
	turn := max(time.Now().UnixNano()/int64(f.window), f.turn)
	for range min(turn-f.turn, 2) {
		f.turn++
		clear(f.gens[f.turn&1])
	}
	if turn > f.turn { // both are empty; only which is the newer matters
		f.turn = turn
	}
}

// places calls fn with the bits of an id until it returns false.
func (f *Filter) places(id uint64, fn func(word int, bit uint64) bool) {
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
	if err := check(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.roll()
	gen := f.gens[f.turn&1]
	for _, id := range ids {
		f.places(id, func(word int, bit uint64) bool { gen[word] |= bit; return true })
	}
	return nil
}

func (f *Filter) Seen(ctx context.Context, ids []uint64) (maybe []bool, complete time.Time, err error) {
	if err := check(ctx); err != nil {
		return nil, time.Time{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.roll()
	maybe = make([]bool, len(ids))
	for i, id := range ids {
		for _, gen := range f.gens {
			all := true
			f.places(id, func(word int, bit uint64) bool {
				all = gen[word]&bit != 0
				return all
			})
			maybe[i] = maybe[i] || all
		}
	}
	complete = time.Unix(0, (f.turn-1)*int64(f.window)) // the older generation's begin
	if f.since.After(complete) {
		complete = f.since
	}
	return maybe, complete, nil
}

func (f *Filter) Incomplete(ctx context.Context) error {
	if err := check(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = time.Now()
	return nil
}
