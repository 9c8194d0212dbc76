package users

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestQuietHours(t *testing.T) {
	t.Parallel()
	z := newZones()
	f := func(from, to, zone, now, want string) {
		t.Helper()
		i, err := z.index(zone)
		must(t, err)
		r := rule{zone: i}
		r.from, err = parseClock(from)
		must(t, err)
		r.to, err = parseClock(to)
		must(t, err)
		at, err := time.Parse(time.RFC3339, now)
		must(t, err)
		end := r.quietUntil(at, z.location(i))
		got := ""
		if end.After(at) {
			got = end.UTC().Format(time.RFC3339)
		}
		if got != want {
			t.Errorf("%s-%s %s at %s: until %q, want %q", from, to, zone, now, got, want)
		}
	}
	// Plain, over midnight, and the borders.
	f("22:00", "07:30", "UTC", "2026-03-10T21:59:59Z", "")
	f("22:00", "07:30", "UTC", "2026-03-10T22:00:00Z", "2026-03-11T07:30:00Z")
	f("22:00", "07:30", "UTC", "2026-03-11T00:00:00Z", "2026-03-11T07:30:00Z")
	f("22:00", "07:30", "UTC", "2026-03-11T07:29:59Z", "2026-03-11T07:30:00Z")
	f("22:00", "07:30", "UTC", "2026-03-11T07:30:00Z", "")
	f("12:00", "14:00", "UTC", "2026-03-11T13:00:30Z", "2026-03-11T14:00:00Z")
	f("12:00", "14:00", "UTC", "2026-03-11T14:00:00Z", "")
	f("00:00", "06:00", "UTC", "2026-03-11T00:00:00Z", "2026-03-11T06:00:00Z")
	f("18:00", "00:00", "UTC", "2026-03-11T23:59:00Z", "2026-03-12T00:00:00Z")
	f("22:00", "07:00", "Asia/Kolkata", "2026-03-10T17:00:00Z", "2026-03-11T01:30:00Z")
	// Berlin, 29 March 2026: 02:00 becomes 03:00. The night is an hour shorter.
	f("22:00", "07:00", "Europe/Berlin", "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z")
	// Its end lies in the hour that does not exist: over when the clock jumps past it.
	f("22:00", "02:30", "Europe/Berlin", "2026-03-28T22:00:00Z", "2026-03-29T01:00:00Z")
	f("02:15", "02:45", "Europe/Berlin", "2026-03-29T01:00:00Z", "")
	// Berlin, 25 October 2026: 03:00 becomes 02:00. The night is an hour longer.
	f("22:00", "07:00", "Europe/Berlin", "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z")
	// 02:30 comes twice: over at the first, quiet again when the clock falls back.
	f("22:00", "02:30", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z")
	f("22:00", "02:30", "Europe/Berlin", "2026-10-25T00:45:00Z", "")
	f("22:00", "02:30", "Europe/Berlin", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z")
	// The end is the very moment the clock falls back into the quiet hour.
	f("02:00", "03:00", "Europe/Berlin", "2026-10-25T00:10:00Z", "2026-10-25T02:00:00Z")
	// New York, 8 March 2026; Lord Howe shifts by half an hour, 5 April 2026.
	f("21:00", "06:00", "America/New_York", "2026-03-08T03:00:00Z", "2026-03-08T10:00:00Z")
	f("21:00", "06:00", "Australia/Lord_Howe", "2026-04-04T11:00:00Z", "2026-04-04T19:30:00Z")
	// A profile of a zone reaches the decision.
	s := loaded(t, newStore())
	_, err := s.Put(t.Context(), engine.Profile{User: "ann", TimeZone: "Asia/Kolkata", QuietHours: &engine.QuietHours{From: "22:00", To: "07:00"}})
	must(t, err)
	at := time.Date(2026, 3, 10, 17, 0, 0, 0, time.UTC)
	want := Verdict{Quiet, time.Date(2026, 3, 11, 1, 30, 0, 0, time.UTC).UnixMilli()}
	if v := decide(s, "ann", notify.Push, notify.Transactional, at); v != want {
		t.Errorf("%+v, not %+v", v, want)
	}
	if v := decide(s, "ann", notify.Push, notify.OTP, at); v.Action != Send {
		t.Errorf("a code waits: %v", v)
	}
}

// The end is the first moment that is not quiet: compared with looking at
// every minute.
func TestQuietHoursAgainstEveryMinute(t *testing.T) {
	t.Parallel()
	z := newZones()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia"}).Draw(t, "zone")
		i, err := z.index(zone)
		if err != nil {
			t.Fatal(err)
		}
		r := rule{zone: i, from: rapid.Uint16Range(0, 1439).Draw(t, "from"), to: rapid.Uint16Range(0, 1439).Draw(t, "to")}
		if r.from == r.to {
			return
		}
		loc := z.location(i)
		at := time.Unix(rapid.Int64Range(1262304000, 1830000000).Draw(t, "at"), 0)
		if rapid.Bool().Draw(t, "near a change") {
			if _, change := at.In(loc).ZoneBounds(); !change.IsZero() {
				at = change.Add(time.Duration(rapid.IntRange(-86400, 3600).Draw(t, "by")) * time.Second)
			}
		}
		quiet := func(x time.Time) bool {
			h, m, _ := x.In(loc).Clock()
			return r.quietAt(uint16(h*60 + m))
		}
		want := at
		if quiet(at) {
			for want = at.Truncate(time.Minute); quiet(want); want = want.Add(time.Minute) {
			}
		}
		if got := r.quietUntil(at, loc); !got.Equal(want) {
			t.Fatalf("%v until %v, want %v", at.In(loc), got, want.In(loc))
		}
	})
}
