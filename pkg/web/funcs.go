package web

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// funcs returns the functions of the templates.
func (p *Page) funcs() template.FuncMap {
	return template.FuncMap{
		"command":   command,
		"num":       number,
		"rate":      rate,
		"secs":      seconds,
		"percent":   func(v float64) string { return strconv.FormatFloat(100*v, 'f', -1, 64) + "%" },
		"ms":        func(ms int64) time.Time { return time.UnixMilli(ms).UTC() },
		"iso":       func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") },
		"utc":       func(t time.Time) string { return t.UTC().Format("Jan 2 15:04:05") },
		"clock":     func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"minute":    func(t time.Time) string { return t.UTC().Format("15:04") },
		"ago":       func(t time.Time) string { return relativeTime(t, p.cfg.Now()) },
		"span":      span,
		"sums":      sums,
		"plain":     func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"title":     func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		"words":     func(s string) []string { return strings.Split(s, " ") },
		"lettersOf": lettersOf,
		"tone":      stateTone,
		"seg":       url.PathEscape,
		"dict":      dict,
		"ratio":     func(ms float64) float64 { return ms / 1000 },
		"list":      func(v ...string) []string { return v },
		"add":       func(a, b int) int { return a + b },
	}
}

// dict makes a map of its arguments, for templates with several parameters.
func dict(kv ...any) (map[string]any, error) {
	m := map[string]any{}
	for i := 0; i+1 < len(kv); i += 2 {
		k, ok := kv[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", kv[i])
		}
		m[k] = kv[i+1]
	}
	return m, nil
}

// number returns an integer with thousands separators.
func number(v any) string {
	switch n := v.(type) {
	case *int64:
		if n == nil {
			return "–"
		}
		return term.Count(*n)
	case float64:
		return term.Count(int64(math.Round(n)))
	}
	return term.Separated(fmt.Sprint(v))
}

// rate returns the text of a number per second: with up to two decimals below 10, with up to one
// below 100, and as an integer from 100 on.
func rate(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.01:
		return "<0.01"
	case v < 10:
		return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
	case v < 100:
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return number(v)
}

func seconds(s float64) string { return span(time.Duration(s * float64(time.Second))) }

// span returns the text of a duration, which may be negative. Below a second it is in ms with up to
// two decimals.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d == 0:
		return "0"
	case d < time.Second:
		return strconv.FormatFloat(math.Round(float64(d)/1e4)/100, 'f', -1, 64) + " ms"
	}
	return term.FormatDuration(d)
}

// relativeTime returns the time between t and now as text, in one unit: "5 min ago", "in 2 h".
func relativeTime(t, now time.Time) string {
	d := now.Sub(t)
	form := "%d %s ago"
	if d < 0 {
		d, form = -d, "in %d %s"
	}
	for _, u := range []struct {
		upTo, of time.Duration
		name     string
	}{{time.Minute, time.Second, "s"}, {time.Hour, time.Minute, "min"}, {48 * time.Hour, time.Hour, "h"}, {math.MaxInt64, 24 * time.Hour, "d"}} {
		if d >= time.Second && d < u.upTo {
			return fmt.Sprintf(form, d/u.of, u.name)
		}
	}
	return "now"
}

// lettersOf returns the filter for the dead letters that belong to a circuit.
func lettersOf(circuit string) filter {
	kind, name, _ := strings.Cut(circuit, ":")
	var f filter
	f.State = "any"
	switch {
	case kind == "caller":
		f.Caller, f.Channel = name, "trigger"
	case name == "twilio":
		f.Channel = "sms" // these letters contain the account instead of the provider
	case name == "sendgrid":
		f.Channel = "email"
	default:
		f.Provider = name
	}
	return f
}

// namedCount is an entry of a map of counts.
type namedCount struct {
	Name string
	N    int
}

// sums returns the entries of a map, the largest first.
func sums(m map[string]int) []namedCount {
	out := make([]namedCount, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, namedCount{k, m[k]})
	}
	slices.SortStableFunc(out, func(a, b namedCount) int { return cmp.Compare(b.N, a.N) })
	return out
}

// stateTone returns the CSS class of a state's colour. The state's text is always shown too.
func stateTone(state string) string {
	switch state {
	case "closed", "ok", "done", "DELIVERED", "SENT", "FIRED":
		return "ok"
	case "open", "fail", "failed", "stopped", "FAILED", "dead":
		return "bad"
	case "half-open", "blocked", "warn", "paused", "waiting", "DEFERRED", "UNKNOWN", "EXPIRED":
		return "warn"
	case "running", "ACCEPTED", "SCHEDULED", "PENDING", "IN_FLIGHT":
		return "run"
	}
	return "off"
}

// command returns a notifyctl command line for a shell. It omits empty arguments and flags with an
// empty value: command("dlq", "ls", "--caller", "") is "notifyctl dlq ls".
func command(args ...string) string {
	out := []string{"notifyctl"}
	for i := 0; i < len(args); i++ {
		switch {
		case strings.HasPrefix(args[i], "--") && i+1 < len(args) && args[i+1] == "":
			i++
		case args[i] == "":
		default:
			out = append(out, term.Quote(args[i]))
		}
	}
	return strings.Join(out, " ")
}
