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

// tenure is this engine's ownership of one shard, from acquiring the lease until it is lost. If
// this engine loses a shard and acquires it again, it creates a new tenure and keeps no state of
// the old tenure, because another engine may have released timers in between.
type tenure struct {
	e     *Engine
	shard uint16
	end   context.CancelCauseFunc
	// heir is the engine to which the shard is handed over. Only the goroutine that runs keepShard
	// uses this field.
	heir string
	// trustedUntil is the time of Engine.clock until which no other engine can own the shard. It is
	// checked before every release and every write. A time.Timer alone is not enough: when a paused
	// process continues, it may release timers before the time.Timer fires.
	trustedUntil atomic.Int64

	heirSet      chan struct{} // gets a token when there is an heir
	onTimeRoom   chan struct{} // gets a token when on-time loading may continue
	catchUpWake  chan struct{} // gets a token when there is something to catch up, or room for it
	spansToCount chan struct{} // gets a token when there are spans to count
	idle         chan struct{} // closed when the tenure is lost and none of its entries is being published

	// Engine.mu guards the fields below.
	lost     bool // the tenure has ended: none of its entries may be released
	tookOver bool // the take-over succeeded
	state    engine.ShardState
	inflight int // entries being published

	// On-time loading. A row with FireAt <= loadedUntil goes into the wheel as soon as it is
	// stored. The next scan begins at scannedUntil or missedFrom, whichever is earlier. All three
	// are in ms since 1970.
	loadedUntil, scannedUntil, missedFrom int64
	// Catching up. The rows with fire times in [catchUpFrom, catchUpUntil) must still be loaded.
	// Rows with a fire time from catchUpAgain on must be loaded again.
	catchUpFrom, catchUpAgain, catchUpUntil int64
	uncounted                               []dueSpan // spans of the backlog that are not counted yet
	counting                                bool      // a span is being counted
	leftCount                               int64     // counted rows that are not released

	lookBehindDue bool          // closeMinutes must search for rows before the watermark
	lookedBehind  time.Duration // time of Engine.clock when lookBehindDue was last set
	tookOverAt    time.Duration // time of Engine.clock at the take-over
	minutes       map[int64]*minute
	loads         [2]laneLoad   // by lane
	storeWorked   time.Duration // time of Engine.clock when the store last answered without an error
}

type dueSpan struct{ from, to int64 }

// laneLoad counts the rows of one lane that are loaded and not acknowledged.
type laneLoad struct {
	unacked, bytes int
	full           bool // loading pauses
}

// minute is the state of a minute that is not dropped yet.
type minute struct {
	t       *tenure
	number  int64
	seen    map[rowID]struct{} // ids of the rows that were loaded
	unacked int                // loaded rows that are not acknowledged
	// complete is true if the minute was closed and, after that, scanned from start to end. It
	// becomes false again if an entry of the minute is forgotten later.
	complete  bool
	forgotten int // number of forgetLocked calls for entries of this minute
	decided   map[headDecision]headVerdict
}

type rowID struct{ a, b uint64 }

// idOf returns a hash of 128 bits that identifies a row. With fewer bits, two rows could get the same
// id, and one row would be lost.
func idOf(t *engine.Timer) rowID {
	h := notify.ColumnDigest(t.ID)
	return rowID{h ^ uint64(t.FireAt)*0x9e3779b97f4a7c15, notify.HashUser(append([]byte{1}, t.ID...))}
}

func newTenure(e *Engine, n uint16, trusted time.Duration) *tenure {
	t := &tenure{
		e: e, shard: n, missedFrom: math.MaxInt64, catchUpAgain: math.MaxInt64, minutes: map[int64]*minute{},
		heirSet: make(chan struct{}, 1), onTimeRoom: make(chan struct{}, 1), catchUpWake: make(chan struct{}, 1), spansToCount: make(chan struct{}, 1), idle: make(chan struct{}),
	}
	t.trustedUntil.Store(int64(trusted))
	return t
}

