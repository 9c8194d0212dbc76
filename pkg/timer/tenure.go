package timer

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// tenure is this engine's ownership of one shard, from the acquired lease to
// the loss. A shard that is lost and got again is another tenure, with nothing
// remembered: somebody else may have released in between.
type tenure struct {
	e   *Engine
	n   uint16
	end context.CancelCauseFunc
	// heir is whom it is handed over to; the keeper's own.
	heir string
	// trusted is the moment of Engine.clock until which no other may own the
	// shard. It is looked at before every release and write: a process that was
	// paused runs on before any timer of its own tells it that it was.
	trusted atomic.Int64

	moved chan struct{} // there is an heir
	room  chan struct{} // on-time loading may go on
	stir  chan struct{} // there is something to catch up, or room for it
	tally chan struct{} // there are spans to count
	quiet chan struct{} // closed when it is over and nothing is being published

	// The rest is guarded by Engine.mu.
	over     bool // lost: nothing of it is released any more
	ready    bool // taken over
	state    engine.ShardState
	inflight int // entries being published

	// On-time loading: rows with FireAt <= loaded go into the wheel as they are
	// stored; those below scanned and missed need no scan.
	loaded, scanned, missed int64
	// Catching up: rows in [back, resumed) are its work. again is where it has
	// to go back to.
	back, again, resumed int64
	spans                []span // of the backlog, not counted yet
	counting             bool
	left                 int64 // rows counted, not released

	fresh   bool          // rows below the watermark have to be looked for
	looked  time.Duration // Engine.clock when they were
	begun   time.Duration // Engine.clock of the take-over
	minutes map[int64]*minute
	loads   [2]load       // by lane
	worked  time.Duration // Engine.clock when the store last did what it was asked
}

type span struct{ from, to int64 }

// load is what is loaded and not acknowledged.
type load struct {
	open, bytes int
	full        bool // loading pauses
}

// minute is what is known of a minute that is not dropped yet.
type minute struct {
	t    *tenure
	at   int64
	seen map[rowID]struct{} // rows that were loaded
	open int                // of them, not acknowledged
	// complete: it was closed and then scanned from end to end, and nothing has
	// been forgotten since.
	complete  bool
	forgotten int // times an entry was
	decided   map[decision]verdict
}

type rowID struct{ a, b uint64 }

// idOf is 128 bits, because two rows of one id would be one row lost.
func idOf(t *engine.Timer) rowID {
	h := notify.ColumnDigest(t.ID)
	return rowID{h ^ uint64(t.FireAt)*0x9e3779b97f4a7c15, notify.HashUser(append([]byte{1}, t.ID...))}
}

func newTenure(e *Engine, n uint16, trusted time.Duration) *tenure {
	t := &tenure{
		e: e, n: n, missed: math.MaxInt64, again: math.MaxInt64, minutes: map[int64]*minute{},
		moved: make(chan struct{}, 1), room: make(chan struct{}, 1), stir: make(chan struct{}, 1), tally: make(chan struct{}, 1), quiet: make(chan struct{}),
	}
	t.trusted.Store(int64(trusted))
	return t
}

// trusts reports whether the shard is surely still this engine's.
func (t *tenure) trusts() bool { return t.trust() > 0 }

// trust is for how long it surely is.
func (t *tenure) trust() time.Duration { return time.Duration(t.trusted.Load()) - t.e.clock() }

// aliveLocked reports whether entries of it may be released.
func (t *tenure) aliveLocked() bool { return !t.over && t.trusts() }

// may reports, as an error, why nothing may be loaded or written now.
func (t *tenure) may() error {
	switch {
	case !t.trusts():
		return errExpired
	case t.e.clockOff():
		return errClock
	}
	return nil
}

func (t *tenure) minuteLocked(at int64) *minute {
	m := t.minutes[at]
	if m == nil {
		m = &minute{t: t, at: at, seen: map[rowID]struct{}{}}
		t.minutes[at] = m
	}
	return m
}

