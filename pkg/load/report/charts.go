package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// timeFrame holds what all charts over time of a run share: the time axis, the marks, and the
// shades behind every other phase.
type timeFrame struct {
	chart
	r      *load.Result
	groups [][]load.SecondRow // each group of seconds becomes one point of a line
}

// maxColumns is the highest number of points of a line over time, and maxHeat the highest number of
// columns of the heat map. In a longer run each point or column stands for a group of seconds.
const maxColumns, maxHeat = 500, 240

// ofSecond returns one figure of a second. ofGroup returns one figure of a group of seconds.
type (
	ofSecond = func(*load.SecondRow) int64
	ofGroup  = func([]load.SecondRow) float64
)

func newFrame(r *load.Result) *timeFrame {
	f := &timeFrame{r: r}
	from, to := float64(r.Seconds[0].Second), float64(r.Seconds[len(r.Seconds)-1].Second+1)
	f.x = timeAxis(from, to)
	for _, m := range r.Markers {
		f.marks = append(f.marks, m.At.Seconds())
	}
	f.groups = slices.Collect(slices.Chunk(r.Seconds, groupSize(len(r.Seconds), maxColumns)))
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

// groupSize returns how many elements each group must have, so that n elements form at most maxGroups
// groups.
func groupSize(n, maxGroups int) int { return max(1, (n+maxGroups-1)/maxGroups) }

// groupBounds returns the seconds at which a group begins and ends. The group does not contain the
// second endSecond.
func groupBounds(g []load.SecondRow) (firstSecond, endSecond float64) {
	return float64(g[0].Second), float64(g[len(g)-1].Second + 1)
}

func (f *timeFrame) lineOf(colour int, name, value string, of ofGroup) series {
	s := series{Colour: colour, Name: name, Value: value}
	for _, g := range f.groups {
		from, to := groupBounds(g)
		s.x, s.y = append(s.x, (from+to)/2), append(s.y, of(g))
	}
	return s
}

func worstOf(of ofSecond) ofGroup {
	return func(g []load.SecondRow) (n float64) {
		for i := range g {
			n = max(n, float64(of(&g[i])))
		}
		return n
	}
}

func rateOf(of ofSecond) ofGroup {
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

// linearChart returns a chart over time with an axis from 0. The browser shows the figures of a
// group while the pointer is over it. linearChart returns nil if the chart is optional and all
// figures are 0.
func (f *timeFrame) linearChart(title, about string, optional bool, write func(float64) string, lines ...series) []*chart {
	peak := 0.0
	for _, l := range lines {
		peak = max(peak, slices.Max(l.y))
	}
	if optional && peak == 0 {
		return nil
	}
	c := f.chart
	c.Title, c.About, c.Lines, c.y = title, about, lines, linearAxis(peak, write)
	for i, g := range f.groups {
		text := FormatClock(time.Duration(g[0].Second) * time.Second)
		for _, l := range lines {
			text += fmt.Sprintf("\n%s %s", l.Name, write(l.y[i]))
		}
		from, to := groupBounds(g)
		c.cells = append(c.cells, cell{"tip", text, from, to, 0, c.y.hi})
	}
	return []*chart{&c}
}

// timeCharts returns the charts over time of a run.
func timeCharts(r *load.Result) (list []*chart) {
	if len(r.Seconds) == 0 {
		return nil
	}
	f := newFrame(r)
	perSecond := func(v float64) string { return FormatCount(v) + "/s" }
	list = f.linearChart("Rates", "Messages in each second, and the mean of the run.", false, perSecond,
		f.lineOf(0, "intended", perSecond(r.Rates.Intended), rateOf(func(s *load.SecondRow) int64 { return s.Intended })),
		f.lineOf(1, "sent", perSecond(r.Rates.Sent), rateOf(func(s *load.SecondRow) int64 { return s.Sent })),
		f.lineOf(2, "accepted", perSecond(r.Rates.Acked), rateOf(func(s *load.SecondRow) int64 { return s.Acked })),
		f.lineOf(3, "delivered", perSecond(r.Rates.Delivered), rateOf(func(s *load.SecondRow) int64 { return s.Delivered })),
		f.lineOf(4, "failed", perSecond(r.Rates.Failed), rateOf(func(s *load.SecondRow) int64 { return s.Failed })))
	list = append(list, f.latencyChart()...)
	list = append(list, f.heatMap()...)
	backlog := f.lineOf(5, "backlog", "at the end "+FormatCount(float64(r.Totals.Backlog)), worstOf(func(s *load.SecondRow) int64 { return s.Backlog }))
	backlog.area = true
	list = append(list, f.linearChart("Backlog", "Messages that were accepted and not delivered, at the end of each second.", true, FormatCount, backlog)...)
	mean := func(of func(*load.Health) float64) ofGroup {
		return func(g []load.SecondRow) (mean float64) {
			for i := range g {
				mean += of(&g[i].Health) / float64(len(g))
			}
			return mean
		}
	}
	return append(list, f.linearChart("CPU", "Cores in use.", true, digits3,
		f.lineOf(6, "machine", "", mean(func(h *load.Health) float64 { return h.MachineCPU })),
		f.lineOf(1, "this process", "", mean(func(h *load.Health) float64 { return h.CPU })),
		f.lineOf(4, "stolen", "", mean(func(h *load.Health) float64 { return h.Steal * h.CPUs })))...)
}

// latencyChart returns the chart of the response times and the lag of each second.
func (f *timeFrame) latencyChart() []*chart {
	q := func(of ofSecond) ofGroup {
		return func(g []load.SecondRow) float64 {
			if worstOf(func(s *load.SecondRow) int64 { return s.Response.Count })(g) == 0 {
				return math.NaN()
			}
			return worstOf(of)(g)
		}
	}
	c := f.chart
	c.Lines = []series{
		f.lineOf(4, "highest", "", q(func(s *load.SecondRow) int64 { return s.Response.Max })),
		f.lineOf(2, "p99", "", q(func(s *load.SecondRow) int64 { return s.Response.P99 })),
		f.lineOf(1, "p50", "", q(func(s *load.SecondRow) int64 { return s.Response.P50 })),
		f.lineOf(0, "lag p99", "", q(func(s *load.SecondRow) int64 { return s.Lag.P99 })),
	}
	return c.asLogChart("Latency over time", "Response of the messages of each second, from when they were due, and the generator's own lag. The axis is logarithmic.")
}

// asLogChart gives the chart a title and a logarithmic y axis. It returns nil if the chart has no
// values above 0.
func (c *chart) asLogChart(title, about string) []*chart {
	var ok bool
	if c.y, ok = logAxis(c.Lines); !ok {
		return nil
	}
	c.Title, c.About = title, about
	return []*chart{c}
}

// percentileCharts returns the percentile curves. The first chart has each kind of latency of all
// steps together. The second chart has the response of each step. On the axis the ranges 0 to 90,
// 90 to 99, 99 to 99.9 and so on have the same width.
func percentileCharts(r *load.Result) []*chart {
	steps := measuredSteps(r)
	var all, each percentileCurves
	for _, k := range []kind{lag, service, response, endToEnd, late} { // the page draws the first curve behind the others
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

// percentileCurves holds the histograms that share a chart. For each histogram it holds a line that
// has no points yet.
type percentileCurves struct {
	hs    []*hdrhistogram.Histogram
	lines []series
}

func (n *percentileCurves) add(colour int, name string, steps []*load.StepResult, k kind) {
	if h, err := mergedHistogram(steps, k); err == nil && h.TotalCount() > 0 {
		n.hs, n.lines = append(n.hs, h), append(n.lines, series{Colour: colour, Name: name, Value: "p99 " + Nanos(load.ValueAt(h, 99))})
	}
}

func (n *percentileCurves) chart(title, about string) []*chart {
	most := int64(0)
	for _, h := range n.hs {
		most = max(most, h.TotalCount())
	}
	// The more values there are, the more nines the axis shows: 99%, 99.9%, 99.99% and so on.
	c := &chart{XName: "percentile", Lines: n.lines, x: axis{hi: min(max(math.Ceil(math.Log10(float64(most))), 2), 7)}}
	for i, h := range n.hs {
		// End the line at the percentile of the highest value. Higher percentiles would only repeat
		// this value.
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
	return c.asLogChart(title, about)
}

// heatMap returns a chart that shows how many responses of each second had each latency.
func (f *timeFrame) heatMap() []*chart {
	lo, hi, most := load.HeatBuckets, -1, int64(1)
	var sums []load.HeatColumn // sums of groups; Second is the first second of the group
	size := groupSize(len(f.r.Heat), maxHeat)
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
			// Readers look for rare slow responses. The colour depends on the logarithm of the
			// count, so that even a few responses are visible.
			level := 0.0
			if most > 1 {
				level = 8 * math.Log(float64(v)) / math.Log(float64(most))
			}
			title := fmt.Sprintf("%s  %s: %d", FormatClock(time.Duration(from)*time.Second), bucketLabel(b), v)
			c.cells = append(c.cells, cell{fmt.Sprintf("h%.0f", level), title, float64(from), float64(to), float64(b), float64(b + 1)})
		}
	}
	for b := lo; b <= hi && b < load.HeatBuckets-1; b += max(1, (hi-lo+1)/8) { // the last bucket has no upper bound
		c.y.ticks = append(c.y.ticks, tick{value: float64(b + 1), text: Nanos(int64(load.HeatBound(b)))})
	}
	return []*chart{&c}
}

// bucketLabel formats the range of latencies of a bucket of the heat map.
func bucketLabel(b int) string {
	switch b {
	case 0:
		return "to " + Nanos(int64(load.HeatBound(0)))
	case load.HeatBuckets - 1:
		return "over " + Nanos(int64(load.HeatBound(b-1)))
	}
	return Nanos(int64(load.HeatBound(b-1))) + " to " + Nanos(int64(load.HeatBound(b)))
}