// ownsNow reports whether the shard certainly belongs to this engine now.
func (t *tenure) ownsNow() bool { return t.ownedFor() > 0 }

// ownedFor returns how long the shard will certainly belong to this engine.
func (t *tenure) ownedFor() time.Duration { return time.Duration(t.trustedUntil.Load()) - t.e.clock() }

// aliveLocked reports whether entries of the tenure may be released. The caller holds mu.
func (t *tenure) aliveLocked() bool { return !t.lost && t.ownsNow() }

// checkTrust returns an error if this engine may not load or write now.
func (t *tenure) checkTrust() error {
	switch {
	case !t.ownsNow():
		return errExpired
	case t.e.clockOff():
		return errClock
	}
	return nil
}

func (t *tenure) minuteLocked(at int64) *minute {
	m := t.minutes[at]
	if m == nil {
		m = &minute{t: t, number: at, seen: map[rowID]struct{}{}}
		t.minutes[at] = m
	}
	return m
}

// loadLocked puts a row into the wheel or the backlog. It returns false if the row was loaded
// before. The caller holds mu.
func (t *tenure) loadLocked(row *engine.Timer, due int64, lane Lane, ask headQuestion) bool {
	e, m := t.e, t.minuteLocked(row.FireAt/60_000)
	id := idOf(row)
	if _, dup := m.seen[id]; dup {
		return false
	}
	m.seen[id] = struct{}{}
	x := &entry{timer: *row, due: due, minute: m, lane: lane, pending: ask}
	m.unacked++
	l := &t.loads[x.lane]
	l.unacked++
	l.bytes += len(row.Payload)
	if l.unacked >= e.roomLocked(x.lane, e.cfg.MaxPending) || l.bytes >= e.roomLocked(x.lane, e.cfg.MaxBytes) {
		l.full = true
	}
	if x.lane == CatchUp {
		heap.Push(&e.releaser.backlog, x)
		wakeUp(e.releaser.backlogFilled)
	} else {
		e.releaser.wheel.Add(due, x)
		wakeUp(e.releaser.wheelFilled)
	}
	return true
}

// roomLocked returns how much of a limit one shard may use in a lane. All shards that this engine
// owns get equal parts of the limit. In the lane CatchUp they get only a quarter of it in total.
// The caller holds mu.
func (e *Engine) roomLocked(lane Lane, limit int) int {
	if lane == CatchUp {
		limit /= 4
	}
	return max(1, limit/max(1, e.owned))
}

// ackLocked removes an entry that is durable at its destination or was dropped. The caller holds
// mu.
func (r *releaser) ackLocked(x *entry) {
	if x.minute.t.lost {
		return // dropTenure has already reset the sums
	}
	x.minute.t.unloadLocked(x)
	if x.lane == CatchUp {
		x.minute.t.leftCount--
	}
}

// unloadLocked subtracts an entry from the counts of its minute and its lane. It resumes loading if
// the lane has enough room again. The caller holds mu.
func (t *tenure) unloadLocked(x *entry) {
	x.minute.unacked--
	l := &t.loads[x.lane]
	l.unacked--
	l.bytes -= len(x.timer.Payload)
	if l.full && l.unacked <= t.e.roomLocked(x.lane, t.e.cfg.MaxPending)/2 && l.bytes <= t.e.roomLocked(x.lane, t.e.cfg.MaxBytes)/2 {
		l.full = false
		if x.lane == CatchUp {
			wakeUp(t.catchUpWake)
		} else {
			wakeUp(t.onTimeRoom)
		}
	}
}

