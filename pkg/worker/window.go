package worker

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trace"
)

// round is the delivery of one or more claimed windows with the same content. One goroutine uses
// the round. During a call, the provider also calls the report function of the round, from any
// goroutine; that function locks mu.
type round struct {
	w           *Worker
	parts       []*window
	call        notify.Call
	refs        []itemRef       // by item
	hasDefault  [][]byte        // by part and position: 1 if the receiver has the default outcome
	leftOpen    []bool          // by part: true if the part is left to the next owner, without any outcome
	notTaken    []int           // indexes in call.Items: items that were not processed and wait for their route
	firstCallAt time.Time       // time of the first call
	lookedAt    time.Time       // when preferences and cancellations were last checked
	shownUntil  time.Time       // end of the wait that the rows show; zero: they show no wait
	gone        []goneAddress   // addresses to suppress, users to opt out
	targets     []notify.Target // scratch memory for the receiver being decided
	copied      []byte          // addresses from profiles, see scratch
	broken      bool            // a provider panicked or did not report all items, and may still use the call's memory
	pass        passKind        // whether the round has entered or locked the Solo

	span trace.Span // empty if it is not recorded

	heads map[string]engine.Hold // strict lanes only: by user, the first notification that waits

	// mayCancel: a receiver of the current batch may be cancelled. maySuppress: at least one
	// address is suppressed. Making both checks for each receiver took 9 ns (benchmark P6).
	mayCancel, maySuppress bool

	slots *callSlots // slots of the window being decided; nil: its campaign does not delay it

	mu              sync.Mutex // guards the fields below and, during a call, the fields hasDefault, notTaken and gone
	defaultOutcome  notify.Exception
	exceptions      [][]notify.Exception // by part: outcomes other than the default
	acceptedByRoute []int                // by route: accepted items not yet reported to its breaker
}

// itemRef says which receiver an item belongs to, and which route it uses. The route is stored,
// because finding it again for the answer took 8 ns: the address was not in the CPU cache any more.
type itemRef struct {
	part      uint16
	addresses uint8 // number of the receiver's addresses; 0: one
	route     int8  // index in Routes.Names; -1: no route
	pos       uint32
}

// runWindow decides about every receiver, calls the provider and settles the outcomes. The permit
// is for the first call. It is nil if the provider is not Rated or the caller has no permit. The
// caller releases the permit. The parameter pass says whether the caller has entered or locked the
// Solo. If it is callPass, runWindow leaves the Solo after the first call.
func (w *Worker) runWindow(parts []*window, permit notify.Permit, pass passKind) {
	e := &parts[0].job.env
	r := &round{w: w, parts: parts, pass: pass, hasDefault: make([][]byte, len(parts)), leftOpen: make([]bool, len(parts)), exceptions: make([][]notify.Exception, len(parts)), acceptedByRoute: make([]int, len(w.cfg.Routes.Names))}
	r.call = notify.Call{
		Channel: e.Channel, Category: e.Category, Caller: e.Caller,
		Content: &e.Content, Expires: e.Expires, Permit: permit,
	}
	r.startSpan()
	defer r.endSpan()
	defer r.leaveCall()
	if p := parts[0].job.p; r.pass != soloPass && !p.isFresh() {
		r.leaveCall()
		if !p.waitFresh() {
			for _, p := range parts {
				p.handOver()
			}
			return
		}
	}
	kept := w.scratchFor(parts)
	r.call.Items, r.refs, r.targets, r.copied = kept.items[:0], kept.refs[:0], kept.targets, kept.addresses[:0]
	r.lookedAt = time.Now()
	for i, p := range parts {
		var ok bool
		if r.heads, ok = r.queueHeads(i); !ok {
			return
		}
		r.hasDefault[i] = make([]byte, p.hi-p.lo)
		r.decideReceivers(i, r.lookedAt)
		if !p.applyReceipts(r.exceptions[i]) {
			return
		}
	}
	var ok bool
	if r.call.Items, r.refs, ok = r.settleByReceipts(r.call.Items, r.refs); !ok {
		return
	}
	kept.items, kept.refs, kept.targets, kept.addresses = r.call.Items, r.refs, r.targets, r.copied
	// If deliver returns false, the partition is gone. Then the windows get no outcomes, and their
	// receivers are ambiguous, as after a crash.
	if len(r.call.Items) == 0 || r.deliver(parts[0].job.p) {
		r.suppressGone(parts[0].job.p)
		r.reportSettled()
		if !r.broken {
			// Free the scratch now, not after the outcome is durable: that write takes longer than
			// all the work before it.
			kept.free()
		}
		for i, p := range r.parts {
			j := p.job
			if r.leftOpen[i] {
				continue
			}
			if !j.finishWindow(r.defaultOutcome, r.hasDefault[i], p.lo, r.exceptions[i]) {
				continue
			}
			if len(r.parts) == 1 {
				j.finish()
			} else { // concurrently, so that their rows are committed as one group
				j.p.wg.Go(j.finish)
			}
		}
	}
}

