package victim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// later is what was promised about the future: triggers and scheduled pushes.
type later struct {
	mu        sync.Mutex
	triggers  map[string]fate
	schedules map[string]fate
}

// fate is what the last change that was answered made of one.
type fate struct {
	due       int64 // ms since 1970: the earliest moment it may fire
	cancelled bool
}

// Each is due this long after it was registered.
const (
	laterLeast = 2 * time.Second
	laterMost  = 20 * time.Second
)

// loadLater registers triggers and scheduled pushes, rate a second together, and
// cancels or moves some of them, until ctx ends. Every request is repeated until
// it is answered, in the next life of the process too.
func (v *Victim) loadLater(ctx context.Context, rate float64, seed uint64, into *later) error {
	into.triggers, into.schedules = map[string]fate{}, map[string]fate{}
	var urls struct {
		Callback string `json:"callback"`
	}
	if err := v.get(ctx, v.control+"/urls.json", &urls); err != nil {
		return err
	}
	const workers = 16
	ticks := make(chan int)
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		rng := rand.New(rand.NewPCG(seed, uint64(100+w)))
		wg.Go(func() {
			for n := range ticks {
				one := v.laterTrigger
				if n%4 == 0 {
					one = v.laterPush
				}
				if err := one(ctx, urls.Callback, fmt.Sprintf("later-%d-%d", seed, n), rng, into); err != nil && ctx.Err() == nil {
					errs <- err
					return
				}
			}
		})
	}
	t := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer t.Stop()
	var failed error
	for n := 0; ctx.Err() == nil && failed == nil; n++ {
		select {
		case <-t.C:
			select {
			case ticks <- n:
			case failed = <-errs:
			case <-ctx.Done():
			}
		case failed = <-errs:
		case <-ctx.Done():
		}
	}
	close(ticks)
	wg.Wait()
	return failed
}

