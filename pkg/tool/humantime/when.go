package humantime

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

const maxLen = 100

// Parse parses a text that a user has given for a time. Relative times begin at the time now, and
// times of day are in the zone loc. The parameter field is the name of the flag, for errors. All
// errors are notify.KindInvalid. The result may be in the past.
func Parse(field, text string, now time.Time, loc *time.Location) (time.Time, error) {
	p := parser{field: field, text: text, now: now.In(loc), loc: loc}
	s := strings.TrimSpace(text)
	switch {
	case s == "":
		return time.Time{}, p.badTime("is empty")
	case len(s) > maxLen:
		return time.Time{}, notify.Invalid("bad_time", field, fmt.Sprintf("is longer than %d characters", maxLen))
	}
	if t, ok, err := p.parseDate(s); ok {
		return t, err
	}
	words := strings.Fields(strings.ToLower(s))
	if words[0] == "in" {
		return p.parseIn(words[1:])
	}
	return p.parseDay(words)
}

// ParseDelay parses a duration: "10m", "1h30m", "2 days 4 hours". The duration must be positive. A
// day has 24 hours, a week 7 such days.
func ParseDelay(field, text string) (time.Duration, error) {
	p := parser{field: field, text: text, delay: true}
	if len(text) > maxLen {
		return 0, notify.Invalid("bad_time", field, fmt.Sprintf("is longer than %d characters", maxLen))
	}
	days, d, err := p.parseSpans(strings.Fields(strings.ToLower(text)))
	if err != nil {
		return 0, err
	}
	return d + time.Duration(days)*24*time.Hour, nil
}

type parser struct {
	field, text string
	delay       bool // true: the text is a duration, not a time
	now         time.Time
	loc         *time.Location
}

func (p *parser) badTime(why string) error {
	if p.delay {
		return notify.Invalid("bad_time", p.field, fmt.Sprintf("%q %s: write 90s, 10m or %q", p.text, why, "2 days 4 hours"))
	}
	return notify.Invalid("bad_time", p.field, fmt.Sprintf("%q %s: write RFC 3339, %q, %q or %q", p.text, why, "2026-03-01 09:00", "in 10m", "tomorrow 09:00"))
}

// parseDate parses a date, with or without time and offset. The result ok is true if s looks like a
// date, even if it is not a valid one.
func (p *parser) parseDate(s string) (t time.Time, ok bool, err error) {
	if len(s) < 10 || s[4] != '-' || !digits(s[:4]) {
		return t, false, nil
	}
	date, clock := s[:10], s[10:]
	d, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return t, true, p.badTime("is not a date")
	}
	if clock == "" {
		t, err = p.wallClock(d.Year(), d.Month(), d.Day(), 0, 0, 0)
		return t, true, err
	}
	if c := clock[0]; c != 'T' && c != 't' && c != ' ' {
		return t, true, p.badTime("is not a time")
	}
	clock = strings.ToUpper(strings.TrimSpace(clock[1:]))
	for _, layout := range [...]string{"15:04:05Z07:00", "15:04Z07:00", "15:04:05 Z07:00", "15:04 Z07:00"} {
		c, err := time.Parse(layout, clock)
		if err != nil {
			continue
		}
		return time.Date(d.Year(), d.Month(), d.Day(), c.Hour(), c.Minute(), c.Second(), c.Nanosecond(), c.Location()), true, nil
	}
	h, m, sec, ok := clockOf(strings.ToLower(clock))
	if !ok {
		return t, true, p.badTime("has no valid time of day")
	}
	t, err = p.wallClock(d.Year(), d.Month(), d.Day(), h, m, sec)
	return t, true, err
}

// parseIn parses the words after "in", for example "2 days 4 hours".
func (p *parser) parseIn(words []string) (time.Time, error) {
	days, d, err := p.parseSpans(words)
	if err != nil {
		return time.Time{}, err
	}
	t := p.now
	if days > 0 {
		n := t.AddDate(0, 0, days)
		// Check that this wall clock time exists. If it is skipped, AddDate would choose another
		// time without an error.
		if t, err = p.wallClock(n.Year(), n.Month(), n.Day(), p.now.Hour(), p.now.Minute(), p.now.Second()); err != nil {
			return time.Time{}, err
		}
		t = t.Add(time.Duration(p.now.Nanosecond()))
	}
	return t.Add(d), nil
}

var units = map[string]time.Duration{
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
}

var dayUnits = map[string]int{"d": 1, "day": 1, "days": 1, "w": 7, "week": 7, "weeks": 7}

// maxSpan is the largest sum of all units. It is so small that no calculation with it overflows.
// The server has its own limit for times in the future.
const (
	maxSpan = 100 * 366 * 24 * time.Hour
	tooLong = "is more than a hundred years"
)

// parseSpans adds up numbers with units. A number and its unit may be separate words: "1h30m", "2
// days 4 hours". Larger units must come first, and each unit may occur once.
func (p *parser) parseSpans(words []string) (days int, d time.Duration, err error) {
	s := strings.Join(words, " ")
	if s == "" {
		return 0, 0, p.badTime("has no duration")
	}
	last, left := time.Duration(1<<63-1), maxSpan
	for s != "" {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		v, err := strconv.Atoi(s[:n])
		switch {
		case n > 9 && strings.Trim(s[:n], "0") != "":
			return 0, 0, p.badTime(tooLong)
		case err != nil:
			return 0, 0, p.badTime("has no whole number where one is expected")
		}
		s = strings.TrimPrefix(s[n:], " ")
		n = 0
		for n < len(s) && s[n] >= 'a' && s[n] <= 'z' {
			n++
		}
		unit := s[:n]
		s = strings.TrimPrefix(s[n:], " ")
		size := units[unit]
		whole := dayUnits[unit]
		if size == 0 && whole == 0 {
			switch {
			case strings.HasPrefix(s, "."):
				return 0, 0, p.badTime("has a fraction where a whole number is expected")
			case unit == "":
				return 0, 0, p.badTime("has no unit, such as s, m, h or d")
			}
			return 0, 0, p.badTime(fmt.Sprintf("has the unit %q, not one of s, m, h, d, w", unit))
		}
		if whole > 0 {
			size = time.Duration(whole) * 24 * time.Hour
		}
		if size >= last {
			return 0, 0, p.badTime("must have its units in order, from the largest to the smallest")
		}
		last = size
		if int64(v) > int64(left/size) {
			return 0, 0, p.badTime(tooLong)
		}
		left -= time.Duration(v) * size
		if whole > 0 {
			days += v * whole
		} else {
			d += time.Duration(v) * size
		}
	}
	if days == 0 && d == 0 {
		return 0, 0, p.badTime("is zero")
	}
	return days, d, nil
}

