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

// Schedules stores the notifications that are scheduled.
type Schedules interface {
	// Get returns a schedule. It returns notify.KindNotFound if there is no such schedule.
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
	// List returns the schedules of a caller, newest first. The first schedule is the one after
	// afterBase. An empty caller means all callers.
	List(ctx context.Context, caller string, afterBase notify.Base, max int) ([]schedule.View, error)
	// Timers returns the stored timers of a schedule, and the current view of the schedule. If the
	// schedule was moved after v was read, this view is newer than v.
	Timers(ctx context.Context, v schedule.View) (schedule.View, []engine.Timer, error)
	// Cancel cancels a schedule for good. Move changes its fire time to fireAt, in ms since 1970.
	// Both return notify.KindConflict if it is too late for the change. Both call notify.BeforeAct.
	Cancel(ctx context.Context, base notify.Base) (schedule.View, error)
	Move(ctx context.Context, base notify.Base, fireAt int64, actor string) (schedule.View, error)
	// Forecast counts for each minute what is due in [start, end), in ms since 1970. It reads at
	// most maxRows rows. If there are more rows, the result complete is false.
	Forecast(ctx context.Context, start, end int64, maxRows int) (due []schedule.Due, complete bool, err error)
}

// findSchedule returns the schedule of a base if the request may see it. It returns
// notify.KindNotFound if the schedule does not exist or belongs to another caller.
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

// findWaiting finds a notification that is not in the history, because it is scheduled for later or
// was cancelled before its release. The result fanout has the same meaning as in findNotification.
func findWaiting(x *exchange, id notify.ID) (k knownNotification, fanout bool, err error) {
	v, err := findSchedule(x, id.Base)
	switch {
	case err != nil:
		return k, false, err
	case id.FanOut && (!v.FanOut || id.Index >= v.Receivers):
		return k, false, errNoNotification()
	}
	k.scheduled = &v
	k.found = engine.Found{ID: id, Envelope: notify.Envelope{
		Chunk: notify.Chunk{Base: id.Base}, FanOut: v.FanOut, Channel: v.Channel, Category: v.Category, Caller: v.Caller,
		Campaign: v.Campaign, Accepted: v.Created, Expires: v.Expires, NotBefore: v.FireAt,
	}}
	k.fold()
	if v.FanOut && !id.FanOut {
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
			if !id.FanOut || rec.Index == id.Index {
				k.found.Envelope, k.found.Pos, k.found.User, k.found.Address = e, pos, rec.User, rec.Address
				k.found.Envelope.NotBefore = v.FireAt
				return k, false, nil
			}
		}
	}
	if id.FanOut && len(ts) > 0 {
		return k, false, errNoNotification() // the fan-out request refused this receiver
	}
	return k, false, nil // no timers: the schedule was released, or cancelled long ago
}

// waitingState returns the state of the notifications of a schedule that was not released.
func waitingState(v *schedule.View) notify.State {
	if v.State == engine.ScheduleCancelled {
		return notify.Cancelled
	}
	return notify.Scheduled
}

// waitingSummary returns the summary of a scheduled fan-out. It always fits into one page.
func waitingSummary(v *schedule.View) api.Summary {
	out := api.Summary{
		NotificationID: notify.ID{Base: v.Base}.String(), CampaignID: v.Campaign, Caller: v.Caller,
		Channel: v.Channel.String(), Category: v.Category.String(), CreatedAt: timeOf(v.Created),
		ScheduledAt: optionalTimeOf(v.FireAt), Accepted: int64(v.Accepted), Rejected: int64(v.Receivers - v.Accepted),
		Counted: int64(v.Accepted), Counts: map[string]int{waitingState(v).String(): int(v.Accepted)}, Complete: true,
		Pending: new(int64), // 0, because every receiver is counted as scheduled
	}
	if v.State == engine.ScheduleCancelled {
		out.CancelledAt = optionalTimeOf(v.Touched)
	}
	return out
}

// scheduleEvents returns the events of a schedule, oldest first.
func scheduleEvents(v *schedule.View) []api.TimelineEvent {
	evs := []api.TimelineEvent{{At: optionalTimeOf(v.Created), Type: "scheduled", State: notify.Scheduled.String(), Until: optionalTimeOf(v.Schedule.FireAt)}}
	if v.Gen > 0 {
		ev := api.TimelineEvent{Type: "rescheduled", State: notify.Scheduled.String(), Until: optionalTimeOf(v.FireAt)}
		switch {
		case v.MovedAt != 0:
			ev.At, ev.Detail = optionalTimeOf(v.MovedAt), "by "+v.MovedBy
		case v.State == engine.SchedulePending: // moved by an older version of notifyd, which did not store MovedAt
			ev.At = optionalTimeOf(v.Touched)
		}
		evs = append(evs, ev)
	}
	if v.State == engine.ScheduleCancelled {
		evs = append(evs, api.TimelineEvent{At: optionalTimeOf(v.Touched), Type: "cancel", State: notify.Cancelled.String(), Detail: "before it was due"})
	}
	return evs
}

