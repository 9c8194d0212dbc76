package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

// cancelBinds is the time that a cancellation needs to reach all workers. After this time no worker
// starts a call for a cancelled notification.
const cancelBinds = time.Second

// errNoNotification returns the same error for a missing notification and for a notification of
// another caller, so that a caller cannot tell the difference.
func errNoNotification() error { return notify.NotFound("notification") }

// indexMissing returns the error for the id of a fan-out on a route that needs a single receiver.
func indexMissing(k *knownNotification) error {
	return notify.Invalid("index_missing", "id", "this is a fan-out; give one receiver by its index, e.g. "+k.found.ID.String())
}

// knownNotification is one notification with everything stored about it.
type knownNotification struct {
	found engine.Found
	rows  []notify.Row
	out   notify.Outcome
	// scheduled is set if the notification is not in the history, because it is scheduled or was
	// cancelled before it was due.
	scheduled *schedule.View
}

// findNotification returns a notification that the request may see. The result fanout is true if
// the parameter raw is the id of a fan-out request and not of one of its receivers. Then k.found is
// the first receiver of the fan-out or, if k.scheduled is set, contains no receiver.
func findNotification(x *exchange, raw string) (k knownNotification, fanout bool, err error) {
	ctx, st := x.r.Context(), x.srv.deps
	id, err := notify.ParseID(raw)
	if err != nil {
		return k, false, errNoNotification() // no notification has such an id
	}
	k.found, err = st.History.Find(ctx, id)
	switch {
	case err == nil && id.FanOut != k.found.Envelope.FanOut:
		if id.FanOut { // ntf_X-0 of a single notification
			return k, false, errNoNotification()
		}
		fanout = true
	case !id.FanOut && err != nil && isMissing(err):
		if k.found, err = firstReceiver(x, id.Base); err != nil {
			if isMissing(err) {
				return findWaitingOr(x, id, err)
			}
			return k, false, err
		}
		fanout = true
	case err != nil && isMissing(err):
		return findWaitingOr(x, id, err)
	case err != nil:
		return k, false, err
	}
	if !x.sees(k.found.Envelope.Caller) {
		return k, false, errNoNotification()
	}
	if fanout {
		return k, true, nil
	}
	err = k.load(ctx, st.Status)
	return k, false, err
}

// findWaitingOr calls findWaiting. If findWaiting finds nothing, it returns historyErr, the error
// that the search in the history returned before.
func findWaitingOr(x *exchange, id notify.ID, historyErr error) (knownNotification, bool, error) {
	k, fanout, err := findWaiting(x, id)
	if err != nil && notify.KindOf(err) == notify.KindNotFound {
		err = historyErr
	}
	return k, fanout, err
}

// isMissing returns true if err means that the notification was not found, or that the log has lost
// its record. Other parts of the same fan-out may still exist.
func isMissing(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return notify.KindOf(err) == notify.KindNotFound || ok && e.Code == history.CodeRecordLost
}

// load reads the rows of a found notification and computes its state from them.
func (k *knownNotification) load(ctx context.Context, st engine.Status) (err error) {
	if k.rows, err = st.Chunk(ctx, k.found.Envelope.Chunk); err != nil {
		return err
	}
	k.fold()
	return nil
}

func (k *knownNotification) fold() {
	if k.scheduled != nil {
		k.out = notify.Outcome{State: waitingState(k.scheduled), Updated: k.scheduled.Touched}
		return
	}
	k.out = notify.Fold(k.rows, k.found.ID.Index, k.found.Pos)
}

// firstReceiver returns the first receiver of a fan-out request.
func firstReceiver(x *exchange, base notify.Base) (f engine.Found, err error) {
	found := errors.New("found")
	err = x.srv.deps.History.Each(x.r.Context(), base, func(each *engine.Found) error {
		f = *each
		return found
	})
	switch {
	case errors.Is(err, found) && f.Envelope.FanOut:
		return f, nil
	case err == nil, errors.Is(err, found):
		return f, errNoNotification()
	}
	return f, err
}

func getNotification(x *exchange) error {
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	switch {
	case err != nil:
		return err
	case fanout && k.scheduled != nil:
		return x.json(http.StatusOK, waitingSummary(k.scheduled))
	case fanout:
		return x.reply(fanoutSummary(x, &k.found))
	}
	return x.json(http.StatusOK, statusOf(&k))
}

// statusOf returns the status of a notification as it is sent to clients.
func statusOf(k *knownNotification) api.Status {
	e := &k.found.Envelope
	return api.Status{
		NotificationID: k.found.ID.String(),
		Status:         k.out.State.String(),
		Channel:        e.Channel.String(),
		Category:       e.Category.String(),
		Caller:         e.Caller,
		Campaign:       e.Campaign,
		UserID:         string(k.found.User),
		Epoch:          k.out.Epoch,
		Attempts:       countAttempts(k),
		Code:           k.out.Code,
		AcceptedAt:     timeOf(e.Accepted),
		UpdatedAt:      optionalTimeOf(k.out.Updated),
		ExpiresAt:      optionalTimeOf(e.Expires),
		ScheduledAt:    optionalTimeOf(e.NotBefore),
		TraceID:        notify.TraceID(e.Trace),
	}
}

