package worker

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/prefs"
	"github.com/notifyd/notifyd/pkg/trace"
)

// round is one or more claimed windows of the same content on their way
// through the provider. It is used by one goroutine, but for settle.
type round struct {
	w        *Worker
	parts    []*window
	call     notify.Call
	refs     []ref     // per item
	plain    [][]bool  // per part and position: has the default outcome
	open     []bool    // per part: left without any outcome
	again    []int     // items not taken yet: wait for their route
	began    time.Time // of the first call
	looked   time.Time
	remarked time.Time     // until when the rows say that its items wait
	dead     []notify.Item // and why, in deadCode
	deadCode []string
	targets  []notify.Target // of the receiver looked at
	broken   bool            // a provider panicked or did not answer: it may still hold the call

	span trace.Span // of the round; none: it is not recorded

	heads map[string]engine.Hold // strict lanes: first of those that wait, by user

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

// runWindow looks at every receiver once more, calls the provider and settles.
func (w *Worker) runWindow(parts []*window) {
	e := &parts[0].job.env
	r := &round{w: w, parts: parts, plain: make([][]bool, len(parts)), open: make([]bool, len(parts)), ex: make([][]notify.Exception, len(parts)), fine: make([]int, len(w.cfg.Routes.Names))}
	r.call = notify.Call{
		Channel: e.Channel, Category: e.Category, Caller: e.Caller,
		Content: &e.Content, Expires: e.Expires,
	}
	r.begin()
	defer r.end()
	if !parts[0].job.p.fresh() {
		for _, p := range parts {
			p.putOff()
		}
		return
	}
	kept := w.scratchFor(parts)
	r.call.Items, r.refs, r.targets = kept.items[:0], kept.refs[:0], kept.targets
	r.looked = time.Now()
	for i, p := range parts {
		var ok bool
		if r.heads, ok = r.queues(i); !ok {
			return
		}
		r.plain[i] = make([]bool, p.hi-p.lo)
		r.look(i, r.looked)
	}
	var ok bool
	if r.call.Items, r.refs, ok = r.told(r.call.Items, r.refs); !ok {
		return
	}
	kept.items, kept.refs, kept.targets = r.call.Items, r.refs, r.targets
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

// look decides for every receiver of part i whether and where it is called.
func (r *round) look(i int, now time.Time) {
	p, cfg := r.parts[i], &r.w.cfg
	e := &p.job.env
	key := e.Key()
	rd := p.rd
	if e.Expired(now) {
		for pos := p.lo; pos < p.hi; pos++ {
			r.unsent(i, pos, notify.Expired, codeExpired)
		}
		return
	}
	l, ok := r.w.looks.Get().(*looks)
	if !ok {
		l = &looks{}
	}
	defer r.w.looks.Put(l)
	for pos := p.lo; pos < p.hi; {
		n := 0
		for ; n < len(l.recs) && pos+uint32(n) < p.hi && rd.Next(&l.recs[n]); n++ {
			l.users[n] = l.recs[n].User
			l.hashes[n] = notify.HashUser(l.users[n])
		}
		if n == 0 {
			for ; pos < p.hi; pos++ {
				r.decided(i, pos, notify.Failed, "corrupt", 0)
			}
			return
		}
		cfg.Prefs.Look(l.answers[:n], l.users[:n], l.hashes[:n], e.Channel, e.Category, now)
		for k := range n {
			r.lookAt(i, pos+uint32(k), &l.recs[k], &l.answers[k], e, key, now)
		}
		pos += uint32(n)
	}
}

// looks are receivers that are looked at together. They keep what they were used
// for last from being freed; there are few.
type looks struct {
	recs    [64]notify.Receiver
	users   [64][]byte
	hashes  [64]uint64
	answers [64]prefs.Answer
}

func (r *round) lookAt(i int, pos uint32, rec *notify.Receiver, a *prefs.Answer, e *notify.Envelope, key notify.RowKey, now time.Time) {
	cfg := &r.w.cfg
	if cfg.Cancels.Cancelled(e, rec.Index) {
		r.unsent(i, pos, notify.Cancelled, "cancelled")
		return
	}
	if r.behind(i, pos, rec, e, now) {
		return
	}
	switch a.Action {
	case prefs.OptedOut:
		r.unsent(i, pos, notify.Suppressed, "opted_out")
		return
	case prefs.Quiet:
		if e.Expires != 0 && a.Until >= e.Expires {
			r.unsent(i, pos, notify.Expired, codeExpired)
		} else {
			r.decided(i, pos, notify.Deferred, "quiet_hours", a.Until)
		}
		return
	}
	targets, err := notify.Targets(r.targets[:0], rec.Address)
	if err == nil && len(targets) == 0 {
		targets = a.Targets(targets)
	}
	r.targets = targets
	given := notify.Given(rec.Address)
	n := len(r.call.Items)
	dead := 0
	for _, t := range targets {
		if len(t.Address) == 0 { // reached by an earlier attempt
			continue
		}
		if cfg.Prefs.Suppressed(e.Channel, t.Address) {
			dead++
			continue
		}
		of := t.Of
		if of <= 1 {
			of = 0
		}
		r.call.Items = append(r.call.Items, notify.Item{
			ID: e.ID(rec.Index), Key: key, Addr: t.Addr, Given: given, User: rec.User, Address: t.Address, Variables: rec.Variables,
		})
		r.refs = append(r.refs, ref{uint16(i), of, int8(cfg.Routes.Of(t.Address)), pos})
	}
	if len(r.call.Items) == n {
		if dead > 0 {
			r.unsent(i, pos, notify.Suppressed, "suppressed_address")
		} else {
			r.decided(i, pos, notify.Failed, notify.CodeNoAddress, 0)
		}
	}
}

// unsent records the outcome of a receiver that ends without a call now.
func (r *round) unsent(part int, pos uint32, s notify.State, code string) {
	s, code = r.parts[part].job.unsent(pos, s, code)
	r.decided(part, pos, s, code, 0)
}

// decided records an outcome that needed no call.
func (r *round) decided(part int, pos uint32, s notify.State, code string, wake int64) {
	r.ex[part] = append(r.ex[part], notify.Exception{Pos: pos, State: s, Code: code, Wake: wake})
}

// deliver calls the provider until every item has an outcome. Items whose
// route is shut are parked if another route of the lane still works, else they
// wait here: the lane stands, the log buffers, order is kept.
func (r *round) deliver(p *partition) bool {
	cfg := &r.w.cfg
	items, refs := r.call.Items, r.refs
	defer r.goOn()
	for {
		var wait time.Time
		items, refs, wait = r.admitted(items, refs)
		if len(r.call.Items) > 0 {
			if !r.send(p) {
				return false
			}
		}
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
		if at := r.nextDeadline(refs); !at.IsZero() && at.Before(wait) {
			wait = at
		}
		r.remark(refs, wait)
		if !cfg.Health.wait(p.soft, wait) || !p.fresh() {
			if p.ctx.Err() != nil {
				return false
			}
			for i := range items { // the partition is about to go
				if part := refs[i].part; r.untouched(part) {
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

// untouched reports whether part is the whole of its job and nothing of it has
// an outcome.
func (r *round) untouched(part uint16) bool {
	return r.parts[part].whole() && len(r.ex[part]) == 0 && !slices.Contains(r.plain[part], true)
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

// lookAgain drops what expired, was cancelled or muted, or was found delivered,
// while it waited. False: the partition is gone.
func (r *round) lookAgain(items []notify.Item, refs []ref) ([]notify.Item, []ref, bool) {
	cfg := &r.w.cfg
	now := time.Now()
	r.looked = now
	keepItems, keepRefs := items[:0], refs[:0]
	for i := range items {
		j := r.parts[refs[i].part].job
		e := &j.env
		x := notify.Exception{Pos: refs[i].pos, Addr: items[i].Addr, Of: refs[i].of}
		switch v := cfg.Prefs.Decide(notify.HashUser(items[i].User), items[i].User, e.Channel, e.Category, now); {
		case e.Expired(now):
			x.State, x.Code = j.unsent(x.Pos, notify.Expired, codeExpired)
		case cfg.Cancels.Cancelled(e, items[i].ID.Index):
			x.State, x.Code = j.unsent(x.Pos, notify.Cancelled, "cancelled")
		case v.Action == prefs.OptedOut:
			x.State, x.Code = j.unsent(x.Pos, notify.Suppressed, "opted_out")
		case cfg.Prefs.Suppressed(e.Channel, items[i].Address):
			x.State, x.Code = j.unsent(x.Pos, notify.Suppressed, "suppressed_address")
		case v.Action == prefs.Quiet && e.Expires != 0 && v.Until >= e.Expires:
			x.State, x.Code = j.unsent(x.Pos, notify.Expired, codeExpired)
		case v.Action == prefs.Quiet:
			x.State, x.Code, x.Wake = notify.Deferred, "quiet_hours", v.Until
		default:
			keepItems, keepRefs = append(keepItems, items[i]), append(keepRefs, refs[i])
			continue
		}
		r.ex[refs[i].part] = append(r.ex[refs[i].part], x)
	}
	return r.told(keepItems, keepRefs)
}

// send makes one provider call for r.call.Items.
func (r *round) send(p *partition) bool {
	cfg, ctx := &r.w.cfg, p.ctx
	if !r.w.claimLast {
		n, err := p.capacity(r.call.Category, len(r.call.Items), r.parts[0].whole())
		if err != nil {
			return r.notNow(ctx)
		}
		defer r.w.capacity.release(n)
	}
	// What changed while it waited for capacity, or for a store, binds this call.
	if time.Since(r.looked) > relook {
		if !p.fresh() {
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
		cfg.Provider.Send(cctx, &r.call, func(i int, res notify.Result) {
			_ = reported[i] // panics before the lock is held
			if res.Class == notify.ClassAccepted {
				// Without defer: it was a third of what an accepted item took.
				r.mu.Lock()
				if !reported[i] && ctx.Err() == nil {
					reported[i] = true
					r.accepted(i, &res)
				}
				r.mu.Unlock()
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			// An answer that came because the partition is gone is none.
			if !reported[i] && ctx.Err() == nil {
				reported[i] = true
				r.settle(i, &res)
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

// relook is how old a look at preferences and cancels may be when a call starts:
// an opt-out binds calls that start a second later.
const relook = 250 * time.Millisecond

func sleepUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(max(time.Until(at), time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
