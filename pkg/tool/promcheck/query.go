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

// targetLabels are on every series that Prometheus scraped.
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

// query is the check of one query.
type query struct {
	metrics  Catalogue
	values   map[string][]string
	recorded map[string]set // labels of what rules record
	complain func(format string, args ...any)
	missing  func(m Metric) // told of metrics that exist and have no series yet; may be nil
}

// check parses a query and returns the labels its result has.
func (q *query) check(text string) set {
	expr, err := parser.ParseExpr(text)
	if err != nil {
		q.complain("the query does not parse: %v", err)
		return set{}
	}
	return q.labels(expr)
}

// labels walks an expression, complains of what does not exist, and returns the
// labels of its result.
func (q *query) labels(expr parser.Expr) set {
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
	for _, child := range parser.Children(expr) { // one at most: of a range, brackets, a sign
		return q.labels(child.(parser.Expr))
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
		q.complain("a selector without the name of a metric reads every metric there is")
		return set{}
	}
	have, m, suffix := q.known(name)
	for _, match := range e.LabelMatchers {
		switch {
		case match.Name == labels.MetricName:
		case have != nil && !have[match.Name]:
			q.complain("%s has no label %q; its labels are %s", name, match.Name, have)
		case match.Name == labels.BucketLabel && suffix == "_bucket", match.Name == "quantile" && m.Type == Summary:
			q.bucket(&m, match)
		default:
			q.value(&m, match)
		}
	}
	if have == nil {
		return set{}
	}
	return have
}

// value complains of a matcher that no value of its label passes.
func (q *query) value(m *Metric, match *labels.Matcher) {
	may := q.values[m.Name+" "+match.Name]
	if len(may) > 0 && !slices.ContainsFunc(may, match.Matches) {
		q.complain("%s never has %s; values are %s", m.Name, match, strings.Join(may, ", "))
	}
}

// known returns the labels of a metric that is scraped or recorded; nil: there is
// none, and that was complained of.
func (q *query) known(name string) (have set, m Metric, suffix string) {
	if name == "up" { // Prometheus makes it for each target
		return setOf(targetLabels...), m, ""
	}
	if have, ok := q.recorded[name]; ok {
		return have, m, ""
	}
	m, suffix, ok := q.metrics.series(name)
	if !ok {
		q.complain("there is no metric %s%s", name, q.near(name))
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

// near is the metric that shares all words of the name but one, for who misspelt
// it; of several, the one that begins alike the longest.
func (q *query) near(name string) string {
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

// bucket holds a matcher on le, or on quantile, against the bounds there are.
// Prometheus 3, and OpenMetrics with any, write the bound 1 as 1.0, others as 1: a
// query must find both.
func (q *query) bucket(m *Metric, match *labels.Matcher) {
	const twice = `%s finds nothing in one of Prometheus 2 and 3, which write whole numbers as 1 and as 1.0; match both, as in %s=~"1|1.0"`
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
	have := q.labels(e.Expr)
	if e.Param != nil {
		q.labels(e.Param)
	}
	for _, g := range e.Grouping {
		if !have[g] && len(have) > 0 {
			q.complain("%s groups by %q, which what it reads does not have: %s", e.Op, g, have)
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
	left, right := q.labels(e.LHS), q.labels(e.RHS)
	if e.LHS.Type() == parser.ValueTypeScalar {
		return right
	}
	match := e.VectorMatching
	if match == nil {
		return left
	}
	for _, l := range match.MatchingLabels {
		if match.On && (!left[l] && len(left) > 0 || !right[l] && len(right) > 0) {
			q.complain("%s matches on %q, which one side does not have", e.Op, l)
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

// overCounters and overGauges are functions that mean something of one type only.
var (
	overCounters = []string{"rate", "irate", "increase", "resets"}
	overGauges   = []string{"delta", "idelta", "deriv", "predict_linear", "double_exponential_smoothing"}
)

func (q *query) call(e *parser.Call) set {
	out := set{}
	for _, arg := range e.Args {
		out = out.with(q.labels(arg))
		q.kind(e.Func.Name, arg)
	}
	switch e.Func.Name {
	case "histogram_quantile", "histogram_fraction":
		if !out[labels.BucketLabel] && len(out) > 0 {
			q.complain("%s needs the label le, which what it reads does not have: %s", e.Func.Name, out)
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

// kind complains of a function over a metric of the wrong type.
func (q *query) kind(function string, arg parser.Expr) {
	over, ok := arg.(*parser.MatrixSelector)
	if !ok {
		return
	}
	v, ok := over.VectorSelector.(*parser.VectorSelector)
	if !ok {
		return
	}
	m, suffix, ok := q.metrics.series(v.Name)
	if !ok {
		return
	}
	counts := m.Type == Counter || suffix != ""
	if counts && slices.Contains(overGauges, function) || !counts && slices.Contains(overCounters, function) {
		q.complain("%s of %s, which is a %s", function, v.Name, m.Type)
	}
}

// Problem is one thing that is wrong in a file.
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
