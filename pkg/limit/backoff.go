package limit

import (
	"cmp"
	"time"
)

// Backoff computes how long to wait before the next attempt. The zero value waits 1 s, 2 s, 4 s and
// so on up to 1 min, plus a random addition of up to a fifth.
type Backoff struct {
	Base          time.Duration // wait after the first attempt; default 1 s
	Max           time.Duration // the doubling stops here; default 1 min
	MaxRetryAfter time.Duration // longest Retry-After that is obeyed; a longer one is cut; default 1 h
	Jitter        float64       // random addition, as a share of the backoff, 0 to 1; default 0.2
}

func (b Backoff) withDefaults() Backoff {
	b.Base = cmp.Or(b.Base, time.Second)
	b.Max = cmp.Or(b.Max, time.Minute)
	b.MaxRetryAfter = cmp.Or(b.MaxRetryAfter, time.Hour)
	b.Jitter = cmp.Or(b.Jitter, 0.2)
	return b
}

// Delay returns how long to wait after an attempt. Attempts are numbered from 0. Base is doubled
// once for each earlier attempt. If the provider asked for a longer wait (retryAfter; 0: it did
// not ask for any), Delay uses that wait instead. Then Delay adds jitter, so that messages that
// were throttled together are not sent again together. The function random returns numbers from 0
// up to but not including 1, as rand.Float64 does.
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
