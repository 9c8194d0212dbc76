package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// frame is what the charts over time of a run share: the axis of time, the marks, and
// shades for every other phase.
type frame struct {
	chart
	r      *load.Result
	groups [][]load.SecondRow // of which each is a point of a line
}

// maxColumns bounds the points of a line over time, and maxHeat the columns of the heat
// map; a longer run is drawn in groups of seconds.
const maxColumns, maxHeat = 500, 240

// ofSecond and ofGroup return one figure of a second, and of a group of them.
type (
	ofSecond = func(*load.SecondRow) int64
	ofGroup  = func([]load.SecondRow) float64
)

func newFrame(r *load.Result) *frame {
	f := &frame{r: r}
	from, to := float64(r.Seconds[0].Second), float64(r.Seconds[len(r.Seconds)-1].Second+1)
	f.x = overTime(from, to)
	for _, m := range r.Markers {
		f.marks = append(f.marks, m.At.Seconds())
	}
	f.groups = slices.Collect(slices.Chunk(r.Seconds, inGroups(len(r.Seconds), maxColumns)))
	odd, began := false, from
	for i := range r.Seconds {
		row, before := &r.Seconds[i], &r.Seconds[max(i-1, 0)]
		if row.Draining == before.Draining && (row.Draining || row.Phase == before.Phase) {
			continue
		}
		if odd {
			f.shades = append(f.shades, [2]float64{began, float64(row.Second)})
		}
		odd, began = !odd, float64(row.Second)
	}
	if odd {
		f.shades = append(f.shades, [2]float64{began, to})
	}
	return f
}

// inGroups is how large groups of n are, so that there are most at most.
func inGroups(n, most int) int { return max(1, (n+most-1)/most) }

// edges are when a group of seconds begins and ends.
func edges(g []load.SecondRow) (from, to float64) {
	return float64(g[0].Second), float64(g[len(g)-1].Second + 1)
}

func (f *frame) line(colour int, name, value string, of ofGroup) series {
	s := series{Colour: colour, Name: name, Value: value}
	for _, g := range f.groups {
		from, to := edges(g)
		s.x, s.y = append(s.x, (from+to)/2), append(s.y, of(g))
	}
	return s
}

func worst(of ofSecond) ofGroup {
	return func(g []load.SecondRow) (n float64) {
		for i := range g {
			n = max(n, float64(of(&g[i])))
		}
		return n
	}
}

func rate(of ofSecond) ofGroup {
	return func(g []load.SecondRow) float64 {
		n, length := int64(0), time.Duration(0)
		for i := range g {
			n += of(&g[i])
			if g[i].Length > 0 {
				length += g[i].Length
			} else {
				length += time.Second
			}
		}
		return float64(n) / length.Seconds()
	}
}

// linear is a chart over time with an axis from 0, and the figures of each group under
// the pointer; none where all are 0 and may be left out.
func (f *frame) linear(title, about string, optional bool, write func(float64) string, lines ...series) []*chart {
	peak := 0.0
	for _, l := range lines {
		peak = max(peak, slices.Max(l.y))
	}
	if optional && peak == 0 {
		return nil
	}
	c := f.chart
	c.Title, c.About, c.Lines, c.y = title, about, lines, linear(peak, write)
	for i, g := range f.groups {
		text := Clock(time.Duration(g[0].Second) * time.Second)
		for _, l := range lines {
			text += fmt.Sprintf("\n%s %s", l.Name, write(l.y[i]))
		}
		from, to := edges(g)
		c.cells = append(c.cells, cell{"tip", text, from, to, 0, c.y.hi})
	}
	return []*chart{&c}
}

