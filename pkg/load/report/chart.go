package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// chart is one chart of the page. Its lines are an SVG that is stretched to the size of its box.
// Its texts are HTML outside the SVG, so that they keep their size on a phone. The SVG contains
// only numbers and escaped titles. All names are written by the template, which escapes them.
type chart struct {
	Title, About, XName string
	Lines               []series
	x, y                axis
	cells               []cell
	marks               []float64    // positions of dashed vertical lines, in units of x
	shades              [][2]float64 // begin and end of shaded stretches, in units of x
}

// series is one line of a chart, in units of the axes. A NaN in y makes a gap in the line.
type series struct {
	Colour      int
	Name, Value string
	x, y        []float64
	area        bool
}

// cell is a rectangle in units of the axes. The browser shows its title while the pointer is over
// it.
type cell struct {
	class, title   string
	x0, x1, y0, y1 float64
}

// axis maps values to positions from 0 to 1, and labels some of them.
type axis struct {
	lo, hi float64 // if log is true, exponents of ten
	log    bool
	ticks  []tick
}

type tick struct {
	value float64
	text  string
	less  bool // true: the page hides the label on a phone
}

type label struct {
	At   string // percent from the left or from the top
	Text string
	Less bool
}

// position returns the place of a value on the axis, 0 to 1. A value outside the axis is moved to
// the nearest end. A logarithmic axis has no place for a value of 0 or below; then position returns
// NaN.
func (a *axis) position(v float64) float64 {
	if a.log {
		if v <= 0 {
			return math.NaN()
		}
		v = math.Log10(v)
	}
	if a.hi <= a.lo {
		return 0
	}
	return min(max((v-a.lo)/(a.hi-a.lo), 0), 1)
}

// The width and height of the SVG before it is stretched.
const boxW, boxH = 1000.0, 300.0

// Plot draws the chart.
func (c *chart) Plot() template.HTML {
	var b strings.Builder
	x := func(v float64) float64 { return boxW * c.x.position(v) }
	y := func(v float64) float64 { return boxH * (1 - c.y.position(v)) }
	rect := func(class string, x0, x1, y0, y1 float64, title string) {
		fmt.Fprintf(&b, `<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f">%s</rect>`, class, x0, y1, x1-x0, y0-y1, title)
	}
	path := func(class, d string) { fmt.Fprintf(&b, `<path class="%s" d="%s"/>`, class, d) }
	upright := func(class string, v float64) { path(class, fmt.Sprintf("M%.1f 0V%g", x(v), boxH)) }

	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" aria-hidden="true">`, boxW, boxH)
	for _, s := range c.shades {
		rect("shade", x(s[0]), x(s[1]), boxH, 0, "")
	}
	for _, t := range c.y.ticks {
		path("grid", fmt.Sprintf("M0 %.1fH%g", y(t.value), boxW))
	}
	for _, t := range c.x.ticks {
		upright("grid", t.value)
	}
	for _, l := range c.cells {
		rect(l.class, x(l.x0), x(l.x1), y(l.y0), y(l.y1), "<title>"+template.HTMLEscapeString(l.title)+"</title>")
	}
	for _, m := range c.marks {
		upright("mark", m)
	}
	for _, l := range c.Lines {
		var d strings.Builder
		move, first, last := "M", 0.0, 0.0
		for i := range l.x {
			if math.IsNaN(c.y.position(l.y[i])) {
				move = "M"
				continue
			}
			if last = x(l.x[i]); d.Len() == 0 {
				first = last
			}
			fmt.Fprintf(&d, "%s%.1f %.1f", move, last, y(l.y[i]))
			move = "L"
		}
		if l.area && d.Len() > 0 {
			path(fmt.Sprintf("area c%d", l.Colour), fmt.Sprintf("%sL%.1f %gL%.1f %gZ", d.String(), last, boxH, first, boxH))
		}
		path(fmt.Sprintf("line c%d", l.Colour), d.String())
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // made of numbers, and escaped
}

func pct(v float64) string { return fmt.Sprintf("%.2f%%", 100*v) }

// X returns the labels below the plot.
func (c *chart) X() (list []label) {
	for _, t := range c.x.ticks {
		list = append(list, label{pct(c.x.position(t.value)), t.text, t.less})
	}
	return list
}

// Y returns the labels on the left of the plot.
func (c *chart) Y() (list []label) {
	for _, t := range c.y.ticks {
		list = append(list, label{pct(1 - c.y.position(t.value)), t.text, t.less})
	}
	return list
}

// Marks returns the labels above the plot, which are the numbers of the marks. Marks that are very
// close to each other share a label.
func (c *chart) Marks() (list []label) {
	const least = 0.022
	for i := 0; i < len(c.marks); {
		j := i + 1
		for j < len(c.marks) && c.x.position(c.marks[j])-c.x.position(c.marks[i]) < least {
			j++
		}
		text := fmt.Sprint(i + 1)
		if j-i > 1 {
			text = fmt.Sprintf("%d-%d", i+1, j)
		}
		list = append(list, label{At: pct(c.x.position(c.marks[i])), Text: text})
		i = j
	}
	return list
}

// linearAxis returns an axis from 0 to a round number that is at least peak.
func linearAxis(peak float64, write func(float64) string) (a axis) {
	step := 1.0
	if peak > 0 && !math.IsInf(peak, 0) {
		p := math.Pow(10, math.Floor(math.Log10(peak/4)))
		for _, f := range []float64{1, 2, 2.5, 5, 10} {
			if step = f * p; peak/4 <= step*1.0001 {
				break
			}
		}
	}
	n := max(1, int(math.Ceil(peak/step-1e-9)))
	a.hi = step * float64(n)
	for i := range n + 1 {
		a.ticks = append(a.ticks, tick{value: step * float64(i), text: write(step * float64(i))})
	}
	return a
}

// logAxis returns a logarithmic axis of nanoseconds that covers whole powers of ten. It returns
// false if the lines have no value above 0.
func logAxis(lines []series) (axis, bool) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, v := range l.y {
			if v > 0 && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	if lo > hi {
		return axis{}, false
	}
	a := axis{lo: math.Floor(math.Log10(lo)), hi: math.Ceil(math.Log10(hi)), log: true}
	a.hi = max(a.hi, a.lo+1)
	for p := a.lo; p <= a.hi; p++ {
		v := math.Pow(10, p)
		text := fmt.Sprintf("%gs", v/1e9)
		if v < 1e9 {
			text = strings.Replace(time.Duration(v).String(), "µ", "u", 1)
		}
		a.ticks = append(a.ticks, tick{value: v, text: text})
	}
	return a, true
}

// timeAxis returns the axis of the seconds of a run.
func timeAxis(from, to float64) axis {
	a, step := axis{lo: from, hi: to}, 86400.0
	for _, s := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200} {
		if (to-from)/8 <= s {
			step = s
			break
		}
	}
	for t := math.Ceil(from/step) * step; t <= to+1e-9; t += step {
		a.ticks = append(a.ticks, tick{t, FormatClock(time.Duration(t) * time.Second), len(a.ticks)%2 == 1})
	}
	return a
}
