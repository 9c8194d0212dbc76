package trigger

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// lanes decide which call comes next: each caller has a lane, with its bulkhead, its
// breaker and the messages that wait in memory for a place.
//
// Claims ahead. A claim waits for the disk, and a place that waits with it is no
// call. So of a caller whose receiver keeps a pace, some of the next calls are
// claimed before there is a place for them, many in one swap: as many as will be
// made in aheadFor. Until then they are IN_FLIGHT: a cancel is too late for them,
// and a crash leaves them to their leases, as it does those being called. What
// waits longer than aheadMost, because the receiver got stuck, is given back.
type lanes struct {
	d *Dispatcher

	mu       sync.Mutex
	byCaller map[string]*lane
	byDigest map[uint64]*lane // of their callers
	inFlight int              // calls under way, and claims for them
	queued   [2]int           // over all lanes, by line, with those about to be read
	bytes    [2]int           // of their rows
	unread   [2]int           // over all lanes, by line: they wait without their rows
	stopping bool
}

const (
	aheadFor  = 50 * time.Millisecond
	aheadMost = 2 * time.Second
	paceCalls = 128 // calls until a pace is believed
)

// lane is a caller at work. The lock of lanes guards it, but for the record, which
// has its own.
type lane struct {
	caller   string
	breaker  *limit.Breaker
	shown    limit.BreakerState // of the breaker, as Events was told last
	ramp     int                // bounds the calls at a time, see report
	limit    int                // calls at a time
	inFlight int
	lines    [2]line       // of what is on time, and of the backlog
	turn     int           // calls of what is on time since one of the backlog, while both waited
	ready    []*work       // claimed ahead: they wait for a place, not for a claim
	claiming int           // being claimed ahead
	calls    int           // that ended, up to paceCalls
	each     time.Duration // between the ends of two calls while more wait, smoothed
	ended    time.Time     // when a call ended last, while more waited; zero: none waited

	// The caller's record. Whoever has the token in refresh may read it anew.
	refresh chan struct{}
	record  *record
}

// line is what waits for a place, of one lane of the delay queue. See room.go.
type line struct {
	queue  []*work
	bytes  int       // of its rows
	reads  int       // messages whose rows are about to be read: there is room for them
	unread []*work   // behind them, without their rows
	next   time.Time // when the last message that was put off comes again
}

// lineOf is which of a caller's lines a message stands in.
type lineOf uint8

const (
	onTime lineOf = iota
	backlog
)

func (w *work) line() lineOf {
	if w.d.Backlog {
		return backlog
	}
	return onTime
}

// waiting is how many messages wait in both lines.
func (l *lane) waiting() int { return len(l.lines[onTime].queue) + len(l.lines[backlog].queue) }

func (ls *lanes) of(caller string) *lane {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.ofLocked(caller)
}

func (ls *lanes) ofLocked(caller string) *lane {
	l := ls.byCaller[caller]
	if l == nil {
		if l = ls.ofDigestLocked(callerDigest(caller)); l.caller != "" {
			l = ls.newLane() // two callers have that digest
		}
		l.caller = caller
		ls.byCaller[caller] = l
	}
	return l
}

// ofDigestLocked returns the lane of a caller of which a message was received. It has no name
// until a row of the caller's was read.
func (ls *lanes) ofDigestLocked(digest uint64) *lane {
	l := ls.byDigest[digest]
	if l == nil {
		l = ls.newLane()
		ls.byDigest[digest] = l
	}
	return l
}

func (ls *lanes) newLane() *lane {
	l := &lane{limit: ls.d.cfg.CallerInFlight, refresh: make(chan struct{}, 1)}
	l.resetBreaker(time.Now(), ls.d.cfg.Breaker)
	return l
}

// admit lets messages of one caller wait in their lines for their calls. Those that have
// no room there wait behind the lines again, or are put off.
func (ls *lanes) admit(l *lane, ws []*work) {
	var off, late []*work
	now := time.Now()
	ls.mu.Lock()
	for _, w := range ws {
		ls.wasReadLocked(w, l)
		w.lane = l
		switch {
		case ls.stopping:
			w.delay = 0
			late = append(late, w)
		case ls.roomLocked(l, w.line()) > 0:
			w.step = stepWait
			l.lines[w.line()].queue = append(l.lines[w.line()].queue, w)
			ls.countLocked(w, 1)
		case !ls.holdLocked(w, l):
			off = append(off, ls.awayLocked(l, w, now))
		}
	}
	ls.d.launch(ls.pumpLocked(l, now))
	ls.mu.Unlock()
	ls.d.putOff(CauseBulkhead, off...)
	ls.d.putOff(CauseShutdown, late...)
}