// forgetLocked drops an entry that could not be published. The catch-up will read its row again. So
// memory stays bounded in an outage of any length, and timers that become due later do not wait behind
// this entry in a queue. The caller holds mu.
func (t *tenure) forgetLocked(x *entry) {
	if t.lost {
		return
	}
	t.unloadLocked(x)
	delete(x.minute.seen, idOf(&x.timer))
	x.minute.complete = false
	x.minute.forgotten++
	if x.lane == OnTime {
		t.leftCount++
	}
	t.catchUpAgain = min(t.catchUpAgain, x.timer.FireAt)
	t.catchUpUntil = max(t.catchUpUntil, x.timer.FireAt+1)
	wakeUp(t.catchUpWake)
}

// dropTenure ends the tenure at once. It removes the tenure's entries from the wheel and the backlog.
// Batches that are not being published yet will leave these entries out. A second call does nothing.
func (e *Engine) dropTenure(t *tenure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.lost {
		return
	}
	t.lost = true
	mine := func(x *entry) bool { return x.minute.t == t }
	e.releaser.wheel.DeleteFunc(mine)
	e.releaser.backlog.deleteFunc(mine)
	clear(t.minutes)
	t.loads = [2]laneLoad{}
	if e.tenures[t.shard] == t {
		e.tenures[t.shard] = nil
		e.noteWatermarkLocked(t.shard, &t.state)
		e.owned--
	}
	if t.inflight == 0 {
		close(t.idle)
	}
}

// Pending returns the number of timers in memory, waiting or being published.
func (e *Engine) Pending() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pendingLocked()
}

func (e *Engine) pendingLocked() (n int) {
	for _, t := range e.tenures {
		if t != nil {
			n += t.loads[OnTime].unacked + t.loads[CatchUp].unacked
		}
	}
	return n
}

// renewPhases is the number of phases of the interval LeaseRenew. Each shard renews its lease in
// one of these phases, so that the renewals do not all happen at the same time.
const renewPhases = 16

