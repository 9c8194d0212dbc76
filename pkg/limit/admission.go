package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Admission bounds the work on large requests, so that single requests stay fast under any load and
// large requests are refused at once instead of timing out. Batches and fan-outs pass these steps:
//
//	Enter    before the body is read: refuses a request that would wait too long
//	Decode   a processor to decode the body; one is left for single requests
//	Append   room in the log, in bytes; Store is the same for the timer store
//
// Decode, Append and Store each have a queue in front. The bytes in flight to the log and to the
// store follow their latency: the bound grows while the latency is below a target and is cut while
// it is above (AIMD). Single requests of otp, alert and transactional never queue and are never
// refused.
//
// The expected wait is the bytes admitted and not finished, divided by the rate at which bytes get
// finished. The rate is measured while a request waits. The Retry-After of a refused request is the
// time when its turn would come if all earlier refused requests came again before it, so that they
// do not all come again together.
//
// A nil Admission admits everything. Its methods may be called from any goroutine.
type Admission struct {
	cfg AdmissionConfig

	lastSingle atomic.Int64 // when the last single request came, ns since 1970

	mu                         sync.Mutex
	decode                     admissionLine
	append, store              admissionLine
	pendingBytes               int64       // body bytes admitted and not finished; a body still arriving counts only while it is recent (forgetSlow)
	arriving                   []*Admitted // requests whose bodies are still arriving, oldest first
	rate                       float64     // bytes finished a second while a request waits; 0: not known
	measuredSince              time.Time   // zero: no request waits, the rate is not measured
	doneBytes                  int64       // bytes finished since measuredSince
	lastRetryAt                time.Time   // the latest turn that a refused request was given as Retry-After
	overloadSince, lastRefusal time.Time   // first and last refusal of this overload; overloadSince is zero outside one
	refused                    int64       // refusals in this overload
	watching                   bool        // a timer runs checkOverloadEnd
}

// AdmissionConfig configures an Admission. The zero value of a field means its default.
type AdmissionConfig struct {
	// Processors is how many bodies are decoded at a time while no single requests come. While they
	// come it is one less, but at least one.
	Processors int `default:"1" min:"1"`
	// MaxWait is the longest expected wait with which a request is admitted. A request that waits
	// twice as long in a queue is refused there.
	MaxWait time.Duration `default:"1s" above:"0"`
	// AppendTarget and StoreTarget are the target latencies of bulk appends and of bulk timer
	// writes. The bytes in flight are bounded to meet them.
	AppendTarget time.Duration `default:"250ms" above:"0"`
	StoreTarget  time.Duration `default:"250ms" above:"0"`
	// Changed is called when an overload begins and when it has ended, with Admission's lock held:
	// it must not call Admission. nil: it is not called.
	Changed func(Overload)
}

// Overload is a report of Admission's state.
type Overload struct {
	Since   time.Time     // start of the current overload; zero: there is none
	Refused int64         // requests refused in it, or in the last one if it has ended
	Wait    time.Duration // that a large request would have now
	Ahead   int64         // body bytes admitted and not finished
	Append  int64         // bound of the bytes of bulk appends in flight
	Lasted  time.Duration // duration of an overload that has ended; else 0
}

const (
	// minInFlight and maxInFlight bound the bytes in flight to the log and to the store.
	// startInFlight is the first bound. A fast write raises the bound by at least inFlightStep.
	minInFlight, startInFlight, maxInFlight = 2 << 20, 16 << 20, 64 << 20
	inFlightStep                            = 64 << 10
	// rateInterval is how long a rate is measured at least.
	rateInterval = 200 * time.Millisecond
	// singleRecent is how long after a single request more of them are expected.
	singleRecent = time.Second
	// minRetryAfter and maxRetryAfter bound the Retry-After of a refused request.
	minRetryAfter, maxRetryAfter = time.Second, 10 * time.Second
	// overloadQuiet is how long no request must be refused before an overload has ended.
	overloadQuiet = 5 * time.Second
	// unknownBodySize is the size assumed for a body without an announced length.
	unknownBodySize = 256 << 10
)

