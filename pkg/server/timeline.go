package server

import (
	"fmt"
	"slices"
	"sort"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func getTimeline(x *exchange) (t api.Timeline, err error) {
	k, fanout, err := findNotification(x, x.r.PathValue("id"))
	if err == nil && fanout {
		err = indexMissing(&k)
	}
	if err != nil {
		return t, err
	}
	cancel, cancelled, err := findCancellation(x, &k)
	if err != nil {
		return t, err
	}
	t.Status, t.Events = statusOf(&k), eventsOf(&k)
	if cancelled {
		t.Events = withCancel(t.Events, cancel)
	}
	if k.found.Envelope.NotBefore != 0 {
		v, err := findSchedule(x, k.found.ID.Base)
		switch {
		case err == nil:
			story := scheduleEvents(&v)
			if log := k.logPlace(); log != nil {
				story = append(story, api.TimelineEvent{Type: "released", Detail: k.found.Envelope.Lane().Topic(), Log: log})
			}
			t.Events = append(story, t.Events[1:]...)
		case notify.KindOf(err) != notify.KindNotFound:
			return t, err
		}
	}
	letters, err := lettersOf(x, &k)
	if err != nil {
		return t, err
	}
	t.Events = withLetters(t.Events, letters)
	if t.Next = afterLetter(&k, letters); t.Next == "" {
		t.Next = nextStep(&x.srv.deps, &k, cancelled)
	}
	return t, nil
}

// eventsOf returns the events of the notification, oldest first. A row contains only the last state
// of an envelope. So an attempt that has an outcome has no event for its claim.
func eventsOf(k *knownNotification) []api.TimelineEvent {
	e := &k.found.Envelope
	out := []api.TimelineEvent{{At: optionalTimeOf(e.Accepted), Type: "accepted", State: notify.Accepted.String(), Detail: e.Lane().Topic(), Log: k.logPlace()}}
	for _, r := range orderedRows(k.rows) {
		pos, ok := positionOf(r, k.found.ID.Index, k.found.Pos)
		if !ok {
			continue
		}
		if !isSettled(r, pos) {
			if x, ok := r.DeferredAt(pos); ok {
				out = append(out, event(r, &x))
			} else if pos < r.StartedUpTo {
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
	ev := api.TimelineEvent{At: optionalTimeOf(r.Updated), Type: "claimed", Epoch: r.Key.Epoch, Attempt: int(r.Key.Attempt) + 1}
	if r.Starts > 1 {
		ev.Detail = fmt.Sprintf("started %d times: an earlier worker may have called the provider", r.Starts)
	}
	return ev
}

func event(r *notify.Row, x *notify.Exception) api.TimelineEvent {
	ev := api.TimelineEvent{
		At: optionalTimeOf(r.Updated), Type: "outcome", State: x.State.String(), Epoch: r.Key.Epoch,
		Address: int(x.Addr), Provider: x.Provider, Code: x.Code, ProviderMessageID: x.Receipt,
	}
	if x.Class != notify.ClassAccepted || x.Provider != "" { // otherwise no provider was called
		ev.Class = x.Class.String()
	}
	if x.Of > 1 {
		ev.Addresses = int(x.Of)
	}
	switch {
	case r.Key.Kind == notify.RowReceipt:
		ev.Type = "receipt"
	case x.Class == notify.ClassReceipt:
		ev.Detail = "a receipt had settled it; no further call was made"
	case x.State == notify.Deferred:
		ev.Type, ev.Until = "deferred", optionalTimeOf(x.Wake)
		if x.Retry {
			ev.Attempt = int(r.Key.Attempt) + 1
		}
	case calledProvider(x):
		ev.Type, ev.Attempt = "attempt", int(r.Key.Attempt)+1
	}
	return ev
}

// orderedRows sorts the rows by epoch, attempt and deferral. A receipt comes directly after the
// outcome of its attempt. But if outcomes of later attempts were written before the receipt, it
// comes after those outcomes.
func orderedRows(rows []notify.Row) []*notify.Row {
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
		case a.Kind == notify.RowReceipt:
			return rs[i].Updated < rs[j].Updated
		case a.Attempt != b.Attempt:
			return a.Attempt < b.Attempt
		}
		return a.Deferrals < b.Deferrals
	})
	for i, r := range rs {
		if r.Key.Kind != notify.RowReceipt {
			continue
		}
		at := i
		for at > 0 {
			o := rs[at-1]
			if o.Key.Epoch != r.Key.Epoch || o.Key.Kind != notify.RowOutcome || o.Key.Attempt <= r.Key.Attempt || o.Updated <= r.Updated {
				break
			}
			at--
		}
		copy(rs[at+1:i+1], rs[at:i])
		rs[at] = r
	}
	return rs
}

// withCancel inserts an event for the cancellation c into evs, in the order of time. The first event
// stays first.
func withCancel(evs []api.TimelineEvent, c engine.Cancel) []api.TimelineEvent {
	ev := api.TimelineEvent{At: optionalTimeOf(c.At), Type: "cancel", Detail: "cancelled " + c.Scope}
	if c.By != "" {
		ev.Detail += " by " + c.By
	}
	i := len(evs)
	for i > 1 && evs[i-1].At != nil && evs[i-1].At.After(*ev.At) {
		i--
	}
	return slices.Insert(evs, i, ev)
}

// logPlace returns the position of the notification's record in the log. It returns nil if there is
// no record yet.
func (k *knownNotification) logPlace() *api.LogPlace {
	if k.scheduled != nil || k.found.Topic == "" {
		return nil
	}
	return &api.LogPlace{Topic: k.found.Topic, Partition: k.found.LogPart, Offset: k.found.Offset}
}

// lettersOf returns the dead letters of a notification, one for each failed epoch.
func lettersOf(x *exchange, k *knownNotification) ([]engine.DeadLetter, error) {
	var out []engine.DeadLetter
	if len(k.rows) == 0 {
		return nil, nil
	}
	for epoch := range int(k.out.Epoch) + 1 {
		d, err := x.srv.deps.DeadLetters.Get(x.r.Context(), k.found.ID, uint16(epoch))
		switch {
		case err == nil:
			out = append(out, d)
		case notify.KindOf(err) != notify.KindNotFound:
			return nil, err
		}
	}
	return out, nil
}

// withLetters inserts an event for each dead letter after the events of its epoch. If a job
// replayed or discarded the dead letter, it inserts an event for that too.
func withLetters(evs []api.TimelineEvent, letters []engine.DeadLetter) []api.TimelineEvent {
	for i := range letters {
		d := &letters[i]
		more := []api.TimelineEvent{{
			At: optionalTimeOf(d.LastFailed), Type: "dead_letter", Epoch: d.Epoch, Code: d.Code, Class: d.Class, Provider: d.Provider,
			Detail: fmt.Sprintf("in the failed feed of %s as number %d", d.Caller, d.Seq),
		}}
		if d.State != engine.LetterDead {
			ev := api.TimelineEvent{Type: d.State, Epoch: d.Epoch}
			if d.Job != "" {
				ev.Detail = "by " + d.Job
			}
			more = append(more, ev)
		}
		at := len(evs)
		for at > 0 && evs[at-1].Epoch > d.Epoch {
			at--
		}
		evs = slices.Insert(evs, at, more...)
	}
	return evs
}

// afterLetter says that a job has replayed or discarded the last dead letter. It returns "" if no
// job has done so, or if the replay already has a row.
func afterLetter(k *knownNotification, letters []engine.DeadLetter) string {
	if len(letters) == 0 || !k.out.State.InFailedFeed(k.found.Envelope.Category) {
		return ""
	}
	d := &letters[len(letters)-1]
	by := ""
	if d.Job != "" {
		by = " by " + d.Job
	}
	switch {
	case d.Epoch != k.out.Epoch:
	case d.State == engine.LetterReplayed:
		return fmt.Sprintf("It was replayed%s as epoch %d, and waits in %s for a worker.", by, d.Epoch+1, k.found.Envelope.Lane().Topic())
	case d.State == engine.LetterDiscarded:
		return "It ended " + k.out.State.String() + " (" + orUnknown(k.out.Code) + "), and was discarded" + by + "; nothing more happens."
	}
	return ""
}
