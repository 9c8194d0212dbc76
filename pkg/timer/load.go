package timer

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// runSweep loads the next timers and closes past minutes, every Poll, until ctx ends.
func (t *tenure) runSweep(ctx context.Context) {
	tick := time.NewTicker(t.e.cfg.Poll)
	defer tick.Stop()
	for {
		err := t.loadAhead(ctx)
		if err == nil {
			err = t.closeMinutes(ctx)
		}
		t.handleError(ctx, err)
		for again := false; !again; {
			select {
			case <-tick.C:
				again = true
			case <-t.onTimeRoom:
				t.handleError(ctx, t.loadAhead(ctx))
			case <-ctx.Done():
				return
			}
		}
	}
}

// handleError ends the tenure if err says that another engine has a later term or that this
// engine's clock is off. It only logs other errors.
func (t *tenure) handleError(ctx context.Context, err error) {
	switch {
	case err == nil:
		t.e.mu.Lock()
		t.storeWorked = t.e.clock()
		t.e.mu.Unlock()
	case notify.KindOf(err) == notify.KindConflict:
		t.e.dropTenure(t)
		t.end(errStale)
	case errors.Is(err, errClock):
		t.e.dropTenure(t)
		t.end(errClock)
	case ctx.Err() == nil && !errors.Is(err, errExpired):
		t.e.complaints.report("cannot load or close timers", err)
	}
}

// loadAhead puts the rows that are due within Lookahead into the wheel, or fewer rows if there is
// not enough room. It raises loadedUntil before the scan. If the scan comes too early for a row,
// the row's writer sees the raised loadedUntil and puts the row into the wheel itself.
func (t *tenure) loadAhead(ctx context.Context) error {
	if err := t.checkTrust(); err != nil {
		return err
	}
	e := t.e
	now := e.now()
	until := now + e.cfg.Lookahead.Milliseconds()
	e.mu.Lock()
	if t.lost {
		e.mu.Unlock()
		return errExpired
	}
	from := min(t.scannedUntil, t.missedFrom, until) // the variable until is the lowest if the clock was set back
	t.missedFrom = math.MaxInt64
	from = t.skipLocked(from, now)
	t.loadedUntil, t.scannedUntil = until, from
	e.mu.Unlock()
	for at := from / 60_000; at <= until/60_000; at++ {
		last := min(until, at*60_000+59_999)
		reached, _, err := t.scan(ctx, at, from, last, OnTime)
		if err != nil {
			return err
		}
		e.mu.Lock()
		t.scannedUntil = max(from, reached) // rows of that millisecond are read again, so that no row is missed
		e.mu.Unlock()
		if reached < last {
			return nil // loading continues from there when there is room
		}
	}
	return nil
}

// skipLocked leaves rows that are overdue by more than CatchUpAfter to the catch-up. The parameter
// start is the fire time from which on rows are not loaded yet. skipLocked returns the fire time
// from which on-time loading must continue. The caller holds mu.
func (t *tenure) skipLocked(start, now int64) int64 {
	late := now - t.e.cfg.CatchUpAfter.Milliseconds()
	if start >= late {
		return start
	}
	if t.catchUpFrom >= t.catchUpUntil {
		t.catchUpFrom = start // the catch-up has loaded all rows that are due before start
		if t.lookBehindDue {
			t.catchUpFrom = 0
		}
	} else {
		t.catchUpAgain = min(t.catchUpAgain, start)
	}
	t.catchUpUntil = max(t.catchUpUntil, late)
	t.uncounted = append(t.uncounted, dueSpan{start, late - 1})
	wakeUp(t.catchUpWake)
	wakeUp(t.spansToCount)
	return late
}

// scan loads the rows with from <= FireAt <= until of one minute. The parameter bucket is the
// number of the minute. The result reached is the fire time up to which all rows were loaded; if
// the lane became full, it is less than until. The result loaded is the number of rows that were
// new.
func (t *tenure) scan(ctx context.Context, bucket, from, until int64, lane Lane) (reached int64, loaded int, err error) {
	e := t.e
	p := engine.TimerPartition{Bucket: bucket, Shard: t.shard}
	cursor := engine.TimerCursor{FireAt: from} // without an id, so before every row of that millisecond
	var hints map[notify.Base]struct{}
	for size := firstPage; ; {
		e.mu.Lock()
		full, over := t.loads[lane].full, t.lost
		e.mu.Unlock()
		switch {
		case over:
			return 0, loaded, errExpired
		case full:
			return min(cursor.FireAt, until-1), loaded, nil
		}
		rows, err := t.readPage(ctx, lane, p, cursor, until, size)
		if err != nil {
			return 0, loaded, err
		}
		// Read the hints after the rows. So every hint that was durable when the rows were read is
		// among the hints.
		if hints == nil && e.cfg.Schedules != nil && anyHead(rows) {
			if hints, err = e.heads.hintsOf(ctx, p); err != nil {
				return 0, loaded, err
			}
		}
		n, bytes := t.loadPage(rows, hints)
		loaded += n
		if len(rows) < size {
			return until, loaded, nil
		}
		cursor, size = cursorAfter(rows), e.cfg.nextPage(len(rows), bytes)
	}
}

// firstPage is the number of rows of a scan's first page.
const firstPage = 16

// nextPage returns the size of the next page in rows, from the average size of a row in the last
// page. Rows with chunks are large, and rows with single notifications are small.
func (c *Config) nextPage(rows, bytes int) int {
	return min(max(c.BatchSize*rows/(bytes+1), 8), c.Batch)
}

// cursorAfter returns the cursor after the last row of a page.
func cursorAfter(rows []engine.Timer) engine.TimerCursor {
	last := &rows[len(rows)-1]
	return engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
}

// readPage reads a page of rows. It limits how many shards read at the same time. Otherwise their
// pages with large payloads could together exceed MaxBytes.
func (t *tenure) readPage(ctx context.Context, lane Lane, p engine.TimerPartition, cursor engine.TimerCursor, until int64, size int) ([]engine.Timer, error) {
	select {
	case t.e.scans[lane] <- struct{}{}:
	case <-ctx.Done():
		return nil, errExpired
	}
	defer func() { <-t.e.scans[lane] }()
	return t.e.cfg.Store.Scan(ctx, p, cursor, until, size)
}

// loadPage loads a page. It returns how many rows were new, and the payload bytes of all rows of
// the page.
func (t *tenure) loadPage(rows []engine.Timer, hints map[notify.Base]struct{}) (loaded, bytes int) {
	now := t.e.now()
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	for i := range rows {
		bytes += len(rows[i].Payload)
		lane := OnTime
		// If the clock was set back, a row of the backlog may not be due yet. Then it counts as on
		// time.
		if rows[i].FireAt < t.catchUpUntil && rows[i].FireAt <= now {
			lane = CatchUp
		}
		if !t.lost && t.loadLocked(&rows[i], rows[i].FireAt, lane, t.e.heads.questionOf(&rows[i], hints)) {
			loaded++
		}
	}
	return loaded, bytes
}

func anyHead(rows []engine.Timer) bool {
	for i := range rows {
		if !rows[i].Head.IsZero() {
			return true
		}
	}
	return false
}
