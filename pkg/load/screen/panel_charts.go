package screen

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// ratesPanel draws the intended, sent, accepted and delivered rates as a chart and as numbers.
func ratesPanel(m *model, w, h int) []string {
	st, s := m.styles, m.snapshot
	rows := m.windowRows()
	filtered := m.filter != ""
	list := []chartLine{
		{kind: kindTarget, dotted: true}, {kind: kindSent}, {kind: kindAccepted}, {kind: kindDelivered},
	}
	now := s.Rates
	if filtered {
		list = list[1:3]
		now = load.Rates{}
		for _, step := range m.filteredSteps() {
			now.Sent += step.Rates.Sent
			now.Acked += step.Rates.Acked
			now.Failed += step.Rates.Failed
			now.Intended += step.Rates.Intended
			now.Delivered += step.Rates.Delivered
		}
	}
	names := stepNames(m)
	for i := range list {
		values := make([]float64, len(rows))
		for j := range rows {
			values[j] = rateOf(&rows[j], list[i].kind, names, filtered)
		}
		list[i].values = values
	}
	note := "messages a second"
	if filtered {
		note = "filtered: " + m.filter
	}
	out := []string{st.Title("2", "rates", note, w)}
	side := 0
	if w >= 56 {
		side = 27
	}
	numbers := rateNumbers(m, &now, side)
	body := h - 2
	if body < 1 {
		return st.Lines(out, w, h)
	}
	plot := timeChart(m, list, rows, w-side-2, body, report.FormatCount)
	if side > 0 {
		plot = st.Beside(plot, numbers, w-side-2, side)
	}
	return st.Lines(append(out, plot...), w, h)
}

func rateNumbers(m *model, now *load.Rates, w int) (out []string) {
	st := m.styles
	line := func(k lineKind, name string, v float64, share string) {
		mark := " "
		if k < seriesKinds {
			mark = st.series[k].Render(string(letters[k]))
		}
		out = append(out, mark+" "+st.Fit(name, 9)+" "+st.Right(report.FormatCount(v)+"/s", 8)+" "+st.Right(share, 6))
	}
	share := func(v, of float64) string {
		if of <= 0 {
			return ""
		}
		return fmt.Sprintf("%.1f%%", 100*v/of)
	}
	line(kindTarget, "target", now.Intended, "")
	line(kindSent, "sent", now.Sent, share(now.Sent, now.Intended))
	line(kindAccepted, "accepted", now.Acked, share(now.Acked, now.Sent))
	line(kindDelivered, "delivered", now.Delivered, share(now.Delivered, now.Acked))
	failed := len(out)
	line(seriesKinds, "failed", now.Failed, share(now.Failed, now.Sent))
	if now.Failed > 0 {
		out[failed] = st.Bad.Render(st.Bang + out[failed][1:])
	}
	return out
}

// stepNames returns the names of the steps that the filter selects.
func stepNames(m *model) map[string]bool {
	names := map[string]bool{}
	for _, s := range m.filteredSteps() {
		names[s.Name] = true
	}
	return names
}

func rateOf(r *load.SecondRow, k lineKind, names map[string]bool, filtered bool) float64 {
	length := r.Length.Seconds()
	if length <= 0 {
		length = 1
	}
	var n int64
	if filtered {
		for i := range r.Steps {
			s := &r.Steps[i]
			if !names[s.Name] {
				continue
			}
			if k == kindSent {
				n += s.Sent
			} else {
				n += s.Acked
			}
		}
		return float64(n) / length
	}
	switch k {
	case kindTarget:
		n = r.Intended
	case kindSent:
		n = r.Sent
	case kindAccepted:
		n = r.Acked
	case kindDelivered:
		n = r.Delivered
	case kindBacklog:
		return float64(r.Backlog)
	}
	return float64(n) / length
}

