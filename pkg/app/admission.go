package app

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/limit"
)

// newAdmission returns the admission control for batches and fan-outs. It logs when an
// overload begins and when it ends.
func newAdmission(n *Node) *limit.Admission {
	cfg := limit.AdmissionConfig{Processors: runtime.GOMAXPROCS(0), MaxWait: n.cfg.Intake.BulkWait}
	if n.servers != nil { // bulk appends must end long before they reach the timeout of an append
		cfg.AppendTarget = n.cfg.Kafka.AppendTimeout / 4
	}
	cfg.Changed = func(o limit.Overload) {
		if !o.Since.IsZero() {
			n.log.Warn("overload: batches and fan-outs are refused until fewer of them arrive", "expected_wait", o.Wait.Round(time.Millisecond), "bytes_ahead", o.Ahead)
			return
		}
		n.log.Warn("the overload has ended", "refused", o.Refused, "lasted", o.Lasted.Round(time.Millisecond))
	}
	return limit.NewAdmission(cfg)
}

// bulkGate returns the gate that the intake uses for bulk lanes. The gate calls the function check.
// If check is nil, bulkGate returns nil, so bulk lanes use the same gate as all other lanes.
func bulkGate(check func() error) intake.Gate {
	if check == nil {
		return nil
	}
	return gate(check)
}

// lookAtAdmission adds a finding that says whether batches and fan-outs are refused.
func (d *doctor) lookAtAdmission() {
	o := d.n.admission.Overload()
	if o.Since.IsZero() {
		d.Add("overload", false, "warn", "", "batches and fan-outs are accepted; a new one would wait %s", o.Wait.Round(time.Millisecond))
		return
	}
	d.Add("overload", true, "warn",
		"do nothing if it is a short peak, because callers try again after Retry-After; otherwise raise the capacity, or ask the callers to send more slowly",
		"for %s, %d batches and fan-outs refused; a new one would wait %s; single notifications of otp, alert and transactional are accepted", time.Since(o.Since).Round(time.Second), o.Refused, o.Wait.Round(time.Millisecond))
}

// collectAdmission collects the metrics of the admission control.
func (c *nodeCollector) collectAdmission(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	o := c.n.admission.Overload()
	gauge(descOverload, boolGauge(!o.Since.IsZero()))
	gauge(descBulkWait, o.Wait.Seconds())
	gauge(descBulkAhead, float64(o.Ahead))
	gauge(descBulkAppend, float64(o.Append))
}
