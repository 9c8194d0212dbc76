package main

import (
	"fmt"
	"io"
	"time"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
)

// loadLine is one line of progress.
func loadLine(s *load.Snapshot) string {
	line := fmt.Sprintf("%5.0fs %-10s %-9s accepted %14s (%12s/s)   delivered %14s", s.Elapsed.Seconds(), s.Phase.Name, s.State,
		cli.Count(s.Totals.Acked), cli.Count(int64(s.Rates.Acked)), cli.Count(s.Totals.Delivered))
	if n := s.Totals.Failed + s.Totals.Rejected; n > 0 {
		line += fmt.Sprintf("   failed %s", cli.Count(n))
	}
	if n := len(s.Seconds); n > 0 && s.Seconds[n-1].Response.Count > 0 {
		line += fmt.Sprintf("   response p99 %.1f ms", ms(s.Seconds[n-1].Response.P99))
	}
	return line + "   " + s.Verdict
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }

// writeLoad writes a result for people.
func writeLoad(w io.Writer, r *load.Result) {
	t := &r.Totals
	fmt.Fprintf(w, "scenario    %s\n", r.Scenario.Name)
	if r.Partial {
		fmt.Fprintf(w, "            %s: these are the figures until then\n", r.Stopped)
	}
	fmt.Fprintf(w, "sent        %s of %s, %.1f s\n", cli.Count(t.Sent), cli.Count(t.Intended), r.Sending.Seconds())
	fmt.Fprintf(w, "accepted    %s   %s/s of %s/s wanted\n", cli.Count(t.Acked), cli.Count(int64(r.Rates.Acked)), cli.Count(int64(r.Rates.Intended)))
	if t.Rejected > 0 || t.Failed > 0 {
		fmt.Fprintf(w, "not         rejected %s, failed %s", cli.Count(t.Rejected), cli.Count(t.Failed))
		for _, e := range r.Errors {
			fmt.Fprintf(w, "  %s×%d", e.Code, e.Count)
		}
		fmt.Fprintln(w)
	}
	row := func(name string, q load.Quantiles) {
		if q.Count > 0 {
			fmt.Fprintf(w, "%-11s p50 %9.2f   p90 %9.2f   p99 %9.2f   p99.9 %9.2f   max %9.2f ms\n", name, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.P999), ms(q.Max))
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if len(r.Steps) > 1 {
			fmt.Fprintf(w, "step        %s in %s, %s\n", s.Name, s.Phase, s.Arrival)
		}
		row("lag", s.Lag)
		row("service", s.Service)
		row("response", s.Response)
		row("end to end", s.EndToEnd)
		row("lateness", s.Lateness)
	}
	if l := &r.Ledger; l.Checked {
		fmt.Fprintf(w, "delivered   %s of %s   %s/s, last one %.1f s after the last answer\n", cli.Count(l.Delivered), cli.Count(l.Expected), cli.Count(int64(r.Rates.Delivered)), r.DrainTime.Seconds())
		for _, x := range []struct {
			n    int64
			text string
		}{{l.Pending, "were still on their way when the drain's time was over"}, {l.Ended, "ended without being delivered"}, {l.Unverified, "could not be asked for to the end"}} {
			if x.n > 0 {
				fmt.Fprintf(w, "            %s %s\n", cli.Count(x.n), x.text)
			}
		}
		fmt.Fprintf(w, "ledger      lost %d   duplicates %d   early %d   late %d   reordered %d   unexpected %d\n", l.Lost, l.Duplicates, l.Early, l.Late, l.Reordered, l.Unexpected)
		for _, e := range l.Examples {
			fmt.Fprintf(w, "            look at: %s\n", e)
		}
	}
	for _, f := range r.Faults {
		drained := "the backlog did not go back"
		if f.Drained >= 0 {
			drained = fmt.Sprintf("drained %.1f s after it", f.Drained.Seconds())
		}
		fmt.Fprintf(w, "fault       %s from %.1f s to %.1f s: backlog up to %s, %s\n", f.Name, f.Began.Seconds(), f.Ended.Seconds(), cli.Count(f.BacklogPeak), drained)
	}
	for _, th := range r.Thresholds {
		mark, value := "ok", "not known"
		if !th.OK {
			mark = "MISSED"
		}
		if th.Known {
			value = cli.Count(int64(th.Value))
			if load.IsTime(th.Expr) {
				value = time.Duration(th.Value).Round(10 * time.Microsecond).String()
			} else if th.Value != float64(int64(th.Value)) {
				value = fmt.Sprintf("%.4g", th.Value)
			}
		}
		fmt.Fprintf(w, "threshold   %-6s %s   (%s)\n", mark, th.Expr, value)
	}
	h := &r.Health
	fmt.Fprintf(w, "generator   %.2f cores of %.0f, %.0f ns a message", h.CPU, h.CPUs, h.NsPerMessage)
	if h.CalibratedRate > 0 {
		fmt.Fprintf(w, "; alone it makes %s/s", cli.Count(int64(h.CalibratedRate)))
	}
	if h.Embedded {
		fmt.Fprint(w, "; notifyd included")
	}
	fmt.Fprintf(w, "\nverdict     %s\n", r.Verdict.Code)
	for _, why := range r.Verdict.Reasons {
		fmt.Fprintf(w, "            %s\n", why)
	}
}
