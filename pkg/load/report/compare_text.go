package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/term"
)

// WriteComparison writes a comparison for people, at most 80 columns wide.
func WriteComparison(w io.Writer, a, b string, c *Comparison) error {
	p := &textPage{}
	p.para("A", a)
	p.para("B", b)
	for _, n := range c.Notes {
		p.para("note", n)
	}
	p.b.WriteByte('\n')
	p.line("%-22s %-16s %9s %9s %8s %8s", "step", "figure", "A", "B", "change", "")
	last := ""
	for _, r := range c.Rows {
		step := r.Step
		if step == last {
			step = ""
		}
		last = r.Step
		diff := "-"
		if r.A != 0 {
			diff = fmt.Sprintf("%+.1f%%", 100*(r.B-r.A)/r.A)
		} else if r.B != 0 {
			diff = "new"
		}
		word := map[Change]string{Better: "better", Worse: "WORSE", Unjudged: r.UnjudgedBecause}[r.Change]
		p.line("%-22s %-16s %9s %9s %8s %s", ansi.Truncate(term.Clean(step), 22, "~"), r.Figure, figure(r.A, r.Unit), figure(r.B, r.Unit), diff, word)
	}
	p.b.WriteByte('\n')
	switch {
	case !c.Judged:
		p.para("result", "not judged")
	case c.Regressions > 0:
		p.para("result", fmt.Sprintf("%d figures are worse: by over %g%%, %s and three times the noise", c.Regressions, c.Rules.Percent, Nanos(int64(c.Rules.Floor))))
	default:
		p.para("result", "nothing is worse")
	}
	fmt.Fprintf(&p.b, "\ncompare judged=%t regressions=%d rows=%d\n", c.Judged, c.Regressions, len(c.Rows))
	_, err := w.Write(p.b.Bytes())
	return err
}

func figure(v float64, unit string) string {
	switch unit {
	case "ns":
		return Nanos(int64(v))
	case "/s":
		return FormatCount(v) + "/s"
	case "share":
		return strings.TrimSuffix(fmt.Sprintf("%.3f", 100*v), "0") + "%"
	}
	return term.Count(int64(v))
}