// timeChart draws a chart of h rows, and a line with the times below the chart.
func timeChart(m *model, list []chartLine, rows []load.SecondRow, w, h int, axis func(float64) string) []string {
	st := m.styles
	if len(rows) == 0 || h < 1 {
		return st.Lines([]string{st.Dim.Render(" no second is complete yet")}, w, h+1)
	}
	const names, label = 4, 7
	dots := 2 * max(1, w-names-label)
	for i := range list {
		list[i].values = resample(list[i].values, dots, minSeconds(m))
	}
	from := rows[len(rows)-1].Second + 1 - len(rows)
	to := from + len(rows)
	var marks []int
	whole := max(len(rows), minSeconds(m))
	for _, mk := range m.snapshot.Markers {
		sec := int(mk.At / time.Second)
		if mk.Kind != "phase" && sec >= from && sec < to {
			marks = append(marks, (to-1-sec)*dots/whole)
		}
	}
	out := st.chart(list, w, h, axis, marks)
	left, right := report.FormatClock(time.Duration(to-whole)*time.Second), report.FormatClock(time.Duration(to)*time.Second)
	if to < whole {
		left = ""
	}
	line := st.Fit(paint.Spaces(label)+left, max(0, w-names-paint.Width(right))) + right
	return append(out, st.Dim.Render(st.Fit(line, w)))
}

// minSeconds returns the lowest number of seconds that the width of a chart shows. So the curve of
// a shorter run does not fill the whole width.
func minSeconds(m *model) int {
	if w := windows[m.window]; w > 0 {
		return int(w / time.Second)
	}
	return 30
}

// resample converts a series with one value per second to the dots of a chart. If there are more
// seconds than dots, each dot is the mean of several seconds; otherwise a second has several dots.
// The parameter dots is the width of the chart, which covers at least minCount seconds. If there
// are fewer values, resample returns fewer dots, and the chart stays empty on the left.
func resample(values []float64, dots, minCount int) []float64 {
	n := len(values)
	if n == 0 || dots <= 0 {
		return nil
	}
	whole := max(n, minCount)
	out := make([]float64, 0, dots)
	for d := range dots {
		from := float64(d)*float64(whole)/float64(dots) - float64(whole-n)
		to := from + float64(whole)/float64(dots)
		if to <= 0 {
			continue
		}
		i, j := max(0, int(math.Floor(from))), min(n, int(math.Ceil(to)))
		if to-from <= 1 {
			i = min(n-1, max(0, int(math.Floor((from+to)/2))))
			j = i + 1
		}
		sum := 0.0
		for _, v := range values[i:j] {
			sum += v
		}
		out = append(out, sum/float64(max(1, j-i)))
	}
	return out
}

// backlogPanel draws the backlog, and the lag of the generator.
func backlogPanel(m *model, w, h int) []string {
	st := m.styles
	rows := m.windowRows()
	values := make([]float64, len(rows))
	lags := make([]float64, len(rows))
	for i := range rows {
		values[i] = float64(rows[i].Backlog)
		lags[i] = float64(rows[i].Lag.P99)
	}
	note := "waiting " + report.FormatCount(float64(m.snapshot.Totals.Backlog))
	if n := len(values); n > 10 {
		note += fmt.Sprintf(", %+.0f/s", (values[n-1]-values[n-11])/10)
	}
	out := []string{st.Title("3", "backlog and lag", note, w)}
	if h < 4 {
		return st.Lines(append(out, " backlog "+st.series[kindBacklog].Render(sparkline(st, values, max(0, w-10)))), w, h)
	}
	out = append(out, timeChart(m, []chartLine{{kind: kindBacklog, values: values}}, rows, w, h-3, report.FormatCount)...)
	last := int64(0)
	if n := len(rows); n > 0 {
		last = rows[n-1].Lag.P99
	}
	head := " lag p99 " + st.Right(report.Nanos(last), 7) + " "
	out = append(out, head+st.series[kindSent].Render(sparkline(st, resample(lags, max(0, w-paint.Width(head)-1), minSeconds(m)), max(0, w-paint.Width(head)-1))))
	return st.Lines(out, w, h)
}