// countLocked counts a message into the lines (1) or out of them (-1).
func (ls *lanes) countLocked(w *work, n int) {
	size := n * (rowSize + len(w.row.Payload) + len(w.row.URL))
	w.lane.lines[w.line()].bytes += size
	ls.bytes[w.line()] += size
	ls.queued[w.line()] += n
}

// pumpLocked gives places to as many calls of a caller as may run. It claims the rows of
// the works that are not claimed yet. It launches the claimed ones but the last, which it
// returns: the caller must launch or call that one. While the breaker is open, pumpLocked puts
// off what waits in memory.
func (ls *lanes) pumpLocked(l *lane, now time.Time) (next *work) {
	d := ls.d
	var claim []*work
	started := false
	for len(l.ready)+l.waiting() > 0 && l.inFlight < ls.mayCallLocked(l) {
		ok, retryAt := l.breaker.Allow(now)
		if !ok {
			ls.shutLocked(l, retryAt.Sub(now))
			break
		}
		started = true
		l.inFlight++
		ls.inFlight++
		if w := pop(&l.ready); w != nil {
			w.slot = true
			d.launch(next)
			next = w
			continue
		}
		w := ls.nextLocked(l)
		w.slot = true
		claim = append(claim, w)
	}
	// By half of them at a time: few large claims, not many small ones.
	if most, has := ls.aheadLocked(l), len(l.ready)+l.claiming; has <= most/2 {
		for ; has < most && l.waiting() > 0; has++ {
			l.claiming++
			claim = append(claim, ls.nextLocked(l))
		}
	}
	l.showBreaker(now, &d.cfg.Events)
	if started {
		d.cfg.Events.inFlight(l.caller, l.inFlight)
	}
	d.send(stepClaim, claim...)
	ls.readMoreLocked(l)
	return next
}

// mayCallLocked is how many calls of a caller may run at a time, now.
func (ls *lanes) mayCallLocked(l *lane) int {
	return max(min(ls.d.cfg.Share(l.limit), l.ramp, (ls.d.cfg.MaxInFlight-ls.inFlight)/2), 1)
}

// aheadLocked is how many calls of a caller may be claimed ahead, now.
func (ls *lanes) aheadLocked(l *lane) int {
	if l.calls < paceCalls || l.each <= 0 || ls.stopping || l.ramp < l.limit || l.shown != limit.Closed {
		return 0
	}
	return int(min(aheadFor/l.each, time.Duration(ls.d.cfg.Batch)))
}

// nextLocked takes the message whose turn it is: of the backlog, while the other
// line has any, one of engine.BacklogShare.
func (ls *lanes) nextLocked(l *lane) *work {
	from := onTime
	switch prompt, late := len(l.lines[onTime].queue), len(l.lines[backlog].queue); {
	case prompt == 0:
		from = backlog
	case late > 0:
		if l.turn++; l.turn == engine.BacklogShare {
			l.turn, from = 0, backlog
		}
	}
	w := pop(&l.lines[from].queue)
	ls.countLocked(w, -1)
	return w
}

// pop takes the first of a list; nil when it is empty.
func pop(list *[]*work) (w *work) {
	if len(*list) == 0 {
		return nil
	}
	w, (*list)[0] = (*list)[0], nil
	if *list = (*list)[1:]; len(*list) == 0 {
		*list = nil
	}
	return w
}

// clearLocked takes all that waits in a lane's lines and behind them.
func (ls *lanes) clearLocked(l *lane) (all []*work) {
	for of := range l.lines {
		q := &l.lines[of]
		for _, w := range q.queue {
			ls.countLocked(w, -1)
		}
		ls.unread[of] -= len(q.unread)
		all = append(append(all, q.queue...), q.unread...)
		q.queue, q.unread = nil, nil
	}
	return all
}

// shutLocked puts off what waits for an open breaker, spread over a while so
// that it does not come back all at once.
func (ls *lanes) shutLocked(l *lane, wait time.Duration) {
	wait = max(wait, time.Second)
	all := ls.clearLocked(l)
	for _, w := range all {
		w.delay = min(wait+spread(w.msg.base, uint32(w.msg.deferrals), wait/2+time.Second), engine.MaxQueueDelay)
	}
	ls.d.putOff(CauseBreaker, all...)
	ls.returnLocked(l, CauseBreaker, min(wait, engine.MaxQueueDelay/2))
}

