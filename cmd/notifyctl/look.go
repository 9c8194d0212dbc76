package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/humantime"
)

// timeFormats are the values of --time-format.
var timeFormats = []string{"relative", "iso", "local"}

// timeText returns a time in the format of --time-format: "12s ago", "in 5m", or a full date and
// time.
func (p *program) timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	switch p.global.timeFormat {
	case "iso":
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	case "local":
		return t.Local().Format("2006-01-02 15:04:05.000Z07:00")
	}
	d := t.Sub(p.now())
	switch {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return span(-d) + " ago"
	}
	return "in " + span(d)
}

// localTimeText returns the time of day in this machine's time zone. It adds the date if the date
// is not today.
func (p *program) localTimeText(t time.Time) string {
	t, now := t.Local(), p.now().Local()
	if t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05.000Z07:00")
	}
	return t.Format("15:04:05.000Z07:00")
}

// eventTimeText returns the time of an event in a history. The time is never relative to now,
// because only the time between events matters in a history.
func (p *program) eventTimeText(t time.Time) string {
	if p.global.timeFormat == "iso" {
		return p.timeText(t)
	}
	return p.localTimeText(t)
}

// optionalTimeText is like timeText, but returns "" for an unknown time (nil).
func (p *program) optionalTimeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return p.timeText(*t)
}

// span returns a duration in words, with its two largest units.
func span(d time.Duration) string { return term.FormatDuration(d) }

// parseTime parses a time. It accepts RFC 3339, "now", the days of parseDay, and a duration from
// now: "+10m", "in 10m", "-2h" or "2h ago". In a duration, "d" means days.
func parseTime(s string, now time.Time) (time.Time, error) {
	in := strings.TrimSpace(s)
	if in == "now" {
		return now, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, in); err == nil {
		return t, nil
	}
	sign := time.Duration(1)
	rest, ok := strings.CutPrefix(in, "+")
	if !ok {
		rest, ok = strings.CutPrefix(in, "in ")
	}
	if !ok {
		sign = -1
		if rest, ok = strings.CutPrefix(in, "-"); !ok {
			rest, ok = strings.CutSuffix(in, " ago")
		}
	}
	if ok {
		if d, err := parseSpan(strings.TrimSpace(rest)); err == nil {
			return now.Add(sign * d), nil
		}
	}
	if t, err := parseDay(strings.ToLower(in), now.Local()); err == nil {
		return t, nil
	}
	return time.Time{}, term.Usage("%q is not a time: write 2026-03-01T09:00:00Z, '2026-03-01 09:00', yesterday, 'today 09:00', now, +10m, or -2h", s)
}

// parseDay parses a day: "yesterday", "today" or "2026-03-01". A time of day may follow the day, in
// the form of --at: "today 9am". Without a time of day, parseDay returns the midnight at which the
// day begins. It uses the time zone of the parameter now.
func parseDay(s string, now time.Time) (time.Time, error) {
	word, clock, _ := strings.Cut(s, " ")
	day := now
	switch word {
	case "today":
	case "yesterday":
		day = now.AddDate(0, 0, -1)
	default:
		var err error
		if day, err = time.ParseInLocation(time.DateOnly, word, now.Location()); err != nil {
			return time.Time{}, err
		}
	}
	midnight := time.Date(day.Year(), day.Month(), day.Day(), 0, 0, 0, 0, now.Location())
	if clock = strings.TrimSpace(clock); clock == "" {
		return midnight, nil
	}
	return humantime.Parse("", "today "+clock, midnight, now.Location())
}

// parseSpan parses a Go duration, which may begin with a number of days: "2d", "1d12h".
func parseSpan(s string) (time.Duration, error) {
	var total time.Duration
	if days, rest, ok := strings.Cut(s, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days, "%d", &n); err != nil || fmt.Sprint(n) != days || n < 0 || n > 36500 {
			return 0, term.Usage("%q is not a duration such as 90s, 10m or 2d", s)
		}
		total = time.Duration(n) * 24 * time.Hour
		if rest == "" {
			return total, nil
		}
		s = rest
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, term.Usage("%q is not a duration such as 90s, 10m or 2d", s)
	}
	return total + d, nil
}

// coloured reports whether to print colours on standard output.
func (p *program) coloured() bool {
	switch p.global.color {
	case "always":
		return true
	case "never":
		return false
	}
	return p.outTerminal && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb"
}

// hues are the colours of states and levels, as numbers of ANSI escape sequences.
var hues = map[string]string{
	"DELIVERED": "32", "SENT": "32", "ok": "32", "closed": "32",
	"FAILED": "31", "fail": "31", "dead": "31",
	"UNKNOWN": "33", "DEFERRED": "33", "warn": "33", "EXPIRED": "33", "SUPPRESSED": "33", "CANCELLED": "33",
	"ACCEPTED": "36", "SCHEDULED": "36",
}

func paint(cell string, header term.Header) string {
	if header {
		return "\x1b[1m" + cell + "\x1b[0m"
	}
	if hue := hues[cell]; hue != "" {
		return "\x1b[" + hue + "m" + cell + "\x1b[0m"
	}
	return cell
}

// count returns a number with thousands separators: 1,204,000.
func count[N int | int64 | uint32 | uint64](n N) string { return term.Count(n) }

func channelNames() (names []string) {
	for _, c := range notify.Channels {
		names = append(names, c.String())
	}
	return names
}

func categoryNames() (names []string) {
	for _, c := range notify.Categories {
		names = append(names, c.String())
	}
	return names
}

// checkState checks --status and returns it in upper case. An empty value is valid.
func checkState(given string) (string, error) {
	name := strings.ToUpper(given)
	if _, ok := notify.ParseState(name); name != "" && !ok {
		return "", term.Usage("--status %q does not exist; the states are %s%s", given, strings.Join(stateNames(), ", "), nearest(name, stateNames()))
	}
	return name, nil
}

// checkKinds returns an error for an unknown channel or category. Empty values are valid.
func checkKinds(channel, category string) error {
	if _, ok := notify.ParseChannel(channel); channel != "" && !ok {
		return term.Usage("--channel %q does not exist; the channels are %s%s", channel, strings.Join(channelNames(), ", "), nearest(channel, channelNames()))
	}
	if _, ok := notify.ParseCategory(category); category != "" && !ok {
		return term.Usage("--category %q does not exist; the categories are %s%s", category, strings.Join(categoryNames(), ", "), nearest(category, categoryNames()))
	}
	return nil
}

func nearest(word string, names []string) string {
	if n := term.Nearest(word, 2, names); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// completeKinds registers the completion of --channel and --category.
func completeKinds(c *cobra.Command) {
	completeFlag(c, "channel", channelNames())
	completeFlag(c, "category", categoryNames())
}
