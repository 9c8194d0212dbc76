package humantime

import (
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/notifyd/notifyd/pkg/notify"
)

func zone(t testing.TB, name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func TestParse(t *testing.T) {
	t.Parallel()
	berlin := "Europe/Berlin"
	now := "2026-03-27T15:04:05.5+01:00" // a Friday; summer time begins on Sunday at 02:00
	for _, c := range []struct{ zone, now, text, want string }{
		{berlin, now, "2026-03-01T09:00:00Z", "2026-03-01T09:00:00Z"},
		{berlin, now, "2026-03-01t09:00:00.25+05:30", "2026-03-01T03:30:00.25Z"},
		{berlin, now, "2026-03-01T09:00+01:00", "2026-03-01T08:00:00Z"},
		{berlin, now, "2026-03-01 09:00 +01:00", "2026-03-01T08:00:00Z"},
		{berlin, now, "2026-07-01 09:00", "2026-07-01T07:00:00Z"},
		{berlin, now, "2026-07-01 09:00:07", "2026-07-01T07:00:07Z"},
		{berlin, now, "2026-07-01 9pm", "2026-07-01T19:00:00Z"},
		{berlin, now, "2026-07-01", "2026-06-30T22:00:00Z"},
		{berlin, now, "now", "2026-03-27T14:04:05.5Z"},
		{berlin, now, "in 10m", "2026-03-27T14:14:05.5Z"},
		{berlin, now, "In 1h30m", "2026-03-27T15:34:05.5Z"},
		{berlin, now, "in 1 hour 30 minutes", "2026-03-27T15:34:05.5Z"},
		{berlin, now, "in 2 days", "2026-03-29T13:04:05.5Z"}, // same wall clock, other offset
		{berlin, now, "in 48h", "2026-03-29T14:04:05.5Z"},
		{berlin, now, "in 1w 2d 3h", "2026-04-05T16:04:05.5Z"},
		{berlin, now, "today 18:30", "2026-03-27T17:30:00Z"},
		{berlin, now, "today 08:00", "2026-03-27T07:00:00Z"}, // past; the server says what that means
		{berlin, now, "tomorrow 09:00", "2026-03-28T08:00:00Z"},
		{berlin, now, "tomorrow at 9am", "2026-03-28T08:00:00Z"},
		{berlin, now, "tomorrow 9 am", "2026-03-28T08:00:00Z"},
		{berlin, now, "tomorrow noon", "2026-03-28T11:00:00Z"},
		{berlin, now, "monday 09:00", "2026-03-30T07:00:00Z"},
		{berlin, now, "next mon 09:00", "2026-03-30T07:00:00Z"},
		{berlin, now, "friday 15:00", "2026-04-03T13:00:00Z"}, // today's is past
		{berlin, now, "friday 16:00", "2026-03-27T15:00:00Z"},
		{berlin, now, "next friday 16:00", "2026-04-03T14:00:00Z"}, // it is Friday
		{berlin, now, "next friday 15:00", "2026-04-03T13:00:00Z"},
		{berlin, now, "next thursday 16:00", "2026-04-02T14:00:00Z"},
		{berlin, now, "16:00", "2026-03-27T15:00:00Z"},
		{berlin, now, "15:04:05", "2026-03-28T14:04:05Z"},
		{berlin, now, "midnight", "2026-03-27T23:00:00Z"},
		{berlin, now, "12am", "2026-03-27T23:00:00Z"},
		{berlin, now, "12:30pm", "2026-03-28T11:30:00Z"},
		{berlin, "2026-12-31T23:00:00+01:00", "tomorrow 00:30", "2026-12-31T23:30:00Z"},
		{"Pacific/Apia", "2011-12-28T10:00:00-10:00", "in 1 day", "2011-12-29T20:00:00Z"},
		{"America/New_York", "2026-10-31T12:00:00-04:00", "tomorrow 12:00", "2026-11-01T17:00:00Z"},
		{"UTC", "2028-02-28T12:00:00Z", "tomorrow 12:00", "2028-02-29T12:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339Nano, c.now)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse("at", c.text, at, zone(t, c.zone))
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if s := got.UTC().Format(time.RFC3339Nano); s != c.want {
			t.Errorf("%q = %s, want %s", c.text, s, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 27, 14, 4, 5, 0, time.UTC)
	for _, c := range []struct{ text, why string }{
		{"", "is empty"}, {"   ", "is empty"},
		{strings.Repeat("1", 101), "longer than 100"},
		{"soon", "not understood"}, {"next year", `has "next" before a word`}, {"next tomorrow 09:00", `has "next" before a word`},
		{"next", "names no day"},
		{"tomorrow", "no time of day"}, {"monday", "no time of day"}, {"today at", "not understood"},
		{"tomorrow 25:00", "not understood"}, {"tomorrow 9:5", "not understood"}, {"9", "not understood"},
		{"13pm", "not understood"}, {"0am", "not understood"}, {"09:00 and more", "not understood"}, {"09:00 30", "not understood"},
		{"09:00:60", "not understood"}, {"10m", "not understood"}, {"tomorrow 1 2", "not understood"},
		{"2026-02-30", "is not a date"}, {"2026-02-30 09:00", "is not a date"}, {"2026-13-01T09:00:00Z", "is not a date"},
		{"2026-03-01x09:00", "is not a time"}, {"2026-03-01 9", "no valid time of day"}, {"2026-03-01T24:00:00Z", "no valid time of day"},
		{"in", "no duration"}, {"in m", "no whole number"}, {"in 5", "no unit"}, {"in 1.5h", "a fraction"}, {"in -5m", "no whole number"},
		{"in 5 fortnights", "the unit"}, {"in 30m 1h", "from the largest to the smallest"}, {"in 1h 1h", "from the largest to the smallest"},
		{"in 0m", "is zero"}, {"in 9999999999m", "a hundred years"}, {"in 9999999h", "a hundred years"}, {"in 1000000000000000000s", "a hundred years"}, {"in 1e18s", "the unit"}, {"in 36600d 1s", "a hundred years"}, {"in 999999999h", "a hundred years"}, {"in 10m tomorrow", "no whole number"},
		{"2026-03-29 02:30", "the local time 2026-03-29 02:30:00 does not exist"},
		{"2026-10-25 02:30", "write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00"},
		{"2026-10-25 02:00", "twice"},
	} {
		got, err := Parse("at", c.text, now, zone(t, "Europe/Berlin"))
		if err == nil {
			t.Errorf("%q = %v, want a refusal", c.text, got)
			continue
		}
		if notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "at") {
			t.Errorf("%q: %v; want %q", c.text, err, c.why)
		}
	}
	// A day that the zone left out altogether.
	if got, err := Parse("at", "2011-12-30 09:00", now, zone(t, "Pacific/Apia")); err == nil {
		t.Errorf("a day that never was: %v", got)
	}
	// "in 1 day" lands in the gap.
	if got, err := Parse("at", "in 1 day", time.Date(2026, 3, 28, 1, 30, 0, 0, time.UTC), zone(t, "Europe/Berlin")); err == nil {
		t.Errorf("in 1 day, to 02:30 that never is: %v", got)
	}
}

func TestParseDelay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"10m": 10 * time.Minute, "1h30m": 90 * time.Minute, "2 days 4 hours": 52 * time.Hour, "1w": 168 * time.Hour, "90s": 90 * time.Second} {
		if got, err := ParseDelay("in", text); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", text, got, err, want)
		}
	}
	// Sums of what is allowed each are not: they were negative once.
	for _, text := range []string{"9999999h", "1000000000000000000s", "99999999999999999999999s", "36600d 878400h 52704000m 999999999s", "5228w 4d 1m"} {
		_, err := ParseDelay("--in", text)
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindInvalid || e.Field != "--in" || !strings.Contains(e.Msg, "a hundred years") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, err := ParseDelay("in", "36600d"); err != nil || got != maxSpan {
		t.Errorf("a hundred years: %v, %v", got, err)
	}
	for _, text := range []string{"", "0s", "-1m", "1.5h", "10", "m", "tomorrow", "1h 2d", strings.Repeat("1h", 80)} {
		if got, err := ParseDelay("in", text); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%q = %v, %v; want a refusal", text, got, err)
		}
	}
}

// FuzzParse: nothing panics, and what is understood is an instant that, written
// as RFC 3339, reads as itself.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"tomorrow 09:00", "in 2 days 4 hours", "2026-03-29 02:30", "next monday at 9:30pm", "2026-03-01T09:00:00+01:00", "noon", "1h", "in 1w"} {
		f.Add(s, int64(1774620245), "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, text string, unix int64, name string) {
		loc, err := time.LoadLocation(name)
		if err != nil || unix < 0 || unix > 1<<33 {
			return
		}
		now := time.Unix(unix, 0)
		_, _ = ParseDelay("in", text)
		got, err := Parse("at", text, now, loc)
		if err != nil {
			if notify.KindOf(err) != notify.KindInvalid {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if y := got.Year(); y < 0 || y > 9999 {
			return
		}
		again, err := Parse("at", got.UTC().Format(time.RFC3339Nano), now, loc)
		if err != nil || !again.Equal(got) {
			t.Fatalf("%q is %v, which reads as %v, %v", text, got, again, err)
		}
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(text)), "in ") && !got.After(now) {
			t.Fatalf("%q at %v is %v", text, now, got)
		}
	})
}
