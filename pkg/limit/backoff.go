package limit

import (
	"cmp"
	"time"
)

// Backoff computes how long to wait before the next attempt. The zero value waits 1 s, 2 s, 4 s and
// so on up to a minute, plus up to a fifth.
type Backoff struct {
	Base          time.Duration // wait after the first attempt; default 1 s
	Max           time.Duration // the doubling stops here; default 1 min
	MaxRetryAfter time.Duration // a longer Retry-After is cut to this; default 1 h
	Jitter        float64       // random addition, as a share of the backoff, 0 to 1; default 0.2
}

func (b Backoff) withDefaults() Backoff {
	b.Base = cmp.Or(b.Base, time.Second)
	b.Max = cmp.Or(b.Max, time.Minute)
	b.MaxRetryAfter = cmp.Or(b.MaxRetryAfter, time.Hour)
	b.Jitter = cmp.Or(b.Jitter, 0.2)
	return b
}

// Delay returns the wait after attempt (0 for the first): the provider's retryAfter (0: none given)
// or Base doubled attempt times, whichever is longer, plus jitter. Jitter only ever adds, to a
// Retry-After too: messages that were throttled together must not come back together. random
// returns numbers in [0, 1), e.g. rand.Float64.
func (b Backoff) Delay(attempt int, retryAfter time.Duration, random func() float64) time.Duration {
	b = b.withDefaults()
	step := b.Base
	for range attempt {
		if step >= b.Max/2 {
			step = b.Max
			break
		}
		step *= 2
	}
	step = min(step, b.Max)
	wait := max(step, min(retryAfter, b.MaxRetryAfter))
	return wait + time.Duration(b.Jitter*random()*float64(step))
}
