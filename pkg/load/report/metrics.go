package report

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/notifyd/notifyd/pkg/load"
)

// MetricsHandler serves the latest snapshot of a run in the formats of Prometheus. For each scrape
// it calls the function latest once; several goroutines may do so at the same time. The function
// latest returns nil as long as the run has not begun. docs/metrics-load.md lists the metrics.
func MetricsHandler(latest func() *load.Snapshot) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(&collector{latest})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

type collector struct{ latest func() *load.Snapshot }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("notifyctl_load_"+name, help, labels, nil)
}

var (
	descMessages   = desc("messages_total", "Messages of the run by step and outcome.", "phase", "step", "outcome")
	descLatency    = desc("latency_seconds", "Latency of the run by step and kind.", "phase", "step", "kind")
	descLedger     = desc("ledger_total", "Messages that the ledger found in a state.", "state")
	descBacklog    = desc("backlog", "Messages that were accepted and not delivered.")
	descRate       = desc("rate", "Messages per second over the last second.", "of")
	descErrors     = desc("errors_total", "Messages of requests that failed.", "step", "class", "code")
	descThreshold  = desc("threshold_ok", "1 where a threshold is met, 0 where it is missed.", "expr")
	descVerdict    = desc("verdict", "1 for the verdict so far.", "verdict")
	descState      = desc("state", "1 for the state and phase of the run.", "state", "phase")
	descElapsed    = desc("elapsed_seconds", "Time since the run began.")
	descLag        = desc("generator_lag_seconds", "p99 of the generator's own delay in the last second.")
	descCPU        = desc("generator_cpu_cores", "Cores that the process of the generator uses.")
	descShare      = desc("generator_share", "Intended rate by the rate it reached against the null sink.")
	allDescriptors = []*prometheus.Desc{descMessages, descLatency, descLedger, descBacklog, descRate, descErrors, descThreshold, descVerdict, descState, descElapsed, descLag, descCPU, descShare}
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allDescriptors {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.latest()
	if s == nil {
		return
	}
	one := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		m, err := prometheus.NewConstMetric(d, t, v, labels...)
		if err != nil { // a label is not UTF-8, so the scrape fails with this error
			m = prometheus.NewInvalidMetric(d, err)
		}
		ch <- m
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		one(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		one(d, prometheus.GaugeValue, v, labels...)
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		t := &step.Totals
		for _, o := range []struct {
			name string
			n    int64
		}{{"intended", t.Intended}, {"sent", t.Sent}, {"accepted", t.Acked}, {"delivered", t.Delivered}, {"failed", t.Failed}, {"rejected", t.Rejected}} {
			counter(descMessages, o.n, step.Phase, step.Name, o.name)
		}
		for k, name := range [kinds]string{"response", "service", "lag", "end_to_end", "lateness"} {
			q := quantiles(step, kind(k))
			if q.Count == 0 {
				continue
			}
			sec := func(ns int64) float64 { return float64(ns) / 1e9 }
			m, err := prometheus.NewConstSummary(descLatency, uint64(q.Count), sec(q.Mean)*float64(q.Count), map[float64]float64{
				0.5: sec(q.P50), 0.9: sec(q.P90), 0.99: sec(q.P99), 0.999: sec(q.P999), 0.9999: sec(q.P9999), 1: sec(q.Max),
			}, step.Phase, step.Name, name)
			if err != nil {
				m = prometheus.NewInvalidMetric(descLatency, err)
			}
			ch <- m
		}
	}
	for _, l := range []struct {
		state string
		n     int64
	}{{"lost", s.Totals.Lost}, {"duplicate", s.Totals.Duplicates}, {"early", s.Totals.Early}, {"late", s.Totals.Late}, {"reordered", s.Totals.Reordered}, {"unexpected", s.Totals.Unexpected}, {"unverified", s.Totals.Unverified}} {
		counter(descLedger, l.n, l.state)
	}
	gauge(descBacklog, float64(s.Totals.Backlog))
	for name, v := range map[string]float64{"intended": s.Rates.Intended, "sent": s.Rates.Sent, "accepted": s.Rates.Acked, "delivered": s.Rates.Delivered, "failed": s.Rates.Failed} {
		gauge(descRate, v, name)
	}
	for _, e := range s.Errors {
		counter(descErrors, e.Count, e.Step, e.Class, e.Code)
	}
	for _, t := range s.Thresholds {
		if t.Known {
			v := 0.0
			if t.OK {
				v = 1
			}
			gauge(descThreshold, v, t.Expr)
		}
	}
	if s.Verdict != "" {
		gauge(descVerdict, 1, s.Verdict)
	}
	gauge(descState, 1, string(s.State), s.Phase.Name)
	gauge(descElapsed, s.Elapsed.Seconds())
	gauge(descLag, s.Health.LagP99.Seconds())
	gauge(descCPU, s.Health.CPU)
	gauge(descShare, s.Health.GeneratorShare)
}
