package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// overLoopback makes a request one that came over loopback.
func overLoopback(r *http.Request) {
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7420}
	*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	r.RemoteAddr, r.Host = "127.0.0.1:1234", "127.0.0.1:7420"
}

// TestMarkedLoadNeedsAGrant: a request that is marked as a load run's is taken with a
// grant that holds and names the host; others are refused and counted. What is not marked
// is taken as ever.
func TestMarkedLoadNeedsAGrant(t *testing.T) {
	t.Parallel()
	grants := fakeGrants{
		"good": {ID: "lg_1", Hosts: []string{"example.com"}, Rate: 1000, Targets: []string{"push"}, ExpiresAt: time.Now().Add(time.Hour)},
		"else": {ID: "lg_2", Hosts: []string{"other.example:7420"}},
	}
	local := header(api.HeaderLoad, api.LoadLocal)
	from := func(remote, host string) option {
		return func(r *http.Request) { overLoopback(r); r.RemoteAddr, r.Host = remote, host }
	}
	for name, c := range map[string]struct {
		embedded bool
		opts     []option
		code     string // empty: taken
	}{
		"not marked":                      {},
		"with a grant":                    {opts: []option{header(api.HeaderLoad, "good")}},
		"made by another process":         {opts: []option{header(api.HeaderLoad, "lategood")}},
		"revoked":                         {opts: []option{header(api.HeaderLoad, "gone")}, code: "load_grant_revoked"},
		"for another host":                {opts: []option{header(api.HeaderLoad, "else")}, code: "load_grant_host"},
		"two marks":                       {opts: []option{func(r *http.Request) { r.Header[api.HeaderLoad] = []string{"good", "good"} }}, code: "load_grant_malformed"},
		"local, to a cluster":             {opts: []option{overLoopback, local}, code: "load_grant_missing"},
		"local, embedded":                 {embedded: true, opts: []option{overLoopback, local}},
		"local, from another machine":     {embedded: true, opts: []option{from("10.0.0.9:99", "127.0.0.1:7420"), local}, code: "load_grant_missing"},
		"local, by a name of the outside": {embedded: true, opts: []option{from("127.0.0.1:99", "staging.example:7420"), local}, code: "load_grant_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			refused := 0
			s := w.start(t, Config{}, func(d *Deps) {
				d.Grants, d.LoadLocal = grants, c.embedded
				d.Hooks.Refused = func(reason string) {
					if reason == "load" {
						refused++
					}
				}
			})
			got := ask(s, http.MethodPost, "/v1/notifications", token(t, "perf", api.ScopeSend), `{}`, c.opts...)
			if c.code == "" {
				if got.status >= 300 || refused != 0 || len(w.requests) != 1 {
					t.Fatalf("%d %s, refused %d", got.status, got.body, refused)
				}
				if load, marked := w.requests[0].Load, len(c.opts) == 1; (load != nil) != marked || marked && load.Targets[0] != "push" {
					t.Errorf("the request is of the load %+v", load)
				}
				return
			}
			if p := got.problem(t); p.Code != c.code || refused != 1 || len(w.requests) != 0 {
				t.Errorf("%d %s, refused %d, taken %d", got.status, got.body, refused, len(w.requests))
			}
		})
	}
}

// sharedBucket is a bucket that several processes take from.
type sharedBucket struct{ left, asked int }

func (b *sharedBucket) TakeUpTo(_ context.Context, _ time.Time, _ string, n int, _ float64, _ int) (int, time.Duration) {
	got := min(n, b.left)
	b.left -= got
	b.asked++
	return got, 50 * time.Millisecond
}

// TestGrantBoundsTheRate: requests are taken whole until the rate is used up, and again
// once it has come back, in one process and in two that share the rate.
func TestGrantBoundsTheRate(t *testing.T) {
	t.Parallel()
	g := api.LoadGrant{ID: "lg_1", Rate: 1000, ExpiresAt: time.Now().Add(time.Hour)}
	now := time.Now()
	sent := 0
	var alone loadMeters
	for range 100 * 10 { // ten seconds
		if err := alone.of(&g).take(t.Context(), now, nil, 300); err == nil {
			sent += 300
		} else if notify.KindOf(err) != notify.KindThrottled || notify.RetryAfterOf(err) <= 0 || notify.RetryAfterOf(err) > time.Second {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Millisecond)
	}
	if sent < 9_900 || sent > 10_800 {
		t.Errorf("alone: %d messages in 10 s at 1,000 a second", sent)
	}
	shared, sent := &sharedBucket{}, 0
	processes := make([]loadMeters, 2)
	for i := range 1000 {
		shared.left = min(shared.left+10, 500)
		now = now.Add(10 * time.Millisecond)
		if processes[i%2].of(&g).take(t.Context(), now, shared, 300) == nil {
			sent += 300
		}
	}
	if sent < 9_400 || sent > 10_800 {
		t.Errorf("two processes: %d messages in 10 s at 1,000 a second", sent)
	}
}

// TestGrantWithoutTheSharedBucket: a shared bucket that cannot be reached gives what it is
// asked for. Then each process still holds the grant to its rate.
func TestGrantWithoutTheSharedBucket(t *testing.T) {
	t.Parallel()
	g := api.LoadGrant{ID: "lg_1", Rate: 1000, ExpiresAt: time.Now().Add(time.Hour)}
	now, sent := time.Now(), 0
	var away loadMeters
	for range 1000 { // ten seconds
		if away.of(&g).take(t.Context(), now, &sharedBucket{left: 1 << 40}, 100) == nil {
			sent += 100
		}
		now = now.Add(10 * time.Millisecond)
	}
	if sent < 9_900 || sent > 10_700 {
		t.Errorf("%d messages in 10 s at 1,000 a second", sent)
	}
}

// TestGrantAsksAnEmptyBucketOnce: a batch of a thousand refused messages asks the shared
// bucket once, and again when the bucket said it would have more.
func TestGrantAsksAnEmptyBucketOnce(t *testing.T) {
	t.Parallel()
	g := api.LoadGrant{ID: "lg_1", Rate: 1000, ExpiresAt: time.Now().Add(time.Hour)}
	now, shared := time.Now(), &sharedBucket{}
	var meters loadMeters
	for range 1000 {
		if err := meters.of(&g).take(t.Context(), now, shared, 1); notify.KindOf(err) != notify.KindThrottled {
			t.Fatal(err)
		}
	}
	if shared.asked != 1 {
		t.Errorf("the empty bucket was asked %d times", shared.asked)
	}
	shared.left = 1
	if err := meters.of(&g).take(t.Context(), now.Add(50*time.Millisecond), shared, 1); err != nil {
		t.Error(err)
	}
}

// TestGrantBoundsARequest: one request has at most what the grant allows in ten seconds.
func TestGrantBoundsARequest(t *testing.T) {
	t.Parallel()
	g := api.LoadGrant{ID: "lg_1", Rate: 10, ExpiresAt: time.Now().Add(time.Hour)}
	var meters loadMeters
	err := meters.of(&g).take(t.Context(), time.Now(), nil, 101)
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "load_grant_exceeded" || e.Kind != notify.KindForbidden {
		t.Error(err)
	}
	if err := meters.of(&g).take(t.Context(), time.Now(), nil, 100); err != nil {
		t.Error(err)
	}
}
