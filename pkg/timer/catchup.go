package timer

import (
	"container/heap"
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// catchUp loads the overdue rows of a shard, in due order, while there is room in memory. It runs
// until ctx ends.
func (t *tenure) catchUp(ctx context.Context) {
	for ctx.Err() == nil {
		from, until, ok := t.catchUpRange()
		if !ok {
			select {
			case <-t.catchUpWake:
			case <-ctx.Done():
			}
			continue
		}
		err := t.loadBacklog(ctx, from, until)
		t.handleError(ctx, err)
		if err != nil {
			notify.Sleep(ctx, t.e.cfg.Poll)
		}
	}
}

// catchUpRange returns the range of fire times whose rows the catch-up still has to load: from <=
// fire time < until, in ms since 1970. The result ok is false if nothing can be loaded now.
func (t *tenure) catchUpRange() (from, until int64, ok bool) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.catchUpFrom = min(t.catchUpFrom, t.catchUpAgain)
	t.catchUpAgain = math.MaxInt64
	if t.catchUpFrom >= t.catchUpUntil && t.loads[CatchUp].unacked == 0 && len(t.uncounted) == 0 && !t.counting {
		t.leftCount = 0 // nothing is left; rows written or forgotten meanwhile made the count inexact
	}
	return t.catchUpFrom, t.catchUpUntil, t.catchUpFrom < t.catchUpUntil && !t.loads[CatchUp].full && !t.lost
}

// loadBacklog loads the rows with from <= fire time < until. If it has scanned a whole minute that
// was already closed, it marks the minute as complete, so that closeMinutes need not scan this
// minute again before dropping it.
func (t *tenure) loadBacklog(ctx context.Context, from, until int64) error {
	e := t.e
	minutes, err := e.cfg.Store.Buckets(ctx, t.shard, from/60_000, (until-1)/60_000)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		start, last := at*60_000, min(until-1, at*60_000+59_999)
		e.mu.Lock()
		if t.lost {
			e.mu.Unlock()
			return errExpired
		}
		m := t.minuteLocked(at)
		whole := from <= start && last == at*60_000+59_999 && t.state.Closed >= at
		forgotten := m.forgotten
		e.mu.Unlock()
		reached, _, err := t.scan(ctx, at, max(from, start), last, CatchUp)
		if err != nil {
			return err
		}
		e.mu.Lock()
		if reached < last {
			t.catchUpFrom = max(from, reached) // continues from this fire time when there is room
			e.mu.Unlock()
			return nil
		}
		t.catchUpFrom = last + 1
		if whole && m.forgotten == forgotten {
			m.complete = true
		}
		e.mu.Unlock()
	}
	e.mu.Lock()
	t.catchUpFrom = until
	e.mu.Unlock()
	return nil
}

// tallySpans counts the rows of the backlog, to show how long the catch-up will take. A count is
// much faster than the catch-up, which has a limited rate.
func (t *tenure) tallySpans(ctx context.Context) {
	for ctx.Err() == nil {
		t.e.mu.Lock()
		t.counting = len(t.uncounted) > 0
		var s dueSpan
		if t.counting {
			s, t.uncounted = t.uncounted[0], t.uncounted[1:]
		}
		t.e.mu.Unlock()
		if s == (dueSpan{}) {
			select {
			case <-t.spansToCount:
			case <-ctx.Done():
			}
			continue
		}
		for err := t.tallySpan(ctx, s); err != nil && ctx.Err() == nil; err = t.tallySpan(ctx, s) {
			t.handleError(ctx, err)
			notify.Sleep(ctx, t.e.cfg.Poll)
		}
	}
}

