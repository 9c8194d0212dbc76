package report

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Merge makes one result from the results of the segments of a run. It adds totals, counts per
// second, errors, the heat map and histograms. So totals and percentiles are the same as if one
// generator had sent everything. Only the percentiles of a single second cannot be added. So for
// each second, Merge takes the highest percentile of all segments. Rates cover the time from the
// first start to the last end.
//
// All segments must have the same scenario and seed, and every segment of the run must occur
// exactly once. Otherwise Merge returns an error of notify.KindInvalid that names the segment.
func Merge(parts []*load.Result) (*load.Result, error) {
	parts = slices.Clone(parts)
	if err := checkSegments(parts); err != nil {
		return nil, err
	}
	slices.SortFunc(parts, func(a, b *load.Result) int { return cmp.Compare(a.Segment.I, b.Segment.I) })
	first := parts[0]
	m := &load.Result{Started: first.Started, Ended: first.Ended, Segment: load.Segment{I: 1, N: 1}}
	for _, p := range parts {
		if p.Started.Before(m.Started) {
			m.Started = p.Started
		}
		if p.Ended.After(m.Ended) {
			m.Ended = p.Ended
		}
	}
	var sent, delivered time.Duration // durations since m.Started
	var values []reflect.Value
	for i, p := range parts {
		late := p.Started.Sub(m.Started)
		sent = max(sent, late+p.Sending)
		delivered = max(delivered, late+p.Sending+p.DrainTime)
		parts[i] = shiftTimes(p, late)
		values = append(values, reflect.ValueOf(parts[i]).Elem())
	}
	shared := sameServer(parts)
	if err := foldValues(reflect.ValueOf(m).Elem(), values, "each", shared); err != nil {
		return nil, err
	}
	m.Sending, m.DrainTime = sent, delivered-sent
	m.Rates = load.Rates{
		Intended: load.PerSecond(m.Totals.Intended, sent), Sent: load.PerSecond(m.Totals.Sent, sent), Acked: load.PerSecond(m.Totals.Acked, sent),
		Delivered: load.PerSecond(m.Totals.Delivered, delivered), Failed: load.PerSecond(m.Totals.Failed+m.Totals.Rejected, sent),
	}
	for i := range m.Steps {
		s := &m.Steps[i]
		one := []*load.StepResult{s}
		s.Lag, s.Service, s.Response, s.EndToEnd, s.Lateness = mergedQuantiles(one, lag), mergedQuantiles(one, service), mergedQuantiles(one, response), mergedQuantiles(one, endToEnd), mergedQuantiles(one, late)
	}
	const shown = 20
	m.Ledger.Examples = m.Ledger.Examples[:min(len(m.Ledger.Examples), shown)]
	slices.SortFunc(m.Heat, func(a, b load.HeatColumn) int { return cmp.Compare(a.Second, b.Second) })
	slices.SortFunc(m.Errors, func(a, b load.ErrorCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Step, b.Step))
	})
	m.Intervals = slices.DeleteFunc(m.Intervals, func(l load.Interval) bool { return l.Histogram == "" })
	slices.SortFunc(m.Intervals, func(a, b load.Interval) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Phase, b.Phase), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortFunc(m.Seconds, func(a, b load.SecondRow) int { return cmp.Compare(a.Second, b.Second) })
	open := int64(0)
	// If the segments share a server, each segment has counted the deliveries of all segments, so
	// their backlogs cannot be added. Compute the backlog from the merged counts.
	for i := range m.Seconds {
		if r := &m.Seconds[i]; shared {
			open += r.Acked - r.Delivered
			r.Backlog = max(open, 0)
		}
	}
	mergeRest(m, parts)
	return m, nil
}

