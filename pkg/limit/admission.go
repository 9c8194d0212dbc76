package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Admission bounds the work on large requests, so that single requests stay fast under any load
// and large requests are refused at once instead of timing out. Batches and fan-outs pass these
// steps:
//
//	Enter    before the body is read: refuses a request that would wait too long
//	Decode   waits for a processor to decode the body; one processor is left for single requests
//	Append   waits for room in the log, in bytes; Store does so for the timer store
//
// Decode, Append and Store each have a queue of waiting requests. Admission bounds the bytes in
// flight to the log and to the timer store. It adapts the bound to their latency (AIMD): it
// raises the bound while the latency is below a target, and cuts it while the latency is above
// the target. Single requests of otp, alert and transactional never wait in a queue and are
// never refused.
//
// The expected wait is the bytes that are admitted and not finished, divided by the rate at
// which bytes are finished. Admission measures this rate only while a request waits.
// Retry-After assumes that all earlier refused requests are sent again first. So each refused
// request gets a later turn than the refused request before it, and callers do not all repeat
// at the same time.
//
// A nil Admission admits everything. Its methods may be called from any goroutine.
type Admission struct {
	cfg AdmissionConfig

	lastSingle atomic.Int64 // when the last single request of the fast lane arrived, ns since 1970

	mu            sync.Mutex
	decode        admissionLine
	append, store admissionLine
	// pendingBytes counts the body bytes of requests that are admitted and not finished. A body
	// that is still arriving is counted for MaxWait at most (see forgetSlow).
	pendingBytes  int64
	arriving      []*Admitted // requests whose bodies are still arriving, oldest first
	rate          float64     // bytes finished a second while requests wait; 0: not measured yet
	measuredSince time.Time   // zero: no request waits and the rate is not measured
	doneBytes     int64       // bytes finished since measuredSince
	lastRetryAt   time.Time   // when the turn of the latest refused request would begin
	// These are the times of the first and the last refusal in the current overload.
	// overloadSince is zero while there is no overload.
	overloadSince, lastRefusal time.Time
	refused                    int64 // refusals in this overload
	watching                   bool  // a timer runs checkOverloadEnd
}

// AdmissionConfig configures an Admission. The zero value of a field means its default.
type AdmissionConfig struct {
	// Processors is how many bodies are decoded at the same time while no single requests arrive.
	// While single requests arrive, the number is one less, but at least one.
	Processors int `default:"1" min:"1"`
	// MaxWait is the longest expected wait with which a request is still admitted. A request that
	// waits in a queue for twice this time is refused.
	MaxWait time.Duration `default:"1s" above:"0"`
	// AppendTarget and StoreTarget are the target latencies of bulk appends and of bulk timer
	// writes. Admission bounds the bytes in flight so that writes stay within these latencies.
	AppendTarget time.Duration `default:"250ms" above:"0"`
	StoreTarget  time.Duration `default:"250ms" above:"0"`
	// Changed is called when an overload begins and when it has ended. Admission holds its lock
	// during the call, so Changed must not call Admission. nil: no call.
	Changed func(Overload)
}

// Overload is a report of Admission's state.
type Overload struct {
	Since   time.Time     // start of the current overload; zero: there is none
	Refused int64         // requests refused in the current overload, or in one that just ended
	Wait    time.Duration // expected wait of a large request that arrives now
	Ahead   int64         // body bytes admitted and not finished
	Append  int64         // the most bytes of bulk appends that may be in flight
	Lasted  time.Duration // how long an overload lasted that has just ended; otherwise 0
}

const (
	// minInFlight and maxInFlight bound the bytes in flight to the log and to the store.
	// startInFlight is the limit at the start. A fast write raises the limit by at least
	// inFlightStep.
	minInFlight, startInFlight, maxInFlight = 2 << 20, 16 << 20, 64 << 20
	inFlightStep                            = 64 << 10
	// rateInterval is the shortest time over which a rate is measured.
	rateInterval = 200 * time.Millisecond
	// singleRecent is how long after a single request Admission expects more single requests.
	singleRecent = time.Second
	// minRetryAfter and maxRetryAfter bound the Retry-After of a refused request.
	minRetryAfter, maxRetryAfter = time.Second, 10 * time.Second
	// overloadQuiet is how long an overload lasts after its last refusal.
	overloadQuiet = 5 * time.Second
	// unknownBodySize is the size in bytes assumed for a body without an announced length.
	unknownBodySize = 256 << 10
)

// NewAdmission returns an Admission. It panics if a value of cfg is not allowed.
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

// Single records that a single request of the fast lane arrived. While large requests are refused,
// Single also refuses single requests of the bulk lane, with the error of Enter.
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

