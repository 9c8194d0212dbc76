// Package paint lays out text on a terminal. The load screen and the operators' console use it. It
// has colours and signs, lines of an exact width, blocks side by side, titles, bars and the line of
// keys. Start with New and Styles. All functions are pure: they return text and write nothing.
package paint

import (
	"math"
	"strings"
	"unicode/utf8"

	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/term"
)

// Paint holds the terminal escapes that switch a colour or an attribute on and off. The escapes are
// computed only once: a frame has hundreds of coloured texts, and if lipgloss built the escapes for
// each text, this would take most of the time in which a frame is drawn.
type Paint struct{ On, off string }

// Render returns s in this colour.
func (p *Paint) Render(s string) string {
	if p.On == "" || s == "" {
		return s
	}
	return p.On + s + p.off
}

func newPaint(s lipgloss.Style) Paint {
	on, off, _ := strings.Cut(s.Render("x"), "x")
	return Paint{on, off}
}

// Colour returns the paint of a colour such as #56b4e9.
func Colour(c string) Paint { return newPaint(lipgloss.NewStyle().Foreground(lipgloss.Color(c))) }

// Styles are colours and signs. The colours are from Okabe and Ito's palette, for people with a
// colour blindness. They are readable on dark and on light backgrounds. Each state also has a sign
// and a word, so colour is never needed. The renderer handles NO_COLOR and terminals without
// colours: it removes the colours and keeps bold, faint and reverse.
type Styles struct {
	Plain, Bold, Dim, Good, Warn, Bad, Key, Accent, Chosen, Band, Alarm Paint

	OK, Bang, Fail, Wait, Now, More, Rule, Full, Empty, Cut, Mark string

	eighths []rune // levels of a bar that grows upwards, lowest first
}

// The colours of the load screen and of the operators' console.
const (
	Blue       = "#56b4e9"
	Orange     = "#e69f00"
	Green      = "#009e73"
	Vermillion = "#d55e00"
	Purple     = "#cc79a7"
	Grey       = "#8a8f98"
)

// New returns the styles. If ascii is true, all signs are ASCII characters.
func New(ascii bool) Styles { //nolint:revive // ascii says what the terminal can show
	s := lipgloss.NewStyle()
	colour := func(c string) lipgloss.Style { return s.Foreground(lipgloss.Color(c)) }
	st := Styles{
		Bold: newPaint(s.Bold(true)), Dim: newPaint(s.Faint(true)), Accent: Colour(Blue), Key: newPaint(colour(Blue).Bold(true)),
		Good: Colour(Green), Warn: newPaint(colour(Orange).Bold(true)), Bad: newPaint(colour(Vermillion).Bold(true)),
		Chosen: newPaint(s.Reverse(true)), Band: newPaint(s.Bold(true).Reverse(true)),
		Alarm: newPaint(s.Bold(true).Foreground(lipgloss.Color("15")).Background(lipgloss.Color("1"))),
		OK:    "✓", Bang: "!", Fail: "✗", Wait: "·", Now: "▶", More: "→", Rule: "─", Full: "█", Empty: "░", Cut: "…", Mark: "│",
		eighths: []rune(" ▁▂▃▄▅▆▇█"),
	}
	if ascii {
		st.OK, st.Fail, st.Wait, st.Now, st.More, st.Rule, st.Full, st.Empty, st.Cut, st.Mark = "+", "x", ".", ">", "->", "-", "#", ".", "~", "|"
		st.eighths = []rune(" .:-=+*%#")
	}
	return st
}

// Fit cuts or pads a line to exactly w columns. Escapes in the line take no columns.
func (s *Styles) Fit(line string, w int) string {
	if w <= 0 {
		return ""
	}
	n := Width(line)
	if n > w {
		line = ansi.Truncate(line, w, s.Cut)
		n = Width(line)
	}
	return line + Spaces(w-n)
}

// Right is like Fit, but aligns the text to the right.
func (s *Styles) Right(text string, w int) string {
	if n := Width(text); n < w {
		return Spaces(w-n) + text
	}
	return s.Fit(text, w)
}

// Lines returns a list of lines as a block of exactly h lines with w columns each.
func (s *Styles) Lines(list []string, w, h int) []string {
	out := make([]string, 0, max(0, h))
	for i := range max(0, h) {
		line := ""
		if i < len(list) {
			line = list[i]
		}
		out = append(out, s.Fit(line, w))
	}
	return out
}