// renew renews the lease until the tenure ends. It also ends the tenure if the clock is off, if the
// shard has an heir, or if the store is not reachable.
func (t *tenure) renew(ctx context.Context, expire *time.Timer) {
	e := t.e
	// Shards that were taken over together would always be renewed together, and there may be more
	// such shards than connections to the store. So the shards begin at different phases of the
	// interval.
	due := e.clock() + e.cfg.LeaseRenew*time.Duration(t.shard%renewPhases+1)/renewPhases
	if e.cfg.Lease == nil && e.cfg.ClockOffset == nil {
		due = math.MaxInt64 // no lease, and no offset that can change
	}
	for t.waitRenew(ctx, due) {
		switch t.heir = e.members.heirOf(t.shard); {
		case e.clockOff():
			t.end(errClock)
			return
		case t.heir != "":
			t.end(errHandedOver)
			return
		case e.storeUnreachable(t):
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
		call, stop := context.WithTimeout(ctx, t.ownedFor())
		ok, err := e.cfg.Lease.Renew(call, lockName(t.shard), e.cfg.Owner, e.cfg.LeaseTTL)
		stop()
		switch {
		case err != nil:
			e.complaints.report("cannot renew leases of timer shards", err)
			due = e.clock() + e.cfg.LeaseLook
		case !ok:
			t.end(errLeaseGone)
			return
		default:
			due = began + e.cfg.LeaseRenew
			until := began + e.cfg.LeaseTTL - e.cfg.LeaseMargin
			// If the lease has expired, the tenure stays lost, even if the renewal succeeded,
			// because the expire timer has already dropped it.
			if t.ownsNow() && expire.Reset(until-e.clock()) {
				t.trustedUntil.Store(int64(until))
			} else {
				t.end(errExpired)
				return
			}
		}
	}
}

// waitRenew waits until Engine.clock reaches renewAt, or until there is an heir. It returns false when
// ctx ends.
func (t *tenure) waitRenew(ctx context.Context, renewAt time.Duration) bool {
	timer := time.NewTimer(max(renewAt-t.e.clock(), 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.heirSet:
	case <-ctx.Done():
		return false
	}
	return ctx.Err() == nil
}

// run takes over the shard and works on it until ctx ends.
func (t *tenure) run(ctx context.Context) {
	if err := t.takeOver(ctx); err != nil {
		t.end(err)
		return
	}
	var work sync.WaitGroup
	work.Go(func() { t.runSweep(ctx) })
	work.Go(func() { t.catchUp(ctx) })
	work.Go(func() { t.tallySpans(ctx) })
	work.Wait()
}

// takeOver raises the term of the shard. From then on the store refuses the writes of earlier
// owners. If the store does not answer within LeaseTTL, takeOver fails, so that another engine can
// try. The store may answer that engine.
func (t *tenure) takeOver(ctx context.Context) error {
	e := t.e
	ctx, stop := context.WithTimeoutCause(ctx, e.cfg.LeaseTTL, errNoStore)
	defer stop()
	for pause := (notify.Pause{Most: time.Second}); ; {
		st, err := e.cfg.Store.Shard(ctx, t.shard)
		if !t.ownsNow() {
			return errExpired
		}
		if err == nil {
			st, err = e.cfg.Store.TakeOver(ctx, t.shard, st.Term, e.cfg.Owner)
		}
		if err == nil {
			t.becomeOwner(st)
			return nil
		}
		if notify.KindOf(err) != notify.KindConflict && ctx.Err() == nil {
			e.complaints.report("cannot take over timer shards", err)
		}
		if !pause.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
}

// becomeOwner registers the shard as owned after the take-over.
func (t *tenure) becomeOwner(st engine.ShardState) {
	e := t.e
	e.mu.Lock()
	if t.lost {
		e.mu.Unlock()
		return
	}
	t.state, t.tookOver, t.lookBehindDue = st, true, true
	// Scan all rows of the minutes after the watermark. There may also be rows before it, if a
	// writer died after their minute was closed. closeMinutes searches for them, because
	// lookBehindDue is true.
	t.scannedUntil = (st.Watermark + 1) * 60_000
	t.tookOverAt = e.clock()
	t.lookedBehind, t.storeWorked = t.tookOverAt, t.tookOverAt
	e.tenures[t.shard] = t
	e.owned++
	e.mu.Unlock()
	e.counters.tookOver.Add(1)
	wakeUp(e.shardGained)
	e.cfg.Events.Owned(t.shard, st.Term)
}

// loadParked is called with rows that were just stored. It puts a row into the wheel if loading has
// already passed the row's due time. It returns the rows of shards that this engine does not own.
// It skips rows of minutes that were closed in the meantime, because the writer stores these rows
// again.
func (e *Engine) loadParked(ps []parked, spread notify.Spread) (others []parked) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range ps {
		p := &ps[i]
		t := e.tenureOfLocked(engine.ShardOf(p.ID, spread))
		switch {
		case t == nil || !t.aliveLocked():
			others = append(others, *p)
		case p.FireAt/60_000 <= t.state.Closed:
		case p.due > t.loadedUntil: // loadAhead will load the row
		case t.loads[OnTime].full:
			t.missedFrom = min(t.missedFrom, p.FireAt)
		default:
			ask := e.heads.questionOf(&p.Timer, nil)
			if ask == needNothing && e.cfg.Schedules != nil && !p.Head.IsZero() {
				ask = needHints
			}
			t.loadLocked(&p.Timer, p.due, OnTime, ask)
		}
	}
	return others
}

// closedOf returns the last closed minute of a shard, if this engine owns the shard.
func (e *Engine) closedOf(n uint16) (last int64, owned bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenureOfLocked(n)
	if t == nil || !t.aliveLocked() {
		return 0, false
	}
	return t.state.Closed, true
}

func (e *Engine) termOf(n uint16) (term uint64, owned bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenureOfLocked(n)
	if t == nil || !t.aliveLocked() {
		return 0, false
	}
	return t.state.Term, true
}
