package main

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/when"
)

// laterOptions say when something is to happen.
type laterOptions struct{ at, in, zone string }

func (o *laterOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.at, "at", "", "when: RFC 3339, '2026-03-01 09:00', 'tomorrow 09:00', 'monday 9am', 'in 2 days'")
	f.StringVar(&o.in, "in", "", "when, from now on: 10m, 1h30m, '2 days 4 hours'")
	f.StringVar(&o.zone, "tz", "", "time zone of --at, e.g. Europe/Berlin; default: this machine's")
}

func (o *laterOptions) given() bool { return o.at != "" || o.in != "" }

// resolve returns the moment; nil where none was given.
func (o *laterOptions) resolve(now time.Time) (*time.Time, error) {
	loc := time.Local
	if o.zone != "" {
		var err error
		if loc, err = time.LoadLocation(o.zone); err != nil || o.zone == "Local" {
			return nil, cli.Usage("--tz %q is not a time zone such as Europe/Berlin", o.zone)
		}
	}
	var t time.Time
	switch {
	case o.at != "" && o.in != "":
		return nil, cli.Usage("--at and --in are two ways to say when; give one")
	case o.in != "":
		d, err := when.ParseDelay("--in", strings.TrimPrefix(o.in, "+"))
		if err != nil {
			return nil, err
		}
		t = now.Add(d)
	case o.at != "":
		text := o.at
		if rest, ok := strings.CutPrefix(text, "+"); ok {
			text = "in " + rest
		}
		var err error
		if t, err = when.Parse("--at", text, now, loc); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	// Never earlier than asked for: the API knows milliseconds.
	if ms := t.Truncate(time.Millisecond); !ms.Equal(t) {
		t = ms.Add(time.Millisecond)
	}
	t = t.UTC()
	return &t, nil
}

// echo says which instant was understood: what was written in a zone of one's
// own is checked by reading it in two.
func (o *laterOptions) echo(p *program, t time.Time) {
	loc := time.Local
	if o.zone != "" {
		if l, err := time.LoadLocation(o.zone); err == nil {
			loc = l
		}
	}
	local := ""
	if s := t.In(loc).Format("Mon 2006-01-02 15:04:05 MST"); loc != time.UTC {
		local = " (" + s + ")"
	}
	how := "in " + span(t.Sub(p.now()))
	if !t.After(p.now()) {
		how = "which has passed: at once"
	}
	p.note("due %s%s, %s", t.UTC().Format("2006-01-02T15:04:05.000Z"), local, how)
}
