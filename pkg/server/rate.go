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

// callerTTL is how long a caller's own settings are believed.
const callerTTL = 30 * time.Second

// callers keeps what each caller may do and has under way. One that is
// forgotten for others (MaxCallers) begins anew.
type callers struct {
	store  engine.Callers // nil: all have the default
	shared SharedTokens   // nil: no other process takes requests
	rate   float64
	burst  int
	known  *recent[string, *caller]
}

// SharedTokens are buckets that all processes take from: limit.Shared. Where they do not
// answer it gives all that is asked for, and each process goes by its own buckets.
type SharedTokens interface {
	TakeUpTo(ctx context.Context, now time.Time, bucket string, n int, rate float64, burst int) (got int, wait time.Duration)
}

type caller struct {
	limiter  *rate.Limiter
	lease    lease
	disabled atomic.Bool
	looked   atomic.Int64 // when the store was last asked, ns since 1970; 0: never, or changed since

	mu      sync.Mutex
	version uint64 // of the settings that hold

	inFlight, streams atomic.Int64 // requests under way
	small, bulk       share        // of the memory of bodies
}

// share is what the caller holds of one of the memories; nil for nobody's.
func (c *caller) share(ofBulk bool) *share {
	switch {
	case c == nil:
		return nil
	case ofBulk:
		return &c.bulk
	}
	return &c.small
}

func newCallers(store engine.Callers, shared SharedTokens, perSecond float64, burst, max int) *callers {
	return &callers{store: store, shared: shared, rate: perSecond, burst: burst, known: newRecent[string, *caller](max/2 + 1)}
}

// admit takes one request of id's rate. It fails open: while the store cannot
// be asked, a caller keeps the settings it had.
func (c *callers) admit(ctx context.Context, id string, now time.Time) (*caller, error) {
	who, ok := c.known.get(id)
	if !ok {
		who = c.known.putNew(id, &caller{limiter: rate.NewLimiter(rate.Limit(c.rate), c.burst)})
	}
	if c.store != nil {
		c.refresh(ctx, who, id, now)
	}
	if who.disabled.Load() {
		return nil, &notify.Error{Kind: notify.KindForbidden, Code: "caller_disabled", Msg: "this caller is switched off"}
	}
	wait, ok := time.Duration(0), who.limiter.AllowN(now, 1)
	switch {
	case !ok:
		missing := 1 - who.limiter.TokensAt(now)
		wait = time.Duration(missing / float64(who.limiter.Limit()) * float64(time.Second))
	case c.shared != nil:
		wait, ok = who.lease.take(ctx, now, c.shared, "caller/"+id, float64(who.limiter.Limit()), who.limiter.Burst())
	}
	if ok {
		return who, nil
	}
	return nil, &throttled{
		err:   &notify.Error{Kind: notify.KindThrottled, Code: "rate_limited", Msg: "this caller's request rate is used up", RetryAfter: max(wait, time.Millisecond)},
		limit: float64(who.limiter.Limit()), burst: who.limiter.Burst(),
	}
}

// lease is what this process has taken of a caller's shared bucket and not used yet.
//
// A lease holds about what the process's requests use in leaseFor. What it holds and the
// process does not use is lost to the other processes, so with large leases for each of
// many processes a caller would be refused far below its rate.
type lease struct {
	mu    sync.Mutex
	size  int       // tokens it began with
	left  int       // of them
	taken time.Time // when it began; its tokens are void leaseLasts later
}

const (
	leaseFor   = 200 * time.Millisecond
	leaseLasts = time.Second
	leaseShare = 20 // a lease is at most so much of a second's requests
)

// take takes one request of the shared bucket. Where there is none, wait says when.
func (l *lease) take(ctx context.Context, now time.Time, from SharedTokens, bucket string, perSecond float64, burst int) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 || now.Sub(l.taken) > leaseLasts {
		n := min(l.next(now), max(int(perSecond/leaseShare), 1), burst)
		l.left, wait = from.TakeUpTo(ctx, now, bucket, n, perSecond, burst)
		l.size, l.taken = l.left, now
	}
	if l.left == 0 {
		return wait, false
	}
	l.left--
	return 0, true
}

// next is how many requests the next lease should hold: what was used in leaseFor of the
// latest one, at most twice its use.
func (l *lease) next(now time.Time) int {
	used := float64(l.size - l.left)
	if passed := now.Sub(l.taken); passed > 0 {
		return max(1, int(math.Ceil(min(2*used, used*float64(leaseFor)/float64(passed)))))
	}
	return max(1, int(2*used))
}

// refresh reads the caller's settings if they are old; one request does it,
// the others go on with what is known.
func (c *callers) refresh(ctx context.Context, who *caller, id string, now time.Time) {
	last := who.looked.Load()
	if now.UnixNano()-last < int64(callerTTL) || !who.looked.CompareAndSwap(last, now.UnixNano()) {
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
		return // somebody who asked later was faster
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

// changed lets the next request of id be the first that its new settings, which
// are in the store, hold for. Other processes learn of them within callerTTL.
func (c *callers) changed(id string) {
	if who, ok := c.known.get(id); ok {
		who.looked.Store(0)
	}
}

// throttled is a refusal that also says what the limit is.
type throttled struct {
	err   *notify.Error
	limit float64
	burst int
}

func (t *throttled) Error() string { return t.err.Error() }
func (t *throttled) Unwrap() error { return t.err }

// headers sets the RateLimit fields of the IETF draft: requests per window of
// one second, and when the next is let through.
func (t *throttled) headers(h http.Header) {
	h.Set("RateLimit-Policy", `"caller";q=`+strconv.FormatFloat(math.Ceil(t.limit), 'f', 0, 64)+`;w=1;burst=`+strconv.Itoa(t.burst))
	h.Set("RateLimit", `"caller";r=0;t=`+strconv.FormatInt(seconds(t.err.RetryAfter), 10))
}

// seconds rounds up: a client that comes back then is let through.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// recent is a bounded map that forgets what was not asked for lately: two
// generations, of which the older is dropped when the younger is full. Every
// operation is O(1), and no list is touched by a hit, which is what a request
// makes.
type recent[K comparable, V any] struct {
	max int // entries of one generation

	mu         sync.Mutex
	young, old map[K]V
}

func newRecent[K comparable, V any](max int) *recent[K, V] {
	return &recent[K, V]{max: max, young: map[K]V{}}
}

func (r *recent[K, V]) get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.look(k)
}

// look finds k and keeps it in the younger generation. It needs the lock.
func (r *recent[K, V]) look(k K) (V, bool) {
	if v, ok := r.young[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.store(k, v)
	}
	return v, ok
}

func (r *recent[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store(k, v)
}

// putNew stores v unless somebody was faster, and returns what is stored.
func (r *recent[K, V]) putNew(k K, v V) V {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.look(k); ok {
		return was
	}
	r.store(k, v)
	return v
}

func (r *recent[K, V]) drop(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.young, k)
	delete(r.old, k)
}

func (r *recent[K, V]) store(k K, v V) {
	if len(r.young) >= r.max {
		if _, ok := r.young[k]; !ok {
			r.old, r.young = r.young, make(map[K]V, r.max/4)
		}
	}
	r.young[k] = v
}
