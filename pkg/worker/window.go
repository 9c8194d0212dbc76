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

// round is one or more claimed windows of the same content on their way
// through the provider. It is used by one goroutine, but for settle.
type round struct {
	w        *Worker
	parts    []*window
	call     notify.Call
	refs     []ref     // per item
	plain    [][]byte  // per part and position: 1 if it has the default outcome
	open     []bool    // per part: left without any outcome
	again    []int     // items not taken yet: wait for their route
	began    time.Time // of the first call
	looked   time.Time
	remarked time.Time       // until when the rows say that its items wait
	gone     []goneAddress   // that a provider called dead, or whose owner told it to stop
	targets  []notify.Target // of the receiver looked at
	copied   []byte          // addresses of profiles, see scratch
	broken   bool            // a provider panicked or did not answer: it may still hold the call
	pass     passKind        // what it holds of the Solo

	span trace.Span // of the round; none: it is not recorded

	heads map[string]engine.Hold // strict lanes: first of those that wait, by user

	// Of the receivers looked at together: whether one may be cancelled, and whether any
	// address is suppressed. Asking for each took 9 ns (P6).
	mayCancel, maySuppress bool

	held *slots // of the window looked at; nil: its campaign holds nothing back

	mu   sync.Mutex
	def  notify.Exception
	ex   [][]notify.Exception // per part
	fine []int                // accepted items per route, not reported yet
}

// ref says whose address an item is, and what route it takes: looking that up
// once more at the answer, when the address has left the cache, took 8 ns.
type ref struct {
	part  uint16
	of    uint8
	route int8 // -1: none
	pos   uint32
}

// runWindow looks at every receiver once more, calls the provider and settles. The
// permit is for the first call; nil: the provider has no rate. Its owner releases it.
// have is the pass that the claim had; a callPass is given back after the first call.
func (w *Worker) runWindow(parts []*window, permit notify.Permit, have passKind) {
	e := &parts[0].job.env
	r := &round{w: w, parts: parts, pass: have, plain: make([][]byte, len(parts)), open: make([]bool, len(parts)), ex: make([][]notify.Exception, len(parts)), fine: make([]int, len(w.cfg.Routes.Names))}
	r.call = notify.Call{
		Channel: e.Channel, Category: e.Category, Caller: e.Caller,
		Content: &e.Content, Expires: e.Expires, Permit: permit,
	}
	r.begin()
	defer r.end()
	defer r.leaveCall()
	if p := parts[0].job.p; r.pass != soloPass && !p.isFresh() {
		r.leaveCall()
		if !p.fresh() {
			for _, p := range parts {
				p.putOff()
			}
			return
		}
	}
	kept := w.scratchFor(parts)
	r.call.Items, r.refs, r.targets, r.copied = kept.items[:0], kept.refs[:0], kept.targets, kept.addresses[:0]
	r.looked = time.Now()
	for i, p := range parts {
		var ok bool
		if r.heads, ok = r.queues(i); !ok {
			return
		}
		r.plain[i] = make([]byte, p.hi-p.lo)
		r.look(i, r.looked)
		if !p.toldOfEnds(r.ex[i]) {
			return
		}
	}
	var ok bool
	if r.call.Items, r.refs, ok = r.told(r.call.Items, r.refs); !ok {
		return
	}
	kept.items, kept.refs, kept.targets, kept.addresses = r.call.Items, r.refs, r.targets, r.copied
	// A round whose partition is gone leaves its windows open: they are
	// ambiguous, as after a crash.
	if len(r.call.Items) == 0 || r.deliver(parts[0].job.p) {
		r.suppress(parts[0].job.p)
		r.note()
		if !r.broken {
			kept.free() // before the outcome is durable, which takes longer than the rest
		}
		for i, p := range r.parts {
			j := p.job
			if r.open[i] {
				continue
			}
			if !j.finishWindow(r.def, r.plain[i], p.lo, r.ex[i]) {
				continue
			}
			if len(r.parts) == 1 {
				j.finish()
			} else { // their rows are committed as one group
				j.p.wg.Go(j.finish)
			}
		}
	}
}

