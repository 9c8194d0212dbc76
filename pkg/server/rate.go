package server

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// callerTTL is how long the settings of a caller are used before they are read again.
const callerTTL = 30 * time.Second

// callerTable keeps the rate, the settings and the requests under way of each caller. It keeps
// MaxCallers of them; a caller that was dropped starts with a full bucket.
type callerTable struct {
	store  engine.Callers // nil: all callers have the defaults
	shared SharedTokens   // nil: this is the only process
	rate   float64
	burst  int
	known  *recentCache[string, *caller]
}

// SharedTokens are token buckets that all processes share: limit.Shared. If the shared store does
// not answer, it grants all that is requested, and each process relies on its own buckets.
type SharedTokens interface {
	TakeUpTo(ctx context.Context, now time.Time, bucket string, n int, rate float64, burst int) (got int, wait time.Duration)
}

type caller struct {
	limiter     *rate.Limiter
	lease       tokenLease
	disabled    atomic.Bool
	storeReadAt atomic.Int64 // when the store was last read, ns since 1970; 0: never, or changed since

	mu      sync.Mutex // guards version, and applying settings of that version
	version uint64     // of the settings in use

	inFlight, streams atomic.Int64 // requests under way
	small, bulk       share        // shares of the memories for bodies
}

// share returns the caller's share of a memory. A nil caller (no token) has none.
func (c *caller) share(ofBulk bool) *share {
	switch {
	case c == nil:
		return nil
	case ofBulk:
		return &c.bulk
	}
	return &c.small
}

func newCallers(store engine.Callers, shared SharedTokens, perSecond float64, burst, max int) *callerTable {
	return &callerTable{store: store, shared: shared, rate: perSecond, burst: burst, known: newRecentCache[string, *caller](max/2 + 1)}
}

// admitRequest takes one token of the rate of id. It fails open: while the store cannot be read,
// a caller keeps its last settings.
func (c *callerTable) admitRequest(ctx context.Context, id string, now time.Time) (*caller, error) {
	who, ok := c.known.get(id)
	if !ok {
		who = c.known.putNew(id, &caller{limiter: rate.NewLimiter(rate.Limit(c.rate), c.burst)})
	}
	if c.store != nil {
		c.refresh(ctx, who, id, now)
	}
	if who.disabled.Load() {
		return nil, &notify.Error{Kind: notify.KindForbidden, Code: "caller_disabled", Msg: "this caller is disabled"}
	}
	wait, ok := time.Duration(0), who.limiter.AllowN(now, 1)
	switch {
	case !ok:
		missing := 1 - who.limiter.TokensAt(now)
		wait = time.Duration(missing / float64(who.limiter.Limit()) * float64(time.Second))
	case c.shared != nil:
		wait, ok = who.lease.takeToken(ctx, now, c.shared, "caller/"+id, float64(who.limiter.Limit()), who.limiter.Burst())
	}
	if ok {
		return who, nil
	}
	return nil, &throttled{
		err:   &notify.Error{Kind: notify.KindThrottled, Code: "rate_limited", Msg: "this caller's request rate is used up", RetryAfter: max(wait, time.Millisecond)},
		limit: float64(who.limiter.Limit()), burst: who.limiter.Burst(),
	}
}

// tokenLease is what this process has taken from a caller's shared bucket and not used yet.
//
// A lease holds about as many tokens as the process uses in leaseTarget. Tokens that the process
// does not use are lost to the other processes. With large leases in each of many processes, a
// caller would be refused far below its rate.
type tokenLease struct {
	mu        sync.Mutex
	size      int       // tokens at its start
	remaining int       // unused tokens
	taken     time.Time // when it began; its tokens expire leaseLifetime later
}

const (
	leaseTarget   = 200 * time.Millisecond
	leaseLifetime = time.Second
	leaseShare    = 20 // a lease holds at most 1/leaseShare of a second's requests
)

// takeToken takes one token. If there is none, wait says when the next one comes.
func (l *tokenLease) takeToken(ctx context.Context, now time.Time, from SharedTokens, bucket string, perSecond float64, burst int) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remaining == 0 || now.Sub(l.taken) > leaseLifetime {
		n := min(l.nextSize(now), max(int(perSecond/leaseShare), 1), burst)
		l.remaining, wait = from.TakeUpTo(ctx, now, bucket, n, perSecond, burst)
		l.size, l.taken = l.remaining, now
	}
	if l.remaining == 0 {
		return wait, false
	}
	l.remaining--
	return 0, true
}

