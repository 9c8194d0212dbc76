package screen

import (
	"math"
	"strings"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// paint is a colour or an attribute, ready to be written. A frame has hundreds of
// painted texts: building each with lipgloss took most of a frame's time.
type paint struct{ on, off string }

func (p paint) render(s string) string {
	if p.on == "" || s == "" {
		return s
	}
	return p.on + s + p.off
}

func newPaint(s lipgloss.Style) paint {
	on, off, _ := strings.Cut(s.Render("x"), "x")
	return paint{on, off}
}

// styles are colours and signs. The colours are of Okabe and Ito's palette, which
// people with any common colour blindness tell apart, in tones that are readable
// on dark and on light. A state is always told by a sign and a word: colour only
// repeats it. NO_COLOR and terminals without colours are the renderer's affair,
// which leaves bold, faint and reverse.
type styles struct {
	bold, dim, good, warn, bad, key, chosen, band paint

	series [seriesKinds]paint
	heat   []paint // the least dense first

	ok, bang, fail, wait, now, rule, full, empty, cut, mark string

	shades  []rune // of the heat map, the least dense first
	eighths []rune // of a bar that grows upwards, the lowest first
	ascii   bool
}

const (
	blue       = "#56b4e9"
	orange     = "#e69f00"
	green      = "#009e73"
	vermillion = "#d55e00"
	purple     = "#cc79a7"
	grey       = "#8a8f98"
)

// The colours of density: cividis, which was made for colour blindness, without
// its darkest end.
var cividis = []string{"#3b496c", "#575c6d", "#73706f", "#918578", "#b09b6e", "#d0b35c", "#fee838"}

func newStyles(ascii bool) *styles {
	s := lipgloss.NewStyle()
	colour := func(c string) lipgloss.Style { return s.Foreground(lipgloss.Color(c)) }
	st := &styles{
		bold: newPaint(s.Bold(true)), dim: newPaint(s.Faint(true)),
		good: newPaint(colour(green)), warn: newPaint(colour(orange).Bold(true)), bad: newPaint(colour(vermillion).Bold(true)),
		key: newPaint(colour(blue).Bold(true)), chosen: newPaint(s.Reverse(true)), band: newPaint(s.Bold(true).Reverse(true)),
		ok: "✓", bang: "!", fail: "✗", wait: "·", now: "▶", rule: "─", full: "█", empty: "░", cut: "…", mark: "│",
		shades: []rune("·░░▒▒▓█"), eighths: []rune(" ▁▂▃▄▅▆▇█"), ascii: ascii,
	}
	for k, c := range [seriesKinds]string{grey, blue, orange, green, purple} {
		st.series[k] = newPaint(colour(c))
	}
	for _, c := range cividis {
		st.heat = append(st.heat, newPaint(colour(c)))
	}
	if ascii {
		st.ok, st.fail, st.wait, st.now, st.rule, st.full, st.empty, st.cut, st.mark = "+", "x", ".", ">", "-", "#", ".", "~", "|"
		st.shades, st.eighths = []rune(".:-=+*#"), []rune(" .:-=+*%#")
	}
	return st
}

// fit makes a line exactly so wide. Its own escapes take no room.
func (s *styles) fit(line string, w int) string {
	if w <= 0 {
		return ""
	}
	n := width(line)
	if n > w {
		line = ansi.Truncate(line, w, s.cut)
		n = width(line)
	}
	return line + spaces(w-n)
}

// right is fit with the text at the right.
func (s *styles) right(text string, w int) string {
	if n := width(text); n < w {
		return spaces(w-n) + text
	}
	return s.fit(text, w)
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

// title is the line over a panel: its key, its name, and a note at the right.
func (s *styles) title(key, name, note string, w int) string {
	head := name
	if key != "" {
		head = key + " " + name
	}
	if w < 8 {
		return s.fit(head, w)
	}
	head = ansi.Truncate(head, w-4, s.cut)
	room := w - width(head) - 4
	if note != "" {
		if note = " " + note + " "; width(note) > room-1 {
			note = ansi.Truncate(note, max(0, room-1), s.cut)
		}
	}
	fill := max(0, room-width(note))
	name, isKey := strings.CutPrefix(head, key+" ")
	if key != "" && isKey {
		head = s.key.render(key) + " " + s.bold.render(name)
	} else {
		head = s.bold.render(head)
	}
	return s.dim.render(s.rule) + " " + head + " " + s.dim.render(strings.Repeat(s.rule, fill)+note+s.rule)
}

// bar is how full something is.
func (s *styles) bar(share float64, w int) string {
	if math.IsNaN(share) {
		share = 0
	}
	n := int(math.Round(min(max(share, 0), 1) * float64(w)))
	if n == 0 && share > 0 && w > 0 {
		n = 1
	}
	return strings.Repeat(s.full, n) + strings.Repeat(s.empty, max(0, w-n))
}

// spark draws values one row high, the latest at the right.
func (s *styles) spark(values []float64, w int) string {
	if len(values) > w {
		values = values[len(values)-w:]
	}
	peak := 0.0
	for _, v := range values {
		if !math.IsNaN(v) {
			peak = max(peak, v)
		}
	}
	var b strings.Builder
	b.WriteString(spaces(w - len(values)))
	for _, v := range values {
		level := 0
		if peak > 0 && v > 0 {
			level = max(1, int(math.Round(v/peak*float64(len(s.eighths)-1))))
		}
		b.WriteRune(s.eighths[level])
	}
	return b.String()
}

// width is how many columns a text takes. Nearly all of a frame is ASCII, our own
// colours, and signs that are one column wide, which is counted here; for the rest
// there is the library, which took most of a frame's time.
func width(s string) int {
	n := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c >= ' ' && c <= '~':
			n++
			i++
		case c == 0x1b && i+1 < len(s) && s[i+1] == '[':
			for i += 2; i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == ';'); i++ {
			}
			if i == len(s) || s[i] != 'm' {
				return ansi.StringWidth(s)
			}
			i++
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			if !(r >= 0x2500 && r <= 0x25a0 || r >= 0x2800 && r <= 0x28ff || r == '✓' || r == '✗' || r == '…' || r == '·' || r == '▶') {
				return ansi.StringWidth(s)
			}
			n++
			i += size
		}
	}
	return n
}

const blank = "                                                                                                                                                                "

func spaces(n int) string {
	switch {
	case n <= 0:
		return ""
	case n <= len(blank):
		return blank[:n]
	}
	return strings.Repeat(" ", n)
}
