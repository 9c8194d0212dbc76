package promcheck

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// targetLabels are the labels of every scraped series.
var targetLabels = []string{"instance", "job"}

// set is a set of label names.
type set map[string]bool

func setOf(names ...string) set {
	s := set{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func (s set) with(more set) set {
	out := maps.Clone(s)
	maps.Copy(out, more)
	return out
}

func (s set) without(names ...string) set {
	out := maps.Clone(s)
	for _, n := range names {
		delete(out, n)
	}
	return out
}

func (s set) String() string { return strings.Join(slices.Sorted(maps.Keys(s)), ", ") }

// query contains the state of the check of one query.
type query struct {
	metrics  Catalogue
	values   map[string][]string
	recorded map[string]set // by name of a recorded metric: its labels
	complain func(format string, args ...any)
	missing  func(m Metric) // called for each used metric, to find metrics without series; may be nil
}

// check parses a query and returns the labels of its result.
func (q *query) check(text string) set {
	expr, err := parser.ParseExpr(text)
	if err != nil {
		q.complain("the query does not parse: %v", err)
		return set{}
	}
	return q.labelsOf(expr)
}

// labelsOf walks an expression, reports names that do not exist, and returns the labels of the
// result.
func (q *query) labelsOf(expr parser.Expr) set {
	switch e := expr.(type) {
	case *parser.VectorSelector:
		return q.selector(e)
	case *parser.AggregateExpr:
		return q.aggregate(e)
	case *parser.BinaryExpr:
		return q.binary(e)
	case *parser.Call:
		return q.call(e)
	}
	for _, child := range parser.Children(expr) { // at most one child: a range, brackets or a sign
		return q.labelsOf(child.(parser.Expr))
	}
	return set{} // numbers and strings
}

func (q *query) selector(e *parser.VectorSelector) set {
	name := e.Name
	for _, m := range e.LabelMatchers {
		if m.Name == labels.MetricName && m.Type == labels.MatchEqual {
			name = m.Value
		}
	}
	if name == "" {
		q.complain("a selector without the name of a metric reads all metrics")
		return set{}
	}
	have, m, suffix := q.lookUpMetric(name)
	for _, match := range e.LabelMatchers {
		switch {
		case match.Name == labels.MetricName:
		case have != nil && !have[match.Name]:
			q.complain("%s has no label %q; its labels are %s", name, match.Name, have)
		case match.Name == labels.BucketLabel && suffix == "_bucket", match.Name == "quantile" && m.Type == Summary:
			q.checkBucket(&m, match)
		default:
			q.checkValue(&m, match)
		}
	}
	if have == nil {
		return set{}
	}
	return have
}

// checkValue reports a problem if no possible value of the label matches.
func (q *query) checkValue(m *Metric, match *labels.Matcher) {
	may := q.values[m.Name+" "+match.Name]
	if len(may) > 0 && !slices.ContainsFunc(may, match.Matches) {
		q.complain("no value of %s matches %s; values are %s", m.Name, match, strings.Join(may, ", "))
	}
}

// lookUpMetric returns the labels of a scraped or recorded metric. If there is no such metric, it
// reports a problem and returns nil.
func (q *query) lookUpMetric(name string) (have set, m Metric, suffix string) {
	if name == "up" { // Prometheus adds this metric for each target
		return setOf(targetLabels...), m, ""
	}
	if have, ok := q.recorded[name]; ok {
		return have, m, ""
	}
	m, suffix, ok := q.metrics.findSeries(name)
	if !ok {
		q.complain("there is no metric %s%s", name, q.suggestion(name))
		return nil, m, ""
	}
	if suffix == "" && m.Type == Histogram {
		q.complain("%s is a histogram: its series are %s_bucket, _sum and _count", name, name)
	}
	if q.missing != nil {
		q.missing(m)
	}
	have = setOf(targetLabels...).with(setOf(m.Labels...))
	switch {
	case suffix == "_bucket":
		have[labels.BucketLabel] = true
	case suffix == "" && m.Type == Summary:
		have["quantile"] = true
	}
	return have, m, suffix
}

// suggestion returns a hint with a similar metric: a metric that shares all words with the name, or
// all words except one, but at least two. If there are several such metrics, it uses the metric
// with the most shared words and, of these, the one with the longest common prefix.
func (q *query) suggestion(name string) string {
	words := strings.Split(name, "_")
	best, most := "", 100*max(len(words)-1, 2)
	for _, known := range slices.Sorted(maps.Keys(q.metrics)) {
		score := 0
		for _, w := range strings.Split(known, "_") {
			if slices.Contains(words, w) {
				score += 100
			}
		}
		for i := 0; i < min(len(name), len(known), 99) && name[i] == known[i]; i++ {
			score++
		}
		if score >= most {
			best, most = known, score
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// checkBucket checks a matcher of the label "le" or "quantile" against the existing bounds.
// Prometheus 3 and OpenMetrics write the bound 1 as 1.0. Older versions write it as 1. A query must
// match both forms.
func (q *query) checkBucket(m *Metric, match *labels.Matcher) {
	const twice = `%s matches only one form of a whole number: Prometheus 2 writes 1, and Prometheus 3 writes 1.0; match both forms, as in %s=~"1|1.0"`
	if m.Bounds == nil {
		bound, err := strconv.ParseFloat(match.Value, 64)
		if err == nil && match.Type == labels.MatchEqual && bound == float64(int64(bound)) {
			q.complain(twice, match, match.Name)
		}
		return
	}
	two, three := match.Matches("+Inf"), match.Matches("+Inf")
	for _, b := range m.Bounds {
		text := strconv.FormatFloat(b, 'g', -1, 64)
		two = two || match.Matches(text)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		three = three || match.Matches(text)
	}
	switch {
	case !two && !three:
		q.complain("%s has no bucket with %s; bounds are %v", m.Name, match, m.Bounds)
	case two != three:
		q.complain(twice, match, match.Name)
	}
}

func (q *query) aggregate(e *parser.AggregateExpr) set {
	have := q.labelsOf(e.Expr)
	if e.Param != nil {
		q.labelsOf(e.Param)
	}
	for _, g := range e.Grouping {
		if !have[g] && len(have) > 0 {
			q.complain("%s groups by %q, which is not a label of its input: %s", e.Op, g, have)
		}
	}
	out := setOf(e.Grouping...)
	switch {
	case e.Op == parser.TOPK || e.Op == parser.BOTTOMK || e.Op == parser.LIMITK || e.Op == parser.LIMIT_RATIO:
		return have
	case e.Without:
		out = have.without(e.Grouping...)
	}
	if name, ok := e.Param.(*parser.StringLiteral); ok && e.Op == parser.COUNT_VALUES {
		out[name.Val] = true
	}
	return out
}

func (q *query) binary(e *parser.BinaryExpr) set {
	left, right := q.labelsOf(e.LHS), q.labelsOf(e.RHS)
	if e.LHS.Type() == parser.ValueTypeScalar {
		return right
	}
	match := e.VectorMatching
	if match == nil {
		return left
	}
	for _, l := range match.MatchingLabels {
		if match.On && (!left[l] && len(left) > 0 || !right[l] && len(right) > 0) {
			q.complain("%s matches on %q, which is not a label of both sides", e.Op, l)
		}
	}
	include := setOf(match.Include...)
	switch match.Card {
	case parser.CardManyToMany: // and, or, unless
		if e.Op == parser.LOR {
			return left.with(right)
		}
		return left
	case parser.CardManyToOne:
		return left.with(include)
	case parser.CardOneToMany:
		return right.with(include)
	}
	if match.On {
		return setOf(match.MatchingLabels...)
	}
	return left.without(match.MatchingLabels...)
}

// overCounters are functions that are only valid for counters. overGauges are functions that are
// only valid for gauges.
var (
	overCounters = []string{"rate", "irate", "increase", "resets"}
	overGauges   = []string{"delta", "idelta", "deriv", "predict_linear", "double_exponential_smoothing"}
)

func (q *query) call(e *parser.Call) set {
	out := set{}
	for _, arg := range e.Args {
		out = out.with(q.labelsOf(arg))
		q.checkFunctionType(e.Func.Name, arg)
	}
	switch e.Func.Name {
	case "histogram_quantile", "histogram_fraction":
		if !out[labels.BucketLabel] && len(out) > 0 {
			q.complain("%s needs the label le, which is not a label of its input: %s", e.Func.Name, out)
		}
		return out.without(labels.BucketLabel)
	case "label_replace", "label_join":
		if dst, ok := e.Args[1].(*parser.StringLiteral); ok {
			return out.with(setOf(dst.Val))
		}
	case "absent", "absent_over_time", "scalar", "vector", "time":
		return set{}
	}
	return out
}

// checkFunctionType reports a problem if a function is used on a metric of the wrong type.
func (q *query) checkFunctionType(function string, arg parser.Expr) {
	over, ok := arg.(*parser.MatrixSelector)
	if !ok {
		return
	}
	v, ok := over.VectorSelector.(*parser.VectorSelector)
	if !ok {
		return
	}
	m, suffix, ok := q.metrics.findSeries(v.Name)
	if !ok {
		return
	}
	counts := m.Type == Counter || suffix != ""
	if counts && slices.Contains(overGauges, function) || !counts && slices.Contains(overCounters, function) {
		q.complain("the function %s is used on %s, which is a %s", function, v.Name, m.Type)
	}
}

// Problem is one problem in a file.
type Problem struct {
	File  string `json:"file"`
	Where string `json:"where"` // the panel or rule; empty: the whole file
	What  string `json:"what"`
}

func (p Problem) String() string {
	if p.Where == "" {
		return p.File + ": " + p.What
	}
	return fmt.Sprintf("%s: %s: %s", p.File, p.Where, p.What)
}
