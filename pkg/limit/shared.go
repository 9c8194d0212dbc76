package limit

import (
	"context"
	"sync/atomic"
	"time"
)

// Limits stores the token buckets and the blocked accounts that all workers share.
type Limits interface {
	Blocks
	// Take uses up to n tokens of a bucket and returns how many it used. The parameter rate is
	// the number of tokens that the bucket gains per second, and burst is the greatest number
	// that it can hold. If Take used fewer than n tokens, the result wait is the time until the
	// next token is available.
	Take(ctx context.Context, bucket string, n int, rate float64, burst int) (used int, wait time.Duration, err error)
}

// SharedConfig configures a Shared. The zero value means the defaults.
type SharedConfig struct {
	Timeout time.Duration // time limit of one call to Limits; default 100 ms
	Retry   time.Duration // how long no call is made after a failed call; default 1 s
}

// Shared calls the Limits that several processes share. While the Limits fail or do not answer in
// time, each process uses only its own buckets, at the full rate. So no message waits for the
// Limits. The processes together may then send too much. The provider refuses the excess, and a
// process that gets such a refusal blocks the account.
type Shared struct {
	limits       Limits
	cfg          SharedConfig
	restUntil    atomic.Int64 // no calls before this time, ns since 1970
	failed       atomic.Uint64
	decidedAlone atomic.Uint64
}

// NewShared returns a Shared that calls l.
func NewShared(l Limits, cfg SharedConfig) *Shared {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 100 * time.Millisecond
	}
	if cfg.Retry <= 0 {
		cfg.Retry = time.Second
	}
	return &Shared{limits: l, cfg: cfg}
}

// SharedStats are counts since the process started.
type SharedStats struct {
	Failed    uint64 // calls that failed or were not answered in time
	LocalOnly uint64 // TakeUpTo calls that only the process's own bucket decided
	Suspended bool   // no calls are made now, because a call failed
}

// Stats returns the counts.
func (s *Shared) Stats(now time.Time) SharedStats {
	return SharedStats{Failed: s.failed.Load(), LocalOnly: s.decidedAlone.Load(), Suspended: s.resting(now)}
}

func (s *Shared) resting(now time.Time) bool { return now.UnixNano() < s.restUntil.Load() }

// callShared calls fn with the time limit of SharedConfig.Timeout. If fn fails, callShared pauses
// further calls. It does not pause them if fn failed because the caller's ctx ended.
func (s *Shared) callShared(ctx context.Context, now time.Time, fn func(ctx context.Context) error) error {
	call, stop := context.WithTimeout(ctx, s.cfg.Timeout)
	defer stop()
	err := fn(call)
	if err != nil && ctx.Err() == nil {
		s.failed.Add(1)
		s.restUntil.Store(now.Add(s.cfg.Timeout + s.cfg.Retry).UnixNano())
	}
	return err
}

// TakeUpTo uses up to n tokens of the bucket that all processes share. If the Limits do not
// answer, it returns n, because the caller has already checked this process's own bucket. If the
// result used is 0, the result wait is the time until the next token is available. Another
// process may use that token first.
func (s *Shared) TakeUpTo(ctx context.Context, now time.Time, bucket string, n int, rate float64, burst int) (used int, wait time.Duration) {
	asked := !s.resting(now) && s.callShared(ctx, now, func(ctx context.Context) (err error) {
		used, wait, err = s.limits.Take(ctx, bucket, n, rate, burst)
		return err
	}) == nil
	if !asked {
		s.decidedAlone.Add(1)
		return n, 0
	}
	return used, wait
}

// Block blocks the account in all processes; see Blocks. It calls the Limits even while calls are
// paused, because the other processes must learn of the block even after a short failure.
func (s *Shared) Block(ctx context.Context, account string, until time.Time) error {
	return s.callShared(ctx, time.Now(), func(ctx context.Context) error { return s.limits.Block(ctx, account, until) })
}

// Blocked returns, for each account, the time at which its block ends, no matter which process
// blocked the account. While calls are paused, it returns zero times. The blocks that this process
// already has stay in force.
func (s *Shared) Blocked(ctx context.Context, accounts []string) (ends []time.Time, err error) {
	now := time.Now()
	if s.resting(now) {
		return make([]time.Time, len(accounts)), nil
	}
	err = s.callShared(ctx, now, func(ctx context.Context) (err error) {
		ends, err = s.limits.Blocked(ctx, accounts)
		return err
	})
	return ends, err
}
