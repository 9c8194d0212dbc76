package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Polling begins fast, for a push takes milliseconds, and slows down.
const (
	firstPoll = 25 * time.Millisecond
	lastPoll  = time.Second
)

// until polls done until it is true. The end of --timeout is an error of
// ExitPending.
func until(ctx context.Context, p *program, end time.Time, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithDeadlineCause(ctx, end, errPending)
	defer cancel()
	for every := firstPoll; ; every = min(2*every, lastPoll) {
		began := time.Now()
		ok, err := done(ctx)
		if context.Cause(ctx) == errPending { //nolint:errorlint // the very value
			return errPending
		}
		if err != nil || ok {
			return err
		}
		// A count of many receivers costs the server something: rest longer than it took.
		if !notify.Sleep(ctx, max(every, 4*time.Since(began))) {
			return context.Cause(ctx)
		}
	}
}

var errPending = term.Exitf(term.ExitPending, "the wait ended before it did")

func terminal(status string) bool {
	s, ok := notify.ParseState(status)
	return ok && s.Terminal()
}

// waitOne waits for a notification's outcome and prints it.
func waitOne(ctx context.Context, p *program, cl *api.Client, id string) error {
	var s api.Status
	err := until(ctx, p, p.now().Add(p.global.timeout), func(ctx context.Context) (bool, error) {
		now, err := cl.Notification(ctx, id)
		if err == nil {
			s = now
		}
		return terminal(s.Status), err
	})
	s.NotificationID = cmp.Or(s.NotificationID, id)
	switch {
	case ctx.Err() != nil:
		return &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("interrupted; %s goes on", id), Next: []string{"notifyctl why " + id}}
	case err != nil && err != errPending: //nolint:errorlint // the very value
		return err
	}
	if perr := p.printer().Record(s, statusFields(p, &s)); perr != nil {
		return perr
	}
	if err != nil {
		return &term.Error{Exit: term.ExitPending, Err: fmt.Errorf("still %s after %s; it goes on", cmp.Or(s.Status, "unknown"), span(p.global.timeout)), Next: []string{"notifyctl why " + id}}
	}
	if !arrived(s.Status) {
		return &term.Error{Exit: term.ExitError, Err: fmt.Errorf("it was not delivered: %s %s", s.Status, s.Code), Next: []string{"notifyctl why " + id}}
	}
	return nil
}

func arrived(status string) bool {
	return status == notify.Sent.String() || status == notify.Delivered.String()
}

// waitCampaign waits until every receiver of a campaign has an outcome, and
// returns the last count. tell is called with the share that has one.
func waitCampaign(ctx context.Context, p *program, cl *api.Client, id string, receivers int64, tell func(done int64)) (api.Summary, error) {
	var sum api.Summary
	err := until(ctx, p, p.now().Add(p.global.timeout), func(ctx context.Context) (bool, error) {
		now, err := total(ctx, func(page api.Page) (api.Summary, error) { return cl.Campaign(ctx, id, page) })
		if err != nil {
			return false, err
		}
		sum = now
		done := int64(0)
		for state, n := range sum.Counts {
			if terminal(state) {
				done += int64(n)
			}
		}
		tell(done)
		return sum.Counted >= receivers && done == sum.Counted, nil
	})
	return sum, err
}

// undelivered counts the receivers with an outcome that is no delivery.
func undelivered(counts map[string]int) (n int) {
	for state, c := range counts {
		if terminal(state) && !arrived(state) {
			n += c
		}
	}
	return n
}
