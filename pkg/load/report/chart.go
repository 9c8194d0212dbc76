package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// A chart is drawn as an SVG that is stretched over its box, with texts beside it
// in HTML: so texts keep their size on a phone. Everything in Plot is made of
// numbers; names go through the template, which escapes them.
type chart struct {
	Title  string
	About  string
	Plot   template.HTML
	Y      []label // from above, in percent
	X      []label // from the left, in percent
	Lines  []legend
	Marks  []label // at the top, in percent from the left
	Height int     // px
	XName  string
}

type label struct {
	At   string // percent
	Text string
	Less bool // left out on a phone
	Last bool
}

type legend struct {
	Colour int
	Name   string
	Value  string
}

const (
	boxW = 1000.0
	boxH = 300.0
)

// curve is a line: points from 0 to 1, y upwards. A NaN leaves a gap.
type curve struct {
	colour int
	name   string
	value  string
	x, y   []float64
	area   bool
}

func pct(v float64) string { return fmt.Sprintf("%.2f%%", 100*v) }

// draw makes the SVG of curves, grid lines and marks, of which all is between 0 and 1.
func draw(curves []curve, gridX, gridY, marks []float64, shades [][2]float64) template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" aria-hidden="true">`, boxW, boxH)
	for _, s := range shades {
		fmt.Fprintf(&b, `<rect class="shade" x="%.1f" y="0" width="%.1f" height="%g"/>`, boxW*s[0], boxW*(s[1]-s[0]), boxH)
	}
	for _, y := range gridY {
		fmt.Fprintf(&b, `<path class="grid" d="M0 %.1fH%g"/>`, boxH*(1-y), boxW)
	}
	for _, x := range gridX {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f 0V%g"/>`, boxW*x, boxH)
	}
	for _, x := range marks {
		fmt.Fprintf(&b, `<path class="mark" d="M%.1f 0V%g"/>`, boxW*x, boxH)
	}
	for _, c := range curves {
		var d strings.Builder
		move, first, lastX := "M", 0.0, 0.0
		for i := range c.x {
			if math.IsNaN(c.y[i]) || math.IsNaN(c.x[i]) {
				move = "M"
				continue
			}
			lastX = boxW * c.x[i]
			if d.Len() == 0 {
				first = lastX
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", move, lastX, boxH*(1-min(max(c.y[i], 0), 1)))
			move = "L"
		}
		if d.Len() == 0 {
			continue
		}
		if c.area {
			fmt.Fprintf(&b, `<path class="area c%d" d="%sL%.1f %gL%.1f %gZ"/>`, c.colour, d.String(), lastX, boxH, first, boxH)
		}
		fmt.Fprintf(&b, `<path class="line c%d" d="%s"/>`, c.colour, d.String())
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // made of numbers alone
}

func (c *chart) curves(list []curve, gridX, gridY, marks []float64, shades [][2]float64) {
	c.Plot = draw(list, gridX, gridY, marks, shades)
	for _, l := range list {
		if l.name != "" {
			c.Lines = append(c.Lines, legend{l.colour, l.name, l.value})
		}
	}
	c.Marks = markLabels(marks)
}

// markLabels number the marks; those that stand too close share a label.
func markLabels(marks []float64) (list []label) {
	const least = 0.022
	for i := 0; i < len(marks); {
		j := i + 1
		for j < len(marks) && marks[j]-marks[i] < least {
			j++
		}
		text := fmt.Sprint(i + 1)
		if j-i > 1 {
			text = fmt.Sprintf("%d-%d", i+1, j)
		}
		list = append(list, label{At: pct(marks[i]), Text: text})
		i = j
	}
	return list
}

// linear is an axis from 0 to a round number.
func linear(peak float64, write func(float64) string) (top float64, labels []label, grid []float64) {
	step := niceStep(peak / 4)
	n := max(1, int(math.Ceil(peak/step-1e-9)))
	top = step * float64(n)
	for i := range n + 1 {
		at := float64(i) / float64(n)
		labels = append(labels, label{At: pct(1 - at), Text: write(step * float64(i))})
		grid = append(grid, at)
	}
	return top, labels, grid
}

func niceStep(v float64) float64 {
	if v <= 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 2.5, 5, 10} {
		if v <= f*p*1.0001 {
			return f * p
		}
	}
	return 10 * p
}

// logAxis is a logarithmic axis of nanoseconds over whole decades.
type logAxis struct{ lo, hi float64 } // powers of ten

func logAxisOf(values [][]float64) (logAxis, bool) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, list := range values {
		for _, v := range list {
			if v > 0 && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	if lo > hi {
		return logAxis{}, false
	}
	a := logAxis{math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))}
	if a.hi == a.lo {
		a.hi++
	}
	return a, true
}

// at places a value; what is not above 0 has no place.
func (a logAxis) at(v float64) float64 {
	if v <= 0 {
		return math.NaN()
	}
	return (math.Log10(v) - a.lo) / (a.hi - a.lo)
}

func (a logAxis) labels() (list []label, grid []float64) {
	for p := a.lo; p <= a.hi; p++ {
		at := (p - a.lo) / (a.hi - a.lo)
		list = append(list, label{At: pct(1 - at), Text: roundNanos(math.Pow(10, p))})
		grid = append(grid, at)
	}
	return list, grid
}

// roundNanos writes a power of ten: 10us, 1ms.
func roundNanos(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if v >= u.of*0.999 {
			return fmt.Sprintf("%.0f%s", v/u.of, u.name)
		}
	}
	return fmt.Sprintf("%.0fns", v)
}

// span is the time axis of a run: seconds from and to.
type span struct{ from, to float64 }

func (s span) at(sec float64) float64 {
	if s.to <= s.from {
		return 0
	}
	return (sec - s.from) / (s.to - s.from)
}

func (s span) labels() (list []label, grid []float64) {
	step := timeStep((s.to - s.from) / 8)
	i := 0
	for t := math.Ceil(s.from/step) * step; t <= s.to+1e-9; t += step {
		at := s.at(t)
		list = append(list, label{At: pct(at), Text: Clock(time.Duration(t) * time.Second), Less: i%2 == 1})
		grid = append(grid, at)
		i++
	}
	return list, grid
}

func timeStep(v float64) float64 {
	for _, s := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200} {
		if v <= s {
			return s
		}
	}
	return 86400
}

// maxColumns bounds the points of a line over time; a longer run is drawn in
// groups of seconds.
const maxColumns = 500

// grouped are the seconds of a run in at most maxColumns groups.
func grouped(rows []load.SecondRow) (groups [][]load.SecondRow, size int) {
	size = max(1, (len(rows)+maxColumns-1)/maxColumns)
	for i := 0; i < len(rows); i += size {
		groups = append(groups, rows[i:min(len(rows), i+size)])
	}
	return groups, size
}

// tooltips are invisible columns that say their numbers under a pointer.
func tooltips(b *strings.Builder, x0, x1 float64, text string) {
	fmt.Fprintf(b, `<rect class="tip" x="%.2f" y="0" width="%.2f" height="%g"><title>%s</title></rect>`,
		boxW*x0, boxW*(x1-x0), boxH, template.HTMLEscapeString(text))
}

// withTips puts tooltips over a plot.
func withTips(plot template.HTML, tips string) template.HTML {
	return template.HTML(strings.TrimSuffix(string(plot), "</svg>") + tips + "</svg>") //nolint:gosec // made of numbers, and escaped
}
