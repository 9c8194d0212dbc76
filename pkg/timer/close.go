package timer

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// lookBehind is how often an owner searches for rows in minutes before its watermark.
const lookBehind = time.Hour

// closeMinutes closes the minutes that ended at least Grace ago, in these steps:
//
//	raise Closed in the stored state of the shard: from now on writers store rows for these
//	minutes under the current minute
//	scan each minute from start to end, and release rows that were missed
//	drop a minute's partition when all its rows are acknowledged
//	raise the watermark to just before the first minute that is not dropped
//
// If Publish refuses a timer again and again, its minute cannot be dropped. Then the watermark
// stays before this minute, but later minutes are still dropped.
func (t *tenure) closeMinutes(ctx context.Context) error {
	e := t.e
	e.mu.Lock()
	if e.clock() >= t.lookedBehind+lookBehind {
		t.lookBehindDue, t.lookedBehind = true, e.clock()
	}
	state, fresh := t.state, t.lookBehindDue
	e.mu.Unlock()
	if target := (e.now()-e.cfg.Grace.Milliseconds())/60_000 - 1; target > state.Closed {
		state.Closed = target
		if err := t.advanceState(ctx, state); err != nil {
			return err
		}
	}
	from := state.Watermark + 1
	if fresh {
		from = 0 // to find rows of closed minutes whose writers died before they stored the rows again
	}
	if from > state.Closed {
		return nil
	}
	minutes, err := e.cfg.Store.Buckets(ctx, t.shard, from, state.Closed)
	if err != nil {
		return err
	}
	stuck := state.Closed + 1 // the first minute that is not dropped
	for _, at := range minutes {
		gone, err := t.finishMinute(ctx, at)
		if err != nil {
			return err
		}
		if !gone {
			stuck = min(stuck, at)
		}
	}
	if stuck <= state.Watermark {
		return nil
	}
	e.mu.Lock()
	t.lookBehindDue = false
	e.mu.Unlock()
	if stuck-1 == state.Watermark {
		return nil
	}
	state.Watermark = stuck - 1
	return t.advanceState(ctx, state)
}

// finishMinute scans a closed minute for missed rows, and drops the minute when all rows are
// acknowledged. It returns true if it dropped the minute. If it returns false, the next poll tries
// again.
func (t *tenure) finishMinute(ctx context.Context, at int64) (bool, error) {
	e := t.e
	e.mu.Lock()
	// If loading or the catch-up has not reached this minute yet, leave the minute's rows to it.
	// Otherwise the rows would be read twice, and released before rows that are due earlier.
	behind := min(t.scannedUntil, t.missedFrom, t.catchUpAgain)
	if t.catchUpFrom < t.catchUpUntil {
		behind = min(behind, t.catchUpFrom)
	}
	if t.lost || (at+1)*60_000 > behind {
		e.mu.Unlock()
		return false, nil
	}
	m := t.minuteLocked(at)
	complete, forgotten := m.complete, m.forgotten
	e.mu.Unlock()
	if !complete {
		last := at*60_000 + 59_999
		reached, loaded, err := t.scan(ctx, at, at*60_000, last, OnTime)
		e.counters.lateRows.Add(uint64(loaded))
		if err != nil || reached < last {
			return false, err
		}
	}
	e.mu.Lock()
	if m.forgotten == forgotten {
		m.complete = true
	}
	done := m.complete && m.unacked == 0 && t.aliveLocked()
	e.mu.Unlock()
	if !done {
		return false, nil
	}
	if err := e.cfg.Store.Drop(ctx, engine.TimerPartition{Bucket: at, Shard: t.shard}); err != nil {
		return false, err
	}
	e.mu.Lock()
	delete(t.minutes, at)
	e.mu.Unlock()
	return true, nil
}

// advanceState stores the state of the shard under the term of this tenure. It returns an error if
// the tenure can no longer trust its lease.
func (t *tenure) advanceState(ctx context.Context, state engine.ShardState) error {
	if err := t.checkTrust(); err != nil {
		return err
	}
	if err := t.e.cfg.Store.Advance(ctx, t.shard, state); err != nil {
		return err
	}
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.state = state
	for at, m := range t.minutes {
		if at <= state.Watermark && m.unacked == 0 {
			delete(t.minutes, at) // the minute was dropped, even if the answer of the drop was lost
		}
	}
	return nil
}
