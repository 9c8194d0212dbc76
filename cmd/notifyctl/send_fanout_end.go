package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func (r *fanoutRun) fillResult() {
	s := r.state
	r.result.Campaign, r.result.Parts, r.result.Receivers = s.Campaign, s.partsDone(), s.Stored
	r.result.Accepted, r.result.Rejected, r.result.Reasons = s.Accepted, s.Rejected, s.Reasons
	if s.Rejected > 0 {
		r.result.RejectedFile = s.rejectedFile()
	}
}

// stoppedError adds to err the progress so far and the command that continues.
func (r *fanoutRun) stoppedError(ctx context.Context, err error) error {
	s := r.state
	out := &term.Error{Exit: exitOf(ctx, err), Err: err}
	if _, ok := errors.AsType[*badLine](err); ok {
		out.Exit = term.ExitUsage
	}
	if !r.stateSaved {
		return err
	}
	if ctx.Err() != nil {
		of := ""
		if s.Total > 0 {
			of = " of " + count(s.Total)
		}
		out.Err = fmt.Errorf("interrupted: %s%s receivers are stored", count(s.Stored), of)
	}
	out.Next = []string{r.resumeCommand()}
	return out
}

// resumeCommand returns the command that continues the campaign.
func (r *fanoutRun) resumeCommand() string {
	words := []string{"notifyctl", "send", "--campaign", r.state.Campaign, "--fanout", r.o.fanout}
	g := &r.p.global
	for _, f := range [][2]string{{"--context", g.context}, {"--server", g.server}, {"--token-file", g.tokenFile}} {
		if f[1] != "" {
			words = append(words, f[0], f[1])
		}
	}
	if r.o.wait {
		words = append(words, "--wait", "--timeout", g.timeout.String())
	}
	for i := range words {
		words[i] = term.Quote(words[i])
	}
	cmd := strings.Join(words, " ")
	if r.o.fanout == "-" {
		cmd += "   (with the same input)"
	}
	return cmd
}

// finish prints the result. With --wait it first waits for the outcomes.
func (r *fanoutRun) finish(ctx context.Context) error {
	var waited error
	if r.o.wait {
		if r.cl == nil {
			r.cl = r.p.clientOf(&r.t)
		}
		bar := r.p.startProgress("delivering", max(1, r.state.Accepted))
		sum, err := waitCampaign(ctx, r.p, r.cl, r.state.Campaign, r.state.Accepted, bar.set)
		bar.end()
		r.result.Counts, waited = sum.Counts, err
	}
	if err := r.p.printer().Record(r.result, r.fields()); err != nil {
		return err
	}
	show := []string{"notifyctl show " + r.state.Campaign}
	switch {
	case ctx.Err() != nil:
		return &term.Error{Exit: term.ExitInterrupt, Err: errors.New("interrupted; everything is stored and is still being delivered"), Next: show}
	case waited == errPending: //nolint:errorlint // exactly this value
		return &term.Error{Exit: term.ExitPending, Err: fmt.Errorf("some receivers have no outcome after %s; they are still being delivered", r.p.global.timeout), Next: show}
	case waited != nil:
		return waited
	case r.result.Rejected > 0:
		return &term.Error{Exit: term.ExitPartial, Err: fmt.Errorf("%s of %s receivers were refused", count(r.result.Rejected), count(r.result.Receivers)), Next: []string{"less " + term.Quote(r.result.RejectedFile)}}
	}
	if n := countUndelivered(r.result.Counts); n > 0 {
		return &term.Error{Exit: term.ExitPartial, Err: fmt.Errorf("%s of %s receivers were not delivered", count(n), count(r.result.Accepted)), Next: show}
	}
	if !r.o.wait {
		r.p.note("to see the outcomes: %s", show[0])
	}
	return nil
}

func (r *fanoutRun) fields() term.Table {
	x := &r.result
	parts := count(x.Parts)
	if x.SkippedParts > 0 {
		parts += fmt.Sprintf("  (%d of them by an earlier run)", x.SkippedParts)
	}
	t := term.Table{
		{"campaign", x.Campaign}, {"parts", parts}, {"receivers", count(x.Receivers)}, {"accepted", count(x.Accepted)},
		{"rejected", textIf(x.Rejected > 0, count(x.Rejected))},
	}
	for _, code := range slices.Sorted(maps.Keys(x.Reasons)) {
		t = append(t, []string{"  " + code, count(x.Reasons[code])})
	}
	t = append(t, []string{"rejected list", x.RejectedFile})
	for state := notify.State(1); int(state) < notify.States; state++ {
		if n := x.Counts[state.String()]; n > 0 {
			t = append(t, []string{"  " + state.String(), count(n)})
		}
	}
	return t
}

// printFirstPart prints the request of the first part, with only its first receivers.
func (r *fanoutRun) printFirstPart() error {
	f := r.state.Fanout
	for rcv, err := range readReceivers(r.source, r.o.fanout, r.state.Format) {
		if err != nil {
			return &term.Error{Exit: term.ExitUsage, Err: err}
		}
		if f.Receivers = append(f.Receivers, rcv); len(f.Receivers) == 3 {
			break
		}
	}
	if err := printRequest(r.p, r.t.server+"/v1/notifications:fanout", "", f); err != nil {
		return err
	}
	if r.state.Total > 0 {
		size := int64(r.state.PartSize)
		r.p.note("%s receivers (%s) in about %s parts; the first three are shown", count(r.state.Total), r.state.Format, count((r.state.Total+size-1)/size))
	}
	return nil
}