func (t *tenure) tallySpan(ctx context.Context, s dueSpan) error {
	minutes, err := t.e.cfg.Store.Buckets(ctx, t.shard, s.from/60_000, s.to/60_000)
	if err != nil {
		return err
	}
	n := 0
	for _, at := range minutes {
		cursor := engine.TimerCursor{FireAt: s.from}
		for size := firstPage; ; {
			rows, err := t.readPage(ctx, CatchUp, engine.TimerPartition{Bucket: at, Shard: t.shard}, cursor, s.to, size)
			if err != nil {
				return err
			}
			n += len(rows)
			if len(rows) < size {
				break
			}
			bytes := 0
			for i := range rows {
				bytes += len(rows[i].Payload)
			}
			cursor, size = cursorAfter(rows), t.e.cfg.nextPage(len(rows), bytes)
		}
	}
	t.e.mu.Lock()
	t.leftCount += int64(n)
	t.e.mu.Unlock()
	return nil
}

// paceBacklog sends the waiting entries of all shards to the channel batches, earliest due first.
// It limits the rate to this engine's share of Config.CatchUpRate.
func (r *releaser) paceBacklog(ctx context.Context, batches chan<- []*entry) {
	free := r.clock() // time of Engine.clock at which the next batch may be sent
	for ctx.Err() == nil {
		rate := max(float64(r.cfg.CatchUpRate)*r.Share(), 1)
		// Send at most twenty batches a second. That is smooth enough for the log and the delay
		// queue.
		batch := r.takeEarliest(max(1, min(r.cfg.Batch, int(rate/20))))
		if len(batch) == 0 {
			select {
			case <-r.backlogFilled:
			case <-ctx.Done():
			}
			continue
		}
		free = max(free, r.clock()-100*time.Millisecond) // at most 100 ms of unused time is saved for later batches
		if !notify.Sleep(ctx, free-r.clock()) {
			return
		}
		free += time.Duration(float64(len(batch)) / rate * float64(time.Second))
		select {
		case batches <- batch:
		case <-ctx.Done():
		}
	}
}

// takeEarliest removes the earliest entries from the backlog and returns them. It takes at most as
// many as the parameter size says, and stops earlier if their payloads would exceed
// Config.BatchSize.
func (r *releaser) takeEarliest(size int) (batch []*entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := 0
	for len(batch) < size && len(r.backlog) > 0 {
		bytes += len(r.backlog[0].timer.Payload)
		if len(batch) > 0 && bytes > r.cfg.BatchSize {
			break
		}
		batch = append(batch, heap.Pop(&r.backlog).(*entry))
	}
	return batch
}

// publishBacklog publishes the batches that paceBacklog sends.
func (r *releaser) publishBacklog(ctx context.Context, batches <-chan []*entry) {
	for {
		select {
		case batch := <-batches:
			var plain, asked []*entry
			for _, x := range batch {
				if x.pending == needNothing {
					plain = append(plain, x)
				} else {
					asked = append(asked, x)
				}
			}
			r.publishBatch(ctx, CatchUp, plain)
			r.askHeads(ctx, CatchUp, asked)
		case <-ctx.Done():
			return
		}
	}
}

// releaseRate measures how many timers the catch-up releases per second. Engine.mu guards it.
type releaseRate struct {
	since     time.Duration
	count     int
	perSecond float64
}

// add counts n releases that were just made. The parameter now is the current time of Engine.clock.
func (r *releaseRate) add(n int, now time.Duration) {
	switch passed := now - r.since; {
	case passed > 10*time.Second: // the old count belongs to an earlier backlog
		*r = releaseRate{since: now, count: n}
	case passed >= time.Second:
		r.perSecond = float64(r.count) / passed.Seconds()
		r.since, r.count = now, n
	default:
		r.count += n
	}
}

// leftLocked returns how many rows of a shard the catch-up still has to release. While some rows
// are not loaded yet or not counted yet, it returns the number of the counted rows or of the loaded
// rows, whichever is larger. The caller holds mu.
func (t *tenure) leftLocked() int64 {
	loaded := int64(t.loads[CatchUp].unacked)
	if min(t.catchUpFrom, t.catchUpAgain) >= t.catchUpUntil && len(t.uncounted) == 0 && !t.counting {
		return loaded // nothing else is left
	}
	return max(t.leftCount, loaded)
}
