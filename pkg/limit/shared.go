package limit

import (
	"context"
	"sync/atomic"
	"time"
)

// Limits keeps token buckets and blocked accounts that all workers share.
type Limits interface {
	Blocks
	// Take takes up to n tokens of a bucket refilled at rate per second up to
	// burst, and returns how many it got and, if fewer than n, how long until
	// the next is there.
	Take(ctx context.Context, bucket string, n int, rate float64, burst int) (got int, wait time.Duration, err error)
}

// SharedConfig of a Shared. The zero value means the defaults.
type SharedConfig struct {
	Timeout time.Duration // of a question; default 100 ms
	Retry   time.Duration // after a failure nobody is asked for so long; default 1 s
}

// Shared asks the token buckets and blocked accounts that several processes
// share. While they do not answer, or not in time, each process goes by its own
// buckets at the full rate: nothing waits, and what is too much then is refused
// by the provider, whose refusals block the account here.
type Shared struct {
	limits Limits
	cfg    SharedConfig
	off    atomic.Int64 // until then nobody is asked, ns since 1970
	failed atomic.Uint64
	alone  atomic.Uint64
}

// NewShared returns what pools share through l.
func NewShared(l Limits, cfg SharedConfig) *Shared {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 100 * time.Millisecond
	}
	if cfg.Retry <= 0 {
		cfg.Retry = time.Second
	}
	return &Shared{limits: l, cfg: cfg}
}

// SharedStats are counts since the start.
type SharedStats struct {
	Failed uint64 // questions that were not answered in time
	Alone  uint64 // Takes that were decided without the shared bucket
	Off    bool   // nobody is asked now
}

// Stats returns the counts.
func (s *Shared) Stats(now time.Time) SharedStats {
	return SharedStats{Failed: s.failed.Load(), Alone: s.alone.Load(), Off: s.resting(now)}
}

func (s *Shared) resting(now time.Time) bool { return now.UnixNano() < s.off.Load() }

// ask calls fn in time. An answer of "no" to a caller that gave up is no failure.
func (s *Shared) ask(ctx context.Context, now time.Time, fn func(ctx context.Context) error) error {
	call, stop := context.WithTimeout(ctx, s.cfg.Timeout)
	defer stop()
	err := fn(call)
	if err != nil && ctx.Err() == nil {
		s.failed.Add(1)
		s.off.Store(now.Add(s.cfg.Timeout + s.cfg.Retry).UnixNano())
	}
	return err
}

// TakeUpTo takes up to n tokens of the bucket all processes share. Where it does
// not answer, got is n: the process's own bucket has decided. Where got is 0,
// wait says when the next token is there, if nobody else takes it.
func (s *Shared) TakeUpTo(ctx context.Context, now time.Time, bucket string, n int, rate float64, burst int) (got int, wait time.Duration) {
	asked := !s.resting(now) && s.ask(ctx, now, func(ctx context.Context) (err error) {
		got, wait, err = s.limits.Take(ctx, bucket, n, rate, burst)
		return err
	}) == nil
	if !asked {
		s.alone.Add(1)
		return n, 0
	}
	return got, wait
}

// Block tells all processes; see Blocks. It is asked even while others are not:
// a blocked account is news that must not get lost for a moment's trouble.
func (s *Shared) Block(ctx context.Context, account string, until time.Time) error {
	return s.ask(ctx, time.Now(), func(ctx context.Context) error { return s.limits.Block(ctx, account, until) })
}

// Blocked learns from all processes. While nobody is asked, no account is blocked
// as far as they say: what this process knows still holds.
func (s *Shared) Blocked(ctx context.Context, accounts []string) (until []time.Time, err error) {
	now := time.Now()
	if s.resting(now) {
		return make([]time.Time, len(accounts)), nil
	}
	err = s.ask(ctx, now, func(ctx context.Context) (err error) {
		until, err = s.limits.Blocked(ctx, accounts)
		return err
	})
	return until, err
}
