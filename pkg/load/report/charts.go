package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// frame is what the charts over time of a run share.
type frame struct {
	r      *load.Result
	axis   span
	labels []label
	grid   []float64
	marks  []float64
	shades [][2]float64 // every other phase
	groups [][]load.SecondRow
}

func newFrame(r *load.Result) *frame {
	f := &frame{r: r}
	if len(r.Seconds) == 0 {
		return f
	}
	f.axis = span{float64(r.Seconds[0].Second), float64(r.Seconds[len(r.Seconds)-1].Second + 1)}
	f.labels, f.grid = f.axis.labels()
	for _, m := range r.Markers {
		f.marks = append(f.marks, min(max(f.axis.at(m.At.Seconds()), 0), 1))
	}
	f.groups, _ = grouped(r.Seconds)
	odd, from, last := false, f.axis.from, ""
	for i, row := range r.Seconds {
		name := row.Phase
		if row.Draining {
			name = "\x00drain"
		}
		if i > 0 && name != last {
			if odd {
				f.shades = append(f.shades, [2]float64{f.axis.at(from), f.axis.at(float64(row.Second))})
			}
			odd, from = !odd, float64(row.Second)
		}
		last = name
	}
	if odd {
		f.shades = append(f.shades, [2]float64{f.axis.at(from), 1})
	}
	return f
}

// x is the middle of a group, 0 to 1, and its edges.
func (f *frame) x(g []load.SecondRow) (mid, from, to float64) {
	from, to = f.axis.at(float64(g[0].Second)), f.axis.at(float64(g[len(g)-1].Second+1))
	return (from + to) / 2, from, to
}

// secondsOf is how much time a group has.
func secondsOf(g []load.SecondRow) (s float64) {
	for _, r := range g {
		if r.Length > 0 {
			s += r.Length.Seconds()
		} else {
			s++
		}
	}
	return s
}

func sumOf(g []load.SecondRow, of func(*load.SecondRow) int64) (n int64) {
	for i := range g {
		n += of(&g[i])
	}
	return n
}

func worst(g []load.SecondRow, of func(*load.SecondRow) int64) (n int64) {
	for i := range g {
		n = max(n, of(&g[i]))
	}
	return n
}

// line is a figure over time, in its own unit; draw wants it scaled.
func (f *frame) line(colour int, name string, of func([]load.SecondRow) float64) curve {
	c := curve{colour: colour, name: name}
	for _, g := range f.groups {
		mid, _, _ := f.x(g)
		c.x, c.y = append(c.x, mid), append(c.y, of(g))
	}
	return c
}

func scale(list []curve, at func(float64) float64) {
	for _, c := range list {
		for i, v := range c.y {
			c.y[i] = at(v)
		}
	}
}

func peakOf(list []curve) (peak float64) {
	for _, c := range list {
		for _, v := range c.y {
			if !math.IsNaN(v) {
				peak = max(peak, v)
			}
		}
	}
	return peak
}

// rates is what was due, sent, accepted, delivered and failed in each second.
func (f *frame) rates() chart {
	rate := func(of func(*load.SecondRow) int64) func([]load.SecondRow) float64 {
		return func(g []load.SecondRow) float64 { return float64(sumOf(g, of)) / secondsOf(g) }
	}
	r := &f.r.Rates
	list := []curve{
		f.line(0, "intended", rate(func(s *load.SecondRow) int64 { return s.Intended })),
		f.line(1, "sent", rate(func(s *load.SecondRow) int64 { return s.Sent })),
		f.line(2, "accepted", rate(func(s *load.SecondRow) int64 { return s.Acked })),
		f.line(3, "delivered", rate(func(s *load.SecondRow) int64 { return s.Delivered })),
		f.line(4, "failed", rate(func(s *load.SecondRow) int64 { return s.Failed })),
	}
	for i, v := range []float64{r.Intended, r.Sent, r.Acked, r.Delivered, r.Failed} {
		list[i].value = Short(v) + "/s"
	}
	return f.over("Rates", "Messages in each second, and the mean of the run.", list, func(v float64) string { return Short(v) + "/s" })
}

// over is a chart over time with a linear axis.
func (f *frame) over(title, about string, list []curve, write func(float64) string) chart {
	c := chart{Title: title, About: about, Height: 220, X: f.labels}
	var tips strings.Builder
	for i, g := range f.groups {
		_, x0, x1 := f.x(g)
		text := Clock(time.Duration(g[0].Second) * time.Second)
		for _, l := range list {
			text += fmt.Sprintf("\n%s %s", l.name, write(l.y[i]))
		}
		tooltips(&tips, x0, x1, text)
	}
	top, labels, grid := linear(peakOf(list), write)
	scale(list, func(v float64) float64 { return v / top })
	c.Y = labels
	c.curves(list, f.grid, grid, f.marks, f.shades)
	c.Plot = withTips(c.Plot, tips.String())
	return c
}

