package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
)

// Schedules are the notifications that wait for their time.
type Schedules interface {
	// Get returns a schedule; notify.KindNotFound when there is none.
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
	// List returns a caller's ("": everybody's), newest first, behind after.
	List(ctx context.Context, caller string, after notify.Base, max int) ([]schedule.View, error)
	// Timers returns what is stored of a schedule, and the view of it that this
	// belongs to.
	Timers(ctx context.Context, v schedule.View) (schedule.View, []engine.Timer, error)
	// Cancel ends a schedule for good; Move makes it due at another time, in ms
	// since 1970. Both are notify.KindConflict where it is too late. Both call
	// notify.BeforeAct.
	Cancel(ctx context.Context, base notify.Base) (schedule.View, error)
	Move(ctx context.Context, base notify.Base, at int64, by string) (schedule.View, error)
	// Forecast adds up by minute what is due at from and later, and before to, in ms
	// since 1970, reading at most most rows.
	Forecast(ctx context.Context, from, to int64, most int) (due []schedule.Due, complete bool, err error)
}

// findSchedule returns the schedule of a base that x may see; notify.KindNotFound
// where there is none, or it is another caller's.
func findSchedule(x *exchange, base notify.Base) (schedule.View, error) {
	if x.srv.deps.Schedules == nil {
		return schedule.View{}, errNoNotification()
	}
	v, err := x.srv.deps.Schedules.Get(x.r.Context(), base)
	switch {
	case notify.KindOf(err) == notify.KindNotFound && err != nil, err == nil && !x.sees(v.Caller):
		return v, errNoNotification()
	}
	return v, err
}

// findWaiting finds what history does not know: a notification that was scheduled
// and not released, or cancelled before it was. fanout as in find.
func findWaiting(x *exchange, id notify.ID) (k known, fanout bool, err error) {
	v, err := findSchedule(x, id.Base)
	switch {
	case err != nil:
		return k, false, err
	case id.Fan && (!v.Fan || id.Index >= v.Receivers):
		return k, false, errNoNotification()
	}
	k.waits = &v
	k.found = engine.Found{ID: id, Envelope: notify.Envelope{
		Chunk: notify.Chunk{Base: id.Base}, Fan: v.Fan, Channel: v.Channel, Category: v.Category, Caller: v.Caller,
		Campaign: v.Campaign, Accepted: v.Created, Expires: v.Expires, NotBefore: v.FireAt,
	}}
	k.fold()
	if v.Fan && !id.Fan {
		return k, true, nil
	}
	v, ts, err := x.srv.deps.Schedules.Timers(x.r.Context(), v)
	if err != nil {
		return k, false, err
	}
	k.found.Envelope.NotBefore = v.FireAt
	k.fold()
	for i := range ts {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(ts[i].Payload, &e); err != nil {
			return k, false, err
		}
		rd := notify.ReadReceivers(e.Receivers)
		var rec notify.Receiver
		for pos := uint32(0); rd.Next(&rec); pos++ {
			if !id.Fan || rec.Index == id.Index {
				k.found.Envelope, k.found.Pos, k.found.User, k.found.Address = e, pos, rec.User, rec.Address
				k.found.Envelope.NotBefore = v.FireAt
				return k, false, nil
			}
		}
	}
	if id.Fan && len(ts) > 0 {
		return k, false, errNoNotification() // a receiver that was refused
	}
	return k, false, nil // its timers are gone: it is on its way, or was cancelled long ago
}

// state is that of what waits.
func waitingState(v *schedule.View) notify.State {
	if v.State == engine.ScheduleCancelled {
		return notify.Cancelled
	}
	return notify.Scheduled
}

