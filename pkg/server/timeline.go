package server

import (
	"fmt"
	"net/http"
	"sort"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (s *Server) getTimeline(x *exchange) error {
	if err := x.only(); err != nil {
		return err
	}
	k, fanout, err := x.find(x.r.PathValue("id"))
	if err != nil {
		return err
	}
	if fanout {
		return notify.Invalid("index_missing", "id", "this is a fan-out: name one receiver by its index, e.g. "+k.found.ID.String())
	}
	cancel, cancelled, err := x.cancellation(&k)
	if err != nil {
		return err
	}
	t := api.Timeline{Status: statusOf(&k), Events: events(&k)}
	if cancelled {
		t.Events = withCancel(t.Events, cancel)
	}
	if k.found.Envelope.NotBefore != 0 {
		v, err := x.schedule(k.found.ID.Base)
		switch {
		case err == nil:
			t.Events = append(scheduleEvents(&v), t.Events[1:]...)
		case notify.KindOf(err) != notify.KindNotFound:
			return err
		}
	}
	t.Next = next(&k, cancelled, s.deps.Now())
	return x.json(http.StatusOK, t)
}

// events tells the rows as a story, oldest first. Rows keep the last word of
// an envelope, not every step: an attempt that had an outcome is not also told
// as claimed.
func events(k *known) []api.TimelineEvent {
	e := &k.found.Envelope
	out := []api.TimelineEvent{{At: moments(e.Accepted), Type: "accepted", State: notify.Accepted.String(), Detail: e.Lane().Topic()}}
	for _, r := range ordered(k.rows) {
		pos, ok := position(r, k.found.ID.Index, k.found.Pos)
		if !ok {
			continue
		}
		if !settled(r, pos) {
			if pos < r.StartedUpTo {
				out = append(out, claimed(r))
			}
			continue
		}
		for _, x := range outcomesAt(r, pos) {
			out = append(out, event(r, &x))
		}
	}
	return out
}

func claimed(r *notify.Row) api.TimelineEvent {
	ev := api.TimelineEvent{At: moments(r.Updated), Type: "claimed", Epoch: r.Key.Epoch, Attempt: int(r.Key.Attempt) + 1}
	if r.Starts > 1 {
		ev.Detail = fmt.Sprintf("started %d times: the worker before may have called the provider", r.Starts)
	}
	return ev
}

func event(r *notify.Row, x *notify.Exception) api.TimelineEvent {
	ev := api.TimelineEvent{
		At: moments(r.Updated), Type: "outcome", State: x.State.String(), Epoch: r.Key.Epoch,
		Address: int(x.Addr), Provider: x.Provider, Code: x.Code, ProviderMessageID: x.Receipt,
	}
	if x.Of > 1 {
		ev.Addresses = int(x.Of)
	}
	switch {
	case r.Key.Kind == notify.RowReceipt:
		ev.Type = "receipt"
	case x.State == notify.Deferred:
		ev.Type, ev.Until = "deferred", moments(x.Wake)
		if x.Retry {
			ev.Attempt = int(r.Key.Attempt) + 1
		}
	case called(x):
		ev.Type, ev.Attempt = "attempt", int(r.Key.Attempt)+1
	}
	return ev
}

// ordered returns rows as they happened: by epoch, attempt and deferral, and
// receipts of an epoch behind its outcomes.
func ordered(rows []notify.Row) []*notify.Row {
	rs := make([]*notify.Row, len(rows))
	for i := range rows {
		rs[i] = &rows[i]
	}
	sort.SliceStable(rs, func(i, j int) bool {
		a, b := &rs[i].Key, &rs[j].Key
		switch {
		case a.Epoch != b.Epoch:
			return a.Epoch < b.Epoch
		case a.Kind != b.Kind:
			return a.Kind < b.Kind
		case a.Attempt != b.Attempt:
			return a.Attempt < b.Attempt
		}
		return a.Deferrals < b.Deferrals
	})
	return rs
}

// withCancel puts the cancellation in its place among the events.
func withCancel(evs []api.TimelineEvent, c engine.Cancel) []api.TimelineEvent {
	ev := api.TimelineEvent{At: moments(c.At), Type: "cancel", Detail: "cancelled " + c.Scope}
	i := len(evs)
	for i > 1 && evs[i-1].At != nil && evs[i-1].At.After(*ev.At) {
		i--
	}
	evs = append(evs, api.TimelineEvent{})
	copy(evs[i+1:], evs[i:])
	evs[i] = ev
	return evs
}

// next says in one sentence what happens next, and when.
func next(k *known, cancelled bool, now time.Time) string {
	e := &k.found.Envelope
	deadline := ""
	if e.Expires != 0 {
		deadline = " It expires at " + stamp(e.Expires) + "."
	}
	if cancelled && !k.out.State.Terminal() {
		return "It will not be sent: a worker marks it CANCELLED when it meets it."
	}
	switch k.out.State {
	case notify.Scheduled:
		if e.NotBefore <= now.UnixMilli() {
			return "It is due, and on its way to " + e.Lane().Topic() + "." + deadline
		}
		return "It goes to " + e.Lane().Topic() + " at " + stamp(e.NotBefore) + "." + deadline
	case notify.Deferred:
		return wakes(k) + deadline
	case notify.Sent:
		return "Nothing is left to do here; a receipt of the provider may still say whether it arrived."
	case notify.Delivered:
		return "Nothing: it was delivered."
	case notify.Failed:
		return "Nothing by itself: it failed for good (" + orUnknown(k.out.Code) + ") and is in the failed feed of " + e.Caller + "."
	case notify.Suppressed:
		return "Nothing: it was not sent (" + orUnknown(k.out.Code) + ")."
	case notify.Expired:
		return "Nothing: its deadline passed before it could be sent."
	case notify.Cancelled:
		return "Nothing: it was cancelled."
	case notify.Unknown:
		return "Nothing by itself: the provider may or may not have taken it; a receipt settles that."
	}
	for i := range k.rows {
		r := &k.rows[i]
		if pos, ok := position(r, k.found.ID.Index, k.found.Pos); ok && !settled(r, pos) && pos < r.StartedUpTo {
			return "A worker has claimed it; its outcome follows the provider's answer." + deadline
		}
	}
	if e.NotBefore > now.UnixMilli() {
		return "It goes to " + e.Lane().Topic() + " at " + stamp(e.NotBefore) + "." + deadline
	}
	return "It waits in " + e.Lane().Topic() + " for a worker." + deadline
}

// wakes says when a deferred notification goes on: at the earliest wake that
// no later envelope has answered.
func wakes(k *known) string {
	var last *notify.Exception
	for _, r := range ordered(k.rows) {
		pos, ok := position(r, k.found.ID.Index, k.found.Pos)
		if !ok || r.Key.Epoch != k.out.Epoch || r.Key.Kind != notify.RowOutcome {
			continue
		}
		if !settled(r, pos) {
			if pos < r.StartedUpTo {
				return fmt.Sprintf("A worker has claimed attempt %d; its outcome follows the provider's answer.", r.Key.Attempt+1)
			}
			continue
		}
		last = nil // of an earlier envelope: this one answers it
		for _, x := range outcomesAt(r, pos) {
			if x.State == notify.Deferred && (last == nil || x.Wake < last.Wake) {
				last = &x
			}
		}
	}
	switch {
	case last == nil || last.Wake == 0:
		return "It waits to be tried again."
	case last.Retry:
		return "It is tried again at " + stamp(last.Wake) + " (" + orUnknown(last.Code) + ")."
	}
	return "It waits until " + stamp(last.Wake) + " (" + orUnknown(last.Code) + ")."
}

func stamp(ms int64) string { return moment(ms).Format("2006-01-02T15:04:05.000Z07:00") }

func orUnknown(code string) string {
	if code == "" {
		return "no reason given"
	}
	return code
}
