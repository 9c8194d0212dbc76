// Package humantime parses times that people write on a command line:
//
//	2026-03-01T09:00:00+01:00   RFC 3339, seconds may be omitted
//	2026-03-01 09:00            in the zone given to Parse; also with seconds
//	2026-03-01                  midnight in that zone
//	now
//	in 10m, in 1h30m, in 2 days 4 hours
//	today 18:30, tomorrow 09:00, tomorrow at 9am
//	monday 09:00                        the first such time after now
//	next monday 09:00                   the same, but if today is Monday, in seven days
//	09:00, noon, midnight               the first such time after now
//
// A day without a time of day is refused, unless the day is a date. Every other form is also
// refused, because a wrong guess would send a message at the wrong hour. A change to or from summer
// time skips or repeats some wall clock times. Such a time is refused too. If it is repeated, the
// error contains both instants.
//
// Days and weeks after "in" are calendar days of the zone. So "in 1 day" keeps the wall clock time
// when the offset changes; "in 24h" does not.
package humantime
