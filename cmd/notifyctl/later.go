package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/humantime"
)

// laterOptions say when something is to happen.
type laterOptions struct{ at, in, zone string }

func (o *laterOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.at, "at", "", "when: RFC 3339, '2026-03-01 09:00', 'tomorrow 09:00', 'monday 9am', 'in 2 days'")
	f.StringVar(&o.in, "in", "", "when, from now on: 10m, 1h30m, '2 days 4 hours'")
	f.StringVar(&o.zone, "tz", "", "time zone of --at, e.g. Europe/Berlin; default: this machine's")
}

func (o *laterOptions) given() bool { return o.at != "" || o.in != "" }

// grace is how far back "now" may lie: clocks differ, and a script takes a moment
// between asking for the time and using it.
const grace = time.Minute

// future is resolve for what is to happen: a moment that has passed is a mistake
// and refused, unless the command is a repetition, which began before it.
func (o *laterOptions) future(now time.Time, repeated bool) (*time.Time, error) {
	t, err := o.resolve(now)
	if err != nil || t == nil || repeated || now.Sub(*t) <= grace {
		return t, err
	}
	return nil, &term.Error{
		Exit: term.ExitUsage, Err: fmt.Errorf("--at %s has passed, %s ago (%s)", o.at, span(now.Sub(*t)), t.Format(time.RFC3339)),
		Next: []string{"another time, or --at now"},
	}
}

// location is the zone in which times are meant.
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

// moment reads a time of a flag. It is never earlier than what was written: the
// API knows milliseconds.
func (o *laterOptions) moment(flag, text string, now time.Time) (*time.Time, error) {
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

// resolve returns the moment; nil where none was given.
func (o *laterOptions) resolve(now time.Time) (*time.Time, error) {
	if _, err := o.location(); err != nil {
		return nil, err
	}
	switch {
	case o.at != "" && o.in != "":
		return nil, term.Usage("--at and --in are two ways to say when; give one")
	case o.in != "":
		d, err := humantime.ParseDelay("--in", strings.TrimPrefix(o.in, "+"))
		if err != nil {
			return nil, err
		}
		return o.moment("--in", now.Add(d).UTC().Format(time.RFC3339Nano), now)
	case o.at != "":
		return o.moment("--at", o.at, now)
	}
	return nil, nil
}

// echo says which instant was understood: what was written in a zone of one's
// own is checked by reading it in two.
func (o *laterOptions) echo(p *program, t time.Time) {
	loc, err := o.location()
	if err != nil {
		loc = time.Local // it was read before: cannot be
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
		how = "which has passed: at once"
	}
	p.note("due %s%s, %s", t.UTC().Format("2006-01-02T15:04:05.000Z"), local, how)
}
