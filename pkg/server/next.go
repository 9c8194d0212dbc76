package server

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// LaneStop is the reason why no call of a lane can be made now.
type LaneStop struct {
	Account string    // the provider or account that answered last
	Code    string    // error code of that answer
	Blocked bool      // true: the account asked notifyd to wait; false: the circuit of the account is open
	Until   time.Time // time of the next try
}

func (s LaneStop) String() string {
	if s.Blocked {
		return s.Account + " is blocked (" + orUnknown(s.Code) + ")"
	}
	return "the circuit of " + s.Account + " is open (" + orUnknown(s.Code) + ")"
}

// nextStep returns one or two sentences that say what happens next, and when.
func nextStep(d *Deps, k *knownNotification, cancelled bool) string {
	e := &k.found.Envelope
	left := k.findPending(d.Now())
	switch state := k.out.State; {
	case cancelled && !state.Terminal():
		return "It will not be sent: a worker marks it CANCELLED when it reads it."
	case state == notify.Delivered && left.open:
		return "A receipt says that it was delivered. " + left.afterReceipt(k)
	case state == notify.Failed && left.open:
		return "A receipt says that it failed (" + orUnknown(k.out.Code) + "); it is in the failed feed of " + e.Caller + ". " + left.afterReceipt(k)
	case state == notify.Sent:
		return "notifyd has nothing left to do; a receipt of the provider may still say whether it arrived."
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
		return "The provider may or may not have accepted it (" + orUnknown(k.out.Code) + "); it is in the failed feed of " + e.Caller + ". A receipt may settle that; nothing more happens by itself."
	case state == notify.Unknown:
		return "The provider may or may not have accepted it. A receipt may settle that; nothing more happens by itself."
	}
	deadline := ""
	if e.Expires != 0 {
		deadline = " It expires at " + formatTime(e.Expires) + "."
	}
	return waitReason(d, k, &left) + deadline
}

// waitReason returns what a notification without an outcome waits for.
func waitReason(d *Deps, k *knownNotification, left *pending) string {
	e, now := &k.found.Envelope, d.Now()
	x := left.deferred
	switch {
	case k.out.State == notify.Scheduled && e.NotBefore <= now.UnixMilli():
		return "It is due, and on its way to " + e.Lane().Topic() + "."
	case k.out.State == notify.Scheduled:
		return "It goes to " + e.Lane().Topic() + " at " + formatTime(e.NotBefore) + "."
	case left.claimed != nil && k.out.State == notify.Accepted:
		return "A worker has claimed it; its outcome follows the provider's answer."
	case left.claimed != nil:
		return fmt.Sprintf("A worker has claimed attempt %d; its outcome follows the provider's answer.", left.claimed.Key.Attempt+1)
	case left.heldByWorker:
		why := LaneStop{Account: x.Provider, Code: x.Code, Blocked: x.Class == notify.ClassThrottled}
		return "It waits until " + formatTime(x.Wake) + ": " + why.String() + "."
	case x == nil && e.NotBefore > now.UnixMilli():
		return "It goes to " + e.Lane().Topic() + " at " + formatTime(e.NotBefore) + "."
	case x == nil:
		return "It waits in " + e.Lane().Topic() + laneWaitReason(d, e) + "."
	case x.Wake == 0:
		return "It waits for a retry."
	case x.Wake <= now.UnixMilli():
		topic := e.Lane().Topic()
		if x.Retry || left.attempt > 0 {
			topic = e.Lane().DLQTopic()
		}
		return "It has been due since " + formatTime(x.Wake) + " (" + orUnknown(x.Code) + ") and waits in " + topic + laneWaitReason(d, e) + "."
	case x.Retry:
		return "It is retried at " + formatTime(x.Wake) + " (" + orUnknown(x.Code) + ")."
	}
	return "It waits until " + formatTime(x.Wake) + " (" + orUnknown(x.Code) + ")."
}

// laneWaitReason returns why the workers do not read the notifications of e's lane now.
func laneWaitReason(d *Deps, e *notify.Envelope) string {
	if d.Lanes != nil {
		if since, by, reason, ok := d.Lanes.Paused(e.Lane()); ok {
			return " until the lane is resumed: " + by + " paused " + e.Lane().String() + " at " + formatTime(since.UnixMilli()) + " (" + orUnknown(reason) + ")"
		}
	}
	if f := d.LaneStop; f != nil {
		if st, ok := f(e.Lane()); ok {
			return " until " + formatTime(st.Until.UnixMilli()) + ": " + st.String()
		}
	}
	if hold := d.MailHold; hold > 0 && e.Channel == notify.Email && !e.Category.Critical() {
		return " for a worker, which may hold it for up to " + hold.String() + " so that mails of the same content share a call"
	}
	return " for a worker"
}

// pending describes the attempt that has no outcome yet in the current epoch of a notification.
type pending struct {
	open         bool              // some attempt has no outcome yet
	deferred     *notify.Exception // the open deferral that ends first
	attempt      uint16            // attempt number in the row of the deferral or the claim
	heldByWorker bool              // a worker holds the notification; the deferral has the reason
	claimed      *notify.Row       // row of a worker that has claimed the notification
}

// afterReceipt returns what happens with the open attempt of a notification that a receipt has
// already ended.
func (o *pending) afterReceipt(k *knownNotification) string {
	switch {
	case o.claimed != nil && o.attempt == k.out.Attempt:
		return "The worker that made the call has not stored its outcome yet."
	case o.claimed != nil || o.heldByWorker:
		return fmt.Sprintf("Attempt %d is already claimed by a worker; it ends without a call, unless the call was under way before.", o.attempt+1)
	}
	return "Its retry at " + formatTime(o.deferred.Wake) + " will find the receipt and end without a call."
}

// findPending returns the attempt that has no outcome yet. It reads the rows in order, because each
// row ends the deferrals and claims of earlier rows.
func (k *knownNotification) findPending(now time.Time) (o pending) {
	for _, r := range orderedRows(k.rows) {
		pos, ok := positionOf(r, k.found.ID.Index, k.found.Pos)
		if !ok || r.Key.Epoch != k.out.Epoch || r.Key.Kind != notify.RowOutcome {
			continue
		}
		x, waits := r.DeferredAt(pos)
		switch {
		case !isSettled(r, pos) && pos >= r.StartedUpTo:
			continue
		case waits && x.Wake > now.UnixMilli():
			o = pending{open: true, deferred: &x, attempt: r.Key.Attempt, heldByWorker: true}
			continue
		case !isSettled(r, pos):
			o = pending{open: true, claimed: r, attempt: r.Key.Attempt}
			continue
		}
		o = pending{} // this row ends the earlier deferrals and claims
		for _, x := range outcomesAt(r, pos) {
			if x.State == notify.Deferred && (o.deferred == nil || x.Wake < o.deferred.Wake) {
				o = pending{open: true, deferred: &x, attempt: r.Key.Attempt}
			}
		}
	}
	return o
}

func formatTime(ms int64) string { return timeOf(ms).Format("2006-01-02T15:04:05.000Z07:00") }

func orUnknown(code string) string {
	if code == "" {
		return "no reason given"
	}
	return code
}