// Beside puts two blocks side by side. The left block is lw columns wide, and the right block rw
// columns.
func (s *Styles) Beside(left, right []string, lw, rw int) []string {
	n := max(len(left), len(right))
	left, right = s.Lines(left, lw, n), s.Lines(right, rw, n)
	for i := range left {
		left[i] += "  " + right[i]
	}
	return left
}

// Title returns the line above a panel, w columns wide: the panel's key and name, and a note at the
// right end.
func (s *Styles) Title(key, name, note string, w int) string {
	head := name
	if key != "" {
		head = key + " " + name
	}
	if w < 8 {
		return s.Fit(head, w)
	}
	head = ansi.Truncate(head, w-4, s.Cut)
	room := w - Width(head) - 4
	if note != "" {
		if note = " " + note + " "; Width(note) > room-1 {
			note = ansi.Truncate(note, max(0, room-1), s.Cut)
		}
	}
	fill := max(0, room-Width(note))
	name, isKey := strings.CutPrefix(head, key+" ")
	if key != "" && isKey {
		head = s.Key.Render(key) + " " + s.Bold.Render(name)
	} else {
		head = s.Bold.Render(head)
	}
	return s.Dim.Render(s.Rule) + " " + head + " " + s.Dim.Render(strings.Repeat(s.Rule, fill)+note+s.Rule)
}

// Bar returns a bar of w columns. The parameter share, from 0 to 1, is the part of the bar that is
// filled. If it is above 0, at least one column is filled.
func (s *Styles) Bar(share float64, w int) string {
	if math.IsNaN(share) {
		share = 0
	}
	n := int(math.Round(min(max(share, 0), 1) * float64(w)))
	if n == 0 && share > 0 && w > 0 {
		n = 1
	}
	return strings.Repeat(s.Full, n) + strings.Repeat(s.Empty, max(0, w-n))
}

// Bars draws the last w values, each as one column of the terminal. The parameter rows is the
// height of the drawing in lines. The latest value is at the right. The result peak is the highest
// value, whose column has the full height.
func (s *Styles) Bars(values []float64, w, rows int) (lines []string, peak float64) {
	if len(values) > w {
		values = values[len(values)-max(w, 0):]
	}
	for _, v := range values {
		if !math.IsNaN(v) {
			peak = max(peak, v)
		}
	}
	steps := len(s.eighths) - 1
	for row := rows - 1; row >= 0; row-- {
		var b strings.Builder
		b.WriteString(Spaces(w - len(values)))
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

// Hint is a key of the keyboard and its description.
type Hint [2]string

// KeyLine returns a line with the keys that the user can press. It omits those keys that do not
// fit.
func (s *Styles) KeyLine(list []Hint, w int) string {
	var b strings.Builder
	for _, k := range list {
		if w -= len(k[0]) + len(k[1]) + 3; w < 0 {
			break // the help lists the keys that do not fit
		}
		b.WriteString(" " + s.Key.Render(k[0]) + " " + k[1] + " ")
	}
	return b.String()
}

// Input returns an input line that accepts up to limit characters.
func Input(limit int) textinput.Model {
	in := textinput.New()
	in.Prompt = ""
	in.CharLimit = limit
	in.SetVirtualCursor(false)
	in.KeyMap.Paste.SetEnabled(false) // the terminal's own paste arrives as text
	return in
}

// Cursor returns the position of the cursor in an input line. The input line is in row y of a
// screen that is w columns wide, and it begins with the text in the parameter name.
func Cursor(name string, in *textinput.Model, w, y int) *tea.Cursor {
	before := term.Clean(string([]rune(in.Value())[:in.Position()]))
	return tea.NewCursor(min(len(name)+ansi.StringWidth(before), w-1), y)
}

// Width returns the number of columns that a text takes. It counts ASCII, the package's colours and
// the package's signs itself, which are nearly everything in a frame. For the rest it calls the
// package ansi. With ansi alone, counting would take most of a frame's time.
func Width(s string) int {
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

// blank is a buffer of spaces, so that Spaces rarely allocates.
const blank = "                                                                                                                                                                "

// Spaces returns n spaces.
func Spaces(n int) string {
	switch {
	case n <= 0:
		return ""
	case n <= len(blank):
		return blank[:n]
	}
	return strings.Repeat(" ", n)
}