// heatPanel draws how many responses of each second had each latency.
func heatPanel(m *model, w, h int) []string {
	st := m.styles
	cols := heatColumns(m)
	out := []string{st.Title("4", "responses by latency", "denser: "+string(st.shades), w)}
	room := h - 1
	lo, hi := heatRange(cols)
	if hi < 0 || room < 1 {
		return st.Lines(append(out, st.Dim.Render(" no answer yet")), w, h)
	}
	each := (hi - lo + room) / room // number of buckets in a line
	lines := (hi - lo + each) / each
	const label = 8
	cells := max(1, w-label)
	grid := heatCells(cols, cells, minSeconds(m), lo, each, lines)
	most := int64(0)
	for _, row := range grid {
		for _, n := range row {
			most = max(most, n)
		}
	}
	for range room - lines {
		out = append(out, "")
	}
	for l := lines - 1; l >= 0; l-- {
		top := min(lo+(l+1)*each-1, load.HeatBuckets-1)
		text := report.Nanos(int64(load.HeatBound(top)))
		if top == load.HeatBuckets-1 {
			text = "more"
		}
		out = append(out, st.Dim.Render(st.Right(text, label-1))+" "+st.heatLine(grid[l], most))
	}
	return st.Lines(out, w, h)
}

// heatColumns returns the columns of the heat map for the seconds that the charts show.
func heatColumns(m *model) []load.HeatColumn {
	cols := m.snapshot.Heat
	if n := int(windows[m.window] / time.Second); n > 0 && len(cols) > n {
		cols = cols[len(cols)-n:]
	}
	return cols
}

// heatRange returns the lowest and the highest bucket that have responses. The result hi is -1 if no
// bucket has responses.
func heatRange(cols []load.HeatColumn) (lo, hi int) {
	lo, hi = load.HeatBuckets, -1
	for i := range cols {
		for b, n := range cols[i].Counts {
			if n > 0 {
				lo, hi = min(lo, b), max(hi, b)
			}
		}
	}
	return lo, hi
}

// heatHeight returns how many lines the heat map needs.
func heatHeight(m *model) int {
	lo, hi := heatRange(heatColumns(m))
	return max(4, hi-lo+2)
}

// heatCells adds up latency counts for the cells of the heat map. Each line of the result covers
// perLine buckets; the first line begins with the bucket lo. The oldest cell of a line comes first.
// The cells cover at least minCols columns: if there are fewer columns, the oldest cells stay
// empty.
func heatCells(cols []load.HeatColumn, cells, minCols, lo, perLine, lines int) [][]int64 {
	grid := make([][]int64, lines)
	for l := range grid {
		grid[l] = make([]int64, cells)
	}
	n := len(cols)
	whole := max(n, minCols)
	for x := range cells {
		from := x*whole/cells - (whole - n)
		to := max((x+1)*whole/cells-(whole-n), from+1)
		for i := max(0, from); i < min(n, to); i++ {
			for l := range lines {
				for b := lo + l*perLine; b < min(lo+(l+1)*perLine, load.HeatBuckets); b++ {
					grid[l][x] += cols[i].Counts[b]
				}
			}
		}
	}
	return grid
}

// heatLine draws a line of the heat map. The shades depend on the logarithm of the count, because
// readers look for rare slow responses.
func (s *styles) heatLine(row []int64, most int64) string {
	level := func(n int64) int {
		if n <= 0 {
			return -1
		}
		if most <= 1 {
			return len(s.heat) - 1
		}
		return min(int(math.Log(float64(n))/math.Log(float64(most))*float64(len(s.heat)-1)+0.5), len(s.heat)-1)
	}
	var b strings.Builder
	for i := 0; i < len(row); {
		l := level(row[i])
		j := i + 1
		for j < len(row) && level(row[j]) == l {
			j++
		}
		if l < 0 {
			b.WriteString(paint.Spaces(j - i))
		} else {
			b.WriteString(s.heat[l].Render(strings.Repeat(string(s.shades[l]), j-i)))
		}
		i = j
	}
	return b.String()
}