// nextSize returns the size of the next lease: what the last one used in leaseTarget, at most
// twice its use.
func (l *tokenLease) nextSize(now time.Time) int {
	used := float64(l.size - l.remaining)
	if passed := now.Sub(l.taken); passed > 0 {
		return max(1, int(math.Ceil(min(2*used, used*float64(leaseTarget)/float64(passed)))))
	}
	return max(1, int(2*used))
}

// refresh reads the caller's settings if they are older than callerTTL. One request does it;
// concurrent requests continue with the known settings.
func (c *callerTable) refresh(ctx context.Context, who *caller, id string, now time.Time) {
	last := who.storeReadAt.Load()
	if now.UnixNano()-last < int64(callerTTL) || !who.storeReadAt.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	set, ok, err := c.store.Get(ctx, id)
	if err != nil {
		return
	}
	who.mu.Lock()
	defer who.mu.Unlock()
	if set.Version < who.version {
		return // a later read already applied newer settings
	}
	who.version = set.Version
	perSecond, burst := c.rate, c.burst
	if ok && set.Rate > 0 {
		perSecond, burst = set.Rate, max(1, int(math.Ceil(set.Rate)))
	}
	if ok && set.Burst > 0 {
		burst = set.Burst
	}
	who.disabled.Store(ok && set.Disabled)
	if float64(who.limiter.Limit()) != perSecond || who.limiter.Burst() != burst {
		who.limiter.SetLimitAt(now, rate.Limit(perSecond))
		who.limiter.SetBurstAt(now, burst)
	}
}

// forgetSettings makes the next request of id read the settings again. Other processes read them
// within callerTTL.
func (c *callerTable) forgetSettings(id string) {
	if who, ok := c.known.get(id); ok {
		who.storeReadAt.Store(0)
	}
}

// throttled is a refusal that also names the limit.
type throttled struct {
	err   *notify.Error
	limit float64
	burst int
}

func (t *throttled) Error() string { return t.err.Error() }
func (t *throttled) Unwrap() error { return t.err }

// headers sets the RateLimit fields of the IETF draft: requests per window of one second, and
// when the next request is allowed.
func (t *throttled) headers(h http.Header) {
	h.Set("RateLimit-Policy", `"caller";q=`+strconv.FormatFloat(math.Ceil(t.limit), 'f', 0, 64)+`;w=1;burst=`+strconv.Itoa(t.burst))
	h.Set("RateLimit", `"caller";r=0;t=`+strconv.FormatInt(seconds(t.err.RetryAfter), 10))
}

// seconds rounds up, so that a client that waits this long is allowed.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// recentCache is a bounded map that drops entries that were not used lately. It has two
// generations; when the younger is full, the older is dropped. Every operation is O(1), and a
// hit, which happens in every request, updates no list.
type recentCache[K comparable, V any] struct {
	max int // entries per generation

	mu         sync.Mutex
	young, old map[K]V
}

func newRecentCache[K comparable, V any](max int) *recentCache[K, V] {
	return &recentCache[K, V]{max: max, young: map[K]V{}}
}

func (r *recentCache[K, V]) get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.find(k)
}

// find returns the value of k and moves it to the younger generation. It needs the lock.
func (r *recentCache[K, V]) find(k K) (V, bool) {
	if v, ok := r.young[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.store(k, v)
	}
	return v, ok
}

func (r *recentCache[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store(k, v)
}

// putNew stores v unless k has a value already, and returns the stored value.
func (r *recentCache[K, V]) putNew(k K, v V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.find(k); ok {
		return was
	}
	r.store(k, v)
	return v
}

func (r *recentCache[K, V]) remove(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.young, k)
	delete(r.old, k)
}

func (r *recentCache[K, V]) store(k K, v V) {
	if len(r.young) >= r.max {
		if _, ok := r.young[k]; !ok {
			r.old, r.young = r.young, make(map[K]V, r.max/4)
		}
	}
	r.young[k] = v
}
