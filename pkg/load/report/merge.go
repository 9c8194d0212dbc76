package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Merge puts the segments of one run together. Totals, counts per second, errors,
// heat and histograms are added, so that totals and percentiles are those that
// one generator would have counted; percentiles of a second come from its
// intervals where those are seconds, and are else the highest of the segments.
// Rates are of the time from the first start to the last end.
//
// The segments must be of one scenario and seed, each of the n once; what is not
// so is an error of notify.KindInvalid that names it.
func Merge(parts []*load.Result) (*load.Result, error) {
	parts = slices.Clone(parts)
	if err := checkSegments(parts); err != nil {
		return nil, err
	}
	slices.SortFunc(parts, func(a, b *load.Result) int { return cmp.Compare(a.Segment.I, b.Segment.I) })
	first := parts[0]
	m := &load.Result{
		Schema: load.SchemaVersion, Scenario: first.Scenario, Environment: first.Environment, Segment: load.Segment{I: 1, N: 1},
		Started: first.Started, Ended: first.Ended,
	}
	for _, p := range parts {
		if p.Started.Before(m.Started) {
			m.Started = p.Started
		}
		if p.Ended.After(m.Ended) {
			m.Ended = p.Ended
		}
	}
	var sent, delivered time.Duration // since m.Started
	for _, p := range parts {
		late := p.Started.Sub(m.Started)
		sent = max(sent, late+p.Sending)
		delivered = max(delivered, late+p.Sending+p.DrainTime)
		addTotals(&m.Totals, &p.Totals)
		addLedger(&m.Ledger, &p.Ledger, p == first)
		m.Partial = m.Partial || p.Partial
		if m.Stopped == "" {
			m.Stopped = p.Stopped
		}
		m.Exit = worseExit(m.Exit, p.Exit)
	}
	if sameServer(parts) {
		onceCounted(m, parts)
	}
	m.Sending, m.DrainTime = sent, delivered-sent
	m.Rates = load.Rates{
		Intended: per(m.Totals.Intended, sent), Sent: per(m.Totals.Sent, sent), Acked: per(m.Totals.Acked, sent),
		Delivered: per(m.Totals.Delivered, delivered), Failed: per(m.Totals.Failed+m.Totals.Rejected, sent),
	}
	if err := mergeSteps(m, parts); err != nil {
		return nil, err
	}
	if err := mergeSeconds(m, parts); err != nil {
		return nil, err
	}
	mergeErrors(m, parts)
	mergeRest(m, parts)
	return m, nil
}

func checkSegments(parts []*load.Result) error {
	if len(parts) < 2 {
		return notify.Invalid("bad_segments", "segments", "are at least two")
	}
	first := parts[0]
	have := map[int]bool{}
	for _, p := range parts {
		s := p.Segment
		switch {
		case s.N != len(parts):
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("are %d, and one of them is %d of %d", len(parts), s.I, s.N))
		case s.I < 1 || s.I > s.N:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("%d of %d is none", s.I, s.N))
		case have[s.I]:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("%d of %d is there twice", s.I, s.N))
		case p.Scenario.Digest != first.Scenario.Digest || p.Scenario.Seed != first.Scenario.Seed:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("%d and %d are of different scenarios or seeds", first.Segment.I, s.I))
		}
		have[s.I] = true
	}
	return nil
}

func addTotals(to, t *load.Totals) {
	to.Intended += t.Intended
	to.Sent += t.Sent
	to.Acked += t.Acked
	to.Delivered += t.Delivered
	to.Failed += t.Failed
	to.Rejected += t.Rejected
	to.Lost += t.Lost
	to.Duplicates += t.Duplicates
	to.Early += t.Early
	to.Late += t.Late
	to.Reordered += t.Reordered
	to.Unexpected += t.Unexpected
	to.Unverified += t.Unverified
	to.Backlog += t.Backlog
}

func addLedger(to, l *load.LedgerResult, first bool) {
	to.Checked = l.Checked && (first || to.Checked)
	to.Expected += l.Expected
	to.Delivered += l.Delivered
	to.Lost += l.Lost
	to.Pending += l.Pending
	to.Ended += l.Ended
	to.Duplicates += l.Duplicates
	to.Early += l.Early
	to.Late += l.Late
	to.Reordered += l.Reordered
	to.Unexpected += l.Unexpected
	to.Unverified += l.Unverified
	to.Sampled += l.Sampled
	const shown = 20
	to.Examples = append(to.Examples, l.Examples[:min(len(l.Examples), shown-len(to.Examples))]...)
}

// sameServer reports whether all segments went to one server. Then the ledger that
// each of them read is the same.
func sameServer(parts []*load.Result) bool {
	e := &parts[0].Environment
	return e.Server != "" && e.Server != "embedded" && !slices.ContainsFunc(parts, func(p *load.Result) bool {
		return p.Environment.Server != e.Server || p.Environment.Host != e.Host
	})
}

