package screen

import (
	"time"

	"github.com/notifyd/notifyd/pkg/load"
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
