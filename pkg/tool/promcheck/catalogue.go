package promcheck

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Types of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
	Summary   = "summary"
)

// Metric is one metric of a server.
type Metric struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Labels []string  `json:"labels"` // sorted
	Help   string    `json:"help"`
	Bounds []float64 `json:"bounds,omitempty"` // upper bounds of a histogram's buckets, without +Inf; nil: unknown
}

// Catalogue contains the metrics of a server, by name. A histogram is listed by its base name.
type Catalogue map[string]Metric

var tableRow = regexp.MustCompile("(?m)^\\| `([a-zA-Z_:][a-zA-Z0-9_:]*)` \\| ([a-z]+) \\| ([^|]*?) ?\\| ([^|]+?) \\| [^|]*\\|$")

// ParseTable parses the catalogue from a Markdown table with the columns name, type, labels,
// meaning and remark, as in docs/metrics-*.md.
func ParseTable(text string) (Catalogue, error) {
	c := Catalogue{}
	for _, m := range tableRow.FindAllStringSubmatch(text, -1) {
		if _, twice := c[m[1]]; twice {
			return nil, fmt.Errorf("the table lists %s twice", m[1])
		}
		if !slices.Contains([]string{Counter, Gauge, Histogram, Summary}, m[2]) {
			return nil, fmt.Errorf("%s: %q is not a type of a metric", m[1], m[2])
		}
		labels := strings.Fields(strings.ReplaceAll(m[3], "`", ""))
		slices.Sort(labels)
		c[m[1]] = Metric{Name: m[1], Type: m[2], Labels: labels, Help: m[4]}
	}
	if rows := strings.Count(text, "\n| `"); rows != len(c) {
		return nil, fmt.Errorf("the table has %d rows, but only %d are valid metrics", rows, len(c))
	}
	if len(c) == 0 {
		return nil, errors.New("there is no table of metrics")
	}
	return c, nil
}

// ParseExposition parses the catalogue from the text of /metrics. A metric with labels does not
// appear in that text before it has a value.
func ParseExposition(r io.Reader) (Catalogue, error) {
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(r)
	if err != nil {
		return nil, err
	}
	c := Catalogue{}
	for _, f := range families {
		c.add(f)
	}
	if len(c) == 0 {
		return nil, errors.New("there are no metrics")
	}
	return c, nil
}

// Client returns the metrics that the Go client library adds to every server: go_* and process_*.
func Client() (Catalogue, error) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := r.Gather()
	if err != nil {
		return nil, err
	}
	c := Catalogue{}
	for _, f := range families {
		c.add(f)
	}
	return c, nil
}

// With returns a catalogue with the metrics of c and of the catalogue other. If both contain the
// same metric, With takes the metric of other.
func (c Catalogue) With(other Catalogue) Catalogue {
	out := make(Catalogue, len(c)+len(other))
	for _, from := range []Catalogue{c, other} {
		for name := range from {
			out[name] = from[name]
		}
	}
	return out
}

func (c Catalogue) add(f *dto.MetricFamily) {
	m := Metric{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
	for _, series := range f.GetMetric() {
		for _, l := range series.GetLabel() {
			if !slices.Contains(m.Labels, l.GetName()) {
				m.Labels = append(m.Labels, l.GetName())
			}
		}
		for _, b := range series.GetHistogram().GetBucket() {
			if bound := b.GetUpperBound(); bound <= maxBound && !slices.Contains(m.Bounds, bound) {
				m.Bounds = append(m.Bounds, bound)
			}
		}
	}
	slices.Sort(m.Labels)
	slices.Sort(m.Bounds)
	c[m.Name] = m
}

// maxBound excludes +Inf, which every histogram has.
const maxBound = 1e300

// findSeries returns the metric to which a name in a query belongs. If the name is a series of a
// histogram or summary, the result suffix is the end of the name: _bucket, _sum or _count.
func (c Catalogue) findSeries(name string) (m Metric, suffix string, ok bool) {
	if m, ok = c[name]; ok {
		return m, "", true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		base, cut := strings.CutSuffix(name, suffix)
		if m, ok = c[base]; cut && ok && (m.Type == Histogram || m.Type == Summary && suffix != "_bucket") {
			return m, suffix, true
		}
	}
	return Metric{}, "", false
}
