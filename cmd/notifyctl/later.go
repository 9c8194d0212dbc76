package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/humantime"
)

// laterOptions contains the flags that say when something happens.
type laterOptions struct{ at, in, zone string }

func (o *laterOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.at, "at", "", "time: RFC 3339, '2026-03-01 09:00', 'tomorrow 09:00', 'monday 9am', 'in 2 days'")
	f.StringVar(&o.in, "in", "", "delay from now: 10m, 1h30m, '2 days 4 hours'")
	f.StringVar(&o.zone, "tz", "", "time zone of --at, e.g. Europe/Berlin; default: this machine's")
}

func (o *laterOptions) given() bool { return o.at != "" || o.in != "" }

// grace is how far in the past --at may be. Clocks differ, and in a script some time passes between
// reading the time and using it.
const grace = time.Minute

// resolveFuture returns the time that --at or --in gives. It refuses a time in the past, because
// such a time is probably a mistake. The parameter repeated is true if this command may repeat an
// earlier command. The time may have been in the future then, so a time in the past is allowed.
func (o *laterOptions) resolveFuture(now time.Time, repeated bool) (*time.Time, error) {
	t, err := o.resolve(now)
	if err != nil || t == nil || repeated || now.Sub(*t) <= grace {
		return t, err
	}
	return nil, &term.Error{
		Exit: term.ExitUsage, Err: fmt.Errorf("--at %s is in the past: that time was %s ago (%s)", o.at, span(now.Sub(*t)), t.Format(time.RFC3339)),
		Next: []string{"give a later time, or --at now"},
	}
}

// location returns the time zone that --tz gives. Without --tz, it returns the zone of this
// machine.
func (o *laterOptions) location() (*time.Location, error) {
	if o.zone == "" {
		return time.Local, nil
	}
	loc, err := time.LoadLocation(o.zone)
	if err != nil || o.zone == "Local" {
		return nil, term.Usage("--tz %q is not a time zone such as Europe/Berlin", o.zone)
	}
	return loc, nil
}

// parseMoment parses the time in a flag. It rounds up to the API's milliseconds, so that the result
// is never earlier than the written time.
func (o *laterOptions) parseMoment(flag, text string, now time.Time) (*time.Time, error) {
	loc, err := o.location()
	if err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(text, "+"); ok {
		text = "in " + rest
	}
	t, err := humantime.Parse(flag, text, now, loc)
	if err != nil {
		return nil, err
	}
	if ms := t.Truncate(time.Millisecond); !ms.Equal(t) {
		t = ms.Add(time.Millisecond)
	}
	t = t.UTC()
	return &t, nil
}

// resolve returns the time that --at or --in gives. It returns nil if neither flag was given.
func (o *laterOptions) resolve(now time.Time) (*time.Time, error) {
	if _, err := o.location(); err != nil {
		return nil, err
	}
	switch {
	case o.at != "" && o.in != "":
		return nil, term.Usage("--at and --in both give the time; use one of them")
	case o.in != "":
		d, err := humantime.ParseDelay("--in", strings.TrimPrefix(o.in, "+"))
		if err != nil {
			return nil, err
		}
		return o.parseMoment("--in", now.Add(d).UTC().Format(time.RFC3339Nano), now)
	case o.at != "":
		return o.parseMoment("--at", o.at, now)
	}
	return nil, nil
}

// printDue prints the parsed time, in UTC and in the zone of the flags, so that the person can
// check it.
func (o *laterOptions) printDue(p *program, t time.Time) {
	loc, err := o.location()
	if err != nil {
		loc = time.Local // cannot happen: the zone was parsed before
	}
	local := ""
	if s := t.In(loc).Format("Mon 2006-01-02 15:04:05 MST"); loc != time.UTC {
		local = " (" + s + ")"
	}
	how := "in " + span(t.Sub(p.now()))
	switch {
	case o.at == "now":
		how = "at once"
	case !t.After(p.now()):
		how = "which has passed, so at once"
	}
	p.note("due %s%s, %s", t.UTC().Format("2006-01-02T15:04:05.000Z"), local, how)
}
