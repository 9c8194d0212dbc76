package main

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/capacity"
)

// verifyResult is the result of "notifyctl plan --verify".
type verifyResult struct {
	Measured bool                  `json:"measured"` // true: the load was measured at the server; false: flags or a file gave the load
	Rate     float64               `json:"rate"`     // notifications/s of the load
	Checks   []capacity.Comparison `json:"checks"`
}

// runVerify compares the capacity sheet of a load with the settings of a server's processes. The
// parameter given is true if the load comes from flags or a file, and false if it must be measured
// at the server.
func runVerify(ctx context.Context, p *program, in capacity.Input, from string, given bool) error {
	cl, err := p.client()
	if err != nil {
		return err
	}
	rates, err := cl.Rates(ctx)
	if err != nil {
		return err
	}
	callers, err := cl.Callers(ctx)
	if err != nil {
		return err
	}
	if from != "" {
		b, err := os.ReadFile(from)
		if err != nil {
			return term.Usage("--from: %v; \"make bench\" writes this file", err)
		}
		rs, err := capacity.ParseResults(b)
		if err != nil {
			return err
		}
		if in, _, _, err = capacity.Measured(in, rs); err != nil {
			return err
		}
	}
	if !given {
		measuredLoad(&in, &rates)
	}
	fleet := fleetOf(rates.Settings)
	for _, r := range rates.Rates {
		if r.What == "push" {
			fleet.Push.Latency = time.Duration(r.CallSeconds * float64(time.Second))
		}
	}
	for i := range callers.Items {
		fleet.CallerRate = max(fleet.CallerRate, callers.Items[i].Rate)
	}
	out := verifyResult{Measured: !given, Rate: in.Rate}
	if out.Checks, err = capacity.Verify(in, &fleet, true); err != nil {
		return err
	}
	var missing []api.Process
	for i := range rates.Processes {
		if one := &rates.Processes[i].Process; one.Missing() {
			missing = append(missing, *one)
		}
	}
	p.noteMissing(missing)
	p.note("load: %s/s%s", capacity.Number(in.Rate), map[bool]string{true: ", measured"}[out.Measured])
	if err := p.printer().Print(out, verifyTable(out.Checks)); err != nil {
		return err
	}
	if n := capacity.Contradictions(out.Checks); n > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d checks contradict the sheet at %s/s", n, len(out.Checks), capacity.Number(in.Rate))
	}
	return nil
}

func verifyTable(cs []capacity.Comparison) term.Table {
	// Show contradictions first.
	cs = slices.Clone(cs)
	slices.SortStableFunc(cs, func(a, b capacity.Comparison) int {
		switch {
		case a.Contradicts == b.Contradicts:
			return 0
		case a.Contradicts:
			return -1
		}
		return 1
	})
	return (&columns[capacity.Comparison]{head: "CHECK  NEEDS  HAS  SAYS", row: func(c *capacity.Comparison) []string {
		return []string{c.Check, c.Needs, c.Has, c.Says}
	}}).table(cs)
}

// measuredLoad replaces the load in the parameter input by the measured rates and shares. If
// nothing arrived, it sets one notification per second, which is the smallest load of a sheet.
func measuredLoad(input *capacity.Input, rates *api.Rates) {
	by := map[string]float64{}
	total := 0.0
	for _, r := range rates.Rates {
		if r.What != "trigger" {
			by[r.What] = r.Accepted
			total += r.Accepted
		}
	}
	if input.Rate = max(total, 1); total == 0 {
		return
	}
	input.Push, input.Email, input.SMS = by["push"]/total, by["email"]/total, by["sms"]/total
	input.Scheduled = 0
	for _, l := range rates.Late {
		if l.What == "timer" && rates.OverSeconds > 0 {
			input.Scheduled = min(l.N/rates.OverSeconds/total, 1)
		}
	}
}

// fleetOf counts the processes of each role, and the workers of each channel. It also combines the
// settings of all processes into one value for each setting: the smallest value of InFlight, Window
// and Connections, and the largest value of every other setting.
func fleetOf(settings []api.ProcessSettings) (f capacity.Fleet) {
	least := func(to *int, v int) {
		if *to == 0 || v < *to {
			*to = v
		}
	}
	has := func(s *api.ProcessSettings, role string) bool {
		return slices.Contains(s.Roles, role) || slices.Contains(s.Roles, "all")
	}
	for i := range settings {
		s := &settings[i]
		if has(s, "api") {
			f.APIs++
			f.CallerRate = max(f.CallerRate, s.CallerRate)
		}
		if has(s, "scheduler") {
			f.Schedulers++
			f.CatchUpRate = max(f.CatchUpRate, float64(s.CatchUpRate))
		}
		f.TimerShards = max(f.TimerShards, s.TimerShards)
		for _, c := range s.Channels {
			to := map[string]*capacity.FleetChannel{"push": &f.Push, "sms": &f.SMS, "email": &f.Email}[c.Channel]
			if to == nil { // a newer release has this channel
				continue
			}
			to.Workers++
			to.Partitions, to.Accounts = max(to.Partitions, c.Partitions), max(to.Accounts, c.Accounts)
			to.AccountRate, to.Parallel = max(to.AccountRate, c.AccountRate), max(to.Parallel, c.Parallel)
			least(&to.InFlight, c.InFlight)
			least(&to.Window, c.Window)
			least(&to.Connections, c.Connections)
		}
	}
	return f
}