// shiftTimes returns a copy of the result of a segment. The times in the copy count from the start
// of the first segment. The parameter late says how much later than the first segment this segment
// began.
func shiftTimes(p *load.Result, late time.Duration) *load.Result {
	s, seconds := *p, int(math.Round(late.Seconds()))
	s.Seconds, s.Heat, s.Intervals = slices.Clone(p.Seconds), slices.Clone(p.Heat), slices.Clone(p.Intervals)
	s.Markers, s.Faults = slices.Clone(p.Markers), slices.Clone(p.Faults)
	for i := range s.Seconds {
		s.Seconds[i].Second += seconds
	}
	for i := range s.Heat {
		s.Heat[i].Second += seconds
	}
	for i := range s.Intervals {
		l := &s.Intervals[i]
		l.Start = (l.Start + time.Duration(seconds)*time.Second).Round(time.Second)
		l.Length = l.Length.Round(time.Second)
	}
	for i := range s.Markers {
		s.Markers[i].At += late
	}
	for i := range s.Faults {
		s.Faults[i].Began, s.Faults[i].Ended = s.Faults[i].Began+late, s.Faults[i].Ended+late
	}
	return &s
}

func checkSegments(parts []*load.Result) error {
	if len(parts) < 2 {
		return notify.Invalid("bad_segments", "segments", "there must be at least two segments")
	}
	first := parts[0]
	have := map[int]bool{}
	for _, p := range parts {
		s := p.Segment
		switch {
		case s.N != len(parts):
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("there are %d segments, but one of them is segment %d of %d", len(parts), s.I, s.N))
		case s.I < 1 || s.I > s.N:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("%d of %d is not a valid segment", s.I, s.N))
		case have[s.I]:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("segment %d of %d is given twice", s.I, s.N))
		case p.Scenario.Digest != first.Scenario.Digest || p.Scenario.Seed != first.Scenario.Seed:
			return notify.Invalid("bad_segments", "segments", fmt.Sprintf("the segments %d and %d have different scenarios or seeds", first.Segment.I, s.I))
		}
		have[s.I] = true
	}
	return nil
}

// sameServer reports whether all segments used the same server. Then all of them read the same
// ledger, and the counts of the ledger must not be added.
func sameServer(parts []*load.Result) bool {
	e := &parts[0].Environment
	return e.Server != "" && e.Server != "embedded" && !slices.ContainsFunc(parts, func(p *load.Result) bool {
		return p.Environment.Server != e.Server || p.Environment.Host != e.Host
	})
}

// mergeRest sets the verdict, the thresholds and the markers: it takes the worst verdict and
// collects the reasons, thresholds and markers of all segments. It also computes the figures in
// Result.Health that depend on other fields.
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
		for _, mk := range p.Markers {
			if !slices.ContainsFunc(m.Markers, func(o load.Marker) bool {
				return o.Kind == mk.Kind && o.Text == mk.Text && (o.At-mk.At).Abs() < 2*time.Second
			}) {
				m.Markers = append(m.Markers, mk)
			}
		}
		for _, t := range p.Thresholds {
			mergeThreshold(m, t)
		}
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
}

// mergeThreshold adds the threshold t of a segment to m. Normally m keeps the threshold of the
// first segment. If the kept threshold is met and t is not, m keeps t instead, even if t has no
// known value. If both are met and only t has a known value, m also keeps t instead.
func mergeThreshold(m *load.Result, t load.ThresholdState) {
	i := slices.IndexFunc(m.Thresholds, func(o load.ThresholdState) bool { return o.Expr == t.Expr })
	if i < 0 {
		m.Thresholds = append(m.Thresholds, t)
		return
	}
	if have := &m.Thresholds[i]; have.OK && (!t.OK || t.Known && !have.Known) {
		*have = t
	}
}

// foldRules explains the merge tags of the fields of a Result. The tag of a field says how the
// values of the field in all segments become one value.
var foldRules = map[string]string{
	"sum":   "numbers are added",
	"max":   "the highest number, or the latest time",
	"once":  "the sum; but the highest if all segments asked one server, which counted for all of them",
	"or":    "true if one is true",
	"and":   "true if all are true",
	"first": "the first value that is not empty",
	"key":   "the same in all segments: it finds the elements of lists that belong together",
	"hist":  "encoded histograms are added",
	"each":  "structs by field, arrays by index, lists by their key fields, or by index if they have none",
	"join":  "lists, one after the other",
	"own":   "Merge sets it itself",
}