// countAttempts returns how many attempts of the current epoch called a provider. An outcome or a
// receipt proves that there was a call.
func countAttempts(k *knownNotification) int {
	tried := map[uint16]bool{}
	for i := range k.rows {
		r := &k.rows[i]
		pos, ok := positionOf(r, k.found.ID.Index, k.found.Pos)
		if !ok || !isSettled(r, pos) || r.Key.Epoch != k.out.Epoch {
			continue
		}
		if r.Key.Kind == notify.RowReceipt {
			tried[r.Key.Attempt] = true
			continue
		}
		for _, x := range outcomesAt(r, pos) {
			if calledProvider(&x) {
				tried[r.Key.Attempt] = true
			}
		}
	}
	return len(tried)
}

// calledProvider returns true if x proves that the provider was called. This is so for an outcome
// of a call, for a retry, and for a deferral after an ambiguous answer.
func calledProvider(x *notify.Exception) bool {
	if x.Class == notify.ClassReceipt {
		return false
	}
	switch x.State {
	case notify.Sent, notify.Delivered, notify.Unknown:
		return true
	case notify.Failed:
		return x.Code != notify.CodeNoAddress
	case notify.Deferred:
		return x.Retry || x.Class == notify.ClassAmbiguous
	}
	return false
}

// positionOf returns the position of a receiver in the envelope of r. It returns false if r has
// nothing about the receiver.
func positionOf(r *notify.Row, index, pos uint32) (uint32, bool) {
	switch {
	case r.Key.Kind == notify.RowReceipt:
		return 0, r.Key.First == index
	case r.Index != nil:
		return r.PosOf(index)
	}
	return pos, pos < r.Count
}

func isSettled(r *notify.Row, pos uint32) bool { return r.Done || pos < r.DoneUpTo }

// outcomesAt returns the outcomes of the receiver at position pos: the exceptions for this position
// or, if there are none, the default outcome of the row.
func outcomesAt(r *notify.Row, pos uint32) []notify.Exception {
	if ex := r.ExceptionsAt(pos); len(ex) > 0 {
		return ex
	}
	d := r.Default
	d.Pos, d.Addr = pos, 0
	return []notify.Exception{d}
}

// cancelNotification cancels a notification, a fan-out request, or one receiver of a fan-out. Calls
// to providers that have already started are not stopped.
func cancelNotification(x *exchange) error {
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	if err != nil {
		return err
	}
	x.auditIfForeign(k.found.Envelope.Caller)
	return cancelKnown(x, &k, fanout)
}

func cancelKnown(x *exchange, k *knownNotification, fanout bool) error {
	whole := fanout || !k.found.ID.FanOut
	if k.found.Envelope.NotBefore != 0 && whole {
		// A schedule that is not released yet is cancelled for good. If it was cancelled before,
		// that cancel stays. A released schedule is cancelled like a notification that was never
		// scheduled.
		v, err := findSchedule(x, k.found.ID.Base)
		switch {
		case err == nil && (k.scheduled != nil || v.State == engine.ScheduleCancelled):
			return cancelWaiting(x, k.found.ID.Base)
		case err != nil && notify.KindOf(err) != notify.KindNotFound:
			return err
		}
	}
	scope := k.found.ID.String()
	if fanout {
		scope = notify.ID{Base: k.found.ID.Base}.String()
	}
	return storeCancel(x, scope, k.found.Envelope.Caller, func() error {
		if !fanout && k.out.State.Terminal() {
			return &notify.Error{Kind: notify.KindConflict, Code: "already_terminal", Msg: "the notification already ended as " + k.out.State.String()}
		}
		return nil
	})
}

// storeCancel stores a cancellation. If a cancellation is already stored for the scope, it answers
// with that cancellation. Otherwise it first calls checkAllowed. If checkAllowed returns an error,
// it stores nothing and returns the error.
func storeCancel(x *exchange, scope, caller string, checkAllowed func() error) error {
	ctx, cancels := x.r.Context(), x.srv.deps.Cancels
	c, ok, err := cancels.Get(ctx, scope)
	if err != nil {
		return err
	}
	if !ok {
		if err := checkAllowed(); err != nil {
			return err
		}
		if err := x.recordAct(); err != nil {
			return err
		}
		c = engine.Cancel{Scope: scope, Caller: caller, By: x.id.Caller, At: x.srv.deps.Now().UnixMilli()}
		if _, err := cancels.Put(ctx, c); err != nil {
			return err
		}
	}
	at := timeOf(c.At)
	return x.json(http.StatusAccepted, api.Cancelled{Scope: c.Scope, CancelledAt: at, BindsAt: at.Add(cancelBinds)})
}

// findCancellation returns the earliest cancellation that applies to a notification.
func findCancellation(x *exchange, k *knownNotification) (c engine.Cancel, ok bool, err error) {
	scopes := []string{k.found.ID.String()}
	if k.found.ID.FanOut {
		scopes = append(scopes, notify.ID{Base: k.found.ID.Base}.String())
	}
	if id := k.found.Envelope.Campaign; id != "" {
		scopes = append(scopes, id)
	}
	for _, scope := range scopes {
		one, found, err := x.srv.deps.Cancels.Get(x.r.Context(), scope)
		if err != nil {
			return c, false, err
		}
		if found && (!ok || one.At < c.At) {
			c, ok = one, true
		}
	}
	return c, ok, nil
}

// timeOf converts ms since 1970 to a time in UTC, as the API uses it.
func timeOf(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// optionalTimeOf is like timeOf, but returns nil for 0, which means no time.
func optionalTimeOf(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := timeOf(ms)
	return &t
}

// campaignID reports whether s has the form of a campaign's id.
func campaignID(s string) bool {
	rest, ok := strings.CutPrefix(s, "cmp_")
	_, err := notify.ParseBase(rest)
	return ok && err == nil
}
