package screen

import (
	"math"
	"strings"

	"github.com/notifyd/notifyd/pkg/term/paint"
)

// styles holds the styles of a frame: the styles of package paint, the colours of lines, and the
// colours and characters of the heat map.
type styles struct {
	paint.Styles

	series [seriesKinds]paint.Paint
	heat   []paint.Paint // colours of the heat map, the colour of the lowest counts first
	shades []rune        // characters of the heat map, the character of the lowest counts first
	ascii  bool
}

// cividis holds the colours of the heat map. The palette cividis was made for colour-blind people.
// Its darkest end is left out.
var cividis = []string{"#3b496c", "#575c6d", "#73706f", "#918578", "#b09b6e", "#d0b35c", "#fee838"}

func newStyles(ascii bool) *styles {
	st := &styles{Styles: paint.New(ascii), shades: []rune("·░░▒▒▓█"), ascii: ascii}
	for k, c := range [seriesKinds]string{paint.Grey, paint.Blue, paint.Orange, paint.Green, paint.Purple} {
		st.series[k] = paint.Colour(c)
	}
	for _, c := range cividis {
		st.heat = append(st.heat, paint.Colour(c))
	}
	if ascii {
		st.shades = []rune(".:-=+*#")
	}
	return st
}

// lineKind says what a line of a chart shows. Each kind has a colour and a letter.
type lineKind int

const (
	kindTarget lineKind = iota
	kindSent
	kindAccepted
	kindDelivered
	kindBacklog
	seriesKinds // number of kinds
)

// letters holds a letter for each kind of line. The letter is drawn at the end of the line. So
// readers can distinguish the lines without colours.
var letters = [seriesKinds]byte{'t', 's', 'a', 'd', 'b'}

// chartLine is a line of a chart. It has a value for each moment, the latest value last. A NaN
// makes a gap in the line.
type chartLine struct {
	kind   lineKind
	values []float64
	dotted bool
}

// braillePlot draws lines with braille characters. Each cell has two by four dots. Four lines in
// 100 by 12 cells need 63 us of CPU and 37 KB per frame. ntcharts v2.2.0 needed 2.8 ms and 930 KB.
// ntcharts can draw neither gaps nor marks, and it needs UTF-8.
type braillePlot struct {
	w, h     int // size in cells
	dots     []uint8
	cellKind []lineKind // kind of the line that gives the cell its colour
	cellUsed []bool     // true: a line has dots in the cell
}

func newPlot(w, h int) *braillePlot {
	w, h = max(0, w), max(0, h)
	return &braillePlot{w: w, h: h, dots: make([]uint8, w*h), cellKind: make([]lineKind, w*h), cellUsed: make([]bool, w*h)}
}

