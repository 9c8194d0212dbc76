package trigger

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// callerRecord is the record of a caller at the time it was read, with its URLs and keys parsed.
type callerRecord struct {
	engine.Caller
	bases  []*callbackURL
	keys   [][]byte
	sign   *signer
	urls   *urlCache // URLs that were found to be under bases
	readAt time.Time
	// When the first of the keys expires, ms since 1970. 0: no key expires.
	keysEnd int64
}

// recordOf returns the record of a caller, at most PolicyAge old. If the result ok is false, the
// caller may not be called now, and its messages must be put off for the returned duration.
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
		r = newRecord(c, now, cfg.Egress.allowsHTTP())
	} else {
		again := *r
		r = &again
	}
	// readAt is the time after the answer of the store, not before the read. If the store is
	// frozen, a read takes longer than PolicyAge. The record would then be too old at once, and
	// each call that waits for refresh would read the store again.
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

// urlCache contains callback URLs that were found to be under a record's bases. Most triggers of a
// caller use a few URLs, and parsing a URL costs 1 us.
type urlCache struct {
	mu    sync.Mutex
	byURL map[plainURL]*url.URL
}

type plainURL struct {
	raw   string
	plain bool // whether http was allowed when the URL was checked
}

// maxURLs is the largest number of URLs in a cache. If a caller uses more URLs, the first maxURLs
// stay in the cache.
const maxURLs = 64

// allowedURL returns the parsed URL if it is under one of the caller's base URLs, otherwise nil.
// Egress checks the addresses when it connects. The code that calls allowedURL must not change the
// result.
func (r *callerRecord) allowedURL(raw string, plain bool) *url.URL {
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
	k.raw = strings.Clone(raw) // copy, because raw is part of a row
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
