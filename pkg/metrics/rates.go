package metrics

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Rates keeps samples of the counters over the last 5 minutes, so that an operator without Prometheus
// sees the current rates. While Run runs, Report may be called from any goroutine.
type Rates struct {
	registry *prometheus.Registry // holds only the metrics that Rates reads

	mu      sync.Mutex // guards the field samples
	samples []sample   // oldest first
}

const (
	rateStep = 5 * time.Second  // time between two samples
	rateKeep = 61               // samples kept: 5 minutes
	rateOver = 60 * time.Second // the period over which a report computes rates
)

// sample holds the values of the counters at one time. No code changes a sample that readCounters
// has returned.
type sample struct {
	at                               time.Time
	accepted, reached, failed, ended map[string]float64        // key: a channel, or whatTrigger
	callSeconds, calls               map[string]float64        // key: a channel; seconds of provider calls, and number of calls
	late                             map[string]*dto.Histogram // key: "timer" or whatTrigger
}

// NewRates returns the Rates of the counters of m. Samples are taken only while Run runs.
func NewRates(m *Metrics) *Rates {
	r := &Rates{registry: prometheus.NewRegistry()}
	r.registry.MustRegister(m.Accepted, m.Outcomes, m.TriggersCreated, m.TriggersEnded, m.TimerLate, m.TriggerLate, m.CallSeconds)
	return r
}

// Run takes a sample every 5 s until ctx ends.
func (r *Rates) Run(ctx context.Context) error {
	t := time.NewTicker(rateStep)
	defer t.Stop()
	for {
		if err := r.addSample(time.Now()); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Rates) addSample(now time.Time) error {
	s, err := r.readCounters(now)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.samples = append(r.samples, s); len(r.samples) > rateKeep {
		r.samples = slices.Delete(r.samples, 0, len(r.samples)-rateKeep)
	}
	return nil
}

// whatTrigger is the key of triggers in the maps of a sample. All other keys are names of channels.
const whatTrigger = "trigger"

func (r *Rates) readCounters(now time.Time) (sample, error) {
	s := sample{
		at: now, accepted: map[string]float64{}, reached: map[string]float64{}, failed: map[string]float64{},
		ended: map[string]float64{}, callSeconds: map[string]float64{}, calls: map[string]float64{}, late: map[string]*dto.Histogram{},
	}
	families, err := r.registry.Gather()
	if err != nil {
		return s, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			label := map[string]string{}
			for _, l := range m.GetLabel() {
				label[l.GetName()] = l.GetValue()
			}
			switch name := strings.TrimPrefix(f.GetName(), "notifyd_"); name {
			case "accepted_receivers_total":
				s.accepted[label["channel"]] += m.GetCounter().GetValue()
			case "triggers_created_total":
				s.accepted[whatTrigger] += m.GetCounter().GetValue()
			case "outcomes_total":
				channel, _, _ := strings.Cut(label["lane"], "-")
				s.addEnded(channel, label["state"], m.GetCounter().GetValue())
			case "provider_call_seconds":
				channel, _, _ := strings.Cut(label["lane"], "-")
				s.callSeconds[channel] += m.GetHistogram().GetSampleSum()
				s.calls[channel] += float64(m.GetHistogram().GetSampleCount())
			case "triggers_ended_total":
				s.addEnded(whatTrigger, label["state"], m.GetCounter().GetValue())
			case "timer_late_seconds", "trigger_late_seconds":
				what, _, _ := strings.Cut(name, "_")
				s.late[what] = m.GetHistogram()
			}
		}
	}
	return s, nil
}

func (s *sample) addEnded(what, state string, n float64) {
	s.ended[what] += n
	switch state {
	case "SENT", "DELIVERED", "FIRED":
		s.reached[what] += n
	case "FAILED":
		s.failed[what] += n
	}
}