// latency is the response of each second.
func (f *frame) latency() (chart, bool) {
	q := func(of func(*load.SecondRow) int64) func([]load.SecondRow) float64 {
		return func(g []load.SecondRow) float64 {
			if sumOf(g, func(s *load.SecondRow) int64 { return s.Response.Count }) == 0 {
				return math.NaN()
			}
			return float64(worst(g, of))
		}
	}
	list := []curve{
		f.line(4, "highest", q(func(s *load.SecondRow) int64 { return s.Response.Max })),
		f.line(2, "p99", q(func(s *load.SecondRow) int64 { return s.Response.P99 })),
		f.line(1, "p50", q(func(s *load.SecondRow) int64 { return s.Response.P50 })),
		f.line(0, "lag p99", q(func(s *load.SecondRow) int64 { return s.Lag.P99 })),
	}
	var ys [][]float64
	for _, l := range list {
		ys = append(ys, l.y)
	}
	axis, ok := logAxisOf(ys)
	if !ok {
		return chart{}, false
	}
	c := chart{Title: "Latency over time", About: "Response of the messages of each second, from when they were due, and the generator's own lag. The axis is logarithmic.", Height: 220, X: f.labels}
	var grid []float64
	c.Y, grid = axis.labels()
	scale(list, axis.at)
	c.curves(list, f.grid, grid, f.marks, f.shades)
	return c, true
}

// backlog is what was accepted and not delivered.
func (f *frame) backlog() (chart, bool) {
	l := f.line(5, "backlog", func(g []load.SecondRow) float64 {
		return float64(worst(g, func(s *load.SecondRow) int64 { return s.Backlog }))
	})
	l.area = true
	if peakOf([]curve{l}) == 0 {
		return chart{}, false
	}
	l.value = "at the end " + Short(float64(f.r.Totals.Backlog))
	return f.over("Backlog", "Messages that were accepted and not delivered, at the end of each second.", []curve{l}, Short), true
}

// machine is the CPU of the generator, which is notifyd's too where that is embedded.
func (f *frame) machine() (chart, bool) {
	mean := func(of func(*load.Health) float64) func([]load.SecondRow) float64 {
		return func(g []load.SecondRow) float64 {
			s := 0.0
			for i := range g {
				s += of(&g[i].Health) / float64(len(g))
			}
			return s
		}
	}
	list := []curve{
		f.line(6, "machine", mean(func(h *load.Health) float64 { return h.MachineCPU })),
		f.line(1, "this process", mean(func(h *load.Health) float64 { return h.CPU })),
		f.line(4, "stolen", mean(func(h *load.Health) float64 { return h.Steal * h.CPUs })),
	}
	if peakOf(list) == 0 {
		return chart{}, false
	}
	return f.over("CPU", "Cores in use.", list, digits3), true
}

// percentiles is the curve of each kind of latency of all steps, and of the
// response of each step, on an axis where each nine is as wide as the one before.
func percentiles(r *load.Result) (list []chart) {
	steps := measured(r)
	var hs []*hdrhistogram.Histogram
	var names []string
	var colours []int
	for _, k := range []kind{lag, service, response, endToEnd, late} { // what is first is drawn below the others
		h, err := together(steps, k)
		if err != nil || h.TotalCount() == 0 {
			continue
		}
		hs, names, colours = append(hs, h), append(names, kindNames[k]), append(colours, [kinds]int{2, 1, 0, 3, 5}[k])
	}
	if c, ok := nines("Percentiles", "Latency at each percentile, of all steps but warm-ups. Lag is the generator's own delay, service is from sending to the answer, response from when a message was due.", hs, names, colours); ok {
		list = append(list, c)
	}
	if len(steps) < 2 {
		return list
	}
	hs, names, colours = nil, nil, nil
	for i, s := range steps {
		h, err := load.DecodeHistogram(s.Histograms.Response)
		if err != nil || h.TotalCount() == 0 {
			continue
		}
		hs, names, colours = append(hs, h), append(names, stepName(&s.StepSnapshot)), append(colours, (i+1)%8)
	}
	if c, ok := nines("Response of each step", "From when a message was due to its answer.", hs, names, colours); ok {
		list = append(list, c)
	}
	return list
}

