package load

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Condition is a parsed threshold:
//
//	metric{tag=value,...}[window].stat  op  number, length of time, percentage
//	                                    op  factor * metric{...}[window].stat
//
// The metrics lag, service, response, end_to_end and lateness are times. For them, the stat is one
// of p50, p90, p99, p99.9, p99.99, min, mean, max and count. The metric drain is a time, too, but
// has no stat. The other metrics are numbers and have no stat. The tags are step, phase, channel,
// category and target. A condition with a window is judged once a second over the time of the
// window, and must hold each time. A condition without a window is judged over the run so far.
// Warm-up phases count only if a tag names them.
type Condition struct {
	Expr  string
	left  metric
	op    string
	value float64 // right side without a metric; in ns if the left metric is a time
	times float64 // factor before the right metric
	right *metric
}

type metric struct {
	name   string
	tags   map[string]string
	window time.Duration
	stat   string
}

// The names of the metrics: timeMetrics are histograms, stepMetrics are counts and rates of steps.
var (
	timeMetrics = []string{"lag", "service", "response", "end_to_end", "lateness"}
	stepMetrics = []string{"intended", "sent", "acked", "failed", "rejected", "rate", "error_rate"}
	// runMetrics and endMetrics are metrics of the whole run. runMetrics are known during the run.
	// endMetrics are known only after the final check of the ledger.
	runMetrics = []string{"delivered", "duplicates", "reordered", "backlog", "backlog_slope", "cpu"}
	endMetrics = []string{"lost", "early", "late", "unexpected", "unverified", "pending", "ended", "drain"}
	tagNames   = []string{"step", "phase", "channel", "category", "target"}
	statNames  = []string{"p50", "p90", "p99", "p99.9", "p99.99", "p999", "p9999", "min", "mean", "max", "count"}
)

var (
	conditionForm = regexp.MustCompile(`^\s*(.+?)\s*(<=|>=|==|!=|<|>)\s*(.+?)\s*$`)
	metricForm    = regexp.MustCompile(`^([a-z_]+)\s*(?:\{([^}]*)\})?\s*(?:\[([0-9a-z.]+)\])?\s*(?:\.([a-z0-9.]+))?$`)
	factorForm    = regexp.MustCompile(`^([0-9.]+)\s*\*\s*(.+)$`)
)

// ParseThreshold parses a condition. Its error quotes the condition and says what is wrong.
func ParseThreshold(expr string) (Condition, error) {
	c := Condition{Expr: expr}
	m := conditionForm.FindStringSubmatch(expr)
	if m == nil {
		return c, fmt.Errorf("%q is not a condition such as response.p99 < 50ms or lost == 0", expr)
	}
	var err error
	if c.left, err = parseMetric(m[1]); err != nil {
		return c, fmt.Errorf("%q: %w", expr, err)
	}
	c.op = m[2]
	right := m[3]
	c.times = 1
	if f := factorForm.FindStringSubmatch(right); f != nil {
		if c.times, err = strconv.ParseFloat(f[1], 64); err != nil {
			return c, fmt.Errorf("%q: %q is not a number", expr, f[1])
		}
		right = f[2]
	}
	if v, ok := parseValue(right); ok {
		c.value = v * c.times
		switch _, err := time.ParseDuration(right); {
		case v == 0:
		case c.left.isTime() && err != nil:
			return c, fmt.Errorf("%q: %s is a time, but %q has no unit such as ms or s", expr, c.left.name, right)
		case !c.left.isTime() && err == nil:
			return c, fmt.Errorf("%q: %s is a number, but %q is a time", expr, c.left.name, right)
		}
		return c, nil
	}
	r, err := parseMetric(right)
	if err != nil {
		return c, fmt.Errorf("%q: %w", expr, err)
	}
	if r.isTime() != c.left.isTime() {
		return c, fmt.Errorf("%q: cannot compare %s with %s: one is a time, and the other is a number", expr, c.left.name, r.name)
	}
	c.right = &r
	return c, nil
}

// checkNames returns an error if the condition names a step or phase that does not exist. Such a
// condition would never have a value, and the user would see that only at the end of the run.
func (c *Condition) checkNames(steps map[string]string, phases map[string]bool) error {
	for _, m := range []*metric{&c.left, c.right} {
		if m == nil {
			continue
		}
		if name := m.tags["step"]; name != "" && steps[name] == "" {
			return fmt.Errorf("%q: no step is called %q", c.Expr, name)
		}
		if name := m.tags["phase"]; name != "" && !phases[name] {
			return fmt.Errorf("%q: no phase is called %q", c.Expr, name)
		}
	}
	return nil
}

// parseValue parses a value such as 50ms, 0.1% or 5M.
func parseValue(s string) (float64, bool) {
	if d, err := time.ParseDuration(s); err == nil {
		return float64(d), true
	}
	if p, ok := strings.CutSuffix(s, "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		return v / 100, err == nil
	}
	if strings.HasPrefix(s, "-") {
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil
	}
	n, err := ParseNumber(s)
	return float64(n), err == nil
}