// loadLocked puts a row into the wheel or the backlog, once, and reports whether
// it was new.
func (t *tenure) loadLocked(row *engine.Timer, due int64, lane Lane, ask question) bool {
	e, m := t.e, t.minuteLocked(row.FireAt/60_000)
	id := idOf(row)
	if _, dup := m.seen[id]; dup {
		return false
	}
	m.seen[id] = struct{}{}
	x := &entry{t: *row, due: due, m: m, lane: lane, ask: ask}
	m.open++
	l := &t.loads[x.lane]
	l.open++
	l.bytes += len(row.Payload)
	if l.open >= e.roomLocked(x.lane, e.cfg.MaxPending) || l.bytes >= e.roomLocked(x.lane, e.cfg.MaxBytes) {
		l.full = true
	}
	if x.lane == CatchUp {
		heap.Push(&e.releaser.backlog, x)
		signal(e.releaser.late)
	} else {
		e.releaser.wheel.Add(due, x)
		signal(e.releaser.wake)
	}
	return true
}

// roomLocked is a shard's share of a limit in a lane.
func (e *Engine) roomLocked(lane Lane, limit int) int {
	if lane == CatchUp {
		limit /= 4
	}
	return max(1, limit/max(1, e.owned))
}

// ackLocked forgets an entry that is durable where it went, or dropped.
func (r *releaser) ackLocked(x *entry) {
	if x.m.t.over {
		return // its tenure's sums are gone
	}
	x.m.t.unloadLocked(x)
	if x.lane == CatchUp {
		x.m.t.left--
	}
}

// unloadLocked takes an entry out of the sums.
func (t *tenure) unloadLocked(x *entry) {
	x.m.open--
	l := &t.loads[x.lane]
	l.open--
	l.bytes -= len(x.t.Payload)
	if l.full && l.open <= t.e.roomLocked(x.lane, t.e.cfg.MaxPending)/2 && l.bytes <= t.e.roomLocked(x.lane, t.e.cfg.MaxBytes)/2 {
		l.full = false
		if x.lane == CatchUp {
			signal(t.stir)
		} else {
			signal(t.room)
		}
	}
}

// forgetLocked gives an on-time entry that could not be published up to the
// catch-up, which reads it again: memory stays bounded in an outage of any
// length, and what is due then does not stand behind it.
func (t *tenure) forgetLocked(x *entry) {
	if t.over {
		return
	}
	t.unloadLocked(x)
	delete(x.m.seen, idOf(&x.t))
	x.m.complete = false
	x.m.forgotten++
	if x.lane == OnTime {
		t.left++
	}
	t.again = min(t.again, x.t.FireAt)
	t.resumed = max(t.resumed, x.t.FireAt+1)
	signal(t.stir)
}

// drop ends the tenure here and now: its entries leave the wheel and the
// backlog, and what is on its way out stops before it is published. It may be
// called twice.
func (e *Engine) drop(t *tenure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.over {
		return
	}
	t.over = true
	mine := func(x *entry) bool { return x.m.t == t }
	e.releaser.wheel.DeleteFunc(mine)
	e.releaser.backlog.deleteFunc(mine)
	clear(t.minutes)
	t.loads = [2]load{}
	if e.tenures[t.n] == t {
		e.tenures[t.n] = nil
		e.sawLocked(t.n, &t.state)
		e.owned--
	}
	if t.inflight == 0 {
		close(t.quiet)
	}
}

// Pending is the number of timers in memory: waiting for their time or being
// published.
func (e *Engine) Pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pendingLocked()
}

func (e *Engine) pendingLocked() (n int) {
	for _, t := range e.tenures {
		if t != nil {
			n += t.loads[OnTime].open + t.loads[CatchUp].open
		}
	}
	return n
}

// renewPhases is over how many moments of LeaseRenew the renewals of shards are spread.
const renewPhases = 16

// renew keeps the lease until the tenure ends.
func (t *tenure) renew(ctx context.Context, expire *time.Timer) {
	e := t.e
	// Shards that were taken over at once would renew at once for good, more of them than
	// there are connections: each begins at its part of the interval.
	due := e.clock() + e.cfg.LeaseRenew*time.Duration(t.n%renewPhases+1)/renewPhases
	if e.cfg.Lease == nil && e.cfg.ClockOffset == nil {
		due = math.MaxInt64 // nothing can change
	}
	for t.wake(ctx, due) {
		switch t.heir = e.members.heir(t.n); {
		case e.clockOff():
			t.end(errClock)
			return
		case t.heir != "":
			t.end(errHandedOver)
			return
		case e.useless(t):
			t.end(errNoStore)
			return
		}
		began := e.clock()
		if began < due {
			continue
		}
		if e.cfg.Lease == nil {
			due = began + e.cfg.LeaseRenew
			continue
		}
		call, stop := context.WithTimeout(ctx, t.trust())
		ok, err := e.cfg.Lease.Renew(call, lockName(t.n), e.cfg.Owner, e.cfg.LeaseTTL)
		stop()
		switch {
		case err != nil:
			e.troubl.say("cannot renew leases of timer shards", err)
			due = e.clock() + e.cfg.LeaseLook
		case !ok:
			t.end(errLeaseGone)
			return
		default:
			due = began + e.cfg.LeaseRenew
			until := began + e.cfg.LeaseTTL - e.cfg.LeaseMargin
			// What has expired stays so, although the lease is there again: the
			// tenure has been dropped.
			if t.trusts() && expire.Reset(until-e.clock()) {
				t.trusted.Store(int64(until))
			} else {
				t.end(errExpired)
				return
			}
		}
	}
}