// insist calls f until it is answered; false when ctx ended first.
func insist(ctx context.Context, f func() error) (bool, error) {
	for {
		// Only an answer ends it. Anything else is the process between two lives:
		// away, starting, or without its token file after a power cut.
		err := f()
		switch notify.KindOf(err) {
		case notify.KindInvalid, notify.KindNotFound, notify.KindMismatch:
			return true, err
		case notify.KindConflict:
			if notify.RetryAfterOf(err) == 0 {
				return true, err
			}
		default:
			if err == nil {
				return true, nil
			}
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (v *Victim) laterTrigger(ctx context.Context, callback, key string, rng *rand.Rand, into *later) error {
	at := soon(rng)
	body := api.Trigger{CallbackURL: fmt.Sprintf("%s/t?due=%d", callback, at.UnixMilli()), FireAt: &at, Exact: true, Payload: []byte(`{"n":1}`)}
	var made api.TriggerAccepted
	if ok, err := insist(ctx, func() (err error) { made, err = v.client.Trigger(ctx, body, key); return err }); !ok || err != nil {
		return err
	}
	// A repeat after a kill may find that it was stored long ago.
	f := fate{due: made.FireAt.UnixMilli()}
	into.put(into.triggers, made.TriggerID, f)
	switch rng.IntN(5) {
	case 0:
		ok, err := insist(ctx, func() error { _, err := v.client.CancelTrigger(ctx, made.TriggerID); return err })
		if err == nil && ok {
			f.cancelled = true
			into.put(into.triggers, made.TriggerID, f)
		}
		return unlessConflict(err)
	case 1:
		to := soon(rng)
		ok, err := insist(ctx, func() error { _, err := v.client.RescheduleTrigger(ctx, made.TriggerID, to); return err })
		// Not answered: it may fire at either time.
		if f.due = to.UnixMilli(); err != nil || !ok {
			f.due = min(f.due, at.UnixMilli())
		}
		into.put(into.triggers, made.TriggerID, f)
		return unlessConflict(err)
	}
	return nil
}

func (v *Victim) laterPush(ctx context.Context, _, key string, rng *rand.Rand, into *later) error {
	at := soon(rng)
	n := api.Notification{
		Channel: "push", Category: "alert", To: api.Receiver{UserID: key, Address: fmt.Sprintf("apns:%064x", rng.Uint64())},
		Content: api.Content{Body: "later"}, ScheduledAt: &at,
	}
	var made api.Accepted
	if ok, err := insist(ctx, func() (err error) { made, err = v.client.Send(ctx, n, key); return err }); !ok || err != nil {
		return err
	}
	f := fate{due: at.UnixMilli()}
	into.put(into.schedules, made.NotificationID, f)
	switch rng.IntN(5) {
	case 0:
		var c api.Cancelled
		ok, err := insist(ctx, func() (err error) { c, err = v.client.Cancel(ctx, made.NotificationID); return err })
		if err == nil && ok && c.Final {
			f.cancelled = true
			into.put(into.schedules, made.NotificationID, f)
		}
		return unlessConflict(err)
	case 1:
		to := soon(rng)
		ok, err := insist(ctx, func() error { _, err := v.client.Reschedule(ctx, made.NotificationID, to); return err })
		if f.due = to.UnixMilli(); err != nil || !ok {
			f.due = min(f.due, at.UnixMilli())
		}
		into.put(into.schedules, made.NotificationID, f)
		return unlessConflict(err)
	}
	return nil
}

func soon(rng *rand.Rand) time.Time {
	in := laterLeast + time.Duration(rng.Int64N(int64(laterMost-laterLeast)))
	return time.Now().Add(in).UTC().Truncate(time.Millisecond)
}

func (l *later) put(m map[string]fate, id string, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m[id] = f
}

// unlessConflict lets pass what is no failure: it fired, or is about to.
func unlessConflict(err error) error {
	if notify.KindOf(err) == notify.KindConflict {
		return nil
	}
	return err
}

// LaterResult is what became of the promises about the future.
type LaterResult struct {
	Triggers, Schedules int64
	Fired               int64
	Cancelled           int64 // of both, by an answer that said so
	Nonterminal         int64 // not ended, or not known any more
	Lost                int64 // said to have fired, and the receiver never saw it
	Early               int64 // first calls before their time
	CancelledFired      int64 // called although a cancel had been answered
	Duplicates          int64 // further calls of a trigger that was taken
	Bound               int64 // of them, those the state rows explain: claims beyond the first
	BadSignature        int64
}

// CheckLater waits until everything has ended, and holds it against the
// receiver's ledger.
func (v *Victim) CheckLater(ctx context.Context, p *Promises, limit time.Duration) (r LaterResult, err error) {
	l := &p.later
	l.mu.Lock()
	defer l.mu.Unlock()
	deadline := time.Now().Add(limit)
	r.Triggers, r.Schedules = int64(len(l.triggers)), int64(len(l.schedules))
	type call struct {
		At    time.Time `json:"at"`
		Taken bool      `json:"taken"`
	}
	for id, f := range l.triggers {
		st, err := v.ended(ctx, id, deadline)
		if err != nil {
			return r, err
		}
		var calls []call
		if err := v.get(ctx, v.control+"/callbacks?id="+id, &calls); err != nil && st.Status == "FIRED" {
			r.Lost++
			fmt.Fprintln(v.cfg.Out, "  lost: trigger", id, "is FIRED, and the receiver was never called")
		}
		// Every claim but the last may have been followed by a call whose
		// outcome was not written.
		r.Bound += max(int64(st.Claims)-1, 0)
		switch {
		case f.cancelled:
			r.Cancelled++
			if len(calls) > 0 || st.Status != "CANCELLED" {
				r.CancelledFired++
				fmt.Fprintf(v.cfg.Out, "  cancelled and called %d times: trigger %s is %s\n", len(calls), id, st.Status)
			}
		case st.Status == "FIRED":
			r.Fired++
		case st.Status != "FAILED" && st.Status != "CANCELLED" && st.Status != "EXPIRED":
			r.Nonterminal++
			fmt.Fprintf(v.cfg.Out, "  not ended: trigger %s is %s: %s\n", id, st.Status, st.Next)
		}
		if len(calls) > 0 && calls[0].At.UnixMilli() < f.due {
			r.Early++
			fmt.Fprintf(v.cfg.Out, "  early: trigger %s was called at %d, due %d\n", id, calls[0].At.UnixMilli(), f.due)
		}
	}
	for id, f := range l.schedules {
		state, err := v.terminal(ctx, id, deadline)
		if err != nil {
			return r, err
		}
		s, _ := notify.ParseState(state)
		var ds []struct {
			At time.Time `json:"at"`
		}
		lookErr := v.get(ctx, v.control+"/ledger?id="+id, &ds)
		switch {
		case !s.Terminal():
			r.Nonterminal++
			fmt.Fprintf(v.cfg.Out, "  not ended: %s is %s\n", id, state)
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
				fmt.Fprintf(v.cfg.Out, "  lost: %s is %s, and no provider was sent it\n", id, state)
			}
		}
		if len(ds) > 0 && !ds[0].At.IsZero() && ds[0].At.UnixMilli() < f.due {
			r.Early++
			fmt.Fprintf(v.cfg.Out, "  early: %s was sent at %d, due %d\n", id, ds[0].At.UnixMilli(), f.due)
		}
	}
	var sum struct {
		Duplicates   int64 `json:"duplicates"`
		BadSignature int64 `json:"bad_signature"`
	}
	err = v.get(ctx, v.control+"/callbacks/totals", &sum)
	r.Duplicates, r.BadSignature = sum.Duplicates, sum.BadSignature
	return r, err
}

// ended waits for the end of a trigger.
func (v *Victim) ended(ctx context.Context, id string, deadline time.Time) (api.TriggerStatus, error) {
	for {
		st, err := v.client.TriggerStatus(ctx, id)
		if err != nil && notify.KindOf(err) != notify.KindUnavailable {
			if notify.KindOf(err) == notify.KindNotFound {
				return api.TriggerStatus{Status: "LOST"}, nil
			}
			return st, err
		}
		switch st.Status {
		case "FIRED", "FAILED", "CANCELLED", "EXPIRED":
			return st, nil
		}
		if time.Now().After(deadline) {
			return st, nil
		}
		select {
		case <-ctx.Done():
			return st, errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