// waitingSummary answers for a fan-out that waits as a whole: one page holds it all.
func waitingSummary(v *schedule.View) api.Summary {
	out := api.Summary{
		NotificationID: notify.ID{Base: v.Base}.String(), CampaignID: v.Campaign, Caller: v.Caller,
		Channel: v.Channel.String(), Category: v.Category.String(), CreatedAt: moment(v.Created),
		ScheduledAt: moments(v.FireAt), Accepted: int64(v.Accepted), Rejected: int64(v.Receivers - v.Accepted),
		Counted: int64(v.Accepted), Counts: map[string]int{waitingState(v).String(): int(v.Accepted)}, Complete: true,
		Pending: new(int64), // none: they all wait
	}
	if v.State == engine.ScheduleCancelled {
		out.CancelledAt = moments(v.Touched)
	}
	return out
}

// scheduleEvents are what happened to a schedule, oldest first.
func scheduleEvents(v *schedule.View) []api.TimelineEvent {
	evs := []api.TimelineEvent{{At: moments(v.Created), Type: "scheduled", State: notify.Scheduled.String(), Until: moments(v.Schedule.FireAt)}}
	if v.Gen > 0 {
		ev := api.TimelineEvent{Type: "rescheduled", State: notify.Scheduled.String(), Until: moments(v.FireAt)}
		switch {
		case v.MovedAt != 0:
			ev.At, ev.Detail = moments(v.MovedAt), "by "+v.MovedBy
		case v.State == engine.SchedulePending: // of a release that did not keep it
			ev.At = moments(v.Touched)
		}
		evs = append(evs, ev)
	}
	if v.State == engine.ScheduleCancelled {
		evs = append(evs, api.TimelineEvent{At: moments(v.Touched), Type: "cancel", State: notify.Cancelled.String(), Detail: "before it was due"})
	}
	return evs
}

// cancelWaiting cancels a schedule for good.
func cancelWaiting(x *exchange, base notify.Base) error {
	v, err := x.srv.deps.Schedules.Cancel(x.r.Context(), base)
	if err != nil {
		return err
	}
	at := moment(v.Touched)
	return x.json(http.StatusOK, api.Cancelled{Scope: notify.ID{Base: base}.String(), CancelledAt: at, BindsAt: at, Final: true})
}

// cancelParts ends the parts of a campaign that still wait, so that they are
// seen as cancelled now; what this does not reach the cancellation of the
// campaign does when it is due.
func cancelParts(x *exchange, bases []notify.Base) {
	if x.srv.deps.Schedules == nil {
		return
	}
	for _, b := range bases {
		if _, err := x.srv.deps.Schedules.Cancel(x.r.Context(), b); err != nil &&
			notify.KindOf(err) != notify.KindNotFound && notify.KindOf(err) != notify.KindConflict {
			return
		}
	}
}

// scheduledAt is the body of PATCH /v1/notifications/{id}.
type scheduledAt struct {
	ScheduledAt *time.Time `json:"scheduled_at"`
}

// rescheduleNotification moves what waits to another time.
func rescheduleNotification(x *exchange, in scheduledAt) (none api.Scheduled, err error) {
	id, err := notify.ParseID(x.r.PathValue("id"))
	if err != nil {
		return none, errNoNotification()
	}
	if in.ScheduledAt == nil {
		return none, notify.Invalid("required", "scheduled_at", "says when it becomes due; a time that has passed means now")
	}
	v, err := findSchedule(x, id.Base)
	if err != nil {
		if k, _, found := findNotification(x, x.r.PathValue("id")); found == nil && k.waits == nil {
			err = &notify.Error{Kind: notify.KindConflict, Code: "not_scheduled", Msg: "the notification was sent at once; only what waits can be moved"}
		}
		return none, err
	}
	switch {
	case id.Fan && (!v.Fan || id.Index >= v.Receivers):
		return none, errNoNotification()
	case id.Fan:
		return none, &notify.Error{Kind: notify.KindConflict, Code: "not_single", Msg: "one receiver of a fan-out cannot be moved; leave the index out to move all of it"}
	}
	at := in.ScheduledAt.UnixMilli()
	if in.ScheduledAt.After(moment(at)) {
		at++ // before it, nothing is sent
	}
	x.of(v.Caller)
	v, err = x.srv.deps.Schedules.Move(x.r.Context(), id.Base, at, x.id.Caller)
	return scheduled(&v), err
}

