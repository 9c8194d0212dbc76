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

// Source is the run that the screen shows. Only one goroutine calls its methods. They must not
// block.
type Source interface {
	// Latest returns the newest snapshot, or nil before the first snapshot. A new snapshot has a
	// new pointer.
	Latest() *load.Snapshot
	// Done returns a channel that is closed when the run has ended. After that Latest returns the
	// last snapshot.
	Done() <-chan struct{}
}

// Control holds what the user may do to a run. If a Control is nil, the user may only watch.
type Control interface {
	Stop()            // ends the sending; after that the run drains and writes its summary
	Mark(text string) // draws a line with a text across the charts, at the current time
}

// Steerer changes the rate at which messages of a run become due. A run that was steered does not
// measure the planned rate, and its result says so.
type Steerer interface {
	Pause(paused bool)  // true: no message becomes due; false: messages become due again
	Pace(times float64) // multiplies the rate of all steps
}

// Player is a Source whose position can be changed: a replay.
type Player interface {
	Source
	Pause(stopped bool)
	Paused() bool
	// Seek moves the position forward by d, or backward if d is negative.
	Seek(d time.Duration)
	Speed(times float64) // multiplies the current speed: 2 doubles it
	Rate() float64       // current speed; 1: the speed of the run
}

// Run shows a run on a terminal until the run ends or the user leaves the screen. It restores the
// terminal and returns how the user left. The parameters in and out are the input and the output of
// the terminal. The environment env, in the form of os.Environ, says what the terminal can do.
//
// Run does not stop the load run when ctx ends; the caller must stop it. The screen stays until the
// source is done, so that the user sees the drain. Only a replay ends when ctx ends.
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

// stoppedMsg is sent when something outside the screen stops the run.
type stoppedMsg struct{}

// Format is the form in which Lines writes a second.
type Format string

// The formats.
const (
	Text  Format = "text"
	JSONL Format = "jsonl" // {"type":"second", ...}: a load.SecondRow
)

// Lines writes a line for each complete second of a run, until the run or ctx ends. It is used
// without a terminal, and after the user has left the screen. The parameter from is the first
// second to write. The lines have no terminal escapes. Lines stops at the first error of w and
// returns it.
func Lines(ctx context.Context, w io.Writer, src Source, f Format, from int) error {
	tick := time.NewTicker(drawEvery)
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
			ended = true // write the last seconds before the end
		case <-ctx.Done():
			ended = true
		}
	}
}

// WriteLine writes one second as a line.
func WriteLine(w io.Writer, r *load.SecondRow, f Format) error {
	if f == JSONL {
		raw, err := json.Marshal(struct {
			Type string `json:"type"`
			*load.SecondRow
		}{"second", r})
		if err != nil {
			return err
		}
		// The escapes of EscapeControls are valid inside JSON strings.
		_, err = fmt.Fprintln(w, notify.EscapeControls(string(raw)))
		return err
	}
	per := func(n int64) string {
		s := r.Length.Seconds()
		if s <= 0 {
			s = 1
		}
		return report.FormatCount(float64(n)/s) + "/s"
	}
	phase := r.Phase
	if r.Draining {
		phase = "drain"
	}
	line := fmt.Sprintf("%6s %-10.10s sent %7s  accepted %7s  delivered %7s  waiting %6s  p99 %6s  lag %6s",
		report.FormatClock(time.Duration(r.Second+1)*time.Second), term.Clean(phase), per(r.Sent), per(r.Acked), per(r.Delivered),
		report.FormatCount(float64(r.Backlog)), report.Nanos(r.Response.P99), report.Nanos(r.Lag.P99))
	if r.Failed > 0 {
		line += "  failed " + per(r.Failed)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
