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

// progress is how far the archive is as far as this process knows.
func (a *Archiver) progress(ctx context.Context) (state, error) {
	if a.cfg.Shared {
		st, _, err := a.read(ctx)
		return st, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st, nil
}

// Status returns how far the archive is.
func (a *Archiver) Status(ctx context.Context, now time.Time) Status {
	st, err := a.progress(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		st = a.st
	}
	return Status{Files: st.Files, Age: now.Sub(time.UnixMilli(st.Done)), Err: cmp.Or(a.fail, err), Wait: a.cfg.Wait}
}

// Positions is, of each partition, the offset below which everything is
// archived.
func (a *Archiver) Positions(ctx context.Context) (map[history.Part]int64, error) {
	st, err := a.progress(ctx)
	return positions(st.History), err
}

// purgeLook is how many dead letters that are not archived are looked at: with
// more, nothing is purged before Wait is over.
const purgeLook = 100_000

// PurgeBefore is the latest Until, ms since 1970, up to which dead letters may be
// purged at now: nothing that is not archived, unless Wait is over.
func (a *Archiver) PurgeBefore(ctx context.Context, now time.Time) (int64, error) {
	st, err := a.progress(ctx)
	if err != nil {
		return 0, err
	}
	at := maps.Clone(st.Letters)
	bound := now.Add(-a.cfg.Wait).UnixMilli()
	until, looked := now.UnixMilli(), 0
	enough := errors.New("enough")
	err = a.eachLetter(ctx, at, func(d *engine.DeadLetter) error {
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
