package trigger

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// lanes decide which call is made next. Each caller has a lane: its limit of calls in progress, its
// breaker, and its messages in memory that wait for a place. A place is the right to have one call
// in progress.
//
// A claim is a write that waits for the disk, and while a place waits for a claim, it has no call
// in progress. So if a receiver answers at a steady pace, its next calls are claimed ahead: before
// there are places for them, and many in one swap. Only calls that will start within aheadFor are
// claimed ahead. Until such a call starts, its trigger is IN_FLIGHT and can no longer be cancelled.
// After a crash the trigger waits until its lease expires, like a call in progress. If the receiver
// stops answering, the lane gives back claims that have waited longer than aheadMost.
type lanes struct {
	d *Dispatcher

	mu       sync.Mutex
	byCaller map[string]*lane // by caller name
	byDigest map[uint64]*lane // by digest of the caller's name
	inFlight int              // calls in progress, and claims that have a place
	// Messages of all lanes that wait with their rows, or whose rows are being read, by lineKind.
	queued   [2]int
	bytes    [2]int // bytes of the rows of the waiting messages, by lineKind
	unread   [2]int // messages of all lanes that wait without their rows, by lineKind
	stopping bool
}

const (
	aheadFor  = 50 * time.Millisecond
	aheadMost = 2 * time.Second
	paceCalls = 128 // calls until the pace of a receiver is known
)

// lane is the state of one caller. The mutex lanes.mu guards all its fields except record, which is
// guarded by the token in refresh.
type lane struct {
	caller     string
	breaker    *limit.Breaker
	shownState limit.BreakerState // breaker state that was last passed to Events
	// ramp limits the calls in progress while a receiver recovers; see recordOutcome.
	ramp          int
	limit         int // calls that may be in progress at the same time
	inFlight      int
	lines         [2]waitLine   // by lineKind
	onTimeTurns   int           // on-time calls since the last backlog call, while both lines had messages
	aheadReady    []*work       // claimed ahead: they only wait for a place
	aheadClaiming int           // number of claims ahead that are being written
	endedCalls    int           // calls that ended; the count stops at paceCalls
	callInterval  time.Duration // smoothed time between the ends of two calls, while messages wait
	lastEnd       time.Time     // when the last call ended; zero: no message waited at that time

	// refresh is used as a lock. It is a channel with room for one token, and only the goroutine
	// whose token is in the channel may read or replace the caller's record, the next field.
	refresh chan struct{}
	record  *callerRecord
}

// waitLine has the messages of a caller that wait for a place: either the messages on time or the
// messages of the backlog (lineKind). See room.go.
type waitLine struct {
	queue        []*work
	bytes        int       // bytes of the rows in the field queue
	pendingReads int       // messages whose rows are being read; room is reserved for them
	unread       []*work   // messages after those in the field queue, without their rows
	nextReturn   time.Time // when the last message that was put off becomes visible again
}

// lineKind is one of the two lines of a caller: messages on time, or messages of the backlog.
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

// waiting returns how many messages wait with their rows, in both lines together.
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

// laneOfDigestLocked returns the lane for the caller digest in a message. The lane has no caller
// name until a row of the caller was read.
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

// enqueue adds messages of one caller to their lines, after their rows were read. If a line has no
// room for a message, the message waits without its row again, or is put off.
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

// countLocked adds a message to the counts of the lines if n is 1. It subtracts the message if n is
// -1.
func (ls *lanes) countLocked(w *work, n int) {
	size := n * (rowSize + len(w.row.Payload) + len(w.row.URL))
	w.lane.lines[w.line()].bytes += size
	ls.bytes[w.line()] += size
	ls.queued[w.line()] += n
}

// pumpLocked gives the free places of a caller to its waiting messages. If a message is not claimed
// yet, pumpLocked starts its claim. If a message was claimed ahead, pumpLocked launches its call.
// It does not launch the last of these calls but returns it: the code that calls pumpLocked must
// launch or make this call. If the breaker is open, pumpLocked puts off all waiting messages of the
// caller.
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
	// Claim ahead only when at most half of the allowed claims ahead exist, so that there are few
	// large swaps instead of many small ones.
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

// mayCallLocked returns how many calls of a caller may be in progress now.
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

