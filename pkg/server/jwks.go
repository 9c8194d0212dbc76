package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxJWKS bounds a key set, in bytes.
const maxJWKS = 1 << 20

// jwks keeps the keys of a JWK set that changes: fetched again every refresh,
// and when a token names a key nobody knows, but never more often than minWait.
// What was fetched last stays while fetching fails, up to maxStale.
type jwks struct {
	fetch    func(ctx context.Context) ([]byte, error)
	refresh  time.Duration
	minWait  time.Duration
	maxStale time.Duration
	now      func() time.Time

	mu       sync.Mutex
	keys     keySet
	lastGood time.Time
	lastTry  time.Time
	lastErr  error

	fetching singleflight.Group
}

// find returns the keys for a token's kid, fetching when it is unknown.
func (j *jwks) find(ctx context.Context, kid, alg string) ([]verifyKey, error) {
	j.mu.Lock()
	found := j.keys.find(kid, alg)
	fresh := !j.lastGood.IsZero() && j.now().Sub(j.lastGood) <= j.maxStale
	j.mu.Unlock()
	if len(found) > 0 && fresh {
		return found, nil
	}
	if err := j.update(ctx); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastGood.IsZero() || j.now().Sub(j.lastGood) > j.maxStale {
		return nil, notify.Unavailable("jwks", j.minWait, j.lastErr)
	}
	return j.keys.find(kid, alg), nil
}

// update fetches the set, or waits for who is fetching it. Its error is the
// context's; that of fetching is kept in lastErr.
func (j *jwks) update(ctx context.Context) error {
	done := j.fetching.DoChan("", func() (any, error) {
		j.mu.Lock()
		now := j.now()
		early := !j.lastTry.IsZero() && now.Sub(j.lastTry) < j.minWait
		if !early {
			j.lastTry = now
		}
		j.mu.Unlock()
		if early {
			return nil, nil
		}
		// Others wait for this fetch: it must not end with this request.
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		data, err := j.fetch(fctx)
		var ks keySet
		if err == nil {
			ks, err = parseJWKS(data)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.lastErr = err; err == nil {
			j.keys, j.lastGood = ks, j.now()
		}
		return nil, nil
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run fetches the set at once and then every refresh, until ctx ends. report
// is told of each failure.
func (j *jwks) run(ctx context.Context, report func(error)) error {
	ticker := time.NewTicker(j.refresh)
	defer ticker.Stop()
	for {
		if err := j.update(ctx); err != nil {
			return nil // ctx ended
		}
		j.mu.Lock()
		err := j.lastErr
		j.mu.Unlock()
		if err != nil {
			report(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// urlFetcher fetches a set over https, or http on this machine. Redirects are
// not followed: they would move the trust elsewhere.
func urlFetcher(raw string, client *http.Client) (func(context.Context) ([]byte, error), error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return nil, fmt.Errorf("the JWKS URL %s must be https", u.Redacted())
	}
	if client == nil {
		client = &http.Client{Timeout: 5 * time.Second}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
		if err != nil {
			return nil, err
		}
		resp, err := own.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the JWKS URL answered %s", resp.Status)
		}
		return readAtMost(resp.Body, maxJWKS)
	}, nil
}

func fileFetcher(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readAtMost(f, maxJWKS)
	}
}

func readAtMost(r io.Reader, max int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(data)) > max {
		err = errors.New("key set over 1 MiB")
	}
	return data, err
}
