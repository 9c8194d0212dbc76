// Package humantime reads the times people write on a command line:
//
//	2026-03-01T09:00:00+01:00   RFC 3339, seconds may be left out
//	2026-03-01 09:00            in the zone; also with seconds
//	2026-03-01                  midnight in the zone
//	now
//	in 10m, in 1h30m, in 2 days 4 hours
//	today 18:30, tomorrow 09:00, tomorrow at 9am
//	monday 09:00                        the first one after now
//	next monday 09:00                   the same, but on a Monday in seven days
//	09:00, noon, midnight               the first one after now
//
// A day without a time of day is refused but for a date, and so is everything
// the grammar does not hold: a guess would send somebody's message at the wrong
// hour. A wall clock time that a change to or from summer time skips or repeats
// is refused too, with the two instants it could mean.
//
// Days and weeks of "in" are calendar days of the zone: "in 1 day" keeps the
// wall clock across a change of the offset, "in 24h" does not.
package humantime
