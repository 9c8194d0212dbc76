package provider

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// bearerToken is one bearer token.
type bearerToken struct {
	header  string // "Bearer <value>"
	minted  time.Time
	renewAt time.Time
	expires time.Time
}

// bearer keeps one token valid. Only one goroutine at a time requests a new token. The other
// goroutines wait for that token.
type bearer struct {
	scheme string // "bearer" or "Bearer"
	// mint requests a token. It returns the token, when to renew it, and when it expires.
	mint func(ctx context.Context) (value string, renewAt, expires time.Time, err error)
	// minAge is the age that a valid token must reach before it may be replaced.
	minAge time.Duration
	// retry is the time between attempts while the function mint fails.
	retry time.Duration
	log   *slog.Logger

	mintLock chan struct{} // a channel used as a lock, so that a context can end the wait for the lock
	current  atomic.Pointer[bearerToken]
	failure  struct { // guarded by mintLock
		err   error
		until time.Time
	}
}

func newBearer(scheme string, minAge time.Duration, log *slog.Logger,
	mint func(ctx context.Context) (string, time.Time, time.Time, error)) *bearer {
	return &bearer{scheme: scheme, mint: mint, minAge: minAge, retry: 5 * time.Second, log: log, mintLock: make(chan struct{}, 1)}
}

// get returns a valid token. It requests a new token if there is no token yet, or if the current
// token has expired.
func (b *bearer) get(ctx context.Context) (*bearerToken, error) {
	if t := b.current.Load(); t != nil && time.Now().Before(t.expires) {
		return t, nil
	}
	return b.replace(ctx, b.current.Load())
}

// replace normally requests a new token to replace oldToken, and returns the new token. It returns
// the current token instead if another goroutine has already replaced oldToken, or if oldToken is
// younger than minAge.
func (b *bearer) replace(ctx context.Context, oldToken *bearerToken) (*bearerToken, error) {
	select {
	case b.mintLock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-b.mintLock }()
	now := time.Now()
	cur := b.current.Load()
	if cur != nil && now.Before(cur.expires) && (cur != oldToken || now.Sub(cur.minted) < b.minAge) {
		return cur, nil
	}
	// For a short time, return the last failure to the other waiting goroutines too. Otherwise a
	// thousand waiting items would make a thousand token requests.
	if b.failure.err != nil && now.Before(b.failure.until) {
		return nil, b.failure.err
	}
	value, renewAt, expires, err := b.mint(ctx)
	if err != nil {
		if ctx.Err() == nil {
			b.failure.err, b.failure.until = err, now.Add(b.retry)
		}
		return nil, err
	}
	b.failure.err = nil
	t := &bearerToken{header: b.scheme + " " + value, minted: now, renewAt: renewAt, expires: expires}
	b.current.Store(t)
	return t, nil
}

// repeatLog is the time after which the same failure is logged again. Without it, an outage of the
// token endpoint would log a line every 5 seconds.
const repeatLog = 10 * time.Minute

// run gets the first token and renews it before it expires, until ctx ends.
func (b *bearer) run(ctx context.Context) {
	var logged string // text of the last logged error; the same text is logged again after repeatLog
	var loggedAt time.Time
	for wait := time.Duration(0); notify.Sleep(ctx, wait); {
		cur := b.current.Load()
		var err error
		if cur == nil || !time.Now().Before(cur.renewAt) {
			cur, err = b.replace(ctx, cur)
		}
		wait = b.retry + rand.N(b.retry/4)
		if err != nil {
			if now := time.Now(); ctx.Err() == nil && (err.Error() != logged || now.Sub(loggedAt) >= repeatLog) {
				b.log.Warn("no new provider token; will try again", "err", err)
				logged, loggedAt = err.Error(), now
			}
		} else {
			logged = ""
			if d := time.Until(cur.renewAt); d > 0 {
				wait = d
			}
		}
	}
}