// NewAdmission returns an Admission. It panics if a value of cfg is out of its limits.
func NewAdmission(cfg AdmissionConfig) *Admission {
	cfg = setting.Fill(cfg)
	if err := setting.Err("admission", &cfg); err != nil {
		panic(err)
	}
	a := &Admission{cfg: cfg}
	a.append = admissionLine{limit: startInFlight, target: cfg.AppendTarget}
	a.store = admissionLine{limit: startInFlight, target: cfg.StoreTarget}
	return a
}

// Single notes that a single request came. It refuses one of the bulk lane while large requests are
// refused.
func (a *Admission) Single(cat notify.Category) error {
	if a == nil {
		return nil
	}
	now := time.Now()
	if !cat.Bulk() {
		a.lastSingle.Store(now.UnixNano())
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait := a.expectedWait(now); wait > a.cfg.MaxWait {
		return a.refuse(now, wait, 0)
	}
	return nil
}

// Admitted is a large request that Enter admitted.
type Admitted struct {
	a         *Admission
	bytes     int64
	enteredAt time.Time
	arrived   bool
	counted   bool // its bytes are in Admission.pendingBytes
}

// Enter admits a request with a body of this many bytes (below 0: not known), or refuses it with
// notify.KindUnavailable, code "overloaded". A request for which urgent returns true is admitted
// even so. urgent is called only before a refusal, and may be nil. The caller must call Leave.
func (a *Admission) Enter(bytes int64, urgent func() bool) (*Admitted, error) {
	if a == nil {
		return nil, nil
	}
	if bytes < 0 {
		bytes = unknownBodySize
	}
	// Without the lock: urgent may read from the connection.
	letIn := urgent != nil && a.Overload().Wait > a.cfg.MaxWait && urgent()
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetSlow(now)
	if wait := a.expectedWait(now); wait > a.cfg.MaxWait && !letIn {
		return nil, a.refuse(now, wait, bytes)
	}
	e := &Admitted{a: a, bytes: bytes, enteredAt: now, counted: true}
	a.pendingBytes += bytes
	a.arriving = append(a.arriving, e)
	return e, nil
}

// forgetSlow stops counting bodies that take long to arrive: a slow sender must not keep other
// requests out. The caller holds mu.
func (a *Admission) forgetSlow(now time.Time) {
	for len(a.arriving) > 0 {
		e := a.arriving[0]
		if !e.arrived && now.Sub(e.enteredAt) < a.cfg.MaxWait {
			return
		}
		if !e.arrived {
			e.uncount()
		}
		a.arriving[0] = nil
		a.arriving = a.arriving[1:]
	}
}

// uncount removes the request's bytes from pendingBytes. The caller holds mu.
func (e *Admitted) uncount() {
	if e.counted {
		e.counted, e.a.pendingBytes = false, e.a.pendingBytes-e.bytes
	}
}

// Arrived notes that the whole body was read.
func (e *Admitted) Arrived() {
	if e == nil {
		return
	}
	e.a.mu.Lock()
	defer e.a.mu.Unlock()
	if e.arrived = true; !e.counted {
		e.counted, e.a.pendingBytes = true, e.a.pendingBytes+e.bytes
	}
}

// Leave notes that the request is answered.
func (e *Admitted) Leave() {
	if e == nil {
		return
	}
	a := e.a
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.arrived {
		a.measureRate(now, e.bytes)
	}
	e.uncount()
	e.arrived = true // so that forgetSlow drops it from arriving
	a.forgetSlow(now)
}

// measureRate adds finished bytes to the rate. The caller holds mu.
func (a *Admission) measureRate(now time.Time, bytes int64) {
	if !a.anyWaiting() {
		a.measuredSince, a.doneBytes = time.Time{}, 0
		return
	}
	if a.measuredSince.IsZero() {
		a.measuredSince = now
		return
	}
	a.doneBytes += bytes
	took := now.Sub(a.measuredSince)
	if took < rateInterval {
		return
	}
	rate := float64(a.doneBytes) / took.Seconds()
	if a.rate == 0 {
		a.rate = rate
	}
	a.rate += (rate - a.rate) / 4
	a.measuredSince, a.doneBytes = now, 0
}

// anyWaiting reports whether a request waits in any queue. The caller holds mu.
func (a *Admission) anyWaiting() bool {
	return a.decode.queue.Len()+a.append.queue.Len()+a.store.queue.Len() > 0
}

// expectedWait returns the wait of a request that came now: 0 while none waits. The caller holds
// mu.
func (a *Admission) expectedWait(now time.Time) (wait time.Duration) {
	if !a.anyWaiting() {
		return 0
	}
	if a.rate > 0 {
		wait = seconds(float64(a.pendingBytes) / a.rate)
	}
	for _, l := range []*admissionLine{&a.decode, &a.append, &a.store} {
		if first := l.queue.First(); first != nil { // the rate is useless once nothing is finished any more
			wait = max(wait, now.Sub(first.Value.since))
		}
	}
	return wait
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 3600) * float64(time.Second))
}

