package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// matches reports whether a step counts for a metric.
func (m *metric) matches(s *stepRun) bool {
	if s.phase.Warmup && m.tags["phase"] != s.phase.Name {
		return false
	}
	for k, v := range m.tags {
		var has string
		switch k {
		case "step":
			has = s.Name
		case "phase":
			has = s.phase.Name
		case "channel":
			has = s.channel()
		case "category":
			has = s.category()
		case "target":
			has = s.Target
		}
		if has != v {
			return false
		}
	}
	return true
}

func (s *Step) channel() string {
	if len(s.Mix) == 0 {
		return s.Channel
	}
	for _, m := range s.Mix {
		if m.Channel != s.Mix[0].Channel {
			return "mixed"
		}
	}
	return s.Mix[0].Channel
}

func (s *Step) category() string {
	if len(s.Mix) == 0 {
		return s.Category
	}
	for _, m := range s.Mix {
		if m.Category != s.Mix[0].Category {
			return "mixed"
		}
	}
	return s.Mix[0].Category
}

// value implements figures.
func (c *coordinator) value(m *metric, final bool) (float64, bool) {
	switch m.name {
	case "lag", "service", "response":
		h := NewHistogram()
		for _, w := range c.windows(m) {
			h.Merge(map[string]*hdrhistogram.Histogram{"lag": w.lag, "service": w.service, "response": w.response}[m.name])
		}
		return stat(QuantilesOf(h), m.stat)
	case "end_to_end", "lateness":
		sum := endTimes{endToEnd: NewHistogram(), late: NewHistogram(), early: NewHistogram()}
		for s, e := range c.endToEnd {
			if m.matches(s) {
				sum.endToEnd.Merge(e.endToEnd)
				sum.late.Merge(e.late)
				sum.early.Merge(e.early)
			}
		}
		if m.name == "end_to_end" {
			return stat(QuantilesOf(sum.endToEnd), m.stat)
		}
		return stat(SignedQuantiles(sum.late, sum.early), m.stat)
	case "intended", "sent", "acked", "failed", "rejected", "rate", "error_rate":
		return c.counted(m)
	case "cpu":
		return c.nowHealth.CPU, true
	case "backlog_slope":
		d := m.window
		if d == 0 {
			d = c.slopeOver()
		}
		return c.slope(d)
	}
	if c.run.cfg.Ledger == nil {
		return 0, false
	}
	f := &c.settled
	switch m.name {
	case "delivered":
		return float64(c.delivered()), true
	case "duplicates":
		return float64(c.came.duplicates), true
	case "reordered":
		return float64(c.came.reordered), true
	case "backlog":
		return float64(c.backlog()), true
	case "lost":
		return float64(f.Lost), final
	case "early":
		return float64(f.Early), final
	case "late":
		return float64(f.Late), final
	case "unexpected":
		return float64(f.Unexpected), final
	case "unverified":
		return float64(f.Unverified), final
	case "pending":
		return float64(f.Pending), final
	case "ended":
		return float64(f.Ended), final
	case "drain":
		return float64(f.took), final
	}
	return 0, false
}

// windows are the figures a metric is made of: of the whole run, or of its last
// seconds.
func (c *coordinator) windows(m *metric) (out []*window) {
	if m.window == 0 {
		for _, s := range c.run.steps {
			if m.matches(s) {
				out = append(out, s.total)
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

func (c *coordinator) counted(m *metric) (float64, bool) {
	var t tally
	for _, w := range c.windows(m) {
		t.add(&w.tally)
	}
	var intended int64
	length, any := time.Duration(0), false
	now := c.run.since(time.Now())
	for _, s := range c.run.steps {
		begin := time.Duration(s.begin.Load())
		if !m.matches(s) || begin < 0 {
			continue
		}
		any = true
		intended += s.intended(now)
		end := time.Duration(s.ended.Load())
		if end == 0 {
			end = now
		}
		length += end - begin
	}
	if m.window > 0 {
		length = m.window
	}
	switch m.name {
	case "intended":
		return float64(intended), any
	case "sent":
		return float64(t.sent), any
	case "acked":
		return float64(t.acked), any
	case "failed":
		return float64(t.failed), any
	case "rejected":
		return float64(t.rejected), any
	case "rate":
		return PerSecond(t.acked, length), any && length > 0
	}
	if t.sent == 0 {
		return 0, false
	}
	return float64(t.failed+t.rejected) / float64(t.sent), true
}

func stat(q Quantiles, name string) (float64, bool) {
	v := map[string]int64{
		"count": q.Count, "min": q.Min, "mean": q.Mean, "p50": q.P50, "p90": q.P90,
		"p99": q.P99, "p99.9": q.P999, "p99.99": q.P9999, "max": q.Max,
	}[name]
	return float64(v), q.Count > 0 || name == "count"
}