func scheduled(v *schedule.View) api.Scheduled {
	out := api.Scheduled{
		NotificationID: notify.ID{Base: v.Base}.String(), Status: waitingState(v).String(), Channel: v.Channel.String(),
		Category: v.Category.String(), Caller: v.Caller, UserID: v.User, Campaign: v.Campaign, Receivers: int64(v.Accepted),
		AcceptedAt: moment(v.Created), ScheduledAt: moment(v.FireAt), ExpiresAt: moments(v.Expires), Generation: v.Gen,
	}
	if v.State == engine.ScheduleReleased {
		out.Status = notify.Accepted.String()
	}
	if v.MovedAt != 0 {
		out.MovedAt, out.MovedBy = moments(v.MovedAt), v.MovedBy
	}
	if v.State == engine.ScheduleCancelled {
		out.CancelledAt = moments(v.Touched)
	}
	return out
}

// listSchedules lists a caller's schedules, newest request first.
func listSchedules(x *exchange) (api.ScheduledPage, error) {
	limit, status, user, caller := x.query.number("limit", 100), x.query.text("status"), x.query.text("user"), x.listedCaller()
	out := api.ScheduledPage{Items: []api.Scheduled{}}
	if status != "" && status != notify.Scheduled.String() && status != notify.Cancelled.String() {
		return out, notify.Invalid("bad_status", "status", "is SCHEDULED or CANCELLED")
	}
	bound := []string{"schedules", status, user, caller, x.id.Caller}
	place, err := x.place(bound)
	if err != nil {
		return out, err
	}
	var after notify.Base
	copy(after[:], place) // sealed, so it is a base or, for the first page, nothing
	// A page may hold many that are over; a few are looked through for those asked for.
	for range 20 {
		vs, err := x.srv.deps.Schedules.List(x.r.Context(), caller, after, limit)
		if err != nil {
			return out, err
		}
		now := x.srv.deps.Now().UnixMilli()
		for i := range vs {
			v := &vs[i]
			after = v.Base
			over := v.State == engine.ScheduleReleased || v.State == engine.SchedulePending && v.FireAt <= now
			if over || status != "" && waitingState(v).String() != status || user != "" && v.User != user {
				continue
			}
			if out.Items = append(out.Items, scheduled(v)); len(out.Items) == limit {
				out.Cursor = x.srv.cursors.seal(after[:], bound...)
				return out, nil
			}
		}
		if len(vs) < limit {
			return out, nil
		}
	}
	out.Cursor = x.srv.cursors.seal(after[:], bound...)
	return out, nil
}

// Of a forecast: how far it reaches, and how many timers it reads.
const (
	forecastMinutes = 7 * 24 * 60
	forecastRows    = 2_000_000
)

// forecast says how much is due per minute and channel.
func forecast(x *exchange) (out api.Forecast, err error) {
	from, to := x.query.moment("from"), x.query.moment("to")
	if from == 0 {
		from = x.srv.deps.Now().UnixMilli()
	}
	if to == 0 {
		to = from + time.Hour.Milliseconds()
	}
	a, b := from/60_000, (to-1)/60_000
	if (b+1)*60_000 > lastMoment {
		return out, notify.Invalid("out_of_range", "to", "lies behind the year 9999")
	}
	if b < a || b-a >= forecastMinutes {
		return out, notify.Invalid("bad_window", "to", "lies behind from, and at most "+strconv.Itoa(forecastMinutes)+" minutes")
	}
	due, complete, err := x.srv.deps.Schedules.Forecast(x.r.Context(), from, (b+1)*60_000, forecastRows)
	out = api.Forecast{From: moment(a * 60_000), To: moment((b + 1) * 60_000), Complete: complete}
	out.Minutes = mapped(due, func(d *schedule.Due) api.ForecastMinute {
		out.Total += d.Count
		return api.ForecastMinute{Minute: moment(d.Minute * 60_000), What: d.What, Count: d.Count}
	})
	return out, err
}