// overTimes are the charts over time of a run.
func overTimes(r *load.Result) (list []*chart) {
	if len(r.Seconds) == 0 {
		return nil
	}
	f := newFrame(r)
	perSecond := func(v float64) string { return Short(v) + "/s" }
	list = f.linear("Rates", "Messages in each second, and the mean of the run.", false, perSecond,
		f.line(0, "intended", perSecond(r.Rates.Intended), rate(func(s *load.SecondRow) int64 { return s.Intended })),
		f.line(1, "sent", perSecond(r.Rates.Sent), rate(func(s *load.SecondRow) int64 { return s.Sent })),
		f.line(2, "accepted", perSecond(r.Rates.Acked), rate(func(s *load.SecondRow) int64 { return s.Acked })),
		f.line(3, "delivered", perSecond(r.Rates.Delivered), rate(func(s *load.SecondRow) int64 { return s.Delivered })),
		f.line(4, "failed", perSecond(r.Rates.Failed), rate(func(s *load.SecondRow) int64 { return s.Failed })))
	list = append(list, f.latency()...)
	list = append(list, f.heat()...)
	backlog := f.line(5, "backlog", "at the end "+Short(float64(r.Totals.Backlog)), worst(func(s *load.SecondRow) int64 { return s.Backlog }))
	backlog.area = true
	list = append(list, f.linear("Backlog", "Messages that were accepted and not delivered, at the end of each second.", true, Short, backlog)...)
	mean := func(of func(*load.Health) float64) ofGroup {
		return func(g []load.SecondRow) (mean float64) {
			for i := range g {
				mean += of(&g[i].Health) / float64(len(g))
			}
			return mean
		}
	}
	return append(list, f.linear("CPU", "Cores in use.", true, digits3,
		f.line(6, "machine", "", mean(func(h *load.Health) float64 { return h.MachineCPU })),
		f.line(1, "this process", "", mean(func(h *load.Health) float64 { return h.CPU })),
		f.line(4, "stolen", "", mean(func(h *load.Health) float64 { return h.Steal * h.CPUs })))...)
}

// latency is the response of each second.
func (f *frame) latency() []*chart {
	q := func(of ofSecond) ofGroup {
		return func(g []load.SecondRow) float64 {
			if worst(func(s *load.SecondRow) int64 { return s.Response.Count })(g) == 0 {
				return math.NaN()
			}
			return worst(of)(g)
		}
	}
	c := f.chart
	c.Lines = []series{
		f.line(4, "highest", "", q(func(s *load.SecondRow) int64 { return s.Response.Max })),
		f.line(2, "p99", "", q(func(s *load.SecondRow) int64 { return s.Response.P99 })),
		f.line(1, "p50", "", q(func(s *load.SecondRow) int64 { return s.Response.P50 })),
		f.line(0, "lag p99", "", q(func(s *load.SecondRow) int64 { return s.Lag.P99 })),
	}
	return c.logged("Latency over time", "Response of the messages of each second, from when they were due, and the generator's own lag. The axis is logarithmic.")
}

// logged is a chart with a logarithmic axis; none if it has no values.
func (c *chart) logged(title, about string) []*chart {
	var ok bool
	if c.y, ok = logarithmic(c.Lines); !ok {
		return nil
	}
	c.Title, c.About = title, about
	return []*chart{c}
}

// percentiles is the curve of each kind of latency of all steps, and of the
// response of each step, on an axis where each nine is as wide as the one before.
func percentiles(r *load.Result) []*chart {
	steps := measured(r)
	var all, each nines
	for _, k := range []kind{lag, service, response, endToEnd, late} { // what is first is drawn below the others
		all.add([kinds]int{2, 1, 0, 3, 5}[k], kindNames[k], steps, k)
	}
	list := all.chart("Percentiles", "Latency at each percentile, of all steps but warm-ups. Lag is the generator's own delay, service is from sending to the answer, response from when a message was due.")
	if len(steps) < 2 {
		return list
	}
	for i, s := range steps {
		each.add((i+1)%8, stepName(&s.StepSnapshot), steps[i:i+1], response)
	}
	return append(list, each.chart("Response of each step", "From when a message was due to its answer.")...)
}