func nines(title, about string, hs []*hdrhistogram.Histogram, names []string, colours []int) (chart, bool) {
	if len(hs) == 0 {
		return chart{}, false
	}
	most := int64(0)
	for _, h := range hs {
		most = max(most, h.TotalCount())
	}
	count := min(max(math.Ceil(math.Log10(float64(most))), 2), 7) // nines that the values can tell apart
	var list []curve
	var ys [][]float64
	for i, h := range hs {
		c := curve{colour: colours[i], name: names[i]}
		// A percentile beyond the values is the highest one again.
		end := min(math.Log10(float64(h.TotalCount())), count)
		const points = 160
		var at []float64
		for p := range points + 1 {
			x := end * float64(p) / points
			c.x = append(c.x, x/count)
			at = append(at, 100*(1-math.Pow(10, -x)))
		}
		for _, v := range load.ValuesAt(h, at...) {
			c.y = append(c.y, float64(v))
		}
		c.value = "p99 " + Nanos(load.ValueAt(h, 99))
		list, ys = append(list, c), append(ys, c.y)
	}
	axis, ok := logAxisOf(ys)
	if !ok {
		return chart{}, false
	}
	c := chart{Title: title, About: about, Height: 260, XName: "percentile"}
	var gridY, gridX []float64
	c.Y, gridY = axis.labels()
	for n, text := range []string{"0", "90", "99", "99.9", "99.99", "99.999", "99.9999", "99.99999"} {
		if float64(n) > count {
			break
		}
		at := float64(n) / count
		gridX = append(gridX, at)
		c.X = append(c.X, label{At: pct(at), Text: text, Less: n > 3})
	}
	if half := math.Log10(2) / count; half > 0.05 {
		gridX = append(gridX, half)
		c.X = append(c.X, label{At: pct(half), Text: "50", Less: true})
	}
	scale(list, axis.at)
	c.curves(list, gridX, gridY, nil, nil)
	return c, true
}

// heat is how many responses each second had of each latency.
func (f *frame) heat() (chart, bool) {
	cols := f.r.Heat
	if len(cols) == 0 || f.axis.to <= f.axis.from {
		return chart{}, false
	}
	lo, hi := load.HeatBuckets, -1
	for i := range cols {
		for b, n := range cols[i].Counts {
			if n > 0 {
				lo, hi = min(lo, b), max(hi, b)
			}
		}
	}
	if hi < 0 {
		return chart{}, false
	}
	lo, hi = max(0, lo-1), min(load.HeatBuckets-1, hi+1)
	n := hi - lo + 1
	size := max(1, (len(cols)+239)/240)
	type cell struct{ counts [load.HeatBuckets]int64 }
	var sums []cell
	most := int64(1)
	for i := 0; i < len(cols); i += size {
		var c cell
		for _, col := range cols[i:min(len(cols), i+size)] {
			for b, v := range col.Counts {
				c.counts[b] += v
			}
		}
		for _, v := range c.counts {
			most = max(most, v)
		}
		sums = append(sums, c)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg viewBox="0 0 %g %g" preserveAspectRatio="none" shape-rendering="crispEdges" aria-hidden="true">`, boxW, boxH)
	high := boxH / float64(n)
	for i, c := range sums {
		from := cols[i*size].Second
		to := cols[min(len(cols), (i+1)*size)-1].Second + 1
		x0, x1 := boxW*f.axis.at(float64(from)), boxW*f.axis.at(float64(to))
		for b := lo; b <= hi; b++ {
			v := c.counts[b]
			if v == 0 {
				continue
			}
			// The fewest are what one looks for: colour follows the logarithm.
			level := 0
			if most > 1 {
				level = int(math.Round(8 * math.Log(float64(v)) / math.Log(float64(most))))
			}
			fmt.Fprintf(&s, `<rect class="h%d" x="%.2f" y="%.2f" width="%.2f" height="%.2f"><title>%s  %s: %d</title></rect>`,
				level, x0, boxH-float64(b-lo+1)*high, x1-x0, high, Clock(time.Duration(from)*time.Second), bucket(b), v)
		}
	}
	for _, m := range f.marks {
		fmt.Fprintf(&s, `<path class="mark" d="M%.1f 0V%g"/>`, boxW*m, boxH)
	}
	s.WriteString("</svg>")
	c := chart{
		Title: "Heat map", About: "How many responses each second had of each latency. The stronger the colour, the more, by the logarithm.",
		Height: 220, X: f.labels, Plot: template.HTML(s.String()), //nolint:gosec // made of numbers alone
	}
	every := max(1, n/8)
	for b := lo; b <= hi; b += every {
		if b == load.HeatBuckets-1 {
			continue // it has no upper bound
		}
		c.Y = append(c.Y, label{At: pct(1 - float64(b-lo+1)/float64(n)), Text: Nanos(int64(load.HeatBound(b)))})
	}
	c.Marks = markLabels(f.marks)
	return c, true
}

// bucket writes what latencies a bucket of the heat map has.
func bucket(b int) string {
	switch b {
	case 0:
		return "to " + Nanos(int64(load.HeatBound(0)))
	case load.HeatBuckets - 1:
		return "over " + Nanos(int64(load.HeatBound(b-1)))
	}
	return Nanos(int64(load.HeatBound(b-1))) + " to " + Nanos(int64(load.HeatBound(b)))
}
