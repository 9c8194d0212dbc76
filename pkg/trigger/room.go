package trigger

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// How many messages wait in memory, and which of them are put off.
//
// A caller's line holds messages with their rows. Behind it wait messages whose rows are not read
// yet. These take little memory, and their rows are read when the line is half empty. A message
// without room behind the line either returns to the queue for a while.

// awaitRow lets messages whose rows are not read wait behind their callers' lines, in the order in
// which they came. It returns the messages whose rows must be read now. It puts off messages
// without room: most messages of a long backlog end here.
func (ls *lanes) awaitRow(ws []*work) (read []*work) {
	now := time.Now()
	var off []*work
	ls.mu.Lock()
	for _, w := range ws {
		l := ls.laneOfDigestLocked(w.msg.caller)
		switch {
		case ls.stopping:
			read = append(read, w)
		case len(l.lines[w.line()].unread) == 0 && ls.roomLocked(l, w.line()) > 0:
			ls.countReadLocked(w, l, 1)
			read = append(read, w)
		case !ls.holdUnreadLocked(w, l):
			off = append(off, ls.setAwayLocked(l, w, now))
		}
	}
	ls.mu.Unlock()
	ls.d.putOff(CauseBulkhead, off...)
	return read
}

// readWithoutCall notes that the rows of messages were read and lead to no call now. Their lines
// keep no room for them any more, and other rows are read instead.
func (ls *lanes) readWithoutCall(ws ...*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range ws {
		ls.wasReadLocked(w, nil)
	}
}

// wasReadLocked frees the room that a line kept for a message until its row was read. Then it reads
// other rows, unless the lane is pumped, because the caller of wasReadLocked will pump it.
func (ls *lanes) wasReadLocked(w *work, pumped *lane) {
	l := w.toRead
	if l == nil {
		return
	}
	ls.countReadLocked(w, l, -1)
	if l != pumped {
		ls.readMoreLocked(l)
	}
}

// countReadLocked notes that the row of a message is about to be read (n is 1) or was read (-1).
func (ls *lanes) countReadLocked(w *work, l *lane, n int) {
	l.lines[w.line()].pendingReads += n
	ls.queued[w.line()] += n
	if w.toRead = l; n < 0 {
		w.toRead = nil
	}
}

// readMoreLocked reads rows of messages that wait behind the lines of a caller, a batch at a time,
// once a line is at most half full.
func (ls *lanes) readMoreLocked(l *lane) {
	for of := range l.lines {
		q := &l.lines[of]
		room := ls.roomLocked(l, lineKind(of))
		if len(q.unread) == 0 || room < len(q.queue)+q.pendingReads {
			continue
		}
		n := min(room, len(q.unread), ls.d.cfg.Batch)
		some := q.unread[:n:n]
		if q.unread = q.unread[n:]; len(q.unread) == 0 {
			q.unread = nil
		}
		ls.unread[of] -= n
		for _, w := range some {
			ls.countReadLocked(w, l, 1)
		}
		ls.d.send(stepRead, some...)
		clear(some) // the array is still in use behind the remaining messages
	}
}

// rowSize is about the memory of a message without its payload, in bytes.
const rowSize = 600

// roomLocked returns how many more messages a line of a caller may have. It may have half of what
// is free, in messages and in bytes. So a caller that hangs leaves half to the others, a second one
// a quarter, and so on. Every caller may have one. The backlog leaves half of everything to
// messages on time.
func (ls *lanes) roomLocked(l *lane, of lineKind) int {
	q, cfg := &l.lines[of], &ls.d.cfg
	n := len(q.queue) + q.pendingReads
	room := min(ls.freeRoomLocked(cfg.MaxQueued, &ls.queued, of)/2, ls.fairShareLocked(l))
	switch {
	case n == 0:
		return max(1, room)
	case q.bytes >= ls.freeRoomLocked(cfg.MaxQueuedBytes, &ls.bytes, of)/2:
		return 0
	}
	return max(0, room-n)
}

// fairShareLocked returns how many messages a line of a caller may have while other processes
// dispatch too: as many as are called within unreadFor, at the recent pace. The other processes may
// call the rest sooner.
func (ls *lanes) fairShareLocked(l *lane) int {
	switch {
	case ls.alone():
		return math.MaxInt
	case l.endedCalls < paceCalls || l.callInterval <= 0: // not known yet
		return 4 * ls.d.cfg.Batch
	}
	return max(int(unreadFor/l.callInterval), ls.d.cfg.Batch)
}

