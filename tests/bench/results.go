package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// result is one line of the table and one element of results.json.
type result struct {
	ID        string  `json:"id"`
	Key       string  `json:"key,omitempty"` // name of the ratio in the last line of the output
	Work      string  `json:"work"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Reference float64 `json:"reference"` // measured in the same run; 0: no reference
	Ratio     float64 `json:"ratio"`     // value / reference; 0: no reference
	Need      string  `json:"need"`      // the bound as text; empty: no bound
	Pass      *bool   `json:"pass"`      // true: the bound holds; false: it is missed; null: no bound

	main bool // true: the last line of the output has the value, or the ratio if Key is set
}

// bench has the options and collects the results.
type bench struct {
	options
	results []result
	nodes   int // number of folders so far; see folder
}

func (b *bench) notef(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// add adds r to the results. It computes the ratio, rounds the values, and checks the bound n.
func (b *bench) add(r result, n need) {
	if r.Reference > 0 {
		r.Ratio = round(r.Value/r.Reference, 3)
	}
	r.Value, r.Reference = round(r.Value, 4), round(r.Reference, 4)
	if n.text != "" {
		pass := n.holds(r)
		r.Need, r.Pass = n.text, &pass
	}
	b.results = append(b.results, r)
}

// need is the bound of a figure. If its text is empty, the figure has no bound.
type need struct {
	text  string
	holds func(result) bool
}

func atLeast(v float64, unit string) need {
	return need{fmt.Sprintf(">= %g %s", v, unit), func(r result) bool { return r.Value >= v }}
}

func atMost(v float64, unit string) need {
	return need{fmt.Sprintf("<= %g %s", v, unit), func(r result) bool { return r.Value <= v }}
}

func ratioOf(v float64) need {
	return need{fmt.Sprintf("ratio >= %g", v), func(r result) bool { return r.Ratio >= v }}
}

func ratioAtMost(v float64) need {
	return need{fmt.Sprintf("ratio <= %g", v), func(r result) bool { return r.Ratio > 0 && r.Ratio <= v }}
}

var info need

func round(v float64, digits int) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	f := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*f) / f
}

func (b *bench) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "id\twork\tvalue\tunit\treference\tratio\tneed\tpass")
	for _, r := range b.results {
		ref, ratio, need, pass := "-", "-", "-", "-"
		if r.Reference > 0 {
			ref, ratio = number(r.Reference), fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Pass != nil {
			need, pass = r.Need, map[bool]string{true: "yes", false: "NO"}[*r.Pass]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Work, number(r.Value), r.Unit, ref, ratio, need, pass)
	}
	_ = t.Flush()
}

func number(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.0fK", v/1e3)
	}
	return fmt.Sprintf("%g", v)
}

func (b *bench) write(path string) {
	rig.Ok(os.MkdirAll(filepath.Dir(path), 0o755))
	f := rig.Must(os.Create(path))
	defer f.Close()
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	rig.Ok(enc.Encode(b.results))
}

// line returns the last line of the output. A result with a key appears with its ratio. A main
// result without a key appears with its value. The number of missed bounds is at the end.
func (b *bench) line() string {
	var s strings.Builder
	s.WriteString("bench")
	if len(b.engines) > 0 {
		s.WriteString("-engines")
	}
	missed := 0
	for _, r := range b.results {
		switch {
		case r.Key != "":
			fmt.Fprintf(&s, " %s=%.2f", r.Key, r.Ratio)
		case r.main:
			fmt.Fprintf(&s, " %s=%s", r.ID, number(r.Value))
		}
		if r.Pass != nil && !*r.Pass {
			missed++
		}
	}
	fmt.Fprintf(&s, " missed=%d", missed)
	return s.String()
}
