package memory

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits keeps token buckets and blocked accounts of one process, on the
// monotonic clock. There are as many as there are accounts and addresses to
// send from: they are never forgotten.
type Limits struct {
	mu      sync.Mutex
	buckets map[string]*bucket
	blocked map[string]time.Time
}

type bucket struct {
	tokens float64
	at     time.Time
}

// NewLimits returns full buckets and no blocked account.
func NewLimits() *Limits {
	return &Limits{buckets: map[string]*bucket{}, blocked: map[string]time.Time{}}
}

// Take takes up to n tokens of a bucket refilled at rate per second up to
// burst, and returns how many it got and, if fewer than n, how long until the
// next is there. A bucket nobody asked for yet is full. A rate of 0 or less
// never refills.
func (l *Limits) Take(ctx context.Context, name string, n int, rate float64, burst int) (got int, wait time.Duration, err error) {
	if err := check(ctx); err != nil {
		return 0, 0, err
	}
	if n < 0 || burst < 1 || math.IsNaN(rate) {
		return 0, 0, notify.Invalid("bad_limit", "burst", "a bucket holds at least one token")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	b := l.buckets[name]
	if b == nil {
		b = &bucket{tokens: float64(burst), at: now}
		l.buckets[name] = b
	}
	rate = max(rate, 0)
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens += d * rate
		b.at = now
	}
	b.tokens = min(b.tokens, float64(burst))
	// A token is there when all but a billionth of it is: what was waited for
	// as announced must not fail by rounding.
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

// Block marks an account as blocked until a time; an earlier time than the
// stored one changes nothing.
func (l *Limits) Block(ctx context.Context, account string, until time.Time) error {
	if err := check(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.blocked[account]) {
		l.blocked[account] = until
	}
	return nil
}

// Blocked returns until when each account is blocked; the zero time: it is not.
func (l *Limits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	if err := check(ctx); err != nil {
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
