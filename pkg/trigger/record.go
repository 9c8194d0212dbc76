package trigger

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// callerRecord is a caller's record as it was read, with its URLs and keys parsed.
type callerRecord struct {
	engine.Caller
	bases   []*callbackURL
	keys    [][]byte
	sign    *signer
	urls    *urlCache // URLs found to be under bases
	readAt  time.Time
	keysEnd int64 // when the first of the keys expires, ms since 1970; 0: none does
}

// recordOf returns the caller's record, at most PolicyAge old. ok is false if the caller may not be
// called now. wait is then for how long to put its messages off.
func (ls *lanes) recordOf(ctx context.Context, l *lane) (r *callerRecord, wait time.Duration, ok bool) {
	r, err := ls.readRecord(ctx, l)
	switch {
	case err != nil:
		return nil, 2 * time.Second, false
	case r.Disabled || len(r.keys) == 0:
		return nil, time.Minute, false
	}
	return r, 0, true
}

func (ls *lanes) readRecord(ctx context.Context, l *lane) (*callerRecord, error) {
	cfg := &ls.d.cfg
	l.refresh <- struct{}{}
	defer func() { <-l.refresh }()
	now := time.Now()
	if r := l.record; r != nil && now.Sub(r.readAt) < cfg.PolicyAge && (r.keysEnd == 0 || now.UnixMilli() < r.keysEnd) {
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
	if r == nil || r.Version != c.Version || r.keysEnd != 0 && now.UnixMilli() >= r.keysEnd || c.Version == 0 {
		r = newRecord(c, now, cfg.Egress.plain())
	} else {
		again := *r
		r = &again
	}
	// After the answer: if a read takes longer than PolicyAge, because the store is frozen, each
	// call that waits here would otherwise read again.
	r.readAt = time.Now()
	l.record = r
	ls.mu.Lock()
	l.limit = orDefault(c.MaxInFlight, cfg.CallerInFlight)
	ls.mu.Unlock()
	return r, nil
}

func newRecord(c engine.Caller, now time.Time, plain bool) *callerRecord {
	r := &callerRecord{Caller: c, keys: keysOf(c.Secrets, now.UnixMilli()), urls: &urlCache{}}
	r.sign = newSigner(r.keys)
	for _, raw := range c.CallbackURLs {
		if b := parseBase(raw, plain); b != nil {
			r.bases = append(r.bases, b)
		}
	}
	for _, s := range c.Secrets {
		if s.Expires > now.UnixMilli() && (r.keysEnd == 0 || s.Expires < r.keysEnd) {
			r.keysEnd = s.Expires
		}
	}
	return r
}

// urlCache holds callback URLs that were found to be under a record's bases. Most triggers of a
// caller go to a few URLs, and parsing one costs 1 us.
type urlCache struct {
	mu    sync.Mutex
	byURL map[plainURL]*url.URL
}

type plainURL struct {
	raw   string
	plain bool // http was admitted when it was checked
}

// maxURLs bounds a cache. If a caller has more URLs, the first ones stay.
const maxURLs = 64

// callable returns a URL that the caller's bases allow, or nil. Addresses are checked when they are
// dialled. The caller of callable must not write to the result.
func (r *callerRecord) callable(raw string, plain bool) *url.URL {
	k := plainURL{raw, plain}
	r.urls.mu.Lock()
	u := r.urls.byURL[k]
	r.urls.mu.Unlock()
	if u != nil {
		return u
	}
	t, err := parseURL("callback_url", raw, plain)
	if err != nil || !underAny(t, r.bases) {
		return nil
	}
	u = t.url()
	k.raw = strings.Clone(raw) // raw is a part of a row
	r.urls.mu.Lock()
	defer r.urls.mu.Unlock()
	if r.urls.byURL == nil {
		r.urls.byURL = map[plainURL]*url.URL{}
	}
	if len(r.urls.byURL) < maxURLs {
		r.urls.byURL[k] = u
	}
	return u
}
