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

// Times between two requests. The first time is short, because a push takes only milliseconds. Then
// the times grow up to lastPoll.
const (
	firstPoll = 25 * time.Millisecond
	lastPoll  = time.Second
)

// pollUntil calls the function check again and again until it returns true or an error. At the
// deadline pollUntil returns errPending.
func pollUntil(ctx context.Context, p *program, deadline time.Time, check func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errPending)
	defer cancel()
	for every := firstPoll; ; every = min(2*every, lastPoll) {
		began := time.Now()
		ok, err := check(ctx)
		if context.Cause(ctx) == errPending { //nolint:errorlint // exactly this value
			return errPending
		}
		if err != nil || ok {
			return err
		}
		// Counting many receivers is much work for the server, so wait four times as long as the
		// count took.
		if !notify.Sleep(ctx, max(every, 4*time.Since(began))) {
			return context.Cause(ctx)
		}
	}
}

var errPending = term.Exitf(term.ExitPending, "--timeout ended before the outcome was known")

func isTerminal(status string) bool {
	s, ok := notify.ParseState(status)
	return ok && s.Terminal()
}

// waitOne waits for the outcome of a notification and prints it.
func waitOne(ctx context.Context, p *program, cl *api.Client, id string) error {
	var s api.Status
	err := pollUntil(ctx, p, p.now().Add(p.global.timeout), func(ctx context.Context) (bool, error) {
		now, err := cl.Notification(ctx, id)
		if err == nil {
			s = now
		}
		return isTerminal(s.Status), err
	})
	s.NotificationID = cmp.Or(s.NotificationID, id)
	switch {
	case ctx.Err() != nil:
		return &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("interrupted; %s is still being delivered", id), Next: []string{"notifyctl why " + id}}
	case err != nil && err != errPending: //nolint:errorlint // exactly this value
		return err
	}
	if perr := p.printer().Record(s, statusFields(p, &s)); perr != nil {
		return perr
	}
	if err != nil {
		return &term.Error{Exit: term.ExitPending, Err: fmt.Errorf("the notification is still %s after %s; notifyd continues to deliver it", cmp.Or(s.Status, "unknown"), span(p.global.timeout)), Next: []string{"notifyctl why " + id}}
	}
	if !wasDelivered(s.Status) {
		return &term.Error{Exit: term.ExitError, Err: fmt.Errorf("the notification was not delivered: %s %s", s.Status, s.Code), Next: []string{"notifyctl why " + id}}
	}
	return nil
}

func wasDelivered(status string) bool {
	return status == notify.Sent.String() || status == notify.Delivered.String()
}

// waitCampaign waits until every receiver of a campaign has an outcome, and returns the last count.
// After each count it calls the function report with the number of receivers that have an outcome.
func waitCampaign(ctx context.Context, p *program, cl *api.Client, id string, receivers int64, report func(done int64)) (api.Summary, error) {
	var sum api.Summary
	err := pollUntil(ctx, p, p.now().Add(p.global.timeout), func(ctx context.Context) (bool, error) {
		now, err := sumPages(ctx, func(page api.Page) (api.Summary, error) { return cl.Campaign(ctx, id, page) })
		if err != nil {
			return false, err
		}
		sum = now
		done := int64(0)
		for state, n := range sum.Counts {
			if isTerminal(state) {
				done += int64(n)
			}
		}
		report(done)
		return sum.Counted >= receivers && done == sum.Counted, nil
	})
	return sum, err
}

// countUndelivered returns how many receivers have an outcome that is not a delivery.
func countUndelivered(counts map[string]int) (n int) {
	for state, c := range counts {
		if isTerminal(state) && !wasDelivered(state) {
			n += c
		}
	}
	return n
}