// alone reports whether no other process dispatches.
func (ls *lanes) alone() bool {
	const whole = 1 << 20
	return ls.d.cfg.Share(whole) >= whole
}

// freeRoomLocked returns how much of the limit most is free for a line. Both lines use it.
func (ls *lanes) freeRoomLocked(most int, used *[2]int, of lineKind) int {
	free := most - used[lineOnTime] - used[lineBacklog]
	if of == lineBacklog {
		free = min(free, most/2-used[lineBacklog])
	}
	return free
}

const (
	// unreadShare is how many times more messages may wait without their rows than with them.
	unreadShare = 2
	// unreadFor bounds the messages that wait without their rows: they must be called within this
	// time at the recent pace. Another process might call them sooner.
	unreadFor = 3 * time.Second
)

// holdUnreadLocked lets a message wait behind its caller's line. It returns false if there is no
// room, or if too many messages wait for the caller's pace.
func (ls *lanes) holdUnreadLocked(w *work, l *lane) bool {
	of := w.line()
	q := &l.lines[of]
	full := len(q.unread) >= ls.freeRoomLocked(unreadShare*ls.d.cfg.MaxQueued, &ls.unread, of)/2
	if full || l.callInterval*time.Duration(len(q.queue)+len(q.unread)) > unreadFor || ls.fairShareLocked(l) <= len(q.queue)+len(q.unread) {
		return false
	}
	w.row = engine.Trigger{}
	q.unread = append(q.unread, w)
	ls.unread[of]++
	return true
}

// thinLinesLocked puts off messages without their rows if the receiver has become slow. It also
// cuts a line with more than four times its fair share (fairShareLocked) to that share.
func (ls *lanes) thinLinesLocked(l *lane, now time.Time) {
	for of := range l.lines {
		q := &l.lines[of]
		if fair := ls.fairShareLocked(l); len(q.queue)/4 > fair {
			off := q.queue[fair:]
			q.queue = slices.Clone(q.queue[:fair])
			for _, w := range off {
				ls.countLocked(w, -1)
				ls.setAwayLocked(l, w, now)
			}
			ls.d.putOff(CauseBulkhead, off...)
		}
		if l.callInterval*time.Duration(len(q.queue)+len(q.unread)) <= 4*unreadFor {
			continue
		}
		off := q.unread
		q.unread = nil
		ls.unread[of] -= len(off)
		for _, w := range off {
			ls.setAwayLocked(l, w, now)
		}
		ls.d.putOff(CauseBulkhead, off...)
	}
}

// longestAway bounds a wait by how often the message has waited before, because the first guess at
// a receiver's pace is a bad one.
var longestAway = [...]time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, time.Minute}

const (
	// leastAway is the shortest time that a message stays away.
	leastAway = 50 * time.Millisecond
	// awayStep is the clock interval to which longer waits are rounded up: messages that come back
	// one by one cost one request to the queue each.
	awayStep = 250 * time.Millisecond
)

// setAwayLocked sets how long a message without room stays away: until the messages before it may
// have been called, at the recent pace and a quarter faster, so that a receiver that speeds up does
// not run out of calls. Each such message gets a return time of its own, to within awayStep, so
// that a backlog does not come back all at once. While other processes dispatch too, the first wait
// is leastAway, because they may have room for the message.
func (ls *lanes) setAwayLocked(l *lane, w *work, now time.Time) *work {
	if w.msg.deferrals == 0 && !ls.alone() {
		w.delay = leastAway
		return w
	}
	longest := longestAway[min(int(w.msg.deferrals), len(longestAway)-1)]
	each, q := l.callInterval*4/5, &l.lines[w.line()]
	// After half of the waiting messages, because the line must not run empty before it comes.
	if first := now.Add(each * time.Duration((len(q.queue)+len(q.unread))/2)); q.nextReturn.Before(first) {
		q.nextReturn = first
	}
	q.nextReturn = q.nextReturn.Add(each)
	wait := q.nextReturn.Sub(now)
	if wait > longest {
		q.nextReturn = now.Add(longest)
		wait = longest + jitterOf(w.msg.base, uint32(w.msg.deferrals), longest/4)
	}
	if wait > awayStep {
		wait = now.Add(wait).Truncate(awayStep).Add(awayStep).Sub(now)
	}
	w.delay = max(wait, leastAway)
	return w
}
