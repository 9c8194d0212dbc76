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

// callerTable keeps for each caller the rate, the settings and the number of requests in progress.
// It keeps about MaxCallers callers. A caller that was dropped from the table starts again with a
// full bucket.
type callerTable struct {
	store  engine.Callers // nil: all callers have the default settings
	shared SharedTokens   // nil: this is the only process
	rate   float64
	burst  int
	known  *recentCache[string, *caller]
}

// SharedTokens are token buckets that all processes share. limit.Shared implements it. If the
// shared store does not answer, TakeUpTo grants all requested tokens, and only the buckets inside
// each process limit the callers.
type SharedTokens interface {
	TakeUpTo(ctx context.Context, now time.Time, bucket string, n int, rate float64, burst int) (got int, wait time.Duration)
}

type caller struct {
	limiter  *rate.Limiter
	lease    tokenLease
	disabled atomic.Bool
	// storeReadAt is the time of the last read of the settings from the store, in ns since 1970. 0:
	// they were never read, or must be read again.
	storeReadAt atomic.Int64

	mu      sync.Mutex // guards version and every change of the settings
	version uint64     // version of the settings in use

	inFlight, streams atomic.Int64 // requests in progress: those of classStream in streams, all others in inFlight
	small, bulk       share        // shares of the memory for bodies
}

// share returns the caller's share of a memory. A nil caller, for a request without a token, has no
// share.
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

// admitRequest uses one token of the caller with this id. It returns an error if there is no token
// or the caller is disabled. While the settings cannot be read from the store, the caller keeps its
// last settings.
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

// tokenLease contains the tokens that this process has taken from a caller's shared bucket and not
// used yet.
//
// A lease has about as many tokens as the process uses in the time leaseTarget. Unused tokens are
// lost for the other processes. So if many processes took large leases, they would refuse a caller
// far below its rate.
type tokenLease struct {
	mu        sync.Mutex
	size      int       // tokens when the lease began
	remaining int       // unused tokens
	taken     time.Time // when the lease began; its tokens expire after leaseLifetime
}

const (
	leaseTarget   = 200 * time.Millisecond
	leaseLifetime = time.Second
	leaseShare    = 20 // a lease has at most 1/leaseShare of a second's requests
)

// takeToken uses one token. If there is no token, the result ok is false, and wait is the time
// until the next token is available.
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

// nextSize returns the number of tokens in the next lease. It is the number that the process uses
// in the time leaseTarget at its speed during the last lease, but at most twice the number of
// tokens that the process used from the last lease.
func (l *tokenLease) nextSize(now time.Time) int {
	used := float64(l.size - l.remaining)
	if passed := now.Sub(l.taken); passed > 0 {
		return max(1, int(math.Ceil(min(2*used, used*float64(leaseTarget)/float64(passed)))))
	}
	return max(1, int(2*used))
}

// refresh reads the caller's settings if they are older than callerTTL. Only one request reads
// them. Other requests meanwhile use the old settings.
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
		return // a later read has already applied newer settings
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

// forgetSettings makes the next request of the caller with this id read the settings again. Other
// processes read them again within callerTTL.
func (c *callerTable) forgetSettings(id string) {
	if who, ok := c.known.get(id); ok {
		who.storeReadAt.Store(0)
	}
}

// throttled is the error for a used-up rate. It contains the rate and the burst for the headers of
// the answer.
type throttled struct {
	err   *notify.Error
	limit float64
	burst int
}

func (t *throttled) Error() string { return t.err.Error() }
func (t *throttled) Unwrap() error { return t.err }

// headers sets the RateLimit fields of the IETF draft: requests per window of one second, and the
// time until the next request is allowed.
func (t *throttled) headers(h http.Header) {
	h.Set("RateLimit-Policy", `"caller";q=`+strconv.FormatFloat(math.Ceil(t.limit), 'f', 0, 64)+`;w=1;burst=`+strconv.Itoa(t.burst))
	h.Set("RateLimit", `"caller";r=0;t=`+strconv.FormatInt(seconds(t.err.RetryAfter), 10))
}

// seconds rounds d up to seconds, so that a client that waits this long is not refused again.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// recentCache is a bounded map that drops entries that were not used recently. It has two
// generations. When the younger generation is full, the older one is dropped, the younger one takes
// its place, and a new generation begins. Every operation is O(1). Nearly every request makes a
// hit, so a hit must be cheap: unlike a hit in an LRU cache, it does not reorder a list.
type recentCache[K comparable, V any] struct {
	max int // largest number of entries of a generation

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

// find returns the value of k and moves it to the younger generation. The caller holds mu.
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

// putNew stores v if k has no value yet. It returns the stored value.
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
