package trigger

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// lanes decide which call comes next. Each caller has a lane, with its bulkhead, its breaker and
// the messages that wait in memory for a place.
//
// Claims ahead: a claim waits for the disk, and a place that waits for its claim makes no call. So
// for a caller whose receiver keeps a pace, some of the next calls are claimed before there is a
// place for them, many in one swap: as many as will be made in aheadFor. Until their call they are
// IN_FLIGHT: they can no longer be cancelled, and a crash leaves them until their leases expire,
// like calls in progress. A claim that waits longer than aheadMost, because the receiver got stuck,
// is returned.
type lanes struct {
	d *Dispatcher

	mu       sync.Mutex
	byCaller map[string]*lane // by caller name
	byDigest map[uint64]*lane // by digest of the caller's name
	inFlight int              // calls in progress, and claims for them
	queued   [2]int           // waiting messages over all lanes, by line, including those whose rows are being read
	bytes    [2]int           // of their rows, by line
	unread   [2]int           // messages that wait without their rows, over all lanes, by line
	stopping bool
}

const (
	aheadFor  = 50 * time.Millisecond
	aheadMost = 2 * time.Second
	paceCalls = 128 // calls until a pace is known
)

// lane is the state of one caller. lanes.mu guards it, except record, which the token in refresh
// guards.
type lane struct {
	caller        string
	breaker       *limit.Breaker
	shownState    limit.BreakerState // the breaker state that was last passed to Events
	ramp          int                // bounds the calls at a time after the breaker closed, see report
	limit         int                // calls at a time
	inFlight      int
	lines         [2]waitLine   // by lineKind
	onTimeTurns   int           // on-time calls since the last backlog call, while both waited
	aheadReady    []*work       // claimed ahead: they wait only for a place
	aheadClaiming int           // number of claims ahead being written
	endedCalls    int           // calls that ended, up to paceCalls
	callInterval  time.Duration // time between the ends of two calls while more wait, smoothed
	lastEnd       time.Time     // when a call last ended while more waited; zero: none waited

	// The caller's record. The goroutine whose token is in refresh may read and replace it.
	refresh chan struct{}
	record  *callerRecord
}

// waitLine holds the messages of a caller that wait for a place, from one lane of the delay queue.
// See room.go.
type waitLine struct {
	queue        []*work
	bytes        int       // of the rows in queue
	pendingReads int       // messages whose rows are being read; there is room for them
	unread       []*work   // messages behind queue, without their rows
	nextReturn   time.Time // when the last message that was put off comes again
}

// lineKind says in which of a caller's lines a message waits.
type lineKind uint8

const (
	lineOnTime lineKind = iota
	lineBacklog
)

func (w *work) line() lineKind {
	if w.delivery.Backlog {
		return lineBacklog
	}
	return lineOnTime
}

// waiting returns how many messages wait with their rows, in both lines.
func (l *lane) waiting() int { return len(l.lines[lineOnTime].queue) + len(l.lines[lineBacklog].queue) }

func (ls *lanes) laneOf(caller string) *lane {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.laneOfLocked(caller)
}

func (ls *lanes) laneOfLocked(caller string) *lane {
	l := ls.byCaller[caller]
	if l == nil {
		if l = ls.laneOfDigestLocked(callerDigest(caller)); l.caller != "" {
			l = ls.newLane() // two callers have the same digest
		}
		l.caller = caller
		ls.byCaller[caller] = l
	}
	return l
}

// laneOfDigestLocked returns the lane of a caller by the digest in a message. The lane has no name
// until a row of the caller was read.
func (ls *lanes) laneOfDigestLocked(digest uint64) *lane {
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

// enqueue lets messages of one caller, whose rows were read, wait in their lines for their calls.
// Messages without room there wait behind the lines again, or are put off.
func (ls *lanes) enqueue(l *lane, ws []*work) {
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
		case !ls.holdUnreadLocked(w, l):
			off = append(off, ls.setAwayLocked(l, w, now))
		}
	}
	ls.d.launch(ls.pumpLocked(l, now))
	ls.mu.Unlock()
	ls.d.putOff(CauseBulkhead, off...)
	ls.d.putOff(CauseShutdown, late...)
}

