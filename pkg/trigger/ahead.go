package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
)

// Claims ahead. A claim waits for the disk, and a place that waits with it is no
// call. So of a caller whose receiver keeps a pace, some of the next calls are
// claimed before there is a place for them, many in one swap: as many as will be
// made in aheadFor. Until then they are IN_FLIGHT: a cancel is too late for them,
// and a crash leaves them to their leases, as it does those being called. What
// waits longer than aheadMost, because the receiver got stuck, is given back.
const (
	aheadFor  = 50 * time.Millisecond
	aheadMost = 2 * time.Second
	paceCalls = 128 // calls until a pace is believed
)

// aheadLocked is how many calls of a caller may be claimed ahead, now.
func (d *Dispatcher) aheadLocked(l *lane) int {
	if l.calls < paceCalls || l.each <= 0 || d.stopping || l.brk.ramp < l.limit || l.brk.last != limit.Closed {
		return 0
	}
	return int(min(aheadFor/l.each, time.Duration(d.cfg.Batch)))
}

// claimedAhead settles the claims among ws that were made ahead: those that won
// wait for a place.
func (d *Dispatcher) claimedAhead(ws []*work, won []bool) {
	var lanes []*lane
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, w := range ws {
		if w.slot {
			continue
		}
		l := w.lane
		l.claiming--
		if len(won) > 0 && won[i] {
			l.ready = append(l.ready, w)
		}
		if len(lanes) == 0 || lanes[len(lanes)-1] != l {
			lanes = append(lanes, l)
		}
	}
	now := time.Now()
	for _, l := range lanes {
		if d.stopping {
			d.returnLocked(l, CauseShutdown, 0)
		} else {
			d.pumpLocked(l, now)
		}
	}
}

// returnLocked gives claims back that were made ahead.
func (d *Dispatcher) returnLocked(l *lane, cause string, wait time.Duration) {
	for w := pop(&l.ready); w != nil; w = pop(&l.ready) {
		d.giveBack(w, cause, wait+spread(w.msg.base, uint32(w.msg.deferrals), wait/2))
	}
}

// slacken gives back what waits too long for a place, of every caller.
func (d *Dispatcher) slacken(ctx context.Context) {
	t := time.NewTicker(aheadMost / 2)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		for _, l := range d.lanes {
			if len(l.ready) > 0 && time.Since(l.ready[0].claimed) > aheadMost {
				l.calls, l.each = 0, 0 // the pace is another one now
				d.returnLocked(l, CauseBulkhead, 50*time.Millisecond)
			}
		}
		d.mu.Unlock()
	}
}