// Report returns the rates over the last minute, and a series with one point for each sample except the
// oldest sample. It returns an error if the counters cannot be read.
func (r *Rates) Report() (out api.Rates, err error) {
	now, err := r.readCounters(time.Now())
	if err != nil {
		return out, err
	}
	r.mu.Lock()
	kept := slices.Clone(r.samples)
	r.mu.Unlock()
	return computeRates(kept, now), nil
}

// computeRates computes the rates between an older sample and the sample that was just taken (the
// parameter now). The older sample is the newest sample in kept that was taken at least rateOver
// before now. If kept has no such sample, computeRates uses the oldest sample in kept.
func computeRates(kept []sample, now sample) api.Rates {
	out := api.Rates{Rates: []api.Rate{}, Late: []api.Lateness{}, Series: []api.RatePoint{}}
	since := now
	for i := len(kept) - 1; i >= 0; i-- {
		since = kept[i]
		if now.at.Sub(since.at) >= rateOver {
			break
		}
	}
	over := now.at.Sub(since.at).Seconds()
	out.OverSeconds = over
	per := func(later, earlier, seconds float64) float64 {
		if seconds <= 0 {
			return 0
		}
		return (later - earlier) / seconds
	}
	whats := []string{whatTrigger}
	for _, c := range notify.Channels {
		whats = append(whats, c.String())
	}
	slices.Sort(whats)
	for _, w := range whats {
		one := api.Rate{
			What: w, Accepted: per(now.accepted[w], since.accepted[w], over),
			Reached: per(now.reached[w], since.reached[w], over), Failed: per(now.failed[w], since.failed[w], over),
		}
		// Subtract counts, not rates: counts are whole numbers and leave no rounding error.
		others := func(s *sample) float64 { return s.ended[w] - s.reached[w] - s.failed[w] }
		one.Other = per(others(&now), others(&since), over)
		one.CallSeconds = per(now.callSeconds[w], since.callSeconds[w], now.calls[w]-since.calls[w])
		out.Rates = append(out.Rates, one)
	}
	for _, w := range []string{"timer", whatTrigger} {
		out.Late = append(out.Late, lateness(w, now.late[w], since.late[w]))
	}
	sum := func(of map[string]float64) (n float64) {
		for _, v := range of {
			n += v
		}
		return n
	}
	for i := 1; i < len(kept); i++ {
		a, b := kept[i-1], kept[i]
		took := b.at.Sub(a.at).Seconds()
		out.Series = append(out.Series, api.RatePoint{
			At: b.at.UTC().Truncate(time.Second), Accepted: roundHundredths(per(sum(b.accepted), sum(a.accepted), took)),
			Ended: roundHundredths(per(sum(b.reached)+sum(b.failed), sum(a.reached)+sum(a.failed), took)),
		})
	}
	return out
}

// roundHundredths rounds v to two decimal places, so that the series needs fewer bytes: in a cluster,
// a process sends its series to the other processes every 5 s.
func roundHundredths(v float64) float64 { return math.Round(v*100) / 100 }

// lateness compares two readings of a histogram, a later one and an earlier one. It returns the
// number of values that the histogram counted between the two readings, and the quantiles of these
// values.
func lateness(what string, later, earlier *dto.Histogram) api.Lateness {
	out := api.Lateness{What: what}
	n := float64(later.GetSampleCount()) - float64(earlier.GetSampleCount())
	if n <= 0 {
		return out
	}
	before := func(i int) float64 {
		if bs := earlier.GetBucket(); i < len(bs) {
			return float64(bs[i].GetCumulativeCount())
		}
		return 0
	}
	quantile := func(q float64) float64 {
		top := 0.0
		for i, b := range later.GetBucket() {
			top = b.GetUpperBound()
			if float64(b.GetCumulativeCount())-before(i) >= q*n {
				break
			}
		}
		return top // a value above the bound of the highest bucket is reported as this bound
	}
	out.N, out.P50, out.P99 = n, quantile(.5), quantile(.99)
	return out
}