// Enter admits a request with a body of this many bytes. A negative number means that the size is
// not known. If the expected wait is too long, Enter refuses the request with
// notify.KindUnavailable, error code "overloaded". But it admits the request in spite of the wait
// if the function urgent returns true. Enter calls urgent only if it would refuse the request
// otherwise. urgent may be nil. The caller must call Leave on the result.
func (a *Admission) Enter(bytes int64, urgent func() bool) (*Admitted, error) {
	if a == nil {
		return nil, nil
	}
	if bytes < 0 {
		bytes = unknownBodySize
	}
	// Call the function urgent without the lock, because it may read from the connection.
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

// forgetSlow stops counting bodies that have been arriving for MaxWait or longer. Otherwise one
// slow sender could keep other requests out. The caller holds mu.
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

// Arrived records that the whole body has been read.
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

// Leave records that the request has been answered.
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
	e.arrived = true // so that forgetSlow drops it from the list arriving
	a.forgetSlow(now)
}

// measureRate updates the moving average of the bytes that are finished per second. It measures
// only while requests wait. The caller holds mu.
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

// expectedWait returns how long a request that arrives now would wait. It is 0 while no request
// waits. The caller holds mu.
func (a *Admission) expectedWait(now time.Time) (wait time.Duration) {
	if !a.anyWaiting() {
		return 0
	}
	if a.rate > 0 {
		wait = seconds(float64(a.pendingBytes) / a.rate)
	}
	for _, l := range []*admissionLine{&a.decode, &a.append, &a.store} {
		// If no request finishes any more, the measured rate is out of date. So the wait is
		// also at least as long as the first request in each queue has waited.
		if first := l.queue.First(); first != nil {
			wait = max(wait, now.Sub(first.Value.since))
		}
	}
	return wait
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 3600) * float64(time.Second))
}

// refuse returns the error for a request whose expected wait is too long. The caller holds mu.
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

// checkOverloadEnd ends the overload if no request was refused for the time overloadQuiet.
// Otherwise it starts a timer and checks again later.
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

// Decode waits until a processor is free to decode a large body. More urgent categories are
// served first; requests of one category are served in order of arrival. The caller must call the
// function done when the body is decoded, so that the next request can begin. Decode returns
// ctx's error when ctx ends. After a wait of 2*MaxWait it refuses the request with the error of
// Enter.
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

// Append waits until a bulk append of this many bytes may begin. The caller must call the
// function done with the error of the append, or with nil. Append returns the same errors as
// Decode.
func (a *Admission) Append(ctx context.Context, cat notify.Category, bytes int64) (done func(error), err error) {
	return a.enterLine(ctx, func(a *Admission) *admissionLine { return &a.append }, cat, bytes)
}

// Store is like the method Append, but for writes to the timer store.
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
	target       time.Duration // latency to which the limit is adapted
	lastCut      time.Time     // when the limit was last lowered
}

// lineWaiter is a request that waits in the queue of an admissionLine.
type lineWaiter struct {
	amount int64
	since  time.Time
	turn   chan struct{} // closed when the amount is reserved for this request
}

// fits reports whether n more units may be in use. A request that is larger than the limit may
// run only alone.
func (l *admissionLine) fits(n int64) bool { return l.inUse == 0 || l.inUse+n <= l.limit }

// adaptLimit adapts the limit to the latency of one write. A slow or failed write cuts the limit
// by a quarter, but several slow writes that were in flight together cut it only once. A fast
// write raises the limit a little if at least half of it was in use.
func (l *admissionLine) adaptLimit(began, now time.Time, n int64, err error) {
	switch slow := now.Sub(began) > l.target || notify.KindOf(err) == notify.KindUnavailable; {
	case slow && began.After(l.lastCut):
		l.limit, l.lastCut = max(minInFlight, l.limit*3/4), now
	case !slow && 2*l.inUse >= l.limit:
		l.limit = min(maxInFlight, l.limit+max(inFlightStep, n/8))
	}
}

// acquire waits for this request's turn and reserves n units of the line. It returns ctx's error
// when ctx ends. After a wait of 2*MaxWait it refuses the request with the error of Enter.
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
	case <-w.Value.turn: // the method grant closed this channel before acquire locked mu
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

// release ends the use of n units of a line and lets waiting requests begin.
func (a *Admission) release(l *admissionLine, n int64) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	l.inUse -= n
	a.decode.limit = a.processors(now)
	a.grant(l)
}

// grant lets waiting requests begin, in order, and stops at the first request that does not fit.
// The caller holds mu.
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