// returnLocked gives claims back that were made ahead.
func (ls *lanes) returnLocked(l *lane, cause string, wait time.Duration) {
	for w := pop(&l.ready); w != nil; w = pop(&l.ready) {
		ls.d.giveBack(w, cause, wait+spread(w.msg.base, uint32(w.msg.deferrals), wait/2))
	}
}

// claimedAhead settles the claims among ws that were made ahead: those that won
// wait for a place. won is nil if none did.
func (ls *lanes) claimedAhead(ws []*work, won []bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	var last *lane
	for i, w := range ws {
		if w.slot {
			continue
		}
		if last != nil && last != w.lane {
			ls.goOnLocked(last, now)
		}
		last = w.lane
		last.claiming--
		if len(won) > i && won[i] {
			last.ready = append(last.ready, w)
		}
	}
	if last != nil {
		ls.goOnLocked(last, now)
	}
}

func (ls *lanes) goOnLocked(l *lane, now time.Time) {
	if ls.stopping {
		ls.returnLocked(l, CauseShutdown, 0)
	} else {
		ls.d.launch(ls.pumpLocked(l, now))
	}
}

// free gives a place back whose work was not called. It returns the work that has the
// place now and must be launched or called, or nil.
func (ls *lanes) free(w *work) (next *work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !w.slot {
		return nil
	}
	return ls.freeLocked(w, time.Now())
}

// called gives a place back after a call, whose outcome the breaker counts. It returns
// what free returns.
func (ls *lanes) called(w *work, o limit.Outcome) (next *work) {
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.lane
	l.report(now, o)
	l.calls = min(l.calls+1, paceCalls)
	if !l.ended.IsZero() {
		l.each += (now.Sub(l.ended) - l.each) / 64
	}
	if l.ended = now; l.waiting()+len(l.ready)+l.claiming == 0 {
		l.ended = time.Time{} // what follows is no pace of the receiver's
	}
	return ls.freeLocked(w, now)
}

func (ls *lanes) freeLocked(w *work, now time.Time) (next *work) {
	w.slot = false
	w.lane.inFlight--
	ls.inFlight--
	ls.d.cfg.Events.inFlight(w.lane.caller, w.lane.inFlight)
	return ls.pumpLocked(w.lane, now)
}

// slacken gives back what waits too long for a place, and puts off what would, of every caller.
func (ls *lanes) slacken(ctx context.Context) {
	t := time.NewTicker(aheadMost / 2)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		ls.mu.Lock()
		for _, l := range ls.byCaller {
			ls.thinLocked(l, time.Now())
			if len(l.ready) > 0 && time.Since(l.ready[0].claimed) > aheadMost {
				l.calls, l.each = 0, 0 // the pace is another one now
				ls.returnLocked(l, CauseBulkhead, 50*time.Millisecond)
			}
		}
		ls.mu.Unlock()
	}
}

// stop lets no further message wait, and returns the messages that wait now. What was claimed
// ahead is given back.
func (ls *lanes) stop() (back []*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.stopping = true
	for _, l := range ls.byCaller {
		back = append(back, ls.clearLocked(l)...)
		ls.returnLocked(l, CauseShutdown, 0)
	}
	for _, l := range ls.byDigest {
		back = append(back, ls.clearLocked(l)...)
	}
	for _, w := range back {
		w.delay = 0
	}
	return back
}

// resetBreaker gives the lane a closed breaker that has counted nothing.
func (l *lane) resetBreaker(now time.Time, cfg limit.BreakerConfig) {
	l.breaker, _ = limit.NewBreaker(now, cfg) // NewDispatcher has checked it
	l.ramp = math.MaxInt
}

// report counts a call. After the breaker has closed, ramp bounds the calls at a
// time: as many as succeed are added, so that a receiver that has just come back does
// not get everything that waited for it at once.
func (l *lane) report(now time.Time, o limit.Outcome) {
	was := l.breaker.State(now).State
	l.breaker.Report(now, o)
	switch {
	case was != limit.Closed && l.breaker.State(now).State == limit.Closed:
		l.ramp = 1
	case o == limit.Healthy && l.ramp < math.MaxInt:
		l.ramp++
	}
}

// showBreaker tells of a state of the breaker that is another one than before.
func (l *lane) showBreaker(now time.Time, to *Events) {
	if is := l.breaker.State(now).State; is != l.shown {
		l.shown = is
		to.breaker(l.caller, is)
	}
}
