package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// cell is a text and how it looks.
type cell struct {
	text  string
	style *paint.Paint // nil: plain
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