// onceCounted puts right what every segment counted of all of them: the ledger knows
// of a duplicate, not of whose it is.
func onceCounted(m *load.Result, parts []*load.Result) {
	t, l := &m.Totals, &m.Ledger
	t.Duplicates, t.Reordered, l.Duplicates, l.Reordered = 0, 0, 0, 0
	for _, p := range parts {
		t.Duplicates, t.Reordered = max(t.Duplicates, p.Totals.Duplicates), max(t.Reordered, p.Totals.Reordered)
		l.Duplicates, l.Reordered = max(l.Duplicates, p.Ledger.Duplicates), max(l.Reordered, p.Ledger.Reordered)
	}
}

// worseExit prefers what a script must not miss: any failure to success, and the
// first failure to later ones.
func worseExit(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// sum adds encoded histograms.
type sum struct {
	h   *hdrhistogram.Histogram
	one string // the only one so far: it is kept as it is
	n   int
}

func (s *sum) add(text string) error {
	if text == "" {
		return nil
	}
	h, err := load.DecodeHistogram(text)
	if err != nil {
		return err
	}
	s.one, s.n = text, s.n+1
	if s.h == nil {
		s.h = load.NewHistogram()
	}
	if dropped := s.h.Merge(h); dropped > 0 {
		return notify.Invalid("bad_histogram", "histogram", fmt.Sprintf("has %d values that are out of range", dropped))
	}
	return nil
}

func (s *sum) text() (string, error) {
	if s.n == 1 {
		return s.one, nil
	}
	return load.EncodeHistogram(s.h)
}

func mergeSteps(m *load.Result, parts []*load.Result) error {
	type key struct{ phase, name string }
	var order []key
	byKey := map[key][]*load.StepResult{}
	for _, p := range parts {
		for i := range p.Steps {
			s := &p.Steps[i]
			k := key{s.Phase, s.Name}
			if byKey[k] == nil {
				order = append(order, k)
			}
			byKey[k] = append(byKey[k], s)
		}
	}
	for _, k := range order {
		list := byKey[k]
		out := load.StepResult{StepSnapshot: list[0].StepSnapshot}
		out.Totals, out.Rates = load.Totals{}, load.Rates{}
		var sums [6]sum
		for _, s := range list {
			addTotals(&out.Totals, &s.Totals)
			out.Rates.Intended += s.Rates.Intended
			out.Rates.Sent += s.Rates.Sent
			out.Rates.Acked += s.Rates.Acked
			out.Rates.Delivered += s.Rates.Delivered
			out.Rates.Failed += s.Rates.Failed
			for i, b := range s.EndToEndParts { // as addBrief: quantiles cannot be added
				if len(out.EndToEndParts) <= i {
					out.EndToEndParts = append(out.EndToEndParts, load.Brief{})
				}
				addBrief(&out.EndToEndParts[i], b)
			}
			h := &s.Histograms
			for i, text := range []string{h.Lag, h.Service, h.Response, h.EndToEnd, h.Late, h.Early} {
				if err := sums[i].add(text); err != nil {
					return fmt.Errorf("step %s: %w", k.name, err)
				}
			}
		}
		o := &out.Histograms
		for i, to := range []*string{&o.Lag, &o.Service, &o.Response, &o.EndToEnd, &o.Late, &o.Early} {
			text, err := sums[i].text()
			if err != nil {
				return err
			}
			*to = text
		}
		out.Lag, out.Service, out.Response = load.QuantilesOf(sums[0].h), load.QuantilesOf(sums[1].h), load.QuantilesOf(sums[2].h)
		out.EndToEnd, out.Lateness = load.QuantilesOf(sums[3].h), load.SignedQuantiles(sums[4].h, sums[5].h)
		m.Steps = append(m.Steps, out)
	}
	return nil
}

// shift is how many seconds after the first segment one began.
func shift(m, p *load.Result) int { return int(math.Round(p.Started.Sub(m.Started).Seconds())) }

func mergeErrors(m *load.Result, parts []*load.Result) {
	type key struct{ class, code, step string }
	all := map[key]load.ErrorCount{}
	for _, p := range parts {
		for _, e := range p.Errors {
			k := key{e.Class, e.Code, e.Step}
			have, there := all[k]
			if !there {
				have = load.ErrorCount{Class: e.Class, Code: e.Code, Step: e.Step}
			}
			have.Count += e.Count
			if e.Last.After(have.Last) {
				have.Last = e.Last
			}
			all[k] = have
		}
	}
	m.Errors = slices.SortedFunc(maps.Values(all), func(a, b load.ErrorCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Step, b.Step))
	})
}
