package load

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Percentiles of one histogram, in milliseconds.
type Percentiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func percentiles(h *hdrhistogram.Histogram) Percentiles {
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	return Percentiles{
		ms(h.ValueAtQuantile(50)), ms(h.ValueAtQuantile(90)), ms(h.ValueAtQuantile(99)), ms(h.ValueAtQuantile(99.9)), ms(h.Max()),
	}
}

// Summary is a Ran in numbers, for people and for programs.
type Summary struct {
	Scenario    string           `json:"scenario"`
	Target      string           `json:"target"`
	Began       time.Time        `json:"began"`
	Seconds     float64          `json:"seconds"`
	Requests    int64            `json:"requests"`
	Sent        int64            `json:"sent"`
	Accepted    int64            `json:"accepted"`
	Rejected    int64            `json:"rejected"`
	Failed      int64            `json:"failed"`
	Errors      map[string]int64 `json:"errors,omitempty"`
	Wanted      float64          `json:"wanted_per_s,omitempty"`
	AcceptedPS  float64          `json:"accepted_per_s"`
	DeliveredPS float64          `json:"delivered_per_s,omitempty"`
	LagMs       Percentiles      `json:"lag_ms"`
	ServiceMs   Percentiles      `json:"service_ms"`
	ResponseMs  Percentiles      `json:"response_ms"`
	Check       *Check           `json:"check,omitempty"`
	Interrupted bool             `json:"interrupted,omitempty"`
}

// Summary puts the result into numbers.
func (r *Ran) Summary() Summary {
	f := &r.Figures
	s := Summary{
		Scenario: r.Scenario.Name, Target: r.Scenario.Target, Began: r.Began.UTC(), Seconds: f.Elapsed.Seconds(),
		Requests: f.Requests, Sent: f.Sent, Accepted: f.Accepted, Rejected: f.Rejected, Failed: f.Failed, Errors: f.Errors,
		Wanted: r.Scenario.Rate, AcceptedPS: float64(f.Accepted) / f.Elapsed.Seconds(),
		LagMs: percentiles(f.Lag), ServiceMs: percentiles(f.Service), ResponseMs: percentiles(f.Response),
		Check: r.Check, Interrupted: r.Interrupted,
	}
	if r.Check != nil {
		s.DeliveredPS = float64(r.Check.Delivered) / (f.Elapsed + r.Check.Took).Seconds()
	}
	return s
}

// WriteText writes the summary for people.
func (s *Summary) WriteText(w io.Writer) {
	fmt.Fprintf(w, "scenario    %s (%s)\n", s.Scenario, s.Target)
	if s.Interrupted {
		fmt.Fprintln(w, "            stopped early: these are the figures until then")
	}
	fmt.Fprintf(w, "sent        %s receivers in %s requests, %.1f s\n", count(s.Sent), count(s.Requests), s.Seconds)
	wanted := ""
	if s.Wanted > 0 {
		wanted = fmt.Sprintf("   of %s/s wanted", count(int64(s.Wanted)))
	}
	fmt.Fprintf(w, "accepted    %s   %s/s%s\n", count(s.Accepted), count(int64(s.AcceptedPS)), wanted)
	if s.Rejected > 0 || s.Failed > 0 {
		fmt.Fprintf(w, "not         rejected %s, failed %s", count(s.Rejected), count(s.Failed))
		for _, code := range slices.Sorted(maps.Keys(s.Errors)) {
			fmt.Fprintf(w, "  %s×%d", code, s.Errors[code])
		}
		fmt.Fprintln(w)
	}
	row := func(name string, p Percentiles) {
		fmt.Fprintf(w, "%-11s p50 %9.2f   p90 %9.2f   p99 %9.2f   p99.9 %9.2f   max %9.2f ms\n", name, p.P50, p.P90, p.P99, p.P999, p.Max)
	}
	row("lag", s.LagMs)
	row("service", s.ServiceMs)
	row("response", s.ResponseMs)
	if c := s.Check; c != nil {
		fmt.Fprintf(w, "delivered   %s of %s   %s/s, last one %.1f s after the last answer\n", count(c.Delivered), count(c.Expected), count(int64(s.DeliveredPS)), c.Took.Seconds())
		if c.Pending > 0 {
			fmt.Fprintf(w, "            %s were still on their way when the drain's time was over\n", count(c.Pending))
		}
		if c.Ended > 0 {
			fmt.Fprintf(w, "            %s ended without being delivered\n", count(c.Ended))
		}
		fmt.Fprintf(w, "ledger      lost %d   duplicates %d   reordered %d\n", c.Lost, c.Duplicates, c.Reordered)
		for _, e := range c.Examples {
			fmt.Fprintf(w, "            not delivered: %s\n", e)
		}
	}
}

// count writes a number with separators.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Line is one line of progress.
func (p *Progress) Line() string {
	rate := float64(p.Last.Accepted) / max(p.Last.Elapsed.Seconds(), 0.001)
	s := fmt.Sprintf("%5.0fs %-8s accepted %14s (%12s/s)", p.Total.Elapsed.Seconds(), p.Phase, count(p.Total.Accepted), count(int64(rate)))
	if p.Delivered >= 0 {
		s += fmt.Sprintf("   delivered %14s", count(p.Delivered))
	}
	if p.Total.Failed > 0 {
		s += fmt.Sprintf("   failed %s", count(p.Total.Failed))
	}
	return s + fmt.Sprintf("   response p99 %.1f ms", float64(p.Total.Response.ValueAtQuantile(99))/1e6)
}
