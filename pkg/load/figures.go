package load

import (
	"cmp"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// matches reports whether the figures of step s belong to the metric: the step must have all tags
// of the metric. A step of a warm-up phase belongs only to metrics that name its phase.
func (m *metric) matches(s *stepRun) bool {
	if s.phase.Warmup && m.tags["phase"] != s.phase.Name {
		return false
	}
	has := map[string]string{"step": s.Name, "phase": s.phase.Name, "channel": s.channel(), "category": s.category(), "target": s.Target}
	for k, v := range m.tags {
		if has[k] != v {
			return false
		}
	}
	return true
}

func (s *Step) channel() string {
	return s.commonValue(s.Channel, func(m Share) string { return m.Channel })
}

func (s *Step) category() string {
	return s.commonValue(s.Category, func(m Share) string { return m.Category })
}

// commonValue calls the function valueOf for every part of the mix. If all values are equal, it
// returns this value; otherwise it returns "mixed". If the step has no mix, it returns stepValue.
func (s *Step) commonValue(stepValue string, valueOf func(Share) string) string {
	for _, m := range s.Mix {
		if stepValue = valueOf(m); stepValue != valueOf(s.Mix[0]) {
			return "mixed"
		}
	}
	return stepValue
}

// value returns the present value of a metric. The result known is false if the metric has no value
// now. The parameter final is true at the end of the run. value implements metricSource.
func (c *coordinator) value(m *metric, final bool) (v float64, known bool) {
	switch m.name {
	case "lag", "service", "response":
		h := NewHistogram()
		for _, w := range c.countsOf(m) {
			h.Merge(map[string]*hdrhistogram.Histogram{"lag": w.lag, "service": w.service, "response": w.response}[m.name])
		}
		return quantileStat(QuantilesOf(h), m.stat)
	case "end_to_end", "lateness":
		sum := endTimes{endToEnd: NewHistogram(), late: NewHistogram(), early: NewHistogram()}
		c.endToEndMu.Lock()
		defer c.endToEndMu.Unlock()
		for s, e := range c.endToEnd {
			if m.matches(s) {
				sum.endToEnd.Merge(e.endToEnd)
				sum.late.Merge(e.late)
				sum.early.Merge(e.early)
			}
		}
		if m.name == "end_to_end" {
			return quantileStat(QuantilesOf(sum.endToEnd), m.stat)
		}
		return quantileStat(SignedQuantiles(sum.late, sum.early), m.stat)
	case "intended", "sent", "acked", "failed", "rejected", "rate", "error_rate":
		return c.countedValue(m)
	case "cpu":
		return c.nowHealth.CPU, true
	case "backlog_slope":
		d := m.window
		if d == 0 {
			d = c.defaultSlopeWindow()
		}
		return c.backlogSlope(d)
	}
	if c.run.cfg.Ledger == nil {
		return 0, false
	}
	f := &c.settled
	v, there := map[string]float64{
		"delivered": float64(c.delivered()), "duplicates": float64(c.came.duplicates), "reordered": float64(c.came.reordered), "backlog": float64(c.backlog()),
		"lost": float64(f.Lost), "early": float64(f.Early), "late": float64(f.Late), "unexpected": float64(f.Unexpected),
		"unverified": float64(f.Unverified), "pending": float64(f.Pending), "ended": float64(f.Ended), "drain": float64(f.drainTook),
	}[m.name]
	return v, there && (final || !slices.Contains(endMetrics, m.name))
}

// countsOf returns the figures from which a metric is computed. If the metric has a time window,
// these are the figures of the last seconds. Otherwise they are the figures of the whole run.
func (c *coordinator) countsOf(m *metric) (out []*window) {
	if m.window == 0 {
		for _, s := range c.run.steps {
			if m.matches(s) {
				out = append(out, s.totalCounts)
			}
		}
		return out
	}
	length := time.Duration(0)
	for i := len(c.recent) - 1; i >= 0 && length < m.window; i-- {
		for _, r := range c.recent[i] {
			if m.matches(r.step) {
				out = append(out, r.win)
			}
		}
		length += time.Second
	}
	return out
}

func (c *coordinator) countedValue(m *metric) (float64, bool) {
	var t tally
	for _, w := range c.countsOf(m) {
		t.add(&w.tally)
	}
	var intended int64
	length, any := time.Duration(0), false
	now := c.run.elapsed()
	for _, s := range c.run.steps {
		begin := time.Duration(s.begin.Load())
		if !m.matches(s) || begin < 0 {
			continue
		}
		any = true
		intended += s.intended(now)
		end := cmp.Or(time.Duration(s.ended.Load()), now)
		length += end - begin
	}
	if m.window > 0 {
		length = m.window
	}
	switch m.name {
	case "rate":
		return PerSecond(t.acked, length), any && length > 0
	case "error_rate":
		return float64(t.failed+t.rejected) / float64(max(t.sent, 1)), t.sent > 0
	}
	n := map[string]int64{"intended": intended, "sent": t.sent, "acked": t.acked, "failed": t.failed, "rejected": t.rejected}[m.name]
	return float64(n), any
}

func quantileStat(q Quantiles, name string) (float64, bool) {
	v := map[string]int64{
		"count": q.Count, "min": q.Min, "mean": q.Mean, "p50": q.P50, "p90": q.P90,
		"p99": q.P99, "p99.9": q.P999, "p99.99": q.P9999, "max": q.Max,
	}[name]
	return float64(v), q.Count > 0 || name == "count"
}
