package screen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Source is the run that is drawn. Its methods are called from one goroutine and
// return at once.
type Source interface {
	// Latest is the newest snapshot, nil before the first. A new one is another
	// pointer.
	Latest() *load.Snapshot
	// Done is closed when the run has ended; Latest is then its last snapshot.
	Done() <-chan struct{}
}

// Control is what a person may do to a run. nil, where a Control is asked for,
// means that one may only watch.
type Control interface {
	Stop()            // ends the sending; the drain and the summary follow
	Mark(text string) // draws a line across the charts, now
}

// Steerer changes how messages of a run arrive. A run that was steered is no
// measurement of the rate that was planned, and says so.
type Steerer interface {
	Pause(paused bool)  // nothing becomes due meanwhile
	Pace(times float64) // multiplies the rate of all steps
}

// Player is a Source that can be moved: a replay.
type Player interface {
	Source
	Pause(stopped bool)
	Paused() bool
	Seek(by time.Duration)
	Speed(times float64) // of now: 2 doubles it
	Rate() float64       // 1: as it was
}

// Run shows a run on a terminal until it ends or somebody leaves the screen, says
// how, and leaves the terminal as it was. in and out are the terminal's; env is the
// environment, as of os.Environ, which says what the terminal can.
//
// The end of ctx is for the run to follow: the screen stays until the source is
// done, so that one sees the drain. A replay ends with ctx.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) (Left, error) {
	m := newModel(o)
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithoutSignalHandler(), tea.WithFPS(10))
	defer context.AfterFunc(ctx, func() {
		if m.player() != nil {
			p.Quit()
		} else {
			p.Send(stoppedMsg{})
		}
	})()
	if _, err := p.Run(); err != nil {
		return m.left, err
	}
	return m.left, nil
}

// stoppedMsg says that the run is being stopped from outside.
type stoppedMsg struct{}

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