// nines are histograms that share a chart, and their lines without points.
type nines struct {
	hs    []*hdrhistogram.Histogram
	lines []series
}

func (n *nines) add(colour int, name string, steps []*load.StepResult, k kind) {
	if h, err := together(steps, k); err == nil && h.TotalCount() > 0 {
		n.hs, n.lines = append(n.hs, h), append(n.lines, series{Colour: colour, Name: name, Value: "p99 " + Nanos(load.ValueAt(h, 99))})
	}
}

func (n *nines) chart(title, about string) []*chart {
	most := int64(0)
	for _, h := range n.hs {
		most = max(most, h.TotalCount())
	}
	// As many nines as the values can tell apart.
	c := &chart{XName: "percentile", Lines: n.lines, x: axis{hi: min(max(math.Ceil(math.Log10(float64(most))), 2), 7)}}
	for i, h := range n.hs {
		// A percentile beyond the values is the highest one again.
		end := min(math.Log10(float64(h.TotalCount())), c.x.hi)
		const points = 160
		l, at := &c.Lines[i], []float64{}
		for p := range points + 1 {
			l.x = append(l.x, end*float64(p)/points)
			at = append(at, 100*(1-math.Pow(10, -l.x[p])))
		}
		for _, v := range load.ValuesAt(h, at...) {
			l.y = append(l.y, float64(v))
		}
	}
	for i, text := range []string{"0", "90", "99", "99.9", "99.99", "99.999", "99.9999", "99.99999"}[:int(c.x.hi)+1] {
		c.x.ticks = append(c.x.ticks, tick{float64(i), text, i > 3})
	}
	if half := math.Log10(2); half/c.x.hi > 0.05 {
		c.x.ticks = append(c.x.ticks, tick{half, "50", true})
	}
	return c.logged(title, about)
}

// heat is how many responses each second had of each latency.
func (f *frame) heat() []*chart {
	lo, hi, most := load.HeatBuckets, -1, int64(1)
	var sums []load.HeatColumn // of groups, with the first second of each
	size := inGroups(len(f.r.Heat), maxHeat)
	for cols := range slices.Chunk(f.r.Heat, size) {
		sum := load.HeatColumn{Second: cols[0].Second}
		for i := range cols {
			for b, n := range cols[i].Counts {
				if sum.Counts[b] += n; n > 0 {
					lo, hi, most = min(lo, b), max(hi, b), max(most, sum.Counts[b])
				}
			}
		}
		sums = append(sums, sum)
	}
	if hi < 0 {
		return nil
	}
	lo, hi = max(0, lo-1), min(load.HeatBuckets-1, hi+1)
	c := f.chart
	c.Title, c.About = "Heat map", "How many responses each second had of each latency. The stronger the colour, the more, by the logarithm."
	c.shades, c.y = nil, axis{lo: float64(lo), hi: float64(hi + 1)}
	for i := range sums {
		from := sums[i].Second
		to := f.r.Heat[min(len(f.r.Heat), (i+1)*size)-1].Second + 1
		for b := lo; b <= hi; b++ {
			v := sums[i].Counts[b]
			if v == 0 {
				continue
			}
			// The fewest are what one looks for: colour follows the logarithm.
			level := 0.0
			if most > 1 {
				level = 8 * math.Log(float64(v)) / math.Log(float64(most))
			}
			title := fmt.Sprintf("%s  %s: %d", Clock(time.Duration(from)*time.Second), bucket(b), v)
			c.cells = append(c.cells, cell{fmt.Sprintf("h%.0f", level), title, float64(from), float64(to), float64(b), float64(b + 1)})
		}
	}
	for b := lo; b <= hi && b < load.HeatBuckets-1; b += max(1, (hi-lo+1)/8) { // the last has no upper bound
		c.y.ticks = append(c.y.ticks, tick{value: float64(b + 1), text: Nanos(int64(load.HeatBound(b)))})
	}
	return []*chart{&c}
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
