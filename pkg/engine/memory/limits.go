package memory

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits stores the token buckets and blocked accounts of one process. It uses the
// monotonic clock. A bucket is never removed. There are few buckets: only one for each
// account and sender address.
type Limits struct {
	mu      sync.Mutex
	buckets map[string]*bucket
	blocked map[string]time.Time // when the block ends, by account
}

type bucket struct {
	tokens   float64
	filledAt time.Time // when tokens was last updated
}

// NewLimits returns Limits whose buckets are all full. No account is blocked.
func NewLimits() *Limits {
	return &Limits{buckets: map[string]*bucket{}, blocked: map[string]time.Time{}}
}

// Take removes up to n tokens from a bucket and returns how many it removed. The bucket is
// refilled with rate tokens per second and holds at most burst tokens. If Take removed
// fewer than n tokens, the result wait is the time until the next token. A new bucket is
// full. A bucket with a rate of 0 or less is never refilled. Take returns
// notify.KindInvalid if n is negative, burst is less than 1 or rate is not a number.
func (l *Limits) Take(ctx context.Context, name string, n int, rate float64, burst int) (got int, wait time.Duration, err error) {
	if err := checkContext(ctx); err != nil {
		return 0, 0, err
	}
	if n < 0 || burst < 1 || math.IsNaN(rate) {
		return 0, 0, notify.Invalid("bad_limit", "burst", fmt.Sprintf("the burst of a bucket must be at least 1, its rate a number, and the number of tokens to take at least 0; the burst is %d, the rate %g, the number of tokens %d", burst, rate, n))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	b := l.buckets[name]
	if b == nil {
		b = &bucket{tokens: float64(burst), filledAt: now}
		l.buckets[name] = b
	}
	rate = max(rate, 0)
	if d := now.Sub(b.filledAt).Seconds(); d > 0 {
		b.tokens += d * rate
		b.filledAt = now
	}
	b.tokens = min(b.tokens, float64(burst))
	// A token counts as complete when only a billionth of it is missing. Otherwise rounding
	// could refuse a caller that has waited for exactly the returned time.
	got = min(n, int(b.tokens+1e-9))
	b.tokens = max(b.tokens-float64(got), 0)
	if got == n {
		return got, 0, nil
	}
	missing := (1 - b.tokens) / rate * float64(time.Second)
	if rate == 0 || missing > float64(math.MaxInt64/2) {
		return got, math.MaxInt64, nil
	}
	return got, time.Duration(math.Ceil(missing)), nil
}

// Block blocks an account until the time end. If the account is already blocked until a
// later time, Block changes nothing.
func (l *Limits) Block(ctx context.Context, account string, end time.Time) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if end.After(l.blocked[account]) {
		l.blocked[account] = end
	}
	return nil
}

// Blocked returns for each account when its block ends. It returns the zero time for an
// account that is not blocked.
func (l *Limits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	out := make([]time.Time, len(accounts))
	for i, a := range accounts {
		if until, ok := l.blocked[a]; ok {
			if until.After(now) {
				out[i] = until
			} else {
				delete(l.blocked, a)
			}
		}
	}
	return out, nil
}