// braille holds the bit of each dot of a braille character, by row and column of the dot.
var braille = [4][2]uint8{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

// setDot sets a dot. The positions x and y count dots from the lower left corner.
func (p *braillePlot) setDot(x, y int, k lineKind) {
	if x < 0 || y < 0 || x >= 2*p.w || y >= 4*p.h {
		return
	}
	row := p.h - 1 - y/4
	i := row*p.w + x/2
	p.dots[i] |= braille[3-y%4][x%2]
	p.cellKind[i], p.cellUsed[i] = k, true
}

// drawLine draws a line of the chart. The latest value is at the right edge. The parameter top is
// the value at the upper edge of the plot. drawLine returns the row in which the line ends, or -1
// if it drew nothing.
func (p *braillePlot) drawLine(s chartLine, top float64) (end int) {
	end = -1
	if top <= 0 || p.w == 0 || p.h == 0 {
		return end
	}
	last := -1
	from := max(0, len(s.values)-2*p.w)
	left := 2*p.w - (len(s.values) - from)
	for i, v := range s.values[from:] {
		if math.IsNaN(v) {
			last = -1
			continue
		}
		y := int(math.Round(min(max(v/top, 0), 1) * float64(4*p.h-1)))
		x := left + i
		if s.dotted {
			if x%3 == 0 {
				p.setDot(x, y, s.kind)
			}
		} else {
			p.setDot(x, y, s.kind)
			for between := min(last, y) + 1; last >= 0 && between < max(last, y); between++ {
				p.setDot(x, between, s.kind)
			}
		}
		last = y
		end = p.h - 1 - y/4
	}
	return end
}

// textRows returns the rows of the plot as styled text.
func (p *braillePlot) textRows(st *styles) []string {
	out := make([]string, 0, p.h)
	var b, run strings.Builder
	for row := range p.h {
		b.Reset()
		of := lineKind(-1)
		flush := func() {
			if of >= 0 {
				b.WriteString(st.series[of].Render(run.String()))
			} else {
				b.WriteString(run.String())
			}
			run.Reset()
		}
		for col := range p.w {
			i := row*p.w + col
			k := lineKind(-1)
			if p.cellUsed[i] {
				k = p.cellKind[i]
			}
			if k != of {
				flush()
				of = k
			}
			switch {
			case k < 0:
				run.WriteByte(' ')
			case st.ascii:
				run.WriteByte(letters[k])
			default:
				run.WriteRune(rune(0x2800) + rune(p.dots[i]))
			}
		}
		flush()
		out = append(out, b.String())
	}
	return out
}

// chart draws lines over time, in h rows of w columns. It draws an axis on the left and the letters
// of the lines on the right. The function axis formats a value of the axis. The parameter
// marks holds the positions of markers; a position is a number of values before the latest value.
func (s *styles) chart(list []chartLine, w, h int, axis func(float64) string, marks []int) []string {
	const names = 4
	peak := 0.0
	for _, l := range list {
		shown := l.values
		if room := 2 * max(0, w-names-7); len(shown) > room {
			shown = shown[len(shown)-room:]
		}
		for _, v := range shown {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				peak = max(peak, v)
			}
		}
	}
	top := roundUp(peak)
	gutter := max(paint.Width(axis(top)), paint.Width(axis(top/2))) + 1
	p := newPlot(w-gutter-names, h)
	if p.w < 8 || h < 1 {
		return s.Lines(nil, w, h)
	}
	ends := make([]string, h)
	for _, l := range list {
		if end := p.drawLine(l, top); end >= 0 {
			ends[end] += string(letters[l.kind])
		}
	}
	rows := p.textRows(s)
	marked := map[int]bool{}
	for _, m := range marks {
		if col := p.w - 1 - m/2; col >= 0 && m >= 0 {
			marked[col] = true
		}
	}
	if len(marked) > 0 {
		rows = p.withMarks(s, marked)
	}
	out := make([]string, 0, h)
	for i, row := range rows {
		label := ""
		switch {
		case i == 0:
			label = axis(top)
		case i == h/2 && h >= 5:
			label = axis(top / 2 * float64(2*(h-1-i)) / float64(h-1))
			if h%2 == 0 {
				label = ""
			}
		case i == h-1:
			label = axis(0)
		}
		var names2 strings.Builder
		for j := range min(len(ends[i]), names) {
			c := ends[i][j]
			for k, letter := range letters {
				if letter == c {
					names2.WriteString(s.series[k].Render(string(c)))
				}
			}
		}
		out = append(out, s.Dim.Render(s.Right(label, gutter-1))+" "+row+s.Fit(names2.String(), names))
	}
	return out
}

// withMarks returns the rows of the plot. It draws a vertical line for each mark in the cells where
// the chart has no line.
func (p *braillePlot) withMarks(s *styles, cols map[int]bool) []string {
	rows := make([]string, 0, p.h)
	for row := range p.h {
		var b strings.Builder
		for col := range p.w {
			i := row*p.w + col
			switch {
			case p.cellUsed[i] && s.ascii:
				b.WriteString(s.series[p.cellKind[i]].Render(string(letters[p.cellKind[i]])))
			case p.cellUsed[i]:
				b.WriteString(s.series[p.cellKind[i]].Render(string(rune(0x2800) + rune(p.dots[i]))))
			case cols[col]:
				b.WriteString(s.Warn.Render(s.Mark))
			default:
				b.WriteByte(' ')
			}
		}
		rows = append(rows, b.String())
	}
	return rows
}

// roundUp returns the least round number that is at least v. Round numbers are 1, 1.5, 2, 3, 4, 5,
// 6 or 8 times a power of ten.
func roundUp(v float64) float64 {
	if v <= 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8, 10} {
		if v <= f*p*1.0000001 {
			return f * p
		}
	}
	return 10 * p
}

// sparkline draws a series of values in one row, with the latest value on the right.
func sparkline(st *styles, values []float64, w int) string {
	lines, _ := st.Bars(values, w, 1)
	return lines[0]
}
