package trigger

import (
	"time"
)

// How many messages wait in a caller's lines, and what is done about those for which there is no room.

// skim takes out messages whose callers' lines are full, as it looks, before
// their rows are read: of a long backlog most messages end here.
func (ls *lanes) skim(ws []*work) (rest []*work) {
	now := time.Now()
	var full []*work
	ls.mu.Lock()
	for _, w := range ws {
		l := ls.byDigest[w.msg.caller]
		if l != nil && ls.fullLocked(l, w.line()) {
			w.delay = l.waitLocked(w, now)
			full = append(full, w)
			continue
		}
		if l != nil {
			w.toRead = l
			ls.countReadLocked(w, 1)
		}
		rest = append(rest, w)
	}
	ls.mu.Unlock()
	ls.d.lookAgain(full)
	return rest
}

// reading says that the rows of messages are read now: lines keep no room for them.
func (ls *lanes) reading(ws []*work) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, w := range ws {
		if w.toRead != nil {
			ls.countReadLocked(w, -1)
			w.toRead = nil
		}
	}
}

// countReadLocked counts a message that skim let through (1), or that is read (-1).
func (ls *lanes) countReadLocked(w *work, n int) {
	w.toRead.lines[w.line()].reads += n
	ls.queued[w.line()] += n
}

// rowSize is about what a message in memory takes beside its payload.
const rowSize = 600

// fullLocked reports whether a line of a caller may grow no more: it may have
// half of what is free, in messages and bytes. A caller that hangs leaves the
// other half to the rest, a second one a quarter, and so on; everybody may have
// one. The backlog leaves half of everything to what is on time.
func (ls *lanes) fullLocked(l *lane, of lineOf) bool {
	q, cfg := &l.lines[of], &ls.d.cfg
	free, bytes := cfg.MaxQueued-ls.queued[onTime]-ls.queued[backlog], cfg.MaxQueuedBytes-ls.bytes[onTime]-ls.bytes[backlog]
	if of == backlog {
		free, bytes = min(free, cfg.MaxQueued/2-ls.queued[backlog]), min(bytes, cfg.MaxQueuedBytes/2-ls.bytes[backlog])
	}
	n := len(q.queue) + q.reads
	return n > 0 && (n >= free/2 || q.bytes >= bytes/2)
}

// patience bounds a wait by how often the message has waited before: the first
// guess at a receiver's pace is a bad one.
var patience = [...]time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, time.Minute}

// waitLocked is how long a message that found its caller's line full should
// stay away: until those before it may have been called, as fast as calls went
// lately and a quarter faster, so that a receiver that speeds up is not kept
// waiting. Each such message takes a place of its own in time: what was put off
// together does not come back together.
func (l *lane) waitLocked(w *work, now time.Time) time.Duration {
	longest := patience[min(int(w.msg.deferrals), len(patience)-1)]
	each, q := l.each*4/5, &l.lines[w.line()]
	// Half of the line: it must not run dry before they come.
	if first := now.Add(each * time.Duration(len(q.queue)/2)); q.next.Before(first) {
		q.next = first
	}
	q.next = q.next.Add(each)
	wait := q.next.Sub(now)
	if wait > longest {
		q.next = now.Add(longest)
		wait = longest + spread(w.msg.base, uint32(w.msg.deferrals), longest/4)
	}
	return max(wait, 50*time.Millisecond)
}
