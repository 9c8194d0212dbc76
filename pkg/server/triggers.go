package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Triggers registers and changes triggers; *trigger.Service. Get, Cancel and
// Reschedule are of one caller's own, Find and ListAll of everybody's.
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

func (s *Server) createTrigger(x *exchange) error {
	return x.register("POST /v1/triggers", Triggers.Register)
}

func (s *Server) createTriggers(x *exchange) error {
	return x.register("POST /v1/triggers:batch", Triggers.RegisterBatch)
}

func (x *exchange) register(name string, to func(Triggers, context.Context, request.Meta, []byte) (request.Answer, error)) error {
	if err := x.hasTriggers(); err != nil {
		return err
	}
	return x.send(name, func(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
		return to(x.srv.deps.Triggers, ctx, m, body)
	})
}

// hasTriggers refuses parameters but those of the names, and everything where
// there are no triggers.
func (x *exchange) hasTriggers(names ...string) error {
	if err := x.only(names...); err != nil {
		return err
	}
	if x.srv.deps.Triggers == nil {
		return notify.Unavailable("triggers", 0, nil)
	}
	return nil
}

// owned returns a trigger that x may see and whose it is.
func (x *exchange) owned() (engine.Trigger, error) {
	if err := x.hasTriggers(); err != nil {
		return engine.Trigger{}, err
	}
	if x.operator() {
		return x.srv.deps.Triggers.Find(x.r.Context(), x.r.PathValue("id"))
	}
	return x.srv.deps.Triggers.Get(x.r.Context(), x.id.Caller, x.r.PathValue("id"))
}

func (s *Server) getTrigger(x *exchange) error {
	t, err := x.owned()
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, triggerStatus(&t, s.deps.Now(), true))
}

func (s *Server) cancelTrigger(x *exchange) error {
	t, err := x.owned()
	if err != nil {
		return err
	}
	x.of(t.Caller)
	if t, err = s.deps.Triggers.Cancel(x.r.Context(), t.Caller, t.ID); err != nil {
		return err
	}
	return x.json(http.StatusOK, triggerStatus(&t, s.deps.Now(), true))
}

func (s *Server) rescheduleTrigger(x *exchange) error {
	t, err := x.owned()
	if err != nil {
		return err
	}
	x.of(t.Caller)
	if t, err = s.deps.Triggers.Reschedule(x.r.Context(), t.Caller, t.ID, x.body.data); err != nil {
		return err
	}
	return x.json(http.StatusOK, triggerStatus(&t, s.deps.Now(), true))
}

// listTriggers lists a caller's triggers, newest first; everybody's for an
// operator who names no caller.
func (s *Server) listTriggers(x *exchange) error {
	if err := x.hasTriggers("limit", "status", "cursor", "caller"); err != nil {
		return err
	}
	q := x.query()
	limit := q.number("limit", int64(s.cfg.PageSize), int64(min(s.cfg.MaxPageSize, trigger.MaxPage)))
	var state engine.TriggerState
	if name := q.text("status"); name != "" {
		var ok bool
		if state, ok = trigger.ParseState(name); !ok {
			return notify.Invalid("bad_status", "status", "is PENDING, IN_FLIGHT, FIRED, FAILED, CANCELLED or EXPIRED")
		}
	}
	caller := x.id.Caller
	if x.operator() {
		caller = q.text("caller")
	}
	bound := []string{"triggers", trigger.StateName(state), caller, x.id.Caller}
	after, err := q.place(s.cursors, bound)
	if err != nil {
		return err
	}
	var rows []engine.Trigger
	if caller == "" {
		rows, err = s.deps.Triggers.ListAll(x.r.Context(), state, string(after), int(limit))
	} else {
		rows, err = s.deps.Triggers.List(x.r.Context(), caller, state, string(after), int(limit))
	}
	if err != nil {
		return err
	}
	page := api.TriggerPage{Items: make([]api.TriggerStatus, 0, len(rows))}
	for i := range rows {
		page.Items = append(page.Items, triggerStatus(&rows[i], s.deps.Now(), false))
	}
	if len(rows) == int(limit) {
		page.Cursor = s.cursors.seal([]byte(rows[len(rows)-1].ID), bound...)
	}
	return x.json(http.StatusOK, page)
}

var latePolicies = [...]string{engine.LateFire: "fire", engine.LateDrop: "drop", engine.LateDeadLetter: "dead_letter"}

// triggerStatus is the wire form of a state row. A callback URL's query may
// hold a secret of its caller's: it is the caller's own, and shown.
func triggerStatus(t *engine.Trigger, now time.Time, log bool) api.TriggerStatus {
	out := api.TriggerStatus{
		TriggerID: t.ID, Status: trigger.StateName(t.State), Caller: t.Caller, CallbackURL: t.URL, PayloadBytes: len(t.Payload),
		CreatedAt: moment(t.Created), FireAt: moment(t.FireAt), EndedAt: moments(t.Ended), Attempts: t.Attempts, Deferrals: t.Deferrals, Claims: t.Epoch,
		Reason: t.Reason, Generation: t.Gen, MaxLatenessSeconds: t.MaxLateness.Seconds(), TraceID: notify.TraceID(t.Trace), Next: nextOfTrigger(t, now),
	}
	if t.State == engine.TriggerPending {
		out.NextAttemptAt = moments(t.NextAt)
	}
	if t.MaxLateness > 0 && int(t.Late) < len(latePolicies) {
		out.LatePolicy = latePolicies[t.Late]
	}
	if log {
		for _, a := range t.Log {
			out.Log = append(out.Log, api.TriggerAttempt{
				N: a.N, At: moment(a.At), TookMS: float64(a.Took.Microseconds()) / 1000, Status: a.Status, Class: a.Class,
				Detail: a.Detail, Body: strings.ToValidUTF8(string(a.Body), "\uFFFD"), Address: a.Address,
			})
		}
	}
	return out
}

func nextOfTrigger(t *engine.Trigger, now time.Time) string {
	switch t.State {
	case engine.TriggerPending:
		at := stamp(t.NextAt)
		switch {
		case t.NextAt <= now.UnixMilli() && t.Attempts == 0 && t.Deferrals == 0:
			return "It is due since " + at + ", and on its way to a dispatcher."
		case t.Deferrals > 0 && t.Reason != "" && t.Attempts == 0:
			return "It waits until " + at + " (" + t.Reason + "); that is no attempt."
		case t.Attempts > 0:
			return fmt.Sprintf("Attempt %d is made at %s (%s).", t.Attempts+1, at, orUnknown(t.Reason))
		}
		return "It fires at " + at + "."
	case engine.TriggerInFlight:
		return "A dispatcher has claimed it; where no outcome comes until " + stamp(t.LeaseUntil) + " it is claimed again."
	case engine.TriggerFired:
		return "Its callback was answered; nothing more happens."
	case engine.TriggerCancelled:
		return "It was cancelled; nothing more happens."
	case engine.TriggerExpired:
		return "It came later than its max_lateness allows; nothing more happens."
	}
	return "It failed for good (" + orUnknown(t.Reason) + ") and is in " + trigger.TopicDLQ + "; nothing more happens by itself."
}
