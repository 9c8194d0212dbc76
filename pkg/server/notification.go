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

// cancelBinds is how long after its answer a cancel holds for every call.
const cancelBinds = time.Second

// errNoNotification is one value, so that a notification of another caller
// looks the same as none.
func errNoNotification() error { return notify.NotFound("notification") }

// indexMissing refuses the id of a fan-out where one receiver is meant.
func indexMissing(k *known) error {
	return notify.Invalid("index_missing", "id", "this is a fan-out: name one receiver by its index, e.g. "+k.found.ID.String())
}

// known is one notification with everything stored about it.
type known struct {
	found engine.Found
	rows  []notify.Row
	out   notify.Outcome
	waits *schedule.View // not nil: history does not know it, it waits or was cancelled before it was due
}

// findNotification returns a notification that x may see. fanout is true when id names a
// fan-out request and not one of its receivers; found is then its first.
func findNotification(x *exchange, raw string) (k known, fanout bool, err error) {
	ctx, st := x.r.Context(), x.srv.deps
	id, err := notify.ParseID(raw)
	if err != nil {
		return k, false, errNoNotification() // an id nobody was given
	}
	k.found, err = st.History.Find(ctx, id)
	switch {
	case err == nil && id.Fan != k.found.Envelope.Fan:
		if id.Fan { // ntf_X-0 of a single notification
			return k, false, errNoNotification()
		}
		fanout = true
	case !id.Fan && err != nil && missing(err):
		if k.found, err = firstReceiver(x, id.Base); err != nil {
			if missing(err) {
				return waitingOr(x, id, err)
			}
			return k, false, err
		}
		fanout = true
	case err != nil && missing(err):
		return waitingOr(x, id, err)
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

// waitingOr is waiting, and where that finds nothing the error why history did
// not.
func waitingOr(x *exchange, id notify.ID, why error) (known, bool, error) {
	k, fanout, err := findWaiting(x, id)
	if err != nil && notify.KindOf(err) == notify.KindNotFound {
		err = why
	}
	return k, fanout, err
}

// missing reports that there is nothing, or nothing any more since the log lost
// it: of a fan-out, other parts may be there.
func missing(err error) bool {
	e, ok := errors.AsType[*notify.Error](err)
	return notify.KindOf(err) == notify.KindNotFound || ok && e.Code == history.CodeRecordLost
}

// load reads the rows of a found notification.
func (k *known) load(ctx context.Context, st engine.Status) (err error) {
	if k.rows, err = st.Chunk(ctx, k.found.Envelope.Chunk); err != nil {
		return err
	}
	k.fold()
	return nil
}

func (k *known) fold() {
	if k.waits != nil {
		k.out = notify.Outcome{State: waitingState(k.waits), Updated: k.waits.Touched}
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
	case errors.Is(err, found) && f.Envelope.Fan:
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
	case fanout && k.waits != nil:
		return x.json(http.StatusOK, waitingSummary(k.waits))
	case fanout:
		return x.reply(fanoutSummary(x, &k.found))
	}
	return x.json(http.StatusOK, statusOf(&k))
}

// statusOf is the wire form of where a notification stands.
func statusOf(k *known) api.Status {
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
		Attempts:       attempts(k),
		Code:           k.out.Code,
		AcceptedAt:     moment(e.Accepted),
		UpdatedAt:      moments(k.out.Updated),
		ExpiresAt:      moments(e.Expires),
		ScheduledAt:    moments(e.NotBefore),
		TraceID:        notify.TraceID(e.Trace),
	}
}

// attempts counts the attempts of the current epoch that called a provider: an
// outcome or a receipt tells of the call.
func attempts(k *known) int {
	tried := map[uint16]bool{}
	for i := range k.rows {
		r := &k.rows[i]
		pos, ok := position(r, k.found.ID.Index, k.found.Pos)
		if !ok || !settled(r, pos) || r.Key.Epoch != k.out.Epoch {
			continue
		}
		if r.Key.Kind == notify.RowReceipt {
			tried[r.Key.Attempt] = true
			continue
		}
		for _, x := range outcomesAt(r, pos) {
			if called(&x) {
				tried[r.Key.Attempt] = true
			}
		}
	}
	return len(tried)
}

// called reports whether an outcome came from a provider: a retry follows a
// call, and so does a deferral after an answer that left open whether it was taken.
func called(x *notify.Exception) bool {
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

// position is where a receiver stands in r's envelope.
func position(r *notify.Row, index, pos uint32) (uint32, bool) {
	switch {
	case r.Key.Kind == notify.RowReceipt:
		return 0, r.Key.First == index
	case r.Index != nil:
		return r.PosOf(index)
	}
	return pos, pos < r.Count
}

func settled(r *notify.Row, pos uint32) bool { return r.Done || pos < r.DoneUpTo }

// outcomesAt returns what a row says of a position: its exceptions, or the
// default.
func outcomesAt(r *notify.Row, pos uint32) []notify.Exception {
	if ex := r.At(pos); len(ex) > 0 {
		return ex
	}
	d := r.Default
	d.Pos, d.Addr = pos, 0
	return []notify.Exception{d}
}

// cancelNotification stops what has not started of a notification, a fan-out
// request, or one receiver of it.
func cancelNotification(x *exchange) error {
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	if err != nil {
		return err
	}
	x.of(k.found.Envelope.Caller)
	return cancelKnown(x, &k, fanout)
}

func cancelKnown(x *exchange, k *known, fanout bool) error {
	whole := fanout || !k.found.ID.Fan
	if k.found.Envelope.NotBefore != 0 && whole {
		// What waits ends for good. What was released can be stopped as anything
		// that was sent at once; a cancel that came before the release stands.
		v, err := findSchedule(x, k.found.ID.Base)
		switch {
		case err == nil && (k.waits != nil || v.State == engine.ScheduleCancelled):
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
			return &notify.Error{Kind: notify.KindConflict, Code: "already_terminal", Msg: "the notification is " + k.out.State.String() + " already"}
		}
		return nil
	})
}

// storeCancel stores a cancellation, once; again gives the first answer again.
// allowed is asked only when there is none yet.
func storeCancel(x *exchange, scope, caller string, allowed func() error) error {
	ctx, cancels := x.r.Context(), x.srv.deps.Cancels
	c, ok, err := cancels.Get(ctx, scope)
	if err != nil {
		return err
	}
	if !ok {
		if err := allowed(); err != nil {
			return err
		}
		if err := x.record(); err != nil {
			return err
		}
		c = engine.Cancel{Scope: scope, Caller: caller, By: x.id.Caller, At: x.srv.deps.Now().UnixMilli()}
		if _, err := cancels.Put(ctx, c); err != nil {
			return err
		}
	}
	at := moment(c.At)
	return x.json(http.StatusAccepted, api.Cancelled{Scope: c.Scope, CancelledAt: at, BindsAt: at.Add(cancelBinds)})
}

// cancellation returns the earliest cancellation that covers a notification.
func cancellation(x *exchange, k *known) (c engine.Cancel, ok bool, err error) {
	scopes := []string{k.found.ID.String()}
	if k.found.ID.Fan {
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

// moment is a time of ours on the wire.
func moment(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// moments is moment where 0 means none.
func moments(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := moment(ms)
	return &t
}

// campaignID reports whether s has the form of a campaign's id.
func campaignID(s string) bool {
	rest, ok := strings.CutPrefix(s, "cmp_")
	_, err := notify.ParseBase(rest)
	return ok && err == nil
}