// refuse returns the error for a request that would wait this long. The caller holds mu.
func (a *Admission) refuse(now time.Time, wait time.Duration, bytes int64) error {
	if turn := now.Add(wait); a.lastRetryAt.Before(turn) {
		a.lastRetryAt = turn
	}
	if a.rate > 0 {
		a.lastRetryAt = a.lastRetryAt.Add(seconds(float64(bytes) / a.rate))
	}
	if most := now.Add(maxRetryAfter); a.lastRetryAt.After(most) {
		a.lastRetryAt = most
	}
	if a.refused, a.lastRefusal = a.refused+1, now; a.overloadSince.IsZero() {
		a.overloadSince, a.refused = now, 1
		a.reportOverload(a.overload(now))
	}
	if !a.watching {
		a.watching = true
		time.AfterFunc(overloadQuiet, a.checkOverloadEnd)
	}
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "overloaded", RetryAfter: max(minRetryAfter, a.lastRetryAt.Sub(now)),
		Msg: "the server is overloaded with large requests; none of this request was stored, so send it again after Retry-After",
	}
}

// checkOverloadEnd ends the overload if no request was refused for overloadQuiet. Otherwise it runs
// again later.
func (a *Admission) checkOverloadEnd() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if left := overloadQuiet - now.Sub(a.lastRefusal); left > 0 {
		time.AfterFunc(left, a.checkOverloadEnd)
		return
	}
	o := a.overload(now)
	o.Since, o.Lasted = time.Time{}, a.lastRefusal.Sub(a.overloadSince)
	a.overloadSince, a.watching = time.Time{}, false
	a.reportOverload(o)
}

// reportOverload calls cfg.Changed. The caller holds mu, so Changed must not call Admission.
func (a *Admission) reportOverload(o Overload) {
	if a.cfg.Changed != nil {
		a.cfg.Changed(o)
	}
}

