package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// mergeSeconds adds what happened in each second, and the intervals of the .hlog.
func mergeSeconds(m *load.Result, parts []*load.Result) error {
	rows := map[int]*load.SecondRow{}
	shared := sameServer(parts)
	heat := map[int]*load.HeatColumn{}
	for _, p := range parts {
		off := shift(m, p)
		for i := range p.Seconds {
			r := &p.Seconds[i]
			to := rows[r.Second+off]
			if to == nil {
				to = &load.SecondRow{Second: r.Second + off, Phase: r.Phase, Draining: true}
				rows[to.Second] = to
			}
			came := to.Delivered
			addRow(to, r)
			if shared { // each saw what came for all
				to.Delivered = max(came, r.Delivered)
			}
		}
		for i := range p.Heat {
			h := &p.Heat[i]
			to := heat[h.Second+off]
			if to == nil {
				to = &load.HeatColumn{Second: h.Second + off}
				heat[to.Second] = to
			}
			for b, n := range h.Counts {
				to.Counts[b] += n
			}
		}
	}
	open := int64(0)
	for _, s := range slices.Sorted(maps.Keys(rows)) {
		r := rows[s]
		if open += r.Acked - r.Delivered; shared {
			r.Backlog = max(open, 0)
		}
		m.Seconds = append(m.Seconds, *r)
	}
	for _, s := range slices.Sorted(maps.Keys(heat)) {
		m.Heat = append(m.Heat, *heat[s])
	}
	return mergeIntervals(m, parts)
}

func addRow(to, r *load.SecondRow) {
	to.Draining = to.Draining && r.Draining
	to.Intended += r.Intended
	to.Sent += r.Sent
	to.Acked += r.Acked
	to.Delivered += r.Delivered
	to.Failed += r.Failed
	to.Backlog += r.Backlog
	to.Length = max(to.Length, r.Length)
	addBrief(&to.Response, r.Response)
	addBrief(&to.Lag, r.Lag)
	addBrief(&to.Service, r.Service)
	addHealth(&to.Health, &r.Health)
	for _, s := range r.Steps {
		i := slices.IndexFunc(to.Steps, func(t load.SecondStep) bool { return t.Name == s.Name })
		if i < 0 {
			to.Steps, i = append(to.Steps, load.SecondStep{Name: s.Name}), len(to.Steps)
		}
		t := &to.Steps[i]
		t.Sent += s.Sent
		t.Acked += s.Acked
		t.Failed += s.Failed
		addBrief(&t.Response, s.Response)
		addBrief(&t.Service, s.Service)
	}
}

// addBrief keeps the highest: quantiles cannot be added.
func addBrief(to *load.Brief, b load.Brief) {
	to.Count += b.Count
	to.P50, to.P99, to.Max = max(to.P50, b.P50), max(to.P99, b.P99), max(to.Max, b.Max)
}

// addHealth adds what several processes use, and keeps the worst of the rest.
func addHealth(to, h *load.Health) {
	to.CPU += h.CPU
	to.CPUs += h.CPUs
	to.GCCPU += h.GCCPU
	to.Goroutines += h.Goroutines
	to.RSS += h.RSS
	to.Sockets += h.Sockets
	to.CalibratedRate += h.CalibratedRate
	to.GCPause = max(to.GCPause, h.GCPause)
	to.MachineCPU = max(to.MachineCPU, h.MachineCPU)
	to.Steal = max(to.Steal, h.Steal)
	to.LagP99 = max(to.LagP99, h.LagP99)
	to.Busy = max(to.Busy, h.Busy)
	to.GeneratorShare = max(to.GeneratorShare, h.GeneratorShare)
	to.Embedded = to.Embedded || h.Embedded
}