// parseDay parses "[next] <day> [at] <time>" and "<time>".
func (p *parser) parseDay(words []string) (time.Time, error) {
	if len(words) == 1 && words[0] == "now" {
		return p.now, nil
	}
	next := words[0] == "next"
	if next {
		words = words[1:]
	}
	if len(words) == 0 {
		return time.Time{}, p.badTime("names no day")
	}
	weekday, isWeekday := weekdayOf(words[0])
	name := words[0]
	switch {
	case isWeekday || !next && (name == "today" || name == "tomorrow"):
		words = words[1:]
	case next:
		return time.Time{}, p.badTime(`has "next" before a word that is not a day of the week`)
	default:
		name = ""
	}
	if len(words) > 1 && words[0] == "at" {
		words = words[1:]
	}
	if len(words) == 0 {
		return time.Time{}, p.badTime("has no time of day")
	}
	h, m, s, ok := clockOf(strings.Join(words, ""))
	if !ok || len(words) > 2 || len(words) == 2 && words[1] != "am" && words[1] != "pm" {
		return time.Time{}, p.badTime("is not understood")
	}
	y, mo, d := p.now.Date()
	at := func(days int) (time.Time, error) {
		n := time.Date(y, mo, d+days, 12, 0, 0, 0, time.UTC)
		return p.wallClock(n.Year(), n.Month(), n.Day(), h, m, s)
	}
	switch {
	case name == "today":
		return at(0)
	case name == "tomorrow":
		return at(1)
	case isWeekday:
		days := (int(weekday) - int(p.now.Weekday()) + 7) % 7
		if days == 0 && next {
			return at(7) // "next monday" on a Monday never means today
		}
		t, err := at(days)
		if err == nil && !t.After(p.now) {
			return at(days + 7)
		}
		return t, err
	}
	t, err := at(0)
	if err == nil && !t.After(p.now) {
		return at(1)
	}
	return t, err
}

func weekdayOf(s string) (time.Weekday, bool) {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if name := strings.ToLower(d.String()); s == name || s == name[:3] {
			return d, true
		}
	}
	return 0, false
}

// clockOf parses a time of day: 09:00, 9:00:30, 9am, 9:30pm, noon, midnight.
func clockOf(s string) (h, m, sec int, ok bool) {
	switch s {
	case "noon":
		return 12, 0, 0, true
	case "midnight":
		return 0, 0, 0, true
	}
	half := ""
	if len(s) > 2 && (strings.HasSuffix(s, "am") || strings.HasSuffix(s, "pm")) {
		s, half = s[:len(s)-2], s[len(s)-2:]
	}
	parts := strings.Split(s, ":")
	if len(parts) > 3 || len(parts) == 1 && half == "" {
		return 0, 0, 0, false
	}
	var v [3]int
	for i, part := range parts {
		if !digits(part) || len(part) > 2 || i > 0 && len(part) != 2 {
			return 0, 0, 0, false
		}
		v[i], _ = strconv.Atoi(part) // one or two digits
	}
	h, m, sec = v[0], v[1], v[2]
	if half != "" {
		if h < 1 || h > 12 {
			return 0, 0, 0, false
		}
		h %= 12
		if half == "pm" {
			h += 12
		}
	}
	return h, m, sec, h < 24 && m < 60 && sec < 60
}

func digits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// wallClock returns the instant at which clocks in the zone show the given time. It returns an
// error if they never show this time, or show it twice.
func (p *parser) wallClock(y int, mo time.Month, d, h, m, s int) (time.Time, error) {
	var found []time.Time
	utc := time.Date(y, mo, d, h, m, s, 0, time.UTC)
	// Try every offset of the zone within two days before and after the time. That is enough,
	// because no zone changes its offset by more than a day.
	seen := map[int]bool{}
	for hours := -48; hours <= 48; hours++ {
		_, off := utc.Add(time.Duration(hours) * time.Hour).In(p.loc).Zone()
		if seen[off] {
			continue
		}
		seen[off] = true
		t := utc.Add(-time.Duration(off) * time.Second).In(p.loc)
		if _, o := t.Zone(); o == off {
			found = append(found, t)
		}
	}
	show := utc.Format("2006-01-02 15:04:05")
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return time.Time{}, notify.Invalid("bad_time", p.field, fmt.Sprintf("%q: the local time %s does not exist in %s, because the clocks change there; write another time, or an offset such as +02:00", p.text, show, p.loc))
	}
	a, b := found[0], found[1]
	if b.Before(a) {
		a, b = b, a
	}
	return time.Time{}, notify.Invalid("bad_time", p.field, fmt.Sprintf("%q: clocks in %s show %s twice; write %s or %s", p.text, p.loc, show, a.Format(time.RFC3339), b.Format(time.RFC3339)))
}