// cancelWaiting cancels a schedule for good and sends the answer.
func cancelWaiting(x *exchange, base notify.Base) error {
	v, err := x.srv.deps.Schedules.Cancel(x.r.Context(), base)
	if err != nil {
		return err
	}
	at := timeOf(v.Touched)
	return x.json(http.StatusOK, api.Cancelled{Scope: notify.ID{Base: base}.String(), CancelledAt: at, BindsAt: at, Final: true})
}

// cancelScheduledParts cancels the scheduled parts of a campaign, so that they are shown as
// cancelled at once. It stops at the first error. The remaining parts are then cancelled when they
// are due, by the cancellation of the campaign.
func cancelScheduledParts(x *exchange, bases []notify.Base) {
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

// rescheduleNotification moves a scheduled notification to another time.
func rescheduleNotification(x *exchange, in scheduledAt) (none api.Scheduled, err error) {
	id, err := notify.ParseID(x.r.PathValue("id"))
	if err != nil {
		return none, errNoNotification()
	}
	if in.ScheduledAt == nil {
		return none, notify.Invalid("required", "scheduled_at", "is missing; it must be the new time, and a time in the past means now")
	}
	v, err := findSchedule(x, id.Base)
	if err != nil {
		if k, _, found := findNotification(x, x.r.PathValue("id")); found == nil && k.scheduled == nil {
			err = &notify.Error{Kind: notify.KindConflict, Code: "not_scheduled", Msg: "the notification was sent at once; only scheduled notifications can be moved"}
		}
		return none, err
	}
	switch {
	case id.FanOut && (!v.FanOut || id.Index >= v.Receivers):
		return none, errNoNotification()
	case id.FanOut:
		return none, &notify.Error{Kind: notify.KindConflict, Code: "not_single", Msg: "one receiver of a fan-out cannot be moved; omit the index to move the whole fan-out"}
	}
	at := in.ScheduledAt.UnixMilli()
	if in.ScheduledAt.After(timeOf(at)) {
		at++ // round up, so that nothing is sent early
	}
	x.auditIfForeign(v.Caller)
	v, err = x.srv.deps.Schedules.Move(x.r.Context(), id.Base, at, x.id.Caller)
	return scheduleToAPI(&v), err
}

func scheduleToAPI(v *schedule.View) api.Scheduled {
	out := api.Scheduled{
		NotificationID: notify.ID{Base: v.Base}.String(), Status: waitingState(v).String(), Channel: v.Channel.String(),
		Category: v.Category.String(), Caller: v.Caller, UserID: v.User, Campaign: v.Campaign, Receivers: int64(v.Accepted),
		AcceptedAt: timeOf(v.Created), ScheduledAt: timeOf(v.FireAt), ExpiresAt: optionalTimeOf(v.Expires), Generation: v.Gen,
	}
	if v.State == engine.ScheduleReleased {
		out.Status = notify.Accepted.String()
	}
	if v.MovedAt != 0 {
		out.MovedAt, out.MovedBy = optionalTimeOf(v.MovedAt), v.MovedBy
	}
	if v.State == engine.ScheduleCancelled {
		out.CancelledAt = optionalTimeOf(v.Touched)
	}
	return out
}

// listSchedules lists a caller's schedules, newest request first.
func listSchedules(x *exchange) (api.ScheduledPage, error) {
	limit, status, user, caller := x.query.number("limit", 100), x.query.text("status"), x.query.text("user"), x.listedCaller()
	out := api.ScheduledPage{Items: []api.Scheduled{}}
	if status != "" && status != notify.Scheduled.String() && status != notify.Cancelled.String() {
		return out, notify.Invalid("bad_status", "status", "must be SCHEDULED or CANCELLED")
	}
	bound := []string{"schedules", status, user, caller, x.id.Caller}
	place, err := x.cursorPosition(bound)
	if err != nil {
		return out, err
	}
	var after notify.Base
	copy(after[:], place) // the seal proves that place is a base; the first page has no place
	// The list omits schedules that are due or released, so a page may have nothing to list. Read
	// at most 20 pages, and then return a cursor.
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
			if out.Items = append(out.Items, scheduleToAPI(v)); len(out.Items) == limit {
				out.Cursor = x.srv.cursors.sealCursor(after[:], bound...)
				return out, nil
			}
		}
		if len(vs) < limit {
			return out, nil
		}
	}
	out.Cursor = x.srv.cursors.sealCursor(after[:], bound...)
	return out, nil
}

// Limits of a forecast: the length of its period, and how many timers it reads.
const (
	forecastMinutes = 7 * 24 * 60
	maxForecastRows = 2_000_000
)

// forecast counts what is due, by minute and channel.
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
		return out, notify.Invalid("out_of_range", "to", "must be before the year 10000")
	}
	if b < a || b-a >= forecastMinutes {
		return out, notify.Invalid("bad_window", "to", `must be after "from", and at most `+strconv.Itoa(forecastMinutes)+" minutes later")
	}
	due, complete, err := x.srv.deps.Schedules.Forecast(x.r.Context(), from, (b+1)*60_000, maxForecastRows)
	out = api.Forecast{From: timeOf(a * 60_000), To: timeOf((b + 1) * 60_000), Complete: complete}
	out.Minutes = mapSlice(due, func(d *schedule.Due) api.ForecastMinute {
		out.Total += d.Count
		return api.ForecastMinute{Minute: timeOf(d.Minute * 60_000), What: d.What, Count: d.Count}
	})
	return out, err
}
