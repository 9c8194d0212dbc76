package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Admission bounds the work on large requests, so that single requests stay fast whatever
// load there is, and large ones are refused in time and not after a time-out. Batches and
// fan-outs pass it on their way:
//
//	Enter    before the body is read: refuses what would wait too long
//	Decode   a processor for decoding the body; one is left for single requests
//	Append   room in the log, in bytes; Store the same of the store of timers
//
// Each of the last three has a line before it. What log and store are given at once follows
// their latency: it grows while that is below a target and is cut while it is above (AIMD).
// Single requests of otp, alert and transactional enter no line and are never refused.
//
// The expected wait is what was let in and is not done, over the rate at which it gets
// done; the rate is measured while somebody waits. A refused request is told when its turn
// would come if all that were refused before came again (Retry-After), so that they do not
// come again together.
//
// A nil Admission admits everything. Its methods may be called from any goroutine.
type Admission struct {
	cfg AdmissionConfig

	single atomic.Int64 // when the last single request came, ns since 1970

	mu            sync.Mutex
	decode        admissionLine
	append, store admissionLine
	ahead         int64       // bytes of bodies that were let in and are not done; of bodies that still come, the recent ones
	coming        []*Admitted // those whose bodies still come, the oldest first
	rate          float64     // bytes a second that get done while somebody waits; 0: not known
	from          time.Time
	done          int64 // bytes since from, zero: since none waited
	told          time.Time
	since, last   time.Time // first and last refusal of this overload; zero: there is none
	refused       int64     // in this overload
	watching      bool      // a timer looks for the end of the overload
}

// AdmissionConfig configures an Admission. The zero value of a field means its default.
type AdmissionConfig struct {
	// Processors is how many bodies are decoded at a time while no single requests come;
	// while they do, it is one less, and at least one.
	Processors int `default:"1" min:"1"`
	// MaxWait is the longest expected wait with which a request is let in. One that waits
	// twice as long in a line is refused there.
	MaxWait time.Duration `default:"1s" above:"0"`
	// AppendTarget and StoreTarget are the latencies that the bulk appends in flight, and
	// the writes of bulk timers, are bounded by.
	AppendTarget time.Duration `default:"250ms" above:"0"`
	StoreTarget  time.Duration `default:"250ms" above:"0"`
	// Changed is told when an overload begins and when it has ended; nil: it is not called.
	Changed func(Overload)
}

// Overload is what an Admission says of itself.
type Overload struct {
	Since   time.Time     // of the overload that goes on; zero: there is none
	Refused int64         // requests, in it; once it has ended, in the last one
	Wait    time.Duration // that a large request would have now
	Ahead   int64         // bytes of bodies that were let in and are not done
	Append  int64         // bytes that bulk appends in flight may have
	Lasted  time.Duration // of one that has ended
}

const (
	// leastWindow and mostWindow bound the bytes in flight to the log and to the store,
	// firstWindow is what they begin with, windowStep what a good answer adds.
	leastWindow, firstWindow, mostWindow = 2 << 20, 16 << 20, 64 << 20
	windowStep                           = 64 << 10
	// rateEvery is how long a rate is measured.
	rateEvery = 200 * time.Millisecond
	// singleRecent is for how long after a single request more of them are expected.
	singleRecent = time.Second
	// leastRetry and mostRetry bound what a refused request is told.
	leastRetry, mostRetry = time.Second, 10 * time.Second
	// calm is how long nothing must be refused for an overload to have ended.
	calm = 5 * time.Second
	// unknownBody is what a body counts whose length is not announced.
	unknownBody = 256 << 10
)

// NewAdmission returns an Admission. It panics if cfg is not within its limits.
func NewAdmission(cfg AdmissionConfig) *Admission {
	cfg = setting.Fill(cfg)
	if err := setting.Err("admission", &cfg); err != nil {
		panic(err)
	}
	a := &Admission{cfg: cfg}
	a.append = admissionLine{most: firstWindow, target: cfg.AppendTarget}
	a.store = admissionLine{most: firstWindow, target: cfg.StoreTarget}
	return a
}