// countLocked adds a message to the counts of the lines (n is 1) or subtracts it (-1).
func (ls *lanes) countLocked(w *work, n int) {
	size := n * (rowSize + len(w.row.Payload) + len(w.row.URL))
	w.lane.lines[w.line()].bytes += size
	ls.bytes[w.line()] += size
	ls.queued[w.line()] += n
}

// pumpLocked gives free places to waiting calls of a caller, and starts the claims of those that
// are not claimed yet. It launches the claimed ones except the last, which it returns: the caller
// must launch or call that one. If the breaker is open, pumpLocked puts off what waits in memory.
func (ls *lanes) pumpLocked(l *lane, now time.Time) (next *work) {
	d := ls.d
	var claim []*work
	started := false
	for len(l.aheadReady)+l.waiting() > 0 && l.inFlight < ls.mayCallLocked(l) {
		ok, retryAt := l.breaker.Allow(now)
		if !ok {
			ls.putOffAllLocked(l, retryAt.Sub(now))
			break
		}
		started = true
		l.inFlight++
		ls.inFlight++
		if w := pop(&l.aheadReady); w != nil {
			w.hasPlace = true
			d.launch(next)
			next = w
			continue
		}
		w := ls.nextLocked(l)
		w.hasPlace = true
		claim = append(claim, w)
	}
	// Claim half of them at a time: a few large claims instead of many small ones.
	if most, has := ls.aheadLocked(l), len(l.aheadReady)+l.aheadClaiming; has <= most/2 {
		for ; has < most && l.waiting() > 0; has++ {
			l.aheadClaiming++
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

// mayCallLocked returns how many calls of a caller may run at a time now.
func (ls *lanes) mayCallLocked(l *lane) int {
	return max(min(ls.d.cfg.Share(l.limit), l.ramp, (ls.d.cfg.MaxInFlight-ls.inFlight)/2), 1)
}

// aheadLocked returns how many calls of a caller may be claimed ahead now.
func (ls *lanes) aheadLocked(l *lane) int {
	if l.endedCalls < paceCalls || l.callInterval <= 0 || ls.stopping || l.ramp < l.limit || l.shownState != limit.Closed {
		return 0
	}
	return int(min(aheadFor/l.callInterval, time.Duration(ls.d.cfg.Batch)))
}

// nextLocked takes the next message. While both lines have messages, one of engine.BacklogShare
// comes from the backlog.
func (ls *lanes) nextLocked(l *lane) *work {
	from := lineOnTime
	switch prompt, late := len(l.lines[lineOnTime].queue), len(l.lines[lineBacklog].queue); {
	case prompt == 0:
		from = lineBacklog
	case late > 0:
		if l.onTimeTurns++; l.onTimeTurns == engine.BacklogShare {
			l.onTimeTurns, from = 0, lineBacklog
		}
	}
	w := pop(&l.lines[from].queue)
	ls.countLocked(w, -1)
	return w
}

// pop removes and returns the first of a list, or nil.
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

// takeAllLocked removes and returns all messages that wait in a lane's lines and behind them.
func (ls *lanes) takeAllLocked(l *lane) (all []*work) {
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

// putOffAllLocked puts off what waits for an open breaker. The delays are spread, so that the
// messages do not all come back at once.
func (ls *lanes) putOffAllLocked(l *lane, wait time.Duration) {
	wait = max(wait, time.Second)
	all := ls.takeAllLocked(l)
	for _, w := range all {
		w.delay = min(wait+jitterOf(w.msg.base, uint32(w.msg.deferrals), wait/2+time.Second), engine.MaxQueueDelay)
	}
	ls.d.putOff(CauseBreaker, all...)
	ls.returnAheadLocked(l, CauseBreaker, min(wait, engine.MaxQueueDelay/2))
}

// returnAheadLocked returns claims that were made ahead.
func (ls *lanes) returnAheadLocked(l *lane, cause string, wait time.Duration) {
	for w := pop(&l.aheadReady); w != nil; w = pop(&l.aheadReady) {
		ls.d.returnClaim(w, cause, wait+jitterOf(w.msg.base, uint32(w.msg.deferrals), wait/2))
	}
}

// claimedAhead ends the claims ahead among ws: those that won now wait for a place. won is nil if
// none did.
func (ls *lanes) claimedAhead(ws []*work, won []bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	var last *lane
	for i, w := range ws {
		if w.hasPlace {
			continue
		}
		if last != nil && last != w.lane {
			ls.continueLocked(last, now)
		}
		last = w.lane
		last.aheadClaiming--
		if len(won) > i && won[i] {
			last.aheadReady = append(last.aheadReady, w)
		}
	}
	if last != nil {
		ls.continueLocked(last, now)
	}
}

func (ls *lanes) continueLocked(l *lane, now time.Time) {
	if ls.stopping {
		ls.returnAheadLocked(l, CauseShutdown, 0)
	} else {
		ls.d.launch(ls.pumpLocked(l, now))
	}
}

// freePlace frees the place of work that was not called. It returns the work that has the place now
// and must be launched or called, or nil.
func (ls *lanes) freePlace(w *work) (next *work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !w.hasPlace {
		return nil
	}
	return ls.freePlaceLocked(w, time.Now())
}

// callEnded frees a place after a call, and reports the outcome to the breaker. It returns the same
// as freePlace.
func (ls *lanes) callEnded(w *work, o limit.Outcome) (next *work) {
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.lane
	l.report(now, o)
	l.endedCalls = min(l.endedCalls+1, paceCalls)
	if !l.lastEnd.IsZero() {
		l.callInterval += (now.Sub(l.lastEnd) - l.callInterval) / 64
	}
	if l.lastEnd = now; l.waiting()+len(l.aheadReady)+l.aheadClaiming == 0 {
		l.lastEnd = time.Time{} // the time until the next call says nothing about the receiver's pace
	}
	return ls.freePlaceLocked(w, now)
}

func (ls *lanes) freePlaceLocked(w *work, now time.Time) (next *work) {
	w.hasPlace = false
	w.lane.inFlight--
	ls.inFlight--
	ls.d.cfg.Events.inFlight(w.lane.caller, w.lane.inFlight)
	return ls.pumpLocked(w.lane, now)
}

// runThinning returns claims that wait too long for a place, and puts off messages that would, for
// every caller, until ctx ends.
func (ls *lanes) runThinning(ctx context.Context) {
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
			ls.thinLinesLocked(l, time.Now())
			if len(l.aheadReady) > 0 && time.Since(l.aheadReady[0].claimedAt) > aheadMost {
				l.endedCalls, l.callInterval = 0, 0 // the pace has changed
				ls.returnAheadLocked(l, CauseBulkhead, 50*time.Millisecond)
			}
		}
		ls.mu.Unlock()
	}
}

// stop makes lanes accept no further message, and returns the messages that wait now. It returns
// the claims made ahead.
func (ls *lanes) stop() (back []*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.stopping = true
	for _, l := range ls.byCaller {
		back = append(back, ls.takeAllLocked(l)...)
		ls.returnAheadLocked(l, CauseShutdown, 0)
	}
	for _, l := range ls.byDigest {
		back = append(back, ls.takeAllLocked(l)...)
	}
	for _, w := range back {
		w.delay = 0
	}
	return back
}

// resetBreaker gives the lane a new closed breaker without counts.
func (l *lane) resetBreaker(now time.Time, cfg limit.BreakerConfig) {
	l.breaker, _ = limit.NewBreaker(now, cfg) // NewDispatcher has checked it
	l.ramp = math.MaxInt
}

// report counts a call. After the breaker has closed, ramp bounds the calls at a time. It grows by
// one for each success, so that a receiver that has just recovered does not get everything that
// waited at once.
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

// showBreaker calls Events.Breaker if the breaker's state has changed.
func (l *lane) showBreaker(now time.Time, to *Events) {
	if is := l.breaker.State(now).State; is != l.shownState {
		l.shownState = is
		to.breaker(l.caller, is)
	}
}