func parseMetric(s string) (metric, error) {
	f := metricForm.FindStringSubmatch(strings.TrimSpace(s))
	if f == nil {
		return metric{}, fmt.Errorf("%q is not a metric such as response{step=otp}.p99", s)
	}
	m := metric{name: f[1], stat: f[4], tags: map[string]string{}}
	isTime := slices.Contains(timeMetrics, m.name)
	all := map[string]bool{}
	for _, list := range [][]string{timeMetrics, stepMetrics, runMetrics, endMetrics} {
		for _, n := range list {
			all[n] = true
		}
	}
	if !all[m.name] {
		return m, fmt.Errorf("no metric is called %q%s", m.name, suggest(m.name, all))
	}
	for _, kv := range strings.FieldsFunc(f[2], func(r rune) bool { return r == ',' }) {
		k, v, ok := strings.Cut(kv, "=")
		k, v = strings.TrimSpace(k), strings.Trim(strings.TrimSpace(v), `"`)
		switch {
		case !ok || !slices.Contains(tagNames, k):
			return m, fmt.Errorf("%q is not a tag such as step=otp; the tags are %s", kv, strings.Join(tagNames, ", "))
		case m.tags[k] != "":
			return m, fmt.Errorf("the tag %q occurs twice", k)
		}
		m.tags[k] = v
	}
	if len(m.tags) > 0 && !isTime && !slices.Contains(stepMetrics, m.name) {
		return m, fmt.Errorf("the metric %s describes the whole run, so it has no tags", m.name)
	}
	if f[3] != "" {
		d, err := time.ParseDuration(f[3])
		if err != nil || d < time.Second {
			return m, fmt.Errorf("%q is not a window: a window is a time of a second or more, such as 10s", f[3])
		}
		if !slices.Contains([]string{"lag", "service", "response", "rate", "error_rate", "backlog_slope"}, m.name) {
			return m, fmt.Errorf("the metric %s cannot have a window", m.name)
		}
		m.window = d
	}
	switch m.stat {
	case "p999":
		m.stat = "p99.9"
	case "p9999":
		m.stat = "p99.99"
	}
	return m, checkStat(m, isTime)
}

func checkStat(m metric, isTime bool) error {
	switch {
	case isTime && !slices.Contains(statNames, m.stat):
		return fmt.Errorf("the metric %s must end with one of .%s", m.name, strings.Join(statNames, ", ."))
	case !isTime && m.stat != "":
		return fmt.Errorf("the metric %s is a number, so it has no .%s", m.name, m.stat)
	}
	return nil
}

func (m *metric) isTime() bool {
	return m.name == "drain" || slices.Contains(timeMetrics, m.name) && m.stat != "count"
}

// knownAtEnd reports whether the metric has a value only after the final check of the ledger.
func (m *metric) knownAtEnd() bool {
	return slices.Contains(endMetrics, m.name) || m.name == "end_to_end" || m.name == "lateness"
}

// holdsAtAnyRate reports whether the condition is about guarantees that hold at any rate, such as
// that no message is lost.
func (c *Condition) holdsAtAnyRate() bool {
	of := []string{"lost", "duplicates", "reordered", "early", "unexpected", "unverified", "pending", "ended"}
	return slices.Contains(of, c.left.name) && (c.right == nil || slices.Contains(of, c.right.name))
}

// metricSource returns the value of a metric. The parameter final is true at the end of the run. The
// result known is false if the metric has no value.
type metricSource interface {
	value(m *metric, final bool) (v float64, known bool)
}

// judge returns the value v of the left metric, whether this value is known, and whether the
// condition holds (the result ok). The parameter final is true at the end of the run. A condition
// whose value is not known holds during the run, and does not hold at the end. During the run, a
// metric that gets its value only at the end is not known.
func (c *Condition) judge(f metricSource, final bool) (v float64, known, ok bool) {
	if !final && (c.left.knownAtEnd() || c.right != nil && c.right.knownAtEnd()) {
		return 0, false, true
	}
	v, known = f.value(&c.left, final)
	limit := c.value
	if known && c.right != nil {
		limit, known = f.value(c.right, final)
		limit *= c.times
	}
	if !known {
		return 0, false, !final
	}
	ok = map[string]bool{"<": v < limit, "<=": v <= limit, ">": v > limit, ">=": v >= limit, "==": v == limit, "!=": v != limit}[c.op]
	return v, true, ok
}

// watchedThreshold is a threshold during a run.
type watchedThreshold struct {
	Threshold
	cond  Condition
	state ThresholdState
	// missed is true if a condition with a window was missed once. The threshold then stays missed.
	missed bool
}

func newWatched(ts []Threshold) ([]*watchedThreshold, error) {
	var out []*watchedThreshold
	for _, t := range ts {
		c, err := ParseThreshold(t.Expr)
		if err != nil {
			return nil, err
		}
		out = append(out, &watchedThreshold{Threshold: t, cond: c, state: ThresholdState{Expr: t.Expr, OK: true, Abort: t.Abort}})
	}
	return out, nil
}

// update judges the threshold at the given run time. It reports whether this has changed
// w.state.OK.
func (w *watchedThreshold) update(f metricSource, elapsed time.Duration, final bool) (changed bool) {
	if !final && elapsed < w.After.of() {
		return false
	}
	windowed := w.cond.left.window > 0
	if windowed && (final && w.state.Known || !final && elapsed < w.cond.left.window) {
		return false // the last full window was judged before, or the first window is not full yet
	}
	v, known, ok := w.cond.judge(f, final)
	if windowed && w.missed {
		ok = false
	}
	if windowed && known && !ok {
		if w.missed { // keep the value with which the condition was first missed
			v = w.state.Value
		}
		w.missed = true
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	changed = ok != w.state.OK
	w.state.Value, w.state.Known, w.state.OK = v, known, ok
	if changed {
		w.state.Since = elapsed
	}
	return changed
}
