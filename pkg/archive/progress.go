package archive

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
)

// Status is the progress of the archive.
type Status struct {
	Files uint64
	// Age is the time since the start of the last run that finished.
	Age time.Duration
	// Err is the error of the last run, or nil if it finished.
	Err error
	// Wait is how long records that are not archived are kept after their retention.
	Wait time.Duration
}

// currentState returns the current state. It reads the state from the row if other processes may
// write the row.
func (a *Archiver) currentState(ctx context.Context) (archiveState, error) {
	if a.cfg.Shared {
		st, _, err := a.readRow(ctx)
		return st, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st, nil
}

// Status returns the progress of the archive. If the row cannot be read, it returns the last known
// state with the error.
func (a *Archiver) Status(ctx context.Context, now time.Time) Status {
	st, err := a.currentState(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		st = a.st
	}
	return Status{Files: st.Files, Age: now.Sub(time.UnixMilli(st.Done)), Err: cmp.Or(a.lastErr, err), Wait: a.cfg.Wait}
}

// Positions returns, for each partition, the offset below which all records are archived.
func (a *Archiver) Positions(ctx context.Context) (map[history.Part]int64, error) {
	st, err := a.currentState(ctx)
	return parsePositions(st.History), err
}

// purgeScanLimit is the largest number of dead letters that PurgeBefore reads. PurgeBefore reads
// only dead letters that are not archived. If it reaches this limit, it treats every dead letter as
// not archived.
const purgeScanLimit = 100_000

// PurgeBefore returns a time in ms since 1970. A dead letter may be removed now if its
// DeadLetter.Until is not after that time. Dead letters that are not archived are kept until
// Config.Wait after their Until.
func (a *Archiver) PurgeBefore(ctx context.Context, now time.Time) (int64, error) {
	st, err := a.currentState(ctx)
	if err != nil {
		return 0, err
	}
	at := maps.Clone(st.Letters)
	bound := now.Add(-a.cfg.Wait).UnixMilli()
	until, looked := now.UnixMilli(), 0
	enough := errors.New("enough")
	err = a.eachLetter(ctx, at, func(d *engine.DeadLetter) error {
		until = min(until, d.Until-1)
		if looked++; looked >= purgeScanLimit || until <= bound {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		return bound, nil
	}
	return until, err
}