// deliver calls the provider until every item has an outcome. Items whose
// route is shut are parked if another route of the lane still works, else they
// wait here: the lane stands, the log buffers, order is kept.
func (r *round) deliver(p *partition) bool {
	cfg := &r.w.cfg
	items, refs := r.call.Items, r.refs
	defer r.goOn()
	defer r.release()
	for {
		if r.w.rated != nil && r.call.Permit == nil {
			if r.pass == soloPass {
				r.putOffSolo(items, refs, time.Now())
				return true
			}
			r.leaveCall()
		}
		wait := r.permitted(p, refs)
		r.call.Items, r.refs = nil, nil
		if wait.IsZero() {
			items, refs, wait = r.admitted(items, refs)
			items, refs = r.cut(items, refs)
			if len(r.call.Items) > 0 && !r.send(p) {
				return false
			}
			r.release()
		}
		r.leaveCall()
		// Items the provider did not take for lack of capacity join those
		// that were not admitted.
		for _, i := range r.again {
			items = append(items, r.call.Items[i])
			refs = append(refs, r.refs[i])
		}
		r.again = r.again[:0]
		if len(items) == 0 {
			return true
		}
		if wait.IsZero() {
			wait = cfg.Health.earliest(&cfg.Routes, time.Now()).Add(50 * time.Millisecond)
		}
		if r.pass == soloPass {
			r.putOffSolo(items, refs, wait)
			return true
		}
		if at := r.nextDeadline(refs); !at.IsZero() && at.Before(wait) {
			wait = at
		}
		r.remark(refs, wait)
		if !cfg.Health.wait(p.soft, wait) || !p.fresh() {
			if p.ctx.Err() != nil {
				return false
			}
			for i := range items { // the partition is about to go
				part := refs[i].part
				whole := r.parts[part].whole()
				if whole && len(r.ex[part]) == 0 && bytes.IndexByte(r.plain[part], 1) < 0 { // nothing of the job has an outcome
					r.open[part] = true // left to the next owner
					continue
				}
				r.settleWait(refs[i], items[i].Addr, codeHandedOver, time.Now().Add(time.Second))
			}
			return true
		}
		var ok bool
		if items, refs, ok = r.lookAgain(items, refs); !ok || len(items) == 0 {
			return ok
		}
	}
}

// admitted splits the items: those whose route lets them pass now become the
// call; the rest is returned with the time to look again. Of a route that is
// being probed one item passes: a call is one probe, and with more items it
// would take probes that no answer gives back.
func (r *round) admitted(items []notify.Item, refs []ref) (rest []notify.Item, restRefs []ref, wait time.Time) {
	cfg := &r.w.cfg
	now := time.Now()
	if cfg.Health.allClosed(&cfg.Routes) {
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
			r.settleWait(refs[i], items[i].Addr, cfg.Routes.Names[n]+"_circuit_open", at)
		default:
			rest, restRefs = append(rest, items[i]), append(restRefs, refs[i])
			if wait.IsZero() || at.Before(wait) {
				wait = at
			}
		}
	}
	return rest, restRefs, wait
}

// probeWait is when to look again at what waits for a probe of the same call.
const probeWait = 50 * time.Millisecond

