package console

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// column is one of a table.
type column struct {
	title string
	right bool // its texts stand at the right
	give  int  // 0: it stays whatever the width; else those with the most go first
	least int  // how narrow it may become; 0: it may not
}

// drawTable lays rows out in w columns. Where they do not fit, columns give way, and
// those that may are cut.
func drawTable(s *paint.Styles, cols []column, rows [][]cell, w int) (head string, lines []string) {
	wide := make([]int, len(cols))
	for i, c := range cols {
		wide[i] = ansi.StringWidth(c.title)
	}
	for _, r := range rows {
		for i := range r {
			r[i].text = term.Clean(r[i].text)
			wide[i] = max(wide[i], min(ansi.StringWidth(r[i].text), 48))
		}
	}
	shown := make([]bool, len(cols))
	for i := range shown {
		shown[i] = true
	}
	const gap = 2
	total := func() (n int) {
		for i := range cols {
			if shown[i] {
				n += wide[i] + gap
			}
		}
		return n - gap + 1 // a margin at the left
	}
	for over := total() - w; over > 0; over = total() - w {
		most := -1
		for i, c := range cols {
			if shown[i] && c.give > 0 && (most < 0 || c.give > cols[most].give) {
				most = i
			}
		}
		if most >= 0 {
			shown[most] = false
			continue
		}
		for i, c := range cols {
			if spare := wide[i] - c.least; c.least > 0 && spare > 0 && (most < 0 || spare > wide[most]-cols[most].least) {
				most = i
			}
		}
		if most < 0 {
			break
		}
		wide[most] -= min(wide[most]-cols[most].least, (over+1)/2)
	}
	line := func(text func(i int) cell) string {
		var b strings.Builder
		b.WriteByte(' ')
		first := true
		for i, c := range cols {
			if !shown[i] {
				continue
			}
			if !first {
				b.WriteString("  ")
			}
			first = false
			t := text(i)
			in := s.Fit(t.text, wide[i])
			if n := ansi.StringWidth(t.text); c.right && n < wide[i] {
				in = strings.Repeat(" ", wide[i]-n) + t.text
			}
			if t.style != nil {
				in = t.style.Render(in)
			}
			b.WriteString(in)
		}
		return s.Fit(b.String(), w)
	}
	head = s.Dim.Render(ansi.Strip(line(func(i int) cell { return cell{text: cols[i].title} })))
	for _, r := range rows {
		lines = append(lines, line(func(i int) cell { return r[i] }))
	}
	return head, lines
}

// drawList draws a table of which one row is chosen, in h lines: a window that turns
// pages, so that rows stand still while one moves between them.
func drawList(s *paint.Styles, cols []column, rows [][]cell, chosen, w, h int) []string {
	if h < 1 {
		return nil
	}
	page := max(1, h-1)
	from := 0
	if chosen >= 0 {
		from = chosen / page * page
	}
	to := min(len(rows), from+page)
	head, lines := drawTable(s, cols, rows[min(from, to):to], w)
	if i := chosen - from; i >= 0 && i < len(lines) {
		lines[i] = s.Chosen.Render(s.Fit(">"+strings.TrimPrefix(ansi.Strip(lines[i]), " "), w))
	}
	return append([]string{head}, lines...)
}
