package trigger

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// How many messages wait in memory, and which of them are put off.
//
// A caller's line holds messages with their rows. Behind it wait messages whose rows are
// not read yet: they take little memory, and are read when the line is half empty. A
// message that has no room behind the line either goes back to the queue for a while.

// awaitRow lets messages whose rows are not read wait behind their callers' lines, in the
// order in which they came. It returns those whose rows are to be read now, and puts off
// those for which there is no room: of a long backlog most messages end here.
func (ls *lanes) awaitRow(ws []*work) (read []*work) {
	now := time.Now()
	var off []*work
	ls.mu.Lock()
	for _, w := range ws {
		l := ls.ofDigestLocked(w.msg.caller)
		switch {
		case ls.stopping:
			read = append(read, w)
		case len(l.lines[w.line()].unread) == 0 && ls.roomLocked(l, w.line()) > 0:
			ls.countReadLocked(w, l, 1)
			read = append(read, w)
		case !ls.holdLocked(w, l):
			off = append(off, ls.awayLocked(l, w, now))
		}
	}
	ls.mu.Unlock()
	ls.d.putOff(CauseBulkhead, off...)
	return read
}

// readInVain says that the rows of messages were read and lead to no call now: lines keep
// no room for them any more, and others are read in their place.
func (ls *lanes) readInVain(ws ...*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range ws {
		ls.wasReadLocked(w, nil)
	}
}

// wasReadLocked gives back the room that a line kept for a message until its row was read.
// It reads others in its place, unless the caller pumps that lane.
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

// countReadLocked counts a message whose row is about to be read (1), or that is read (-1).
func (ls *lanes) countReadLocked(w *work, l *lane, n int) {
	l.lines[w.line()].reads += n
	ls.queued[w.line()] += n
	if w.toRead = l; n < 0 {
		w.toRead = nil
	}
}

