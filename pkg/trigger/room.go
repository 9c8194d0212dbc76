package trigger

import (
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// This file decides how many messages wait in memory, and which messages are put off.
//
// The queue of a caller's line has messages with their rows. After them wait messages whose rows
// are not read yet. These need little memory. Their rows are read when the queue of the line is
// half empty. A message that finds no room in either list is put off: it returns to the delay queue
// for a while.

// awaitRow adds messages to the lines of their callers, in the order of their arrival. The rows of
// these messages have not been read yet. awaitRow returns the messages whose rows must be read now,
// and puts off the messages for which there is no room. Most messages of a long backlog are put off
// here.
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

// readWithoutCall records that the rows of messages were read and lead to no call now. It frees the
// room that was reserved for these messages, so that other rows are read instead.
func (ls *lanes) readWithoutCall(ws ...*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range ws {
		ls.wasReadLocked(w, nil)
	}
}

// wasReadLocked frees the room that a line reserved for a message while its row was read. Then it
// starts to read further rows for the lane of the message, unless that is the lane in the parameter
// pumped. For that lane the code that calls wasReadLocked will call pumpLocked, which reads further
// rows.
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

// countReadLocked counts a message whose row will be read now (n is 1) or was read (n is -1).
func (ls *lanes) countReadLocked(w *work, l *lane, n int) {
	l.lines[w.line()].pendingReads += n
	ls.queued[w.line()] += n
	if w.toRead = l; n < 0 {
		w.toRead = nil
	}
}

// readMoreLocked starts to read rows for messages of a caller that wait without their rows. It does
// that when a line is at most half full, and reads one batch at a time.
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
		clear(some) // the remaining messages keep this array alive, so remove its references to the messages just sent
	}
}

// rowSize is the approximate memory of a message without its payload and its URL, in bytes.
const rowSize = 600

// roomLocked returns how many more messages a line of a caller may have. The line may use half of
// the free room, in messages and in bytes. So the first caller whose calls do not end leaves half
// of the room to the other callers, the second such caller leaves a quarter, and so on. Every
// caller may have at least one message. The backlog leaves half of the total room to messages on
// time.
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
// dispatch too. It is the number of messages that will be called within unreadFor, at the recent
// pace. The other processes may call the remaining messages sooner.
func (ls *lanes) fairShareLocked(l *lane) int {
	switch {
	case ls.isAlone():
		return math.MaxInt
	case l.endedCalls < paceCalls || l.callInterval <= 0: // the pace is not known yet
		return 4 * ls.d.cfg.Batch
	}
	return max(int(unreadFor/l.callInterval), ls.d.cfg.Batch)
}

// isAlone returns true if no other process dispatches.
func (ls *lanes) isAlone() bool { return ls.shareOfCalls() >= 1 }

// shareOfCalls returns which fraction of all calls this process makes, above 0 and at most 1.
func (ls *lanes) shareOfCalls() float64 {
	const whole = 1 << 20
	return float64(ls.d.cfg.Share(whole)) / whole
}

// freeRoomLocked returns how much of a limit is free for a line. Both lines share the limit, but
// the backlog may use at most half of it.
func (ls *lanes) freeRoomLocked(limit int, used *[2]int, of lineKind) int {
	free := limit - used[lineOnTime] - used[lineBacklog]
	if of == lineBacklog {
		free = min(free, limit/2-used[lineBacklog])
	}
	return free
}

const (
	// unreadShare is how many messages may wait without their rows, as a multiple of MaxQueued.
	unreadShare = 2
	// unreadFor is the longest time for which messages should wait without their rows, at the
	// recent pace. Further messages are put off, because another process might call them sooner.
	unreadFor = 3 * time.Second
)

// holdUnreadLocked adds a message to its caller's line, without its row. It returns false if there
// is no room, or if the waiting messages would need too long at the caller's pace.
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

// thinLinesLocked puts off messages that wait without their rows, if the receiver has become slow.
// If a line has more than four times its fair share (fairShareLocked) of messages with rows,
// thinLinesLocked puts off all messages above the fair share.
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

// longestAway is the longest wait of a message that is put off. The index is the number of times
// that the message was put off before. The first waits are short, because the first estimate of a
// receiver's pace is bad.
var longestAway = [...]time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, time.Minute}

const (
	// leastAway is the shortest wait of a message that is put off.
	leastAway = 50 * time.Millisecond
	// If a message waits longer than awayStep, the time of its return is rounded up to a multiple
	// of awayStep. Without rounding, messages would return one by one, and each would cost one
	// request to the queue.
	awayStep = 250 * time.Millisecond
)

// setAwayLocked sets how long a message without room is put off. It estimates when the calls of the
// messages before this message will be finished. The estimate uses a pace that is a quarter faster
// than the recent pace, so that messages return early enough even if the receiver gets faster. Each
// message gets its own return time, rounded to awayStep, so that a backlog does not return all at
// once. While other processes dispatch too, the first wait is leastAway, because these processes may
// have room for the message. They also receive what returns later, so messages must return at the
// pace of all processes together. Otherwise a process that has put off most of a backlog would slow
// down the other processes.
func (ls *lanes) setAwayLocked(l *lane, w *work, now time.Time) *work {
	if w.msg.deferrals == 0 && !ls.isAlone() {
		w.delay = leastAway
		return w
	}
	longest := longestAway[min(int(w.msg.deferrals), len(longestAway)-1)]
	each, q := time.Duration(float64(l.callInterval)*ls.shareOfCalls()*4/5), &l.lines[w.line()]
	// Count only half of the waiting messages, because the line must not become empty before the
	// message returns.
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