// foldValues merges several values into one, by a rule that foldRules explains. The parameter from
// holds the values. foldValues stores the result in the value to, which must be zero before. The
// parameter shared is true if all segments used the same server. foldValues returns an error of
// notify.KindInvalid if a histogram is damaged.
func foldValues(to reflect.Value, from []reflect.Value, rule string, shared bool) error {
	switch rule {
	case "key", "first":
		for _, v := range from {
			if to.IsZero() {
				to.Set(v)
			}
		}
	case "sum", "max", "once":
		for _, v := range from {
			addNumber(to, v, rule == "max" || rule == "once" && shared)
		}
	case "or", "and":
		to.SetBool(rule == "and")
		for _, v := range from {
			if v.Bool() == (rule == "or") {
				to.SetBool(v.Bool())
			}
		}
	case "hist":
		var texts []string
		for _, v := range from {
			if v.String() != "" {
				texts = append(texts, v.String())
			}
		}
		sum, err := mergeEncoded(texts)
		if err != nil {
			return err
		}
		if len(texts) == 1 { // keep the encoding of a single histogram unchanged
			to.SetString(texts[0])
			return nil
		}
		text, err := load.EncodeHistogram(sum)
		to.SetString(text)
		return err
	case "join":
		for _, v := range from {
			to.Set(reflect.AppendSlice(to, v))
		}
	case "each":
		return foldEach(to, from, shared)
	}
	return nil
}

func addNumber(to, v reflect.Value, highest bool) {
	switch {
	case v.CanInt() && highest:
		to.SetInt(max(to.Int(), v.Int()))
	case v.CanInt():
		to.SetInt(to.Int() + v.Int())
	case v.CanFloat() && highest:
		to.SetFloat(max(to.Float(), v.Float()))
	case v.CanFloat():
		to.SetFloat(to.Float() + v.Float())
	default:
		if v.Interface().(time.Time).After(to.Interface().(time.Time)) {
			to.Set(v)
		}
	}
}

func foldEach(to reflect.Value, from []reflect.Value, shared bool) error {
	parts := make([]reflect.Value, len(from))
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			for j, v := range from {
				parts[j] = v.Field(i)
			}
			f := to.Type().Field(i)
			if err := foldValues(to.Field(i), parts, f.Tag.Get("merge"), shared); err != nil {
				return fmt.Errorf("%s: %w", strings.ToLower(f.Name), err)
			}
		}
	case reflect.Array:
		for i := range to.Len() {
			for _, v := range from {
				addNumber(to.Index(i), v.Index(i), false)
			}
		}
	case reflect.Slice:
		var keys []string
		same := map[string][]reflect.Value{}
		for _, list := range from {
			for i := range list.Len() {
				k := keyOf(list.Index(i), i)
				if same[k] == nil {
					keys = append(keys, k)
				}
				same[k] = append(same[k], list.Index(i))
			}
		}
		if len(keys) > 0 {
			to.Set(reflect.MakeSlice(to.Type(), len(keys), len(keys)))
		}
		for i, k := range keys {
			if err := foldEach(to.Index(i), same[k], shared); err != nil {
				return fmt.Errorf("%s: %w", strings.TrimSpace(k), err)
			}
		}
	}
	return nil
}

// keyOf returns the key fields of a list element as text. If the element has no key fields, keyOf
// returns the element's index as text.
func keyOf(v reflect.Value, index int) string {
	key := ""
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("merge") == "key" {
			key += fmt.Sprintf("%#v ", v.FieldByIndex(f.Index))
		}
	}
	return cmp.Or(key, strconv.Itoa(index))
}

// mergeEncoded decodes histograms and adds them. It returns an error of notify.KindInvalid if a
// histogram is damaged or has values out of range.
func mergeEncoded(texts []string) (*hdrhistogram.Histogram, error) {
	sum := load.NewHistogram()
	for _, text := range texts {
		h, err := load.DecodeHistogram(text)
		if err != nil {
			return nil, err
		}
		if dropped := sum.Merge(h); dropped > 0 {
			return nil, notify.Invalid("bad_histogram", "histogram", fmt.Sprintf("has %d values that are out of range", dropped))
		}
	}
	return sum, nil
}