// readMoreLocked reads rows of messages that wait behind the lines of a caller once a
// line is at most half full, a batch at a time.
func (ls *lanes) readMoreLocked(l *lane) {
	for of := range l.lines {
		q := &l.lines[of]
		room := ls.roomLocked(l, lineOf(of))
		if len(q.unread) == 0 || room < len(q.queue)+q.reads {
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
		clear(some) // the array lives on behind the rest
	}
}

// rowSize is about what a message in memory takes beside its payload.
const rowSize = 600

// roomLocked is how many more messages a line of a caller may have: it may have half of
// what is free, in messages and bytes. A caller that hangs leaves the other half to the
// rest, a second one a quarter, and so on; everybody may have one. The backlog leaves
// half of everything to what is on time.
func (ls *lanes) roomLocked(l *lane, of lineOf) int {
	q, cfg := &l.lines[of], &ls.d.cfg
	n := len(q.queue) + q.reads
	room := min(ls.freeRoomLocked(cfg.MaxQueued, &ls.queued, of)/2, ls.fairLocked(l))
	switch {
	case n == 0:
		return max(1, room)
	case q.bytes >= ls.freeRoomLocked(cfg.MaxQueuedBytes, &ls.bytes, of)/2:
		return 0
	}
	return max(0, room-n)
}

// fairLocked is how many messages a line of a caller may have where other processes dispatch
// beside this one: what is called within unreadFor, at the pace of lately. They may call the
// rest sooner.
func (ls *lanes) fairLocked(l *lane) int {
	switch {
	case ls.alone():
		return math.MaxInt
	case l.calls < paceCalls || l.each <= 0: // not known yet
		return 4 * ls.d.cfg.Batch
	}
	return max(int(unreadFor/l.each), ls.d.cfg.Batch)
}

// alone reports whether no other process dispatches.
func (ls *lanes) alone() bool {
	const whole = 1 << 20
	return ls.d.cfg.Share(whole) >= whole
}

// freeRoomLocked is what a line may share with others of most, of which both lines use some.
func (ls *lanes) freeRoomLocked(most int, used *[2]int, of lineOf) int {
	free := most - used[onTime] - used[backlog]
	if of == backlog {
		free = min(free, most/2-used[backlog])
	}
	return free
}

const (
	// unreadShare is how many times more messages may wait without their rows than with them.
	unreadShare = 2
	// unreadFor bounds the messages that wait without their rows: they must be called
	// within this time, at the pace of lately. Another process might call them sooner.
	unreadFor = 3 * time.Second
)

// holdLocked lets a message wait behind its caller's line. It returns false when there is
// no room, or when too many wait for the pace of the caller.
func (ls *lanes) holdLocked(w *work, l *lane) bool {
	of := w.line()
	q := &l.lines[of]
	full := len(q.unread) >= ls.freeRoomLocked(unreadShare*ls.d.cfg.MaxQueued, &ls.unread, of)/2
	if full || l.each*time.Duration(len(q.queue)+len(q.unread)) > unreadFor || ls.fairLocked(l) <= len(q.queue)+len(q.unread) {
		return false
	}
	w.row = engine.Trigger{}
	q.unread = append(q.unread, w)
	ls.unread[of]++
	return true
}

// thinLocked puts off what waits without its rows for a receiver that has become slow. A line
// that holds more than four times what it may (fairLocked) is cut to what it may hold.
func (ls *lanes) thinLocked(l *lane, now time.Time) {
	for of := range l.lines {
		q := &l.lines[of]
		if fair := ls.fairLocked(l); len(q.queue)/4 > fair {
			off := q.queue[fair:]
			q.queue = slices.Clone(q.queue[:fair])
			for _, w := range off {
				ls.countLocked(w, -1)
				ls.awayLocked(l, w, now)
			}
			ls.d.putOff(CauseBulkhead, off...)
		}
		if l.each*time.Duration(len(q.queue)+len(q.unread)) <= 4*unreadFor {
			continue
		}
		off := q.unread
		q.unread = nil
		ls.unread[of] -= len(off)
		for _, w := range off {
			ls.awayLocked(l, w, now)
		}
		ls.d.putOff(CauseBulkhead, off...)
	}
}

// patience bounds a wait by how often the message has waited before: the first
// guess at a receiver's pace is a bad one.
var patience = [...]time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, time.Minute}

const (
	// leastAway is the shortest time that a message stays away.
	leastAway = 50 * time.Millisecond
	// awayStep is what longer times are rounded up to, by the clock: messages that come back
	// one by one cost a request to the queue each.
	awayStep = 250 * time.Millisecond
)

// awayLocked sets how long a message that found no room should stay away: until those
// before it may have been called, as fast as calls went lately and a quarter faster, so
// that a receiver that speeds up is not kept waiting. Each such message takes a place of
// its own in time, to within awayStep: a backlog that was put off does not come back at once.
// Where other processes dispatch too, the first wait is leastAway: they may have room for it.
func (ls *lanes) awayLocked(l *lane, w *work, now time.Time) *work {
	if w.msg.deferrals == 0 && !ls.alone() {
		w.delay = leastAway
		return w
	}
	longest := patience[min(int(w.msg.deferrals), len(patience)-1)]
	each, q := l.each*4/5, &l.lines[w.line()]
	// After half of the waiting messages: the line must not run empty before it comes.
	if first := now.Add(each * time.Duration((len(q.queue)+len(q.unread))/2)); q.next.Before(first) {
		q.next = first
	}
	q.next = q.next.Add(each)
	wait := q.next.Sub(now)
	if wait > longest {
		q.next = now.Add(longest)
		wait = longest + spread(w.msg.base, uint32(w.msg.deferrals), longest/4)
	}
	if wait > awayStep {
		wait = now.Add(wait).Truncate(awayStep).Add(awayStep).Sub(now)
	}
	w.delay = max(wait, leastAway)
	return w
}