// mergeIntervals adds the histograms of the same time, step and kind.
func mergeIntervals(m *load.Result, parts []*load.Result) error {
	type key struct {
		start, length     time.Duration // start in whole seconds
		phase, step, kind string
	}
	sums := map[key]*sum{}
	for _, p := range parts {
		off := time.Duration(shift(m, p)) * time.Second
		for _, l := range p.Intervals {
			k := key{(l.Start + off).Round(time.Second), l.Length.Round(time.Second), l.Phase, l.Step, l.Kind}
			if sums[k] == nil {
				sums[k] = &sum{}
			}
			if err := sums[k].add(l.Histogram); err != nil {
				return fmt.Errorf("step %s, %s at %s: %w", l.Step, l.Kind, Clock(l.Start), err)
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.phase, b.phase), cmp.Compare(a.step, b.step), cmp.Compare(a.kind, b.kind))
	})
	for _, k := range keys {
		text, err := sums[k].text()
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		m.Intervals = append(m.Intervals, load.Interval{
			Start: k.start, Length: k.length, Step: k.step, Phase: k.phase, Kind: k.kind, Max: sums[k].h.Max(), Histogram: text,
		})
	}
	secondsFromIntervals(m)
	return nil
}

// secondsFromIntervals gives the rows true percentiles where the intervals are
// seconds: of a step alone, and of the second where it has one step.
func secondsFromIntervals(m *load.Result) {
	at := map[int]*load.SecondRow{}
	for i := range m.Seconds {
		at[m.Seconds[i].Second] = &m.Seconds[i]
	}
	for i := range m.Intervals {
		l := &m.Intervals[i]
		row := at[int(l.Start/time.Second)]
		if row == nil || l.Length != time.Second || l.Kind != "response" {
			continue
		}
		h, err := load.DecodeHistogram(l.Histogram)
		if err != nil {
			continue // it was encoded a moment ago
		}
		b := load.Brief{Count: h.TotalCount(), P50: load.ValueAt(h, 50), P99: load.ValueAt(h, 99), Max: h.Max()}
		for j := range row.Steps {
			if row.Steps[j].Name == l.Step {
				row.Steps[j].Response = b
			}
		}
		if len(row.Steps) == 1 {
			row.Response = b
		}
	}
}

// mergeRest takes the worst verdict and threshold, and all that happened.
func mergeRest(m *load.Result, parts []*load.Result) {
	rank := []string{load.Valid, load.ConcurrencyBound, load.SinkBound, load.Inconclusive, load.GeneratorBound}
	m.Verdict.Code = load.Valid
	for _, p := range parts {
		if slices.Index(rank, p.Verdict.Code) > slices.Index(rank, m.Verdict.Code) {
			m.Verdict.Code = p.Verdict.Code
		}
		for _, why := range p.Verdict.Reasons {
			m.Verdict.Reasons = append(m.Verdict.Reasons, fmt.Sprintf("segment %d: %s", p.Segment.I, why))
		}
		off := p.Started.Sub(m.Started)
		for _, mk := range p.Markers {
			mk.At += off
			if !slices.ContainsFunc(m.Markers, func(o load.Marker) bool {
				return o.Kind == mk.Kind && o.Text == mk.Text && (o.At-mk.At).Abs() < 2*time.Second
			}) {
				m.Markers = append(m.Markers, mk)
			}
		}
		for _, f := range p.Faults {
			f.Began, f.Ended = f.Began+off, f.Ended+off
			m.Faults = append(m.Faults, f)
		}
		for _, t := range p.Thresholds {
			mergeThreshold(m, t)
		}
		addHealth(&m.Health.Health, &p.Health.Health)
		m.Health.CPUSeconds += p.Health.CPUSeconds
		m.Health.CalibrationTook = max(m.Health.CalibrationTook, p.Health.CalibrationTook)
	}
	slices.SortStableFunc(m.Markers, func(a, b load.Marker) int { return cmp.Compare(a.At, b.At) })
	if m.Totals.Sent > 0 {
		m.Health.NsPerMessage = m.Health.CPUSeconds * 1e9 / float64(m.Totals.Sent)
	}
	for _, r := range m.Seconds {
		if r.Health.LagP99 == m.Health.LagP99 {
			m.Health.WorstLagSecond = r.Second
			break
		}
	}
	m.Server = parts[0].Server // all of them asked the same one
}

// mergeThreshold is met where every segment met it. Its value is that of the
// segment that missed it, or of the first.
func mergeThreshold(m *load.Result, t load.ThresholdState) {
	i := slices.IndexFunc(m.Thresholds, func(o load.ThresholdState) bool { return o.Expr == t.Expr })
	if i < 0 {
		m.Thresholds = append(m.Thresholds, t)
		return
	}
	if have := &m.Thresholds[i]; have.OK && t.Known && (!t.OK || !have.Known) {
		*have = t
	}
}
