package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Triggers registers and changes triggers. *trigger.Service implements it. Get, List, Cancel and
// Reschedule use only the triggers of the given caller. Find and ListAll use the triggers of all
// callers.
type Triggers interface {
	Register(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	RegisterBatch(ctx context.Context, m request.Meta, body []byte) (request.Answer, error)
	Get(ctx context.Context, caller, id string) (engine.Trigger, error)
	Find(ctx context.Context, id string) (engine.Trigger, error)
	List(ctx context.Context, caller string, state engine.TriggerState, after string, max int) ([]engine.Trigger, error)
	ListAll(ctx context.Context, state engine.TriggerState, after string, max int) ([]engine.Trigger, error)
	// Cancel and Reschedule call notify.BeforeAct.
	Cancel(ctx context.Context, caller, id string) (engine.Trigger, error)
	Reschedule(ctx context.Context, caller, id string, body []byte) (engine.Trigger, error)
}

// findTrigger returns the trigger in the path if the request may see it.
func findTrigger(x *exchange) (engine.Trigger, error) {
	if x.operator() {
		return x.srv.deps.Triggers.Find(x.r.Context(), x.r.PathValue("id"))
	}
	return x.srv.deps.Triggers.Get(x.r.Context(), x.id.Caller, x.r.PathValue("id"))
}

func getTrigger(x *exchange) (api.TriggerStatus, error) {
	t, err := findTrigger(x)
	return triggerStatus(&t, x.srv.deps.Now(), true), err
}

// changesTrigger returns a handler that finds the trigger in the path, if the request may see it,
// and changes the trigger.
func changesTrigger(to func(*exchange, *engine.Trigger) (engine.Trigger, error)) handler {
	return func(x *exchange) error {
		t, err := findTrigger(x)
		if err != nil {
			return err
		}
		x.auditIfForeign(t.Caller)
		t, err = to(x, &t)
		return x.reply(triggerStatus(&t, x.srv.deps.Now(), true), err)
	}
}

func cancelTrigger(x *exchange, t *engine.Trigger) (engine.Trigger, error) {
	return x.srv.deps.Triggers.Cancel(x.r.Context(), t.Caller, t.ID)
}

func rescheduleTrigger(x *exchange, t *engine.Trigger) (engine.Trigger, error) {
	return x.srv.deps.Triggers.Reschedule(x.r.Context(), t.Caller, t.ID, x.body.data)
}

// listTriggers lists a caller's triggers, newest first. If an operator names no caller, it lists
// the triggers of every caller.
func listTriggers(x *exchange) (page api.TriggerPage, err error) {
	var state engine.TriggerState
	if name := x.query.text("status"); name != "" {
		var ok bool
		if state, ok = trigger.ParseState(name); !ok {
			return page, notify.Invalid("bad_status", "status", "must be PENDING, IN_FLIGHT, FIRED, FAILED, CANCELLED or EXPIRED")
		}
	}
	limit, caller := x.pageSize(), x.listedCaller()
	bound := []string{"triggers", trigger.StateName(state), caller, x.id.Caller}
	after, err := x.cursorPosition(bound)
	if err != nil {
		return page, err
	}
	var rows []engine.Trigger
	if caller == "" {
		rows, err = x.srv.deps.Triggers.ListAll(x.r.Context(), state, string(after), limit)
	} else {
		rows, err = x.srv.deps.Triggers.List(x.r.Context(), caller, state, string(after), limit)
	}
	page.Items = mapSlice(rows, func(t *engine.Trigger) api.TriggerStatus { return triggerStatus(t, x.srv.deps.Now(), false) })
	if len(rows) == limit {
		page.Cursor = x.srv.cursors.sealCursor([]byte(rows[limit-1].ID), bound...)
	}
	return page, err
}

var latePolicies = [...]string{engine.LateFire: "fire", engine.LateDrop: "drop", engine.LateDeadLetter: "dead_letter"}

// triggerStatus returns a trigger in the form that is sent to clients. It also shows the query of
// the callback URL. The query may contain a secret, but the URL belongs to the caller.
func triggerStatus(t *engine.Trigger, now time.Time, log bool) api.TriggerStatus {
	out := api.TriggerStatus{
		TriggerID: t.ID, Status: trigger.StateName(t.State), Caller: t.Caller, CallbackURL: t.URL, PayloadBytes: len(t.Payload),
		CreatedAt: timeOf(t.Created), FireAt: timeOf(t.FireAt), EndedAt: optionalTimeOf(t.Ended), Attempts: t.Attempts, Deferrals: t.Deferrals, Claims: t.Epoch,
		Reason: t.Reason, Generation: t.Gen, MaxLatenessSeconds: t.MaxLateness.Seconds(), TraceID: notify.TraceID(t.Trace), Next: nextOfTrigger(t, now),
	}
	if t.State == engine.TriggerPending {
		out.NextAttemptAt = optionalTimeOf(t.NextAt)
	}
	if t.MaxLateness > 0 && int(t.Late) < len(latePolicies) {
		out.LatePolicy = latePolicies[t.Late]
	}
	if log {
		for _, a := range t.Log {
			out.Log = append(out.Log, api.TriggerAttempt{
				N: a.N, At: timeOf(a.At), TookMS: float64(a.Took.Microseconds()) / 1000, Status: a.Status, Class: a.Class,
				Detail: a.Detail, Body: strings.ToValidUTF8(string(a.Body), "\uFFFD"), Address: a.Address,
			})
		}
	}
	return out
}

func nextOfTrigger(t *engine.Trigger, now time.Time) string {
	switch t.State {
	case engine.TriggerPending:
		at := formatTime(t.NextAt)
		switch {
		case t.NextAt <= now.UnixMilli() && t.Attempts == 0 && t.Deferrals == 0:
			return "It has been due since " + at + " and waits for a dispatcher."
		case t.Deferrals > 0 && t.Reason != "" && t.Attempts == 0:
			return "It waits until " + at + " (" + t.Reason + "); the wait does not count as an attempt."
		case t.Attempts > 0:
			return fmt.Sprintf("Attempt %d will be made at %s (%s).", t.Attempts+1, at, orUnknown(t.Reason))
		}
		return "It fires at " + at + "."
	case engine.TriggerInFlight:
		return "A dispatcher has claimed it; without an outcome by " + formatTime(t.LeaseUntil) + " it is claimed again."
	case engine.TriggerFired:
		return "Its callback was answered; nothing more happens."
	case engine.TriggerCancelled:
		return "It was cancelled; nothing more happens."
	case engine.TriggerExpired:
		return "It was later than its max_lateness allows; nothing more happens."
	}
	return "It failed for good (" + orUnknown(t.Reason) + ") and is in " + trigger.TopicDLQ + "; nothing more happens by itself."
}