// Single says that a single request came. It refuses one of the bulk lane while large
// requests are refused.
func (a *Admission) Single(cat notify.Category) error {
	if a == nil {
		return nil
	}
	now := time.Now()
	if !cat.Bulk() {
		a.single.Store(now.UnixNano())
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := a.expected(now); wait > a.cfg.MaxWait {
		return a.refuse(now, wait, 0)
	}
	return nil
}

// Admitted is a large request that was let in.
type Admitted struct {
	a       *Admission
	bytes   int64
	at      time.Time
	arrived bool
	counts  bool // in Admission.ahead
}

// Enter lets a request of a body of so many bytes in (below 0: not known), or refuses it
// with notify.KindUnavailable, code "overloaded". One that urgent says true of is let in all
// the same; urgent is asked before a refusal only, and may be nil. Leave must be called.
func (a *Admission) Enter(bytes int64, urgent func() bool) (*Admitted, error) {
	if a == nil {
		return nil, nil
	}
	if bytes < 0 {
		bytes = unknownBody
	}
	// Without the lock: it may read from the connection.
	letIn := urgent != nil && a.Overload().Wait > a.cfg.MaxWait && urgent()
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetSlow(now)
	if wait := a.expected(now); wait > a.cfg.MaxWait && !letIn {
		return nil, a.refuse(now, wait, bytes)
	}
	e := &Admitted{a: a, bytes: bytes, at: now, counts: true}
	a.ahead += bytes
	a.coming = append(a.coming, e)
	return e, nil
}

// forgetSlow takes bodies that take long to come out of the count: a slow sender must not
// keep others out. It needs the lock.
func (a *Admission) forgetSlow(now time.Time) {
	for len(a.coming) > 0 {
		e := a.coming[0]
		if !e.arrived && now.Sub(e.at) < a.cfg.MaxWait {
			return
		}
		if !e.arrived {
			e.uncount()
		}
		a.coming[0] = nil
		a.coming = a.coming[1:]
	}
}

// uncount needs the lock.
func (e *Admitted) uncount() {
	if e.counts {
		e.counts, e.a.ahead = false, e.a.ahead-e.bytes
	}
}

// Arrived says that the body is there.
func (e *Admitted) Arrived() {
	if e == nil {
		return
	}
	e.a.mu.Lock()
	defer e.a.mu.Unlock()
	if e.arrived = true; !e.counts {
		e.counts, e.a.ahead = true, e.a.ahead+e.bytes
	}
}

// Leave says that the request is answered.
func (e *Admitted) Leave() {
	if e == nil {
		return
	}
	a := e.a
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.arrived {
		a.measure(now, e.bytes)
	}
	e.uncount()
	e.arrived = true // coming keeps it no longer
	a.forgetSlow(now)
}

// measure counts what got done into the rate. It needs the lock.
func (a *Admission) measure(now time.Time, bytes int64) {
	if !a.waits() {
		a.from, a.done = time.Time{}, 0
		return
	}
	if a.from.IsZero() {
		a.from = now
		return
	}
	a.done += bytes
	took := now.Sub(a.from)
	if took < rateEvery {
		return
	}
	rate := float64(a.done) / took.Seconds()
	if a.rate == 0 {
		a.rate = rate
	}
	a.rate += (rate - a.rate) / 4
	a.from, a.done = now, 0
}

// waits needs the lock.
func (a *Admission) waits() bool {
	return a.decode.queue.Len()+a.append.queue.Len()+a.store.queue.Len() > 0
}

// expected is the wait of a request that came now: 0 while none waits. It needs the lock.
func (a *Admission) expected(now time.Time) (wait time.Duration) {
	if !a.waits() {
		return 0
	}
	if a.rate > 0 {
		wait = seconds(float64(a.ahead) / a.rate)
	}
	for _, l := range []*admissionLine{&a.decode, &a.append, &a.store} {
		if first := l.queue.First(); first != nil { // the rate says nothing once nothing gets done
			wait = max(wait, now.Sub(first.Value.since))
		}
	}
	return wait
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 3600) * float64(time.Second))
}

// refuse returns the refusal of a request that would wait so long. It needs the lock.
func (a *Admission) refuse(now time.Time, wait time.Duration, bytes int64) error {
	if turn := now.Add(wait); a.told.Before(turn) {
		a.told = turn
	}
	if a.rate > 0 {
		a.told = a.told.Add(seconds(float64(bytes) / a.rate))
	}
	if most := now.Add(mostRetry); a.told.After(most) {
		a.told = most
	}
	if a.refused, a.last = a.refused+1, now; a.since.IsZero() {
		a.since, a.refused = now, 1
		a.tell(a.overload(now))
	}
	if !a.watching {
		a.watching = true
		time.AfterFunc(calm, a.lookForEnd)
	}
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "overloaded", RetryAfter: max(leastRetry, a.told.Sub(now)),
		Msg: "more large requests come than get done; nothing was read of this one, or stored",
	}
}

// lookForEnd ends an overload in which nothing was refused for a while.
func (a *Admission) lookForEnd() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if left := calm - now.Sub(a.last); left > 0 {
		time.AfterFunc(left, a.lookForEnd)
		return
	}
	o := a.overload(now)
	o.Since, o.Lasted = time.Time{}, a.last.Sub(a.since)
	a.since, a.watching = time.Time{}, false
	a.tell(o)
}

