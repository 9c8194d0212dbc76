package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
)

// ratesOfMetrics are rates over counters of their own.
func ratesOfMetrics() (*Rates, *Metrics) {
	vec := func(name string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "notifyd_" + name}, labels)
	}
	late := func(name string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "notifyd_" + name, Buckets: []float64{.01, .1, 1}})
	}
	m := &Metrics{
		Accepted: vec("accepted_receivers_total", "channel", "category"), Outcomes: vec("outcomes_total", "lane", "state"),
		TriggersCreated: prometheus.NewCounter(prometheus.CounterOpts{Name: "notifyd_triggers_created_total"}),
		TriggersEnded:   vec("triggers_ended_total", "state"), TimerLate: late("timer_late_seconds"), TriggerLate: late("trigger_late_seconds"),
		CallSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "notifyd_provider_call_seconds"}, []string{"lane"}),
	}
	return NewRates(m), m
}

func TestRates(t *testing.T) {
	t.Parallel()
	r, m := ratesOfMetrics()
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for range 100 { // of long ago, in no rate and no quantile
		m.TimerLate.Observe(.005)
	}
	Add(m.Outcomes, 1000, "push", "FAILED")
	m.CallSeconds.WithLabelValues("push").Observe(20)
	for i := range 80 { // 400 s: more than are kept
		if err := r.addSample(at.Add(time.Duration(i) * rateStep)); err != nil {
			t.Fatal(err)
		}
		if i == 67 { // then 60 s and more are left
			Add(m.Accepted, 600, "push", "alert")
			Add(m.Accepted, 60, "email", "digest")
			Add(m.Outcomes, 300, "push", "DELIVERED")
			Add(m.Outcomes, 30, "push-bulk", "SENT")
			Add(m.Outcomes, 6, "push", "FAILED")
			Add(m.Outcomes, 3, "push", "DEFERRED")
			m.CallSeconds.WithLabelValues("push").Observe(.25)
			m.CallSeconds.WithLabelValues("push-bulk").Observe(.75)
			m.TriggersCreated.Add(120)
			Add(m.TriggersEnded, 60, "FIRED")
			for range 98 {
				m.TimerLate.Observe(.005)
			}
			m.TimerLate.Observe(.05)
			m.TimerLate.Observe(.5)
		}
	}
	now, err := r.readCounters(at.Add(79 * rateStep))
	if err != nil {
		t.Fatal(err)
	}
	got := computeRates(r.samples, now)
	if len(r.samples) != rateKeep || len(got.Series) != rateKeep-1 || got.OverSeconds != 60 {
		t.Errorf("%d samples, %d points, over %g s", len(r.samples), len(got.Series), got.OverSeconds)
	}
	for _, want := range []api.Rate{
		{What: "email", Accepted: 1}, {What: "push", Accepted: 10, Reached: 5.5, Failed: .1, Other: .05, CallSeconds: .5}, {What: "sms"}, {What: "trigger", Accepted: 2, Reached: 1},
	} {
		found := false
		for _, one := range got.Rates {
			found = found || one == want
		}
		if !found {
			t.Errorf("%+v is not in %+v", want, got.Rates)
		}
	}
	if want := (api.Lateness{What: "timer", N: 100, P50: .01, P99: .1}); got.Late[0] != want {
		t.Errorf("%+v, want %+v", got.Late[0], want)
	}
	if want := (api.Lateness{What: "trigger"}); got.Late[1] != want {
		t.Errorf("%+v, want %+v", got.Late[1], want)
	}
	sum := 0.0
	for _, p := range got.Series {
		sum += p.Accepted * rateStep.Seconds()
	}
	if sum != 780 {
		t.Errorf("the steps sum to %g accepted", sum)
	}
}

func TestRatesAtTheStart(t *testing.T) {
	t.Parallel()
	r, m := ratesOfMetrics()
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	Add(m.Accepted, 7, "sms", "otp")
	now, err := r.readCounters(at)
	if err != nil {
		t.Fatal(err)
	}
	if got := computeRates(nil, now); got.OverSeconds != 0 || len(got.Rates) != 4 || got.Rates[2].Accepted != 0 || len(got.Series) != 0 {
		t.Errorf("without a sample: %+v", got)
	}
}
