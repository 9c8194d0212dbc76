package log

import (
	"testing"
	"time"
)

// TestBackoffGrows: the first retry comes soon, later retries leave a busy broker alone, and many
// clients do not retry at the same moment.
func TestBackoffGrows(t *testing.T) {
	t.Parallel()
	if first := backoff(1); first > 100*time.Millisecond {
		t.Errorf("the first wait is %v", first)
	}
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		w := backoff(50)
		least, most = min(least, w), max(most, w)
	}
	if least < 500*time.Millisecond || most > 1200*time.Millisecond || most-least < 100*time.Millisecond {
		t.Errorf("later waits are %v to %v", least, most)
	}
}