// Overload returns the current state.
func (a *Admission) Overload() Overload {
	if a == nil {
		return Overload{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.overload(time.Now())
}

func (a *Admission) overload(now time.Time) Overload {
	return Overload{Since: a.overloadSince, Refused: a.refused, Wait: a.expectedWait(now), Ahead: a.pendingBytes, Append: a.append.limit}
}

// Decode waits for a processor to decode a large body with. Requests of the same category are
// served in order, more urgent categories first. The caller must call done to give the processor
// back.
func (a *Admission) Decode(ctx context.Context, cat notify.Category) (done func(), err error) {
	if a == nil {
		return func() {}, nil
	}
	if err := a.acquire(ctx, &a.decode, cat, 1); err != nil {
		return nil, err
	}
	return func() { a.release(&a.decode, 1) }, nil
}

// processors returns how many bodies may be decoded at a time now.
func (a *Admission) processors(now time.Time) int64 {
	n := int64(a.cfg.Processors)
	if now.UnixNano()-a.lastSingle.Load() < int64(singleRecent) {
		n = max(1, n-1)
	}
	return n
}

// Append waits until a bulk append of this many bytes may begin. The caller must call done with the
// result of the append.
func (a *Admission) Append(ctx context.Context, cat notify.Category, bytes int64) (done func(error), err error) {
	return a.enterLine(ctx, func(a *Admission) *admissionLine { return &a.append }, cat, bytes)
}

// Store is like Append, for timers.
func (a *Admission) Store(ctx context.Context, cat notify.Category, bytes int64) (done func(error), err error) {
	return a.enterLine(ctx, func(a *Admission) *admissionLine { return &a.store }, cat, bytes)
}

func (a *Admission) enterLine(ctx context.Context, of func(*Admission) *admissionLine, cat notify.Category, bytes int64) (done func(error), err error) {
	if a == nil {
		return func(error) {}, nil
	}
	l := of(a)
	if err := a.acquire(ctx, l, cat, bytes); err != nil {
		return nil, err
	}
	began := time.Now()
	return func(err error) {
		a.mu.Lock()
		l.adaptLimit(began, time.Now(), bytes, err)
		a.mu.Unlock()
		a.release(l, bytes)
	}, nil
}

// admissionLine is a queue for a bounded resource. The lock of Admission guards it.
type admissionLine struct {
	limit, inUse int64
	queue        Queue[*lineWaiter]
	target       time.Duration // latency to which limit is adapted
	lastCut      time.Time     // when limit was last lowered
}

// lineWaiter is a request that waits for its turn.
type lineWaiter struct {
	amount int64
	since  time.Time
	turn   chan struct{} // closed once amount is taken for this request
}

// fits reports whether n may be taken. A request larger than limit goes alone.
func (l *admissionLine) fits(n int64) bool { return l.inUse == 0 || l.inUse+n <= l.limit }

// adaptLimit adapts limit to the latency of one write. A slow or failed write cuts it by a quarter,
// once for all writes that were in flight together. A fast write raises it a little if at least
// half of it was in use.
func (l *admissionLine) adaptLimit(began, now time.Time, n int64, err error) {
	switch slow := now.Sub(began) > l.target || notify.KindOf(err) == notify.KindUnavailable; {
	case slow && began.After(l.lastCut):
		l.limit, l.lastCut = max(minInFlight, l.limit*3/4), now
	case !slow && 2*l.inUse >= l.limit:
		l.limit = min(maxInFlight, l.limit+max(inFlightStep, n/8))
	}
}

// acquire waits for this request's turn and takes n of the line. It returns ctx's error, or refuses
// the request after 2*MaxWait.
func (a *Admission) acquire(ctx context.Context, l *admissionLine, cat notify.Category, n int64) error {
	now := time.Now()
	a.mu.Lock()
	a.decode.limit = a.processors(now)
	if l.queue.Len() == 0 && l.fits(n) {
		l.inUse += n
		a.mu.Unlock()
		return nil
	}
	w := l.queue.Add(cat, &lineWaiter{n, now, make(chan struct{})})
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
	case <-w.Value.turn: // grant was faster than the timer or ctx
		return nil
	default:
	}
	l.queue.Remove(w)
	a.grant(l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now = time.Now()
	return a.refuse(now, a.expectedWait(now), n)
}

// release gives n of a line back.
func (a *Admission) release(l *admissionLine, n int64) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	l.inUse -= n
	a.decode.limit = a.processors(now)
	a.grant(l)
}

// grant gives waiting requests their turn, in order, while the first one fits. The caller holds mu.
func (a *Admission) grant(l *admissionLine) {
	for {
		w := l.queue.First()
		if w == nil || !l.fits(w.Value.amount) {
			return
		}
		l.inUse += w.Value.amount
		l.queue.Remove(w)
		close(w.Value.turn)
	}
}