// wake waits for a moment of Engine.clock or for a change of heir, and reports
// false when ctx ends.
func (t *tenure) wake(ctx context.Context, at time.Duration) bool {
	timer := time.NewTimer(max(at-t.e.clock(), 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.moved:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// run takes the shard over and works on it until ctx ends.
func (t *tenure) run(ctx context.Context) {
	if err := t.takeOver(ctx); err != nil {
		t.end(err)
		return
	}
	var work sync.WaitGroup
	work.Go(func() { t.sweep(ctx) })
	work.Go(func() { t.catchUp(ctx) })
	work.Go(func() { t.tallySpans(ctx) })
	work.Wait()
}

// takeOver raises the term: from here on no earlier owner can move anything. A
// store that does not answer for the length of a lease may answer another.
func (t *tenure) takeOver(ctx context.Context) error {
	e := t.e
	ctx, stop := context.WithTimeoutCause(ctx, e.cfg.LeaseTTL, errNoStore)
	defer stop()
	for pause := (notify.Pause{Most: time.Second}); ; {
		st, err := e.cfg.Store.Shard(ctx, t.n)
		if !t.trusts() {
			return errExpired
		}
		if err == nil {
			st, err = e.cfg.Store.TakeOver(ctx, t.n, st.Term, e.cfg.Owner)
		}
		if err == nil {
			t.begin(st)
			return nil
		}
		if notify.KindOf(err) != notify.KindConflict && ctx.Err() == nil {
			e.troubl.say("cannot take over timer shards", err)
		}
		if !pause.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
}

// begin makes a shard that was taken over this engine's.
func (t *tenure) begin(st engine.ShardState) {
	e := t.e
	e.mu.Lock()
	if t.over {
		e.mu.Unlock()
		return
	}
	t.state, t.ready, t.fresh = st, true, true
	// Everything from the watermark on is scanned, and before that what a
	// writer that died behind a close has left.
	t.scanned = (st.Watermark + 1) * 60_000
	t.begun = e.clock()
	t.looked, t.worked = t.begun, t.begun
	e.tenures[t.n] = t
	e.owned++
	e.mu.Unlock()
	e.count.tookOver.Add(1)
	signal(e.gained)
	e.cfg.Events.Owned(t.n, st.Term)
}

// admit puts stored rows that loading has passed into the wheel, and returns
// those of shards that are not this engine's. A row of a minute that was closed
// meanwhile is stored again anyway.
func (e *Engine) admit(ps []parked, spread notify.Spread) (others []parked) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range ps {
		p := &ps[i]
		t := e.tenureLocked(engine.ShardOf(p.ID, spread))
		switch {
		case t == nil || !t.aliveLocked():
			others = append(others, *p)
		case p.FireAt/60_000 <= t.state.Closed:
		case p.due > t.loaded: // the sweeper will come by
		case t.loads[OnTime].full:
			t.missed = min(t.missed, p.FireAt)
		default:
			ask := e.heads.questionOf(&p.Timer, nil)
			if ask == askNothing && e.cfg.Schedules != nil && !p.Head.IsZero() {
				ask = askHints
			}
			t.loadLocked(&p.Timer, p.due, OnTime, ask)
		}
	}
	return others
}

// closedOf returns the last closed minute of a shard of this engine.
func (e *Engine) closedOf(n uint16) (last int64, owned bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenureLocked(n)
	if t == nil || !t.aliveLocked() {
		return 0, false
	}
	return t.state.Closed, true
}

func (e *Engine) termOf(n uint16) (term uint64, owned bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenureLocked(n)
	if t == nil || !t.aliveLocked() {
		return 0, false
	}
	return t.state.Term, true
}