// deliver calls the provider until every item has an outcome. Items whose route is shut are parked
// if another route of the lane works. If no route works, the items wait in deliver: the lane stops,
// the log buffers its records, and the order is kept. deliver returns false if the partition is
// gone.
func (r *round) deliver(p *partition) bool {
	cfg := &r.w.cfg
	items, refs := r.call.Items, r.refs
	defer r.endWait()
	defer r.releasePermit()
	for {
		if r.w.rated != nil && r.call.Permit == nil {
			if r.pass == soloPass {
				r.deferSolo(items, refs, time.Now())
				return true
			}
			r.leaveCall()
		}
		wait := r.ensurePermit(p, refs)
		r.call.Items, r.refs = nil, nil
		if wait.IsZero() {
			items, refs, wait = r.splitByRoute(items, refs)
			items, refs = r.cutToPermit(items, refs)
			if len(r.call.Items) > 0 && !r.callProvider(p) {
				return false
			}
			r.releasePermit()
		}
		r.leaveCall()
		// Items for which the provider had no capacity wait again, with the items that were not
		// called.
		for _, i := range r.notTaken {
			items = append(items, r.call.Items[i])
			refs = append(refs, r.refs[i])
		}
		r.notTaken = r.notTaken[:0]
		if len(items) == 0 {
			return true
		}
		if wait.IsZero() {
			wait = cfg.Health.earliestRetry(&cfg.Routes, time.Now()).Add(50 * time.Millisecond)
		}
		if r.pass == soloPass {
			r.deferSolo(items, refs, wait)
			return true
		}
		if at := r.nextDeadline(refs); !at.IsZero() && at.Before(wait) {
			wait = at
		}
		r.showWait(refs, wait)
		if !cfg.Health.waitForChange(p.untilDrain, wait) || !p.waitFresh() {
			if p.ctx.Err() != nil {
				return false
			}
			for i := range items { // the partition is being drained
				part := refs[i].part
				whole := r.parts[part].coversJob()
				if whole && len(r.exceptions[part]) == 0 && bytes.IndexByte(r.hasDefault[part], 1) < 0 { // no receiver of the job has an outcome
					r.leftOpen[part] = true // left to the next owner
					continue
				}
				r.parkUncalled(refs[i], items[i].Addr, codeHandedOver, time.Now().Add(time.Second))
			}
			return true
		}
		var ok bool
		if items, refs, ok = r.recheckItems(items, refs); !ok || len(items) == 0 {
			return ok
		}
	}
}

// splitByRoute moves the items whose route allows a call now into r.call. It parks items whose
// route is shut if another route of the lane works. It returns the other items, their refs, and the
// time at which to try these items again. If a route is being probed, only one of its items is
// moved: the whole call counts as one probe, so further items would use up probes without results.
func (r *round) splitByRoute(items []notify.Item, refs []itemRef) (rest []notify.Item, restRefs []itemRef, wait time.Time) {
	cfg := &r.w.cfg
	now := time.Now()
	if cfg.Health.allWell(&cfg.Routes) {
		r.call.Items, r.refs = items, refs
		return nil, nil, now
	}
	r.call.Items, r.refs = nil, nil
	probed := make([]bool, len(cfg.Routes.Names))
	for i := range items {
		n := cfg.Routes.Of(items[i].Address)
		if n < 0 {
			r.call.Items, r.refs = append(r.call.Items, items[i]), append(r.refs, refs[i])
			continue
		}
		ok, at := false, now.Add(probeWait)
		if !probed[n] {
			ok, probed[n], at = cfg.Health.allow(cfg.Routes.Names[n], now)
		}
		switch {
		case ok:
			r.call.Items, r.refs = append(r.call.Items, items[i]), append(r.refs, refs[i])
		case cfg.Health.otherOpen(&cfg.Routes, n, now):
			r.parkUncalled(refs[i], items[i].Addr, cfg.Routes.Names[n]+"_circuit_open", at)
		default:
			rest, restRefs = append(rest, items[i]), append(restRefs, refs[i])
			if wait.IsZero() || at.Before(wait) {
				wait = at
			}
		}
	}
	return rest, restRefs, wait
}

// probeWait is the pause before other items of a route are tried while one item probes the route.
const probeWait = 50 * time.Millisecond

// nextDeadline returns the earliest expiry of the waiting envelopes. Zero means that no envelope
// expires.
func (r *round) nextDeadline(refs []itemRef) (at time.Time) {
	for i := range refs {
		if i > 0 && refs[i].part == refs[i-1].part {
			continue
		}
		if ms := r.parts[refs[i].part].job.env.Expires; ms != 0 {
			if t := time.UnixMilli(ms); at.IsZero() || t.Before(at) {
				at = t
			}
		}
	}
	return at
}

