package worker

import (
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A round of few receivers must not have room for a whole window while it waits for a provider,
// because thousands of such rounds may wait.
func TestScratchFitsTheRound(t *testing.T) {
	t.Parallel()
	w := New(Config{Lane: notify.Lane{Channel: notify.Push}})
	f := func(pooled bool, size int, spans ...uint32) {
		t.Helper()
		var parts []*window
		for _, n := range spans {
			parts = append(parts, &window{lo: 7, hi: 7 + n})
		}
		s := w.scratchFor(parts)
		if cap(s.items) != size || cap(s.refs) != size || pooled != (s.of != nil) {
			t.Errorf("%v: room for %d items, %d refs, pooled %v; want %d, %v", spans, cap(s.items), cap(s.refs), s.of != nil, size, pooled)
		}
	}
	f(false, 1, 1)
	f(false, 200, 200)
	f(false, 3, 1, 1, 1)
	f(true, 1000, 1000)
	f(true, 1000, 250)
	f(true, 1000, 100, 150)
}
