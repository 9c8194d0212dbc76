package timer

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// sweep loads what comes next and closes what is over, every Poll, until ctx
// ends.
func (t *tenure) sweep(ctx context.Context) {
	tick := time.NewTicker(t.e.cfg.Poll)
	defer tick.Stop()
	for {
		err := t.load(ctx)
		if err == nil {
			err = t.close(ctx)
		}
		t.trouble(ctx, err)
		for again := false; !again; {
			select {
			case <-tick.C:
				again = true
			case <-t.room:
				t.trouble(ctx, t.load(ctx))
			case <-ctx.Done():
				return
			}
		}
	}
}

// trouble ends the tenure for a stale term, and tells of any other error.
func (t *tenure) trouble(ctx context.Context, err error) {
	switch {
	case err == nil:
		t.e.mu.Lock()
		t.worked = t.e.clock()
		t.e.mu.Unlock()
	case notify.KindOf(err) == notify.KindConflict:
		t.e.drop(t)
		t.end(errStale)
	case errors.Is(err, errClock):
		t.e.drop(t)
		t.end(errClock)
	case ctx.Err() == nil && !errors.Is(err, errExpired):
		t.e.troubl.say("cannot load or close timers", err)
	}
}

// load brings every row due up to now + Lookahead into the wheel, or as many as
// there is room for. loaded moves before the scan: a row that becomes durable
// too late for the scan finds it moved and goes into the wheel as it is stored.
func (t *tenure) load(ctx context.Context) error {
	if err := t.may(); err != nil {
		return err
	}
	e := t.e
	now := e.now()
	until := now + e.cfg.Lookahead.Milliseconds()
	e.mu.Lock()
	if t.over {
		e.mu.Unlock()
		return errExpired
	}
	from := min(t.scanned, t.missed, until) // until is less when the clock was set back
	t.missed = math.MaxInt64
	from = t.skipLocked(from, now)
	t.loaded, t.scanned = until, from
	e.mu.Unlock()
	for at := from / 60_000; at <= until/60_000; at++ {
		last := min(until, at*60_000+59_999)
		reached, _, err := t.scan(ctx, at, from, last, OnTime)
		if err != nil {
			return err
		}
		e.mu.Lock()
		t.scanned = max(from, reached) // rows of that millisecond are met twice, not missed
		e.mu.Unlock()
		if reached < last {
			return nil // goes on there when there is room
		}
	}
	return nil
}

// skipLocked leaves what is overdue by more than CatchUpAfter to the catch-up,
// and returns where on-time loading begins.
func (t *tenure) skipLocked(from, now int64) int64 {
	late := now - t.e.cfg.CatchUpAfter.Milliseconds()
	if from >= late {
		return from
	}
	if t.back >= t.resumed {
		t.back = from // everything before it has been met
		if t.fresh {
			t.back = 0
		}
	} else {
		t.again = min(t.again, from)
	}
	t.resumed = max(t.resumed, late)
	t.spans = append(t.spans, span{from, late - 1})
	signal(t.stir)
	signal(t.tally)
	return late
}

// scan loads the rows of a minute with from <= FireAt <= until. It returns how
// far it came, less than until when the lane is full, and how many rows were
// new.
func (t *tenure) scan(ctx context.Context, at, from, until int64, lane Lane) (reached int64, loaded int, err error) {
	e := t.e
	p := engine.TimerPartition{Bucket: at, Shard: t.n}
	cursor := engine.TimerCursor{FireAt: from} // no id: before every row of that millisecond
	var hints map[notify.Base]struct{}
	for size := firstPage; ; {
		e.mu.Lock()
		full, over := t.loads[lane].full, t.over
		e.mu.Unlock()
		switch {
		case over:
			return 0, loaded, errExpired
		case full:
			return min(cursor.FireAt, until-1), loaded, nil
		}
		rows, err := t.page(ctx, lane, p, cursor, until, size)
		if err != nil {
			return 0, loaded, err
		}
		// Read behind the rows, so that a hint that was durable when they came
		// within reach is among them.
		if hints == nil && e.cfg.Schedules != nil && anyHead(rows) {
			if hints, err = e.heads.hints(ctx, p); err != nil {
				return 0, loaded, err
			}
		}
		n, bytes := t.take(rows, hints)
		loaded += n
		if len(rows) < size {
			return until, loaded, nil
		}
		cursor, size = after(rows), e.cfg.nextPage(len(rows), bytes)
	}
}

// firstPage is how many rows the first page of a scan has.
const firstPage = 16

// nextPage is how many rows the next page should have: chunks are large, singles
// small.
func (c *Config) nextPage(rows, bytes int) int {
	return min(max(c.BatchSize*rows/(bytes+1), 8), c.Batch)
}

// after is the place behind a page.
func after(rows []engine.Timer) engine.TimerCursor {
	last := &rows[len(rows)-1]
	return engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
}

// page reads rows, for a few shards at a time: pages of large payloads for all
// of them at once would be more than MaxBytes.
func (t *tenure) page(ctx context.Context, lane Lane, p engine.TimerPartition, cursor engine.TimerCursor, until int64, size int) ([]engine.Timer, error) {
	select {
	case t.e.scans[lane] <- struct{}{}:
	case <-ctx.Done():
		return nil, errExpired
	}
	defer func() { <-t.e.scans[lane] }()
	return t.e.cfg.Store.Scan(ctx, p, cursor, until, size)
}

// take loads a page, and returns how many rows were new and the bytes of all.
func (t *tenure) take(rows []engine.Timer, hints map[notify.Base]struct{}) (loaded, bytes int) {
	now := t.e.now()
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	for i := range rows {
		bytes += len(rows[i].Payload)
		lane := OnTime
		// A row of the backlog that is not due (the clock was set back) is not
		// late any more.
		if rows[i].FireAt < t.resumed && rows[i].FireAt <= now {
			lane = CatchUp
		}
		if !t.over && t.loadLocked(&rows[i], rows[i].FireAt, lane, t.e.heads.questionOf(&rows[i], hints)) {
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