// nextDeadline is the earliest expiry of the envelopes that wait; zero: none.
func (r *round) nextDeadline(refs []ref) (at time.Time) {
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

// send makes one provider call for r.call.Items.
func (r *round) send(p *partition) bool {
	cfg, ctx := &r.w.cfg, p.ctx
	if !r.w.claimLast && r.pass != soloPass {
		n, err := p.capacity(r.call.Category, len(r.call.Items), r.parts[0].whole())
		if err != nil {
			return r.notNow(ctx)
		}
		defer r.w.capacity.release(n)
	}
	if r.enterToCall(p) != nil {
		return r.notNow(ctx)
	}
	// What changed while it waited for capacity, for a store, or for the group's word
	// that the partition is still ours, binds this call.
	if log.Held(ctx) != nil {
		return r.notNow(ctx)
	}
	if time.Since(r.looked) > relook {
		if !p.isFresh() { // deliver waits until they are
			return r.notNow(ctx)
		}
		var ok bool
		if r.call.Items, r.refs, ok = r.lookAgain(r.call.Items, r.refs); !ok || len(r.call.Items) == 0 {
			return ok
		}
	}
	if r.began.IsZero() {
		r.began = time.Now()
	}
	cctx, stop := context.WithTimeout(ctx, cfg.CallLimit)
	defer stop()
	called := time.Now()
	reported := make([]bool, len(r.call.Items))
	span := r.calling()
	before := r.before(&span)
	func() {
		defer func() {
			if v := recover(); v != nil {
				r.broken = true
				cfg.Logger.Error("panic in a provider call", "lane", cfg.Lane.String(), "trace_id", notify.TraceID(r.call.Trace), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if f := cfg.Events.Panic; f != nil {
					f(cfg.Lane, v)
				}
			}
		}()
		cfg.Provider.Send(cctx, &r.call, func(from, to int, res notify.Result) {
			_ = reported[from:to] // panics before the lock is held
			if res.Class == notify.ClassAccepted {
				// Without defer: it was a third of what an accepted item took. It is
				// true of a partition that is gone, too, and then nobody asks.
				r.mu.Lock()
				r.accepted(reported, from, to, &res)
				r.mu.Unlock()
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := from; i < to; i++ {
				// An answer that came because the partition is gone is none.
				if !reported[i] && ctx.Err() == nil {
					reported[i] = true
					r.settle(i, &res)
				}
			}
		})
	}()
	if ctx.Err() != nil {
		span.End()
		return false
	}
	r.w.claims.called(time.Since(called))
	r.mu.Lock()
	for i := range reported { // a panic, or a provider that broke its word
		if !reported[i] {
			reported[i], r.broken = true, true
			r.settle(i, &notify.Result{Class: notify.ClassAmbiguous, Code: codePanic})
		}
	}
	r.mu.Unlock()
	r.mu.Lock()
	r.reportFine(time.Now())
	r.mu.Unlock()
	r.called(&span, before)
	return true
}

// notNow puts the items of a call that the partition's end overtook back.
func (r *round) notNow(ctx context.Context) bool {
	for i := range r.call.Items {
		r.again = append(r.again, i)
	}
	return ctx.Err() == nil
}

// permitted makes sure that the round has a permit for its items. The items are
// claimed already: the provider has put them back, or they have more addresses than
// receivers. If nothing may be called now, it returns when to ask again.
func (r *round) permitted(p *partition, refs []ref) (wait time.Time) {
	if r.w.rated == nil || r.call.Permit != nil {
		return time.Time{}
	}
	m, again := p.permit(r.call.Category, len(refs), r.nextDeadline(refs))
	if m == nil {
		wait = time.Now()
		if again {
			wait = r.w.cfg.Health.earliest(&r.w.cfg.Routes, wait)
		}
		return wait
	}
	r.call.Permit = m
	return time.Time{}
}

// cut leaves the call as many items as its permit is for, and returns the others
// with rest.
func (r *round) cut(rest []notify.Item, restRefs []ref) ([]notify.Item, []ref) {
	if r.call.Permit == nil {
		return rest, restRefs
	}
	n := min(len(r.call.Items), r.call.Permit.Messages())
	rest, restRefs = append(rest, r.call.Items[n:]...), append(restRefs, r.refs[n:]...)
	r.call.Items, r.refs = r.call.Items[:n:n], r.refs[:n:n]
	return rest, restRefs
}

// release gives back what the call has left of its permit.
func (r *round) release() {
	if r.call.Permit != nil {
		r.call.Permit.Release()
		r.call.Permit = nil
	}
}
