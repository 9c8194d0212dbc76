package server

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Standing is why no call of a lane can be made now.
type Standing struct {
	Account string    // the provider, or the account of it, that answered last
	Code    string    // what it answered
	Blocked bool      // it asked for a pause; else its circuit is open
	Until   time.Time // when it is tried again
}

func (s Standing) String() string {
	if s.Blocked {
		return s.Account + " is blocked (" + orUnknown(s.Code) + ")"
	}
	return "the circuit of " + s.Account + " is open (" + orUnknown(s.Code) + ")"
}

// nextStep says in one sentence, or two, what happens next, and when.
func nextStep(d *Deps, k *known, cancelled bool) string {
	e := &k.found.Envelope
	left := k.pending(d.Now())
	switch state := k.out.State; {
	case cancelled && !state.Terminal():
		return "It will not be sent: a worker marks it CANCELLED when it meets it."
	case state == notify.Delivered && left.any:
		return "A receipt says that it was delivered. " + left.end(k)
	case state == notify.Failed && left.any:
		return "A receipt says that it failed (" + orUnknown(k.out.Code) + "); it is in the failed feed of " + e.Caller + ". " + left.end(k)
	case state == notify.Sent:
		return "Nothing is left to do here; a receipt of the provider may still say whether it arrived."
	case state == notify.Delivered:
		return "It was delivered; nothing more happens."
	case state == notify.Failed:
		return "It failed for good (" + orUnknown(k.out.Code) + ") and is in the failed feed of " + e.Caller + "; nothing more happens by itself."
	case state == notify.Suppressed:
		return "It was not sent (" + orUnknown(k.out.Code) + "); nothing more happens."
	case state == notify.Expired:
		return "Its deadline passed before it could be sent; nothing more happens."
	case state == notify.Cancelled:
		return "It was cancelled; nothing more happens."
	case state == notify.Unknown && state.InFailedFeed(e.Category):
		return "The provider may or may not have taken it (" + orUnknown(k.out.Code) + "); it is in the failed feed of " + e.Caller + ", and a receipt settles that; nothing more happens by itself."
	case state == notify.Unknown:
		return "The provider may or may not have taken it; a receipt settles that; nothing more happens by itself."
	}
	deadline := ""
	if e.Expires != 0 {
		deadline = " It expires at " + stamp(e.Expires) + "."
	}
	return waitsFor(d, k, &left) + deadline
}

// waitsFor says what a notification without an outcome waits for.
func waitsFor(d *Deps, k *known, left *pending) string {
	e, now := &k.found.Envelope, d.Now()
	x := left.deferred
	switch {
	case k.out.State == notify.Scheduled && e.NotBefore <= now.UnixMilli():
		return "It is due, and on its way to " + e.Lane().Topic() + "."
	case k.out.State == notify.Scheduled:
		return "It goes to " + e.Lane().Topic() + " at " + stamp(e.NotBefore) + "."
	case left.claimed != nil && k.out.State == notify.Accepted:
		return "A worker has claimed it; its outcome follows the provider's answer."
	case left.claimed != nil:
		return fmt.Sprintf("A worker has claimed attempt %d; its outcome follows the provider's answer.", left.claimed.Key.Attempt+1)
	case left.held:
		why := Standing{Account: x.Provider, Code: x.Code, Blocked: x.Class == notify.ClassThrottled}
		return "It waits until " + stamp(x.Wake) + ": " + why.String() + "."
	case x == nil && e.NotBefore > now.UnixMilli():
		return "It goes to " + e.Lane().Topic() + " at " + stamp(e.NotBefore) + "."
	case x == nil:
		return "It waits in " + e.Lane().Topic() + workerWait(d, e) + "."
	case x.Wake == 0:
		return "It waits to be tried again."
	case x.Wake <= now.UnixMilli():
		topic := e.Lane().Topic()
		if x.Retry || left.attempt > 0 {
			topic = e.Lane().DLQTopic()
		}
		return "It has been due since " + stamp(x.Wake) + " (" + orUnknown(x.Code) + ") and waits in " + topic + workerWait(d, e) + "."
	case x.Retry:
		return "It is tried again at " + stamp(x.Wake) + " (" + orUnknown(x.Code) + ")."
	}
	return "It waits until " + stamp(x.Wake) + " (" + orUnknown(x.Code) + ")."
}

// workerWait says what keeps the worker of a lane from what waits there.
func workerWait(d *Deps, e *notify.Envelope) string {
	if d.Lanes != nil {
		if since, by, reason, ok := d.Lanes.Paused(e.Lane()); ok {
			return " until the lane is resumed: " + by + " paused " + e.Lane().String() + " at " + stamp(since.UnixMilli()) + " (" + orUnknown(reason) + ")"
		}
	}
	if f := d.Standing; f != nil {
		if st, ok := f(e.Lane()); ok {
			return " until " + stamp(st.Until.UnixMilli()) + ": " + st.String()
		}
	}
	if hold := d.MailHold; hold > 0 && e.Channel == notify.Email && !e.Category.Critical() {
		return " for a worker, which may hold it for up to " + hold.String() + " so that mails of the same content share a call"
	}
	return " for a worker"
}

// pending is what has no outcome yet of the current epoch of a notification.
type pending struct {
	any      bool              // something has not
	deferred *notify.Exception // the deferral that nothing answers yet, that of the earliest wake
	attempt  uint16            // of the row that said so
	held     bool              // by its worker: deferred says what for
	claimed  *notify.Row       // the row of a worker that has begun to answer it
}

// end says what becomes of what is left of a notification that a receipt has
// ended.
func (o *pending) end(k *known) string {
	switch {
	case o.claimed != nil && o.attempt == k.out.Attempt:
		return "The worker that called has not written that down yet."
	case o.claimed != nil || o.held:
		return fmt.Sprintf("Attempt %d, which a worker has claimed already, ends without a call unless that was under way before.", o.attempt+1)
	}
	return "Its retry at " + stamp(o.deferred.Wake) + " finds that, and ends without a call."
}

// pending walks the rows in the order in which each answers the one before.
func (k *known) pending(now time.Time) (o pending) {
	for _, r := range ordered(k.rows) {
		pos, ok := position(r, k.found.ID.Index, k.found.Pos)
		if !ok || r.Key.Epoch != k.out.Epoch || r.Key.Kind != notify.RowOutcome {
			continue
		}
		x, waits := r.Waits(pos)
		switch {
		case !settled(r, pos) && pos >= r.StartedUpTo:
			continue
		case waits && x.Wake > now.UnixMilli():
			o = pending{any: true, deferred: &x, attempt: r.Key.Attempt, held: true}
			continue
		case !settled(r, pos):
			o = pending{any: true, claimed: r, attempt: r.Key.Attempt}
			continue
		}
		o = pending{} // an earlier envelope is answered by this one
		for _, x := range outcomesAt(r, pos) {
			if x.State == notify.Deferred && (o.deferred == nil || x.Wake < o.deferred.Wake) {
				o = pending{any: true, deferred: &x, attempt: r.Key.Attempt}
			}
		}
	}
	return o
}

func stamp(ms int64) string { return moment(ms).Format("2006-01-02T15:04:05.000Z07:00") }

func orUnknown(code string) string {
	if code == "" {
		return "no reason given"
	}
	return code
}