// callProvider makes one call for r.call.Items. It returns false if the partition is gone.
func (r *round) callProvider(p *partition) bool {
	cfg, ctx := &r.w.cfg, p.ctx
	if !r.w.claimLast && r.pass != soloPass {
		n, err := p.acquireCapacity(r.call.Category, len(r.call.Items), r.parts[0].coversJob())
		if err != nil {
			return r.putItemsBack(ctx)
		}
		defer r.w.capacity.release(n)
	}
	if r.enterToCall(p) != nil {
		return r.putItemsBack(ctx)
	}
	// Check preferences and cancellations again. They may have changed while this goroutine waited
	// for capacity, for a store, or for the group to confirm that this process still owns the
	// partition.
	if log.AwaitOwnership(ctx) != nil {
		return r.putItemsBack(ctx)
	}
	if time.Since(r.lookedAt) > maxLookAge {
		if !p.isFresh() { // deliver waits until preferences are fresh
			return r.putItemsBack(ctx)
		}
		var ok bool
		if r.call.Items, r.refs, ok = r.recheckItems(r.call.Items, r.refs); !ok || len(r.call.Items) == 0 {
			return ok
		}
	}
	if r.firstCallAt.IsZero() {
		r.firstCallAt = time.Now()
	}
	cctx, stop := context.WithTimeout(ctx, cfg.CallLimit)
	defer stop()
	called := time.Now()
	reported := make([]bool, len(r.call.Items))
	span := r.startCallSpan()
	before := r.countExceptions(&span)
	func() {
		defer func() {
			if v := recover(); v != nil {
				r.broken = true
				cfg.Logger.Error("a provider call panicked; its items without a result count as ambiguous", "lane", cfg.Lane.String(), "trace_id", notify.TraceID(r.call.Trace), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if f := cfg.Events.Panic; f != nil {
					f(cfg.Lane, v)
				}
			}
		}()
		cfg.Provider.Send(cctx, &r.call, func(from, to int, res notify.Result) {
			_ = reported[from:to] // an invalid range panics here, before the lock is held
			if res.Class == notify.ClassAccepted {
				// No defer here: it took a third of the time of an accepted item. If the partition
				// is gone, the answer is recorded too, but it is not used.
				r.mu.Lock()
				r.settleAccepted(reported, from, to, &res)
				r.mu.Unlock()
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := from; i < to; i++ {
				// If the partition is gone, the call was cut off, and its answer means nothing.
				if !reported[i] && ctx.Err() == nil {
					reported[i] = true
					r.settleAnswer(i, &res)
				}
			}
		})
	}()
	if ctx.Err() != nil {
		span.End()
		return false
	}
	r.w.openReceivers.noteCall(time.Since(called))
	r.mu.Lock()
	for i := range reported { // an item was not reported if the provider panicked or made a mistake
		if !reported[i] {
			reported[i], r.broken = true, true
			r.settleAnswer(i, &notify.Result{Class: notify.ClassAmbiguous, Code: codePanic})
		}
	}
	r.mu.Unlock()
	r.mu.Lock()
	r.reportAccepted(time.Now())
	r.mu.Unlock()
	r.endCallSpan(&span, before)
	return true
}

// putItemsBack adds the items of a call that will not be made to the items that wait. It returns
// false if the partition is gone.
func (r *round) putItemsBack(ctx context.Context) bool {
	for i := range r.call.Items {
		r.notTaken = append(r.notTaken, i)
	}
	return ctx.Err() == nil
}

// ensurePermit gets a permit if the provider is Rated and the round has none. It returns the zero
// time if a call may be made, and otherwise the time at which to ask again. A round whose items are
// claimed already can be without a permit because the provider was busy, or because the last permit
// was for fewer addresses.
func (r *round) ensurePermit(p *partition, refs []itemRef) (wait time.Time) {
	if r.w.rated == nil || r.call.Permit != nil {
		return time.Time{}
	}
	m, again := p.requestPermit(r.call.Category, len(refs), r.nextDeadline(refs))
	if m == nil {
		wait = time.Now()
		if again {
			wait = r.w.cfg.Health.earliestRetry(&r.w.cfg.Routes, wait)
		}
		return wait
	}
	r.call.Permit = m
	return time.Time{}
}

// cutToPermit leaves as many items in the call as its permit covers. It appends the other items to
// the slice waiting, and their refs to waitingRefs, and returns both slices.
func (r *round) cutToPermit(waiting []notify.Item, waitingRefs []itemRef) ([]notify.Item, []itemRef) {
	if r.call.Permit == nil {
		return waiting, waitingRefs
	}
	n := min(len(r.call.Items), r.call.Permit.Messages())
	waiting, waitingRefs = append(waiting, r.call.Items[n:]...), append(waitingRefs, r.refs[n:]...)
	r.call.Items, r.refs = r.call.Items[:n:n], r.refs[:n:n]
	return waiting, waitingRefs
}

// releasePermit gives back the unused part of the call's permit.
func (r *round) releasePermit() {
	if r.call.Permit != nil {
		r.call.Permit.Release()
		r.call.Permit = nil
	}
}
