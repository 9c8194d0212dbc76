package screen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Format is how Lines writes a second.
type Format string

// The formats.
const (
	Text  Format = "text"
	JSONL Format = "jsonl" // {"type":"second", ...}: a load.SecondRow
)

// Lines writes a line for each second of a run that is complete, until the run or
// ctx ends: where there is no terminal, and after somebody left the screen. from is
// the first second to write. No line has an escape of a terminal. It stops at the
// first error of w.
func Lines(ctx context.Context, w io.Writer, src Source, f Format, from int) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ended := false; ; {
		if s := src.Latest(); s != nil {
			for i := range s.Seconds {
				row := &s.Seconds[i]
				if row.Second < from {
					continue
				}
				from = row.Second + 1
				if err := WriteLine(w, row, f); err != nil {
					return err
				}
			}
		}
		if ended {
			return nil
		}
		select {
		case <-tick.C:
		case <-src.Done():
			ended = true // what came last is still to be written
		case <-ctx.Done():
			ended = true
		}
	}
}

// WriteLine writes one second.
func WriteLine(w io.Writer, r *load.SecondRow, f Format) error {
	if f == JSONL {
		raw, err := json.Marshal(struct {
			Type string `json:"type"`
			*load.SecondRow
		}{"second", r})
		if err != nil {
			return err
		}
		// Between double quotes JSON's escapes are those of EscapeControls.
		_, err = fmt.Fprintln(w, notify.EscapeControls(string(raw)))
		return err
	}
	per := func(n int64) string {
		s := r.Length.Seconds()
		if s <= 0 {
			s = 1
		}
		return report.Short(float64(n)/s) + "/s"
	}
	phase := r.Phase
	if r.Draining {
		phase = "drain"
	}
	line := fmt.Sprintf("%6s %-10.10s sent %7s  accepted %7s  delivered %7s  waiting %6s  p99 %6s  lag %6s",
		report.Clock(time.Duration(r.Second+1)*time.Second), term.Clean(phase), per(r.Sent), per(r.Acked), per(r.Delivered),
		report.Short(float64(r.Backlog)), report.Nanos(r.Response.P99), report.Nanos(r.Lag.P99))
	if r.Failed > 0 {
		line += "  failed " + per(r.Failed)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
