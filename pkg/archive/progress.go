package archive

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
)

// Status is how far the archive is.
type Status struct {
	Files uint64
	// Age is how long ago the last run began that reached the end.
	Age time.Duration
	// Err is why the last run did not; nil: it did.
	Err error
	// Wait is how long what has aged out is kept for the archive.
	Wait time.Duration
}

// Status returns how far the archive is.
func (a *Archiver) Status(now time.Time) Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Status{Files: a.st.Files, Age: now.Sub(time.UnixMilli(a.st.Done)), Err: a.fail, Wait: a.cfg.Wait}
}

// Positions is, of each partition, the offset below which everything is
// archived.
func (a *Archiver) Positions() map[history.Part]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return positions(a.st.History)
}

// purgeLook is how many dead letters that are not archived are looked at: with
// more, nothing is purged before Wait is over.
const purgeLook = 100_000

// PurgeBefore is the latest Until, ms since 1970, up to which dead letters may be
// purged at now: nothing that is not archived, unless Wait is over.
func (a *Archiver) PurgeBefore(ctx context.Context, now time.Time) (int64, error) {
	a.mu.Lock()
	at := maps.Clone(a.st.Letters)
	a.mu.Unlock()
	bound := now.Add(-a.cfg.Wait).UnixMilli()
	until, looked := now.UnixMilli(), 0
	enough := errors.New("enough")
	err := a.eachLetter(ctx, at, func(d *engine.DeadLetter) error {
		until = min(until, d.Until-1)
		if looked++; looked >= purgeLook || until <= bound {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		return bound, nil
	}
	return until, err
}
