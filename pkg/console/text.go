package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/term"
)

// styles are colours and signs. A state is always told by a sign and a word:
// colour only repeats it. NO_COLOR and terminals without colours are the
// renderer's affair, which leaves bold and reverse.
type styles struct {
	plain, bold, dim, good, warn, bad, accent, chosen, band, alarm lipgloss.Style

	ok, bang, fail, more, rule, full, empty, cut string
	eighths                                      []rune // of a bar that grows upwards, the lowest first
}

func newStyles(ascii bool) styles {
	s := lipgloss.NewStyle()
	colour := func(c string) lipgloss.Style { return s.Foreground(lipgloss.Color(c)) }
	st := styles{
		plain: s, bold: s.Bold(true), dim: s.Faint(true), good: colour("2"), warn: colour("3").Bold(true), bad: colour("1").Bold(true),
		accent: colour("6"), chosen: s.Reverse(true), band: s.Bold(true).Reverse(true), alarm: s.Bold(true).Foreground(lipgloss.Color("15")).Background(lipgloss.Color("1")),
		ok: "✓", bang: "!", fail: "✗", more: "→", rule: "─", full: "█", empty: "░", cut: "…", eighths: []rune(" ▁▂▃▄▅▆▇█"),
	}
	if ascii {
		st.ok, st.fail, st.more, st.rule, st.full, st.empty, st.cut = "+", "x", "->", "-", "#", ".", "~"
		st.eighths = []rune(" .:-=+*%#")
	}
	return st
}

// cell is a text and how it looks.
type cell struct {
	text  string
	style *lipgloss.Style // nil: plain
}

// fit makes a line exactly so wide. Its own escapes take no room.
func (s *styles) fit(line string, w int) string {
	if w <= 0 {
		return ""
	}
	if n := ansi.StringWidth(line); n <= w {
		return line + strings.Repeat(" ", w-n)
	}
	line = ansi.Truncate(line, w, s.cut)
	return line + strings.Repeat(" ", max(0, w-ansi.StringWidth(line)))
}

// lines makes a block of exactly h lines of w columns.
func (s *styles) lines(list []string, w, h int) []string {
	out := make([]string, 0, max(0, h))
	for i := range max(0, h) {
		line := ""
		if i < len(list) {
			line = list[i]
		}
		out = append(out, s.fit(line, w))
	}
	return out
}

// beside puts two blocks side by side.
func (s *styles) beside(left, right []string, lw, rw int) []string {
	n := max(len(left), len(right))
	left, right = s.lines(left, lw, n), s.lines(right, rw, n)
	for i := range left {
		left[i] += "  " + right[i]
	}
	return left
}

// title is the line over a panel: its name, and a note at the right.
func (s *styles) title(name, note string, w int) string {
	if w < 8 {
		return s.fit(name, w)
	}
	name = ansi.Truncate(name, w-4, s.cut)
	room := w - ansi.StringWidth(name) - 4
	if note != "" {
		if note = " " + note + " "; ansi.StringWidth(note) > room-1 {
			note = ansi.Truncate(note, max(0, room-1), s.cut)
		}
	}
	fill := max(0, room-ansi.StringWidth(note))
	return s.dim.Render(s.rule) + " " + s.bold.Render(name) + " " + s.dim.Render(strings.Repeat(s.rule, fill)) + s.dim.Render(note) + s.dim.Render(s.rule)
}

// bar is how full something is.
func (s *styles) bar(share float64, w int) string {
	if math.IsNaN(share) {
		share = 0
	}
	n := int(math.Round(min(max(share, 0), 1) * float64(w)))
	if n == 0 && share > 0 {
		n = 1
	}
	return strings.Repeat(s.full, n) + strings.Repeat(s.empty, w-n)
}

// chart draws values, the latest at the right, rows high; peak is the top.
func (s *styles) chart(values []float64, w, rows int) (lines []string, peak float64) {
	if len(values) > w {
		values = values[len(values)-w:]
	}
	for _, v := range values {
		peak = max(peak, v)
	}
	steps := len(s.eighths) - 1
	for row := rows - 1; row >= 0; row-- {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", max(0, w-len(values))))
		for _, v := range values {
			level := 0
			if peak > 0 && v > 0 {
				level = max(1, int(math.Round(v/peak*float64(rows*steps))))
			}
			b.WriteRune(s.eighths[max(0, min(level-row*steps, steps))])
		}
		lines = append(lines, b.String())
	}
	return lines, peak
}

// rate writes so many a second.
func rate(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.1:
		return "<0.1"
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return term.Count(int64(math.Round(v)))
}

// sums writes counts, the greatest first: "5 apns, 2 fcm".
func sums(m map[string]int) string {
	keys := make([]string, 0, len(m))
	for k, n := range m {
		if n > 0 {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for i, k := range keys {
		if i == 4 {
			parts = append(parts, fmt.Sprintf("%d more", len(keys)-i))
			break
		}
		if k == "" {
			k = "none"
		}
		parts = append(parts, term.Count(m[k])+" "+term.Clean(k))
	}
	return strings.Join(parts, ", ")
}

// ago writes how long before now something was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(now.Sub(t)) + " ago"
}

// until writes how long it is to a time.
func until(now, t time.Time) string {
	d := t.Sub(now)
	if d < time.Second {
		return "now"
	}
	return "in " + span(d)
}

// span writes a length of time in whole seconds.
func span(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%ds", max(0, d/time.Second))
	}
	return term.Span(d)
}

func ms(v int64) time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v)
}
