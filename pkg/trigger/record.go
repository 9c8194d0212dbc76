package trigger

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// record is a caller's record as of a moment, with its URLs and keys parsed.
type record struct {
	engine.Caller
	bases []*target
	keys  [][]byte
	sign  *signer
	urls  *urlCache // under bases
	read  time.Time
	until int64 // the earliest end of a key, ms since 1970; 0: none
}

// recordOf returns the caller's record, not older than PolicyAge. ok is false if the
// caller may not be called now, and wait is how long to put its messages off then.
func (ls *lanes) recordOf(ctx context.Context, l *lane) (r *record, wait time.Duration, ok bool) {
	r, err := ls.readRecord(ctx, l)
	switch {
	case err != nil:
		return nil, 2 * time.Second, false
	case r.Disabled || len(r.keys) == 0:
		return nil, time.Minute, false
	}
	return r, 0, true
}

func (ls *lanes) readRecord(ctx context.Context, l *lane) (*record, error) {
	cfg := &ls.d.cfg
	l.refresh <- struct{}{}
	defer func() { <-l.refresh }()
	now := time.Now()
	if r := l.record; r != nil && now.Sub(r.read) < cfg.PolicyAge && (r.until == 0 || now.UnixMilli() < r.until) {
		return r, nil
	}
	c, ok, err := cfg.Callers.Get(ctx, l.caller)
	if err != nil {
		return nil, err
	}
	if !ok {
		c = engine.Caller{ID: l.caller}
	}
	r := l.record
	if r == nil || r.Version != c.Version || r.until != 0 && now.UnixMilli() >= r.until || c.Version == 0 {
		r = newRecord(c, now, cfg.Egress.plain())
	} else {
		again := *r
		r = &again
	}
	// After the answer: a question that takes longer than PolicyAge, as to a store
	// that is frozen, must not be asked again by every call that waits here.
	r.read = time.Now()
	l.record = r
	ls.mu.Lock()
	l.limit = or(c.MaxInFlight, cfg.CallerInFlight)
	ls.mu.Unlock()
	return r, nil
}

func newRecord(c engine.Caller, now time.Time, plain bool) *record {
	r := &record{Caller: c, keys: keysOf(c.Secrets, now.UnixMilli()), urls: &urlCache{}}
	r.sign = newSigner(r.keys)
	for _, raw := range c.CallbackURLs {
		if b := parseBase(raw, plain); b != nil {
			r.bases = append(r.bases, b)
		}
	}
	for _, s := range c.Secrets {
		if s.Expires > now.UnixMilli() && (r.until == 0 || s.Expires < r.until) {
			r.until = s.Expires
		}
	}
	return r
}

// urlCache remembers callback URLs that were found to be under a record's bases:
// most triggers of a caller go to one of a few, and to take one apart costs 1 us.
type urlCache struct {
	mu sync.Mutex
	of map[plainURL]*url.URL
}

type plainURL struct {
	raw   string
	plain bool // http was admitted when it was looked at
}

// maxURLs bounds a cache; of callers with more, the first ones are remembered.
const maxURLs = 64

// callable returns a URL that may be called as far as the caller's bases go, or
// nil. Addresses are checked when they are dialled. It must not be written to.
func (r *record) callable(raw string, plain bool) *url.URL {
	k := plainURL{raw, plain}
	r.urls.mu.Lock()
	u := r.urls.of[k]
	r.urls.mu.Unlock()
	if u != nil {
		return u
	}
	t, err := parseURL("callback_url", raw, plain)
	if err != nil || !underAny(t, r.bases) {
		return nil
	}
	u = t.url()
	k.raw = strings.Clone(raw) // it is a part of a row
	r.urls.mu.Lock()
	defer r.urls.mu.Unlock()
	if r.urls.of == nil {
		r.urls.of = map[plainURL]*url.URL{}
	}
	if len(r.urls.of) < maxURLs {
		r.urls.of[k] = u
	}
	return u
}
