package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// LaterResult counts how the acknowledged triggers and scheduled pushes ended.
type LaterResult struct {
	Triggers, Schedules int64
	Fired               int64
	Cancelled           int64 // triggers and pushes whose cancel was final
	Nonterminal         int64 // triggers and pushes that have not ended, or that the server has lost
	Lost                int64 // their state is fired, delivered or sent, but the ledgers have no call
	Early               int64 // triggers and pushes whose first call was before their due time
	CancelledFired      int64 // called or sent after a final cancel, or (only triggers) cancelled after a refused cancel
	Duplicates          int64 // calls of a trigger after the first call that the receiver accepted
	Bound               int64 // allowed number of duplicates: all claims of triggers, without the first claim of each
	Unclaimed           int64 // triggers with more calls than claims
	BadSignature        int64 // calls with a wrong signature
}

// Good returns true if every promise was kept.
func (r *LaterResult) Good() bool {
	return r.Lost == 0 && r.Early == 0 && r.Nonterminal == 0 && r.CancelledFired == 0 && r.Duplicates <= r.Bound &&
		r.Unclaimed == 0 && r.BadSignature == 0
}

func endedTrigger(status string) bool {
	switch status {
	case "FIRED", "FAILED", "CANCELLED", "EXPIRED":
		return true
	}
	return false
}

// CheckLater waits until every acknowledged trigger and scheduled push has ended, but not longer
// than limit. Then it compares their states with the ledgers of the callback receiver and of the
// providers.
func (v *Victim) CheckLater(ctx context.Context, p *Promises, limit time.Duration) (r LaterResult, err error) {
	defer Catch(&err)
	l := &p.later
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(v.cfg.Out, "  promised %d triggers and %d scheduled pushes; waiting until all have ended\n", len(l.triggers), len(l.schedules))
	deadline := time.Now().Add(limit)
	Ok(v.awaitTriggers(ctx, deadline))
	rows := Must(v.allTriggers(ctx))
	calls := map[string][]Call{}
	Ok(v.Calls(ctx, func(c Call) { calls[c.ID] = append(calls[c.ID], c) }))
	r.Triggers, r.Schedules = int64(len(l.triggers)), int64(len(l.schedules))
	for id, f := range l.triggers {
		r.trigger(v, rows[id], f, id, calls[id])
	}
	for id, f := range l.schedules {
		Ok(r.schedule(ctx, v, f, id, deadline))
	}
	var sum simulator.CallTotals
	err = v.get(ctx, "/callbacks/totals", &sum)
	r.Duplicates, r.BadSignature = sum.Duplicates, sum.BadSignature
	return r, err
}

func (r *LaterResult) trigger(v *Victim, st api.TriggerStatus, f fate, id string, calls []Call) {
	say := func(what string) {
		fmt.Fprintf(v.cfg.Out, "  %s: trigger %s is %q (%s), %d claims, %d calls, due %d, next: %s\n", what, id, st.Status, st.Reason, st.Claims, len(calls), f.due, st.Next)
	}
	// If the process dies between a call and the write of its outcome, the trigger is claimed and
	// called again. So each claim after the first allows one duplicate.
	r.Bound += max(int64(st.Claims)-1, 0)
	if len(calls) > int(st.Claims) {
		r.Unclaimed++
		say("more calls than claims")
	}
	switch {
	case !endedTrigger(st.Status):
		r.Nonterminal++
		say("not ended")
	case f.cancelled:
		r.Cancelled++
		if len(calls) > 0 || st.Status != "CANCELLED" {
			r.CancelledFired++
			say("cancelled and called")
		}
	case f.refused && st.Status == "CANCELLED":
		r.CancelledFired++
		say("cancelled although the cancel was refused")
	case st.Status == "FIRED":
		r.Fired++
		if len(calls) == 0 {
			r.Lost++
			say("lost")
		}
	}
	if len(calls) > 0 && calls[0].At.UnixMilli() < f.due {
		r.Early++
		say("early")
	}
}

func (r *LaterResult) schedule(ctx context.Context, v *Victim, f fate, id string, deadline time.Time) error {
	state, err := v.terminal(ctx, id, deadline)
	if err != nil {
		return err
	}
	s, _ := notify.ParseState(state)
	var ds []simulator.Delivery
	lookErr := v.get(ctx, "/ledger?id="+id, &ds)
	switch {
	case !s.Terminal():
		r.Nonterminal++
		fmt.Fprintf(v.cfg.Out, "  not ended: %s is %s\n", id, state)
		v.explain(ctx, id)
	case f.cancelled:
		r.Cancelled++
		if lookErr == nil && len(ds) > 0 || s != notify.Cancelled {
			r.CancelledFired++
			fmt.Fprintf(v.cfg.Out, "  cancelled and sent: %s is %s\n", id, state)
		}
	case s == notify.Delivered || s == notify.Sent:
		r.Fired++
		if lookErr != nil {
			r.Lost++
			fmt.Fprintf(v.cfg.Out, "  lost: %s is %s, but no provider has received it\n", id, state)
		}
	}
	if len(ds) > 0 && !ds[0].At.IsZero() && ds[0].At.UnixMilli() < f.due {
		r.Early++
		fmt.Fprintf(v.cfg.Out, "  early: %s was sent at %d, due %d\n", id, ds[0].At.UnixMilli(), f.due)
	}
	return nil
}

// awaitTriggers waits until no trigger is pending or in flight. It returns nil also if that has not
// happened by the deadline. It looks for pending triggers twice, because a trigger whose call fails
// becomes pending again.
func (v *Victim) awaitTriggers(ctx context.Context, deadline time.Time) error {
	for _, state := range []string{"PENDING", "IN_FLIGHT", "PENDING"} {
		for {
			page, err := v.client.Triggers(ctx, api.TriggerQuery{Status: state, Limit: 1})
			switch {
			case err != nil && notify.KindOf(err) != notify.KindUnavailable:
				return err
			case err == nil && len(page.Items) == 0:
			case time.Now().After(deadline):
				return nil
			default:
				select {
				case <-ctx.Done():
					return errors.Join(err, ctx.Err())
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			break
		}
	}
	return nil
}

func (v *Victim) allTriggers(ctx context.Context) (map[string]api.TriggerStatus, error) {
	all := map[string]api.TriggerStatus{}
	for q := (api.TriggerQuery{Limit: 1000}); ; {
		page, err := v.client.Triggers(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, st := range page.Items {
			all[st.TriggerID] = st
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all, nil
		}
	}
}