// tell needs the lock, which the one who is told must not ask for.
func (a *Admission) tell(o Overload) {
	if a.cfg.Changed != nil {
		a.cfg.Changed(o)
	}
}

// Overload returns how it stands.
func (a *Admission) Overload() Overload {
	if a == nil {
		return Overload{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.overload(time.Now())
}

func (a *Admission) overload(now time.Time) Overload {
	return Overload{Since: a.since, Refused: a.refused, Wait: a.expected(now), Ahead: a.ahead, Append: a.append.most}
}

// Decode waits for a processor to decode a large body with. Others of its category wait
// before it, those of more urgent ones go first. The function it returns gives it back.
func (a *Admission) Decode(ctx context.Context, cat notify.Category) (done func(), err error) {
	if a == nil {
		return func() {}, nil
	}
	if err := a.wait(ctx, &a.decode, cat, 1); err != nil {
		return nil, err
	}
	return func() { a.leave(&a.decode, 1) }, nil
}

// processors is how many bodies are decoded at a time now.
func (a *Admission) processors(now time.Time) int64 {
	n := int64(a.cfg.Processors)
	if now.UnixNano()-a.single.Load() < int64(singleRecent) {
		n = max(1, n-1)
	}
	return n
}

// Append waits until a bulk append of so many bytes may begin. The function it returns
// says how it ended.
func (a *Admission) Append(ctx context.Context, cat notify.Category, bytes int64) (done func(error), err error) {
	return a.begin(ctx, func(a *Admission) *admissionLine { return &a.append }, cat, bytes)
}

// Store is Append of what is stored until it is due.
func (a *Admission) Store(ctx context.Context, cat notify.Category, bytes int64) (done func(error), err error) {
	return a.begin(ctx, func(a *Admission) *admissionLine { return &a.store }, cat, bytes)
}

func (a *Admission) begin(ctx context.Context, of func(*Admission) *admissionLine, cat notify.Category, bytes int64) (done func(error), err error) {
	if a == nil {
		return func(error) {}, nil
	}
	l := of(a)
	if err := a.wait(ctx, l, cat, bytes); err != nil {
		return nil, err
	}
	began := time.Now()
	return func(err error) {
		a.mu.Lock()
		l.learn(began, time.Now(), bytes, err)
		a.mu.Unlock()
		a.leave(l, bytes)
	}, nil
}

// admissionLine is a queue before something of which there is so much. Admission's lock guards it.
type admissionLine struct {
	most, taken int64
	queue       Queue[*inLine]
	target      time.Duration // latency by which most is adapted
	cut         time.Time     // when most was last lowered
}

// inLine waits for its turn.
type inLine struct {
	n     int64
	since time.Time
	turn  chan struct{} // closed when it has it
}

// fits reports whether n may be taken. What is larger than the whole goes alone.
func (l *admissionLine) fits(n int64) bool { return l.taken == 0 || l.taken+n <= l.most }

// learn adapts most to what one took: less by a quarter, once for all that were under way
// together, when it was slow or failed; a little more when it was fast and there was use
// for more.
func (l *admissionLine) learn(began, now time.Time, n int64, err error) {
	switch slow := now.Sub(began) > l.target || notify.KindOf(err) == notify.KindUnavailable; {
	case slow && began.After(l.cut):
		l.most, l.cut = max(leastWindow, l.most*3/4), now
	case !slow && 2*l.taken >= l.most:
		l.most = min(mostWindow, l.most+max(windowStep, n/8))
	}
}

// wait takes n of a line once it is this request's turn.
func (a *Admission) wait(ctx context.Context, l *admissionLine, cat notify.Category, n int64) error {
	now := time.Now()
	a.mu.Lock()
	a.decode.most = a.processors(now)
	if l.queue.Len() == 0 && l.fits(n) {
		l.taken += n
		a.mu.Unlock()
		return nil
	}
	w := l.queue.Add(cat, &inLine{n, now, make(chan struct{})})
	a.mu.Unlock()

	timer := time.NewTimer(2 * a.cfg.MaxWait)
	defer timer.Stop()
	select {
	case <-w.Value.turn:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.Value.turn: // just now
		return nil
	default:
	}
	l.queue.Remove(w)
	a.grant(l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now = time.Now()
	return a.refuse(now, a.expected(now), n)
}

// leave gives n of a line back.
func (a *Admission) leave(l *admissionLine, n int64) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	l.taken -= n
	a.decode.most = a.processors(now)
	a.grant(l)
}

// grant lets those through whose turn it is. It needs the lock.
func (a *Admission) grant(l *admissionLine) {
	for {
		w := l.queue.First()
		if w == nil || !l.fits(w.Value.n) {
			return
		}
		l.taken += w.Value.n
		l.queue.Remove(w)
		close(w.Value.turn)
	}
}