// nextLocked removes and returns the next message. While both lines have messages, one of every
// engine.BacklogShare messages is from the backlog.
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

// pop removes and returns the first element of a list. It returns nil if the list is empty.
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

// takeAllLocked removes and returns all messages in the lines of a lane, with and without their
// rows.
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

// putOffAllLocked puts off all waiting messages of a lane whose breaker is open, and gives back the
// claims made ahead. It spreads the delays, so that the messages do not all return at the same
// time.
func (ls *lanes) putOffAllLocked(l *lane, wait time.Duration) {
	wait = max(wait, time.Second)
	all := ls.takeAllLocked(l)
	for _, w := range all {
		w.delay = min(wait+jitterOf(w.msg.base, uint32(w.msg.deferrals), wait/2+time.Second), engine.MaxQueueDelay)
	}
	ls.d.putOff(CauseBreaker, all...)
	ls.returnAheadLocked(l, CauseBreaker, min(wait, engine.MaxQueueDelay/2))
}

// returnAheadLocked gives back the claims of a lane that were made ahead.
func (ls *lanes) returnAheadLocked(l *lane, cause string, wait time.Duration) {
	for w := pop(&l.aheadReady); w != nil; w = pop(&l.aheadReady) {
		ls.d.returnClaim(w, cause, wait+jitterOf(w.msg.base, uint32(w.msg.deferrals), wait/2))
	}
}

// afterClaimAhead is called after a swap of claims. A message in ws that has no place was claimed
// ahead. If its claim was written, the message now waits for a place. The parameter won says for
// each message whether its claim was written. If won is nil, no claim was written.
func (ls *lanes) afterClaimAhead(ws []*work, won []bool) {
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

// freePlace frees the place of a message that was not called. It returns the next message for this
// place, or nil. The code that calls freePlace must launch or call the returned message.
func (ls *lanes) freePlace(w *work) (next *work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !w.hasPlace {
		return nil
	}
	return ls.freePlaceLocked(w, time.Now())
}

// callEnded frees the place of a call that has ended, and reports the outcome to the breaker. Like
// freePlace, it returns the next message for the place.
func (ls *lanes) callEnded(w *work, o limit.Outcome) (next *work) {
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := w.lane
	l.recordOutcome(now, o)
	l.endedCalls = min(l.endedCalls+1, paceCalls)
	if !l.lastEnd.IsZero() {
		l.callInterval += (now.Sub(l.lastEnd) - l.callInterval) / 64
	}
	if l.lastEnd = now; l.waiting()+len(l.aheadReady)+l.aheadClaiming == 0 {
		l.lastEnd = time.Time{} // the time until the next call would say nothing about the receiver's pace
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

// runThinning runs until ctx ends. For every caller it gives back claims that have waited too long
// for a place, and puts off messages that would wait too long.
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
				l.endedCalls, l.callInterval = 0, 0 // the old pace is not valid any more
				ls.returnAheadLocked(l, CauseBulkhead, 50*time.Millisecond)
			}
		}
		ls.mu.Unlock()
	}
}

// stop makes the lanes refuse further messages. It returns the messages that wait now, and gives
// back the claims made ahead.
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

// resetBreaker gives the lane a new closed breaker whose counts are 0.
func (l *lane) resetBreaker(now time.Time, cfg limit.BreakerConfig) {
	l.breaker, _ = limit.NewBreaker(now, cfg) // NewDispatcher has checked cfg
	l.ramp = math.MaxInt
}

// recordOutcome reports the outcome of a call to the breaker. After the breaker has closed, the
// field ramp limits the number of calls in progress. This limit starts at 1 and grows by one for
// each success. So a receiver that has just recovered does not get all waiting calls at once.
func (l *lane) recordOutcome(now time.Time, o limit.Outcome) {
	was := l.breaker.State(now).State
	l.breaker.Report(now, o)
	switch {
	case was != limit.Closed && l.breaker.State(now).State == limit.Closed:
		l.ramp = 1
	case o == limit.Healthy && l.ramp < math.MaxInt:
		l.ramp++
	}
}

// showBreaker calls Events.Breaker if the breaker's state has changed since the last call.
func (l *lane) showBreaker(now time.Time, events *Events) {
	if state := l.breaker.State(now).State; state != l.shownState {
		l.shownState = state
		events.breaker(l.caller, state)
	}
}
