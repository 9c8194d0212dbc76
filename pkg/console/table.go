package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// column is a column of a table.
type column struct {
	title     string
	right     bool // align right
	dropOrder int  // 0: never dropped; otherwise the column with the highest number is dropped first
	minWidth  int  // smallest width; 0: never narrowed
}

// drawTable lays out the rows of a table in lines that are w characters wide. If the rows are too
// wide, it first drops columns and then narrows columns that have a minWidth.
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
		return n - gap + 1 // 1 for the left margin
	}
	for over := total() - w; over > 0; over = total() - w {
		most := -1
		for i, c := range cols {
			if shown[i] && c.dropOrder > 0 && (most < 0 || c.dropOrder > cols[most].dropOrder) {
				most = i
			}
		}
		if most >= 0 {
			shown[most] = false
			continue
		}
		for i, c := range cols {
			if spare := wide[i] - c.minWidth; c.minWidth > 0 && spare > 0 && (most < 0 || spare > wide[most]-cols[most].minWidth) {
				most = i
			}
		}
		if most < 0 {
			break
		}
		wide[most] -= min(wide[most]-cols[most].minWidth, (over+1)/2)
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

// drawList draws a table in h lines and marks the chosen row. It scrolls by whole screens. So the
// rows do not move while the person chooses another row of the same screen.
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

// cell is a text with a style.
type cell struct {
	text  string
	style *paint.Paint // nil: plain
}

// rateText returns a number per second as text.
func rateText(v float64) string {
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

// countsText returns counts as text, the greatest first: "5 apns, 2 fcm".
func countsText(m map[string]int) string {
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
		k = cmp.Or(k, "none")
		parts = append(parts, term.Count(m[k])+" "+term.Clean(k))
	}
	return strings.Join(parts, ", ")
}

// ago returns the time from t until now as text, such as "5s ago".
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return spanText(now.Sub(t)) + " ago"
}

// timeUntil returns the time from now until t as text, such as "in 5s".
func timeUntil(now, t time.Time) string {
	d := t.Sub(now)
	if d < time.Second {
		return "now"
	}
	return "in " + spanText(d)
}

// spanText returns a duration as text, in whole seconds.
func spanText(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%ds", max(0, d/time.Second))
	}
	return term.FormatDuration(d)
}

func timeOfMs(v int64) time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v)
}

// parseFilter parses a filter of dead letters, such as "channel:push code:410 since:-2h". The value of
// "where:" is an expression that may contain spaces, so it extends to the end of the text. Relative
// times are computed once, so that the same letters are shown, planned and replayed.
func parseFilter(text string, now time.Time, parse func(string, time.Time) (time.Time, error)) (f api.LetterFilter, err error) {
	names, words := api.LetterWords(), map[string]string{}
	for text = strings.TrimSpace(text); text != ""; {
		var word string
		if strings.HasPrefix(text, "where:") {
			word, text = text, ""
		} else {
			word, text, _ = strings.Cut(text, " ")
			text = strings.TrimSpace(text)
		}
		name, value, ok := strings.Cut(word, ":")
		if !ok || !slices.Contains(names, name) {
			return f, fmt.Errorf("%q: write name:value; names are %s", word, strings.Join(names, ", "))
		}
		if words[name] = strings.TrimSpace(value); words[name] == "" {
			return f, fmt.Errorf("%s: has no value", name)
		}
	}
	f = api.ReadLetterFilter(func(name string) string { return words[name] }, func(name string) int64 {
		if words[name] == "" || err != nil {
			return 0
		}
		var at time.Time
		at, err = parse(words[name], now)
		return at.UnixMilli()
	})
	return f, err
}

// replayFilter returns the filter for a replay of all letters that a list shows. It has no
// condition for the state, because the server adds it: only dead letters can be replayed.
func replayFilter(f api.LetterFilter) api.LetterFilter {
	f.State = ""
	f.All = f.Empty()
	return f
}

// filterFlags returns the flags of notifyctl dlq replay for a filter.
func filterFlags(f *api.LetterFilter) (words []string) {
	for _, w := range f.Words() {
		if w[0] != "state" {
			words = append(words, "--"+w[0], w[1])
		}
	}
	for _, id := range f.IDs {
		words = append(words, "--id", id)
	}
	if f.All {
		words = append(words, "--all")
	}
	return words
}

// matches reports whether a row contains every word of a filter. It ignores the case of letters.
func matches(row []cell, filter string) bool {
	text := ""
	for _, c := range row {
		text += " " + strings.ToLower(c.text)
	}
	for _, w := range strings.Fields(strings.ToLower(filter)) {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
