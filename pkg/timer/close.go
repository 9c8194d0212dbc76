package timer

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// lookBehind is how often an owner looks for rows below its watermark.
const lookBehind = time.Hour

// close ends the minutes that lie Grace behind now:
//
//	closed is moved (durable): from now on writers write elsewhere
//	the minute is scanned from end to end; what was missed is released
//	once all of it is acknowledged the partition is dropped
//	the watermark moves up to the first minute that is still there
//
// A minute that cannot be dropped (nobody takes one of its timers) holds up the
// watermark, but no other minute.
func (t *tenure) close(ctx context.Context) error {
	e := t.e
	e.mu.Lock()
	if e.clock() >= t.looked+lookBehind {
		t.fresh, t.looked = true, e.clock()
	}
	state, fresh := t.state, t.fresh
	e.mu.Unlock()
	if target := (e.now()-e.cfg.Grace.Milliseconds())/60_000 - 1; target > state.Closed {
		state.Closed = target
		if err := t.advance(ctx, state); err != nil {
			return err
		}
	}
	from := state.Watermark + 1
	if fresh {
		from = 0 // writers that died before they could write elsewhere
	}
	if from > state.Closed {
		return nil
	}
	minutes, err := e.cfg.Store.Buckets(ctx, t.n, from, state.Closed)
	if err != nil {
		return err
	}
	stuck := state.Closed + 1 // the first minute that is still there
	for _, at := range minutes {
		gone, err := t.finish(ctx, at)
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
	t.fresh = false
	e.mu.Unlock()
	if stuck-1 == state.Watermark {
		return nil
	}
	state.Watermark = stuck - 1
	return t.advance(ctx, state)
}

// finish scans a closed minute for what was missed, and drops it when all of it
// is acknowledged. It reports whether it did; else it is looked at again with
// the next poll.
func (t *tenure) finish(ctx context.Context, at int64) (bool, error) {
	e := t.e
	e.mu.Lock()
	// What loading and catching up have not passed is theirs: it would be read
	// twice, and get in front of what is due before it.
	behind := min(t.scanned, t.missed, t.again)
	if t.back < t.resumed {
		behind = min(behind, t.back)
	}
	if t.over || (at+1)*60_000 > behind {
		e.mu.Unlock()
		return false, nil
	}
	m := t.minuteLocked(at)
	complete, forgotten := m.complete, m.forgotten
	e.mu.Unlock()
	if !complete {
		last := at*60_000 + 59_999
		reached, loaded, err := t.scan(ctx, at, at*60_000, last, OnTime)
		e.count.lateRows.Add(uint64(loaded))
		if err != nil || reached < last {
			return false, err
		}
	}
	e.mu.Lock()
	if m.forgotten == forgotten {
		m.complete = true
	}
	done := m.complete && m.open == 0 && t.aliveLocked()
	e.mu.Unlock()
	if !done {
		return false, nil
	}
	if err := e.cfg.Store.Drop(ctx, engine.TimerPartition{Bucket: at, Shard: t.n}); err != nil {
		return false, err
	}
	e.mu.Lock()
	delete(t.minutes, at)
	e.mu.Unlock()
	return true, nil
}

// advance writes the state of the shard under the tenure's term, if it still may
// be this engine's.
func (t *tenure) advance(ctx context.Context, state engine.ShardState) error {
	if err := t.may(); err != nil {
		return err
	}
	if err := t.e.cfg.Store.Advance(ctx, t.n, state); err != nil {
		return err
	}
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.state = state
	for at, m := range t.minutes {
		if at <= state.Watermark && m.open == 0 {
			delete(t.minutes, at) // dropped, although the answer may have been lost
		}
	}
	return nil
}
