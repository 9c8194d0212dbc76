package timer

import (
	"container/heap"
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// catchUp loads the backlog of a shard, in due order and as far as there is
// room, until ctx ends.
func (t *tenure) catchUp(ctx context.Context) {
	for ctx.Err() == nil {
		from, until, ok := t.behind()
		if !ok {
			select {
			case <-t.stir:
			case <-ctx.Done():
			}
			continue
		}
		err := t.recover(ctx, from, until)
		t.trouble(ctx, err)
		if err != nil {
			notify.Sleep(ctx, t.e.cfg.Poll)
		}
	}
}

// behind returns what there is to catch up, [from, until).
func (t *tenure) behind() (from, until int64, ok bool) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.back = min(t.back, t.again)
	t.again = math.MaxInt64
	if t.back >= t.resumed && t.loads[CatchUp].open == 0 && len(t.spans) == 0 && !t.counting {
		t.left = 0 // what was written or forgotten meanwhile was not counted exactly
	}
	return t.back, t.resumed, t.back < t.resumed && !t.loads[CatchUp].full && !t.over
}

// recover loads the rows in [from, until). A minute that was closed before is
// complete then: it need not be scanned again to be dropped.
func (t *tenure) recover(ctx context.Context, from, until int64) error {
	e := t.e
	minutes, err := e.cfg.Store.Buckets(ctx, t.n, from/60_000, (until-1)/60_000)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		start, last := at*60_000, min(until-1, at*60_000+59_999)
		e.mu.Lock()
		if t.over {
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
			t.back = max(from, reached) // goes on there when there is room
			e.mu.Unlock()
			return nil
		}
		t.back = last + 1
		if whole && m.forgotten == forgotten {
			m.complete = true
		}
		e.mu.Unlock()
	}
	e.mu.Lock()
	t.back = until
	e.mu.Unlock()
	return nil
}

// tallySpans counts the rows of the backlog ahead of the catch-up, which is
// paced and so much slower than a scan: how long it will take is then known.
func (t *tenure) tallySpans(ctx context.Context) {
	for ctx.Err() == nil {
		t.e.mu.Lock()
		t.counting = len(t.spans) > 0
		var s span
		if t.counting {
			s, t.spans = t.spans[0], t.spans[1:]
		}
		t.e.mu.Unlock()
		if s == (span{}) {
			select {
			case <-t.tally:
			case <-ctx.Done():
			}
			continue
		}
		for err := t.tallySpan(ctx, s); err != nil && ctx.Err() == nil; err = t.tallySpan(ctx, s) {
			t.trouble(ctx, err)
			notify.Sleep(ctx, t.e.cfg.Poll)
		}
	}
}

func (t *tenure) tallySpan(ctx context.Context, s span) error {
	minutes, err := t.e.cfg.Store.Buckets(ctx, t.n, s.from/60_000, s.to/60_000)
	if err != nil {
		return err
	}
	n := 0
	for _, at := range minutes {
		cursor := engine.TimerCursor{FireAt: s.from}
		for size := firstPage; ; {
			rows, err := t.page(ctx, CatchUp, engine.TimerPartition{Bucket: at, Shard: t.n}, cursor, s.to, size)
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
			cursor, size = after(rows), t.e.cfg.nextPage(len(rows), bytes)
		}
	}
	t.e.mu.Lock()
	t.left += int64(n)
	t.e.mu.Unlock()
	return nil
}

// pace hands the backlog of all shards on, the earliest due first, at this engine's
// share of the configured rate.
func (r *releaser) pace(ctx context.Context, out chan<- []*entry) {
	free := r.clock() // when the next one may go
	for ctx.Err() == nil {
		rate := max(float64(r.cfg.CatchUpRate)*r.Share(), 1)
		// Twenty batches a second at most: smooth enough for the log and the delay queue.
		batch := r.earliest(max(1, min(r.cfg.Batch, int(rate/20))))
		if len(batch) == 0 {
			select {
			case <-r.late:
			case <-ctx.Done():
			}
			continue
		}
		free = max(free, r.clock()-100*time.Millisecond) // what was not used is not saved up
		if !notify.Sleep(ctx, free-r.clock()) {
			return
		}
		free += time.Duration(float64(len(batch)) / rate * float64(time.Second))
		select {
		case out <- batch:
		case <-ctx.Done():
		}
	}
}

// earliest takes the first entries of the backlog.
func (r *releaser) earliest(size int) (batch []*entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := 0
	for len(batch) < size && len(r.backlog) > 0 {
		bytes += len(r.backlog[0].t.Payload)
		if len(batch) > 0 && bytes > r.cfg.BatchSize {
			break
		}
		batch = append(batch, heap.Pop(&r.backlog).(*entry))
	}
	return batch
}

// drain publishes what pace hands on.
func (r *releaser) drain(ctx context.Context, in <-chan []*entry) {
	for {
		select {
		case batch := <-in:
			var plain, asked []*entry
			for _, x := range batch {
				if x.ask == askNothing {
					plain = append(plain, x)
				} else {
					asked = append(asked, x)
				}
			}
			r.hand(ctx, CatchUp, plain)
			r.ask(ctx, CatchUp, asked)
		case <-ctx.Done():
			return
		}
	}
}

// rate measures how many are released a second. It is guarded by Engine.mu.
type rate struct {
	since time.Duration
	n     int
	last  float64
}

// add counts n more at a moment of Engine.clock.
func (r *rate) add(n int, at time.Duration) {
	switch passed := at - r.since; {
	case passed > 10*time.Second: // of an earlier backlog
		*r = rate{since: at, n: n}
	case passed >= time.Second:
		r.last = float64(r.n) / passed.Seconds()
		r.since, r.n = at, n
	default:
		r.n += n
	}
}

// leftLocked is how much a shard has to catch up: what is loaded, and what was
// counted beyond that.
func (t *tenure) leftLocked() int64 {
	loaded := int64(t.loads[CatchUp].open)
	if min(t.back, t.again) >= t.resumed && len(t.spans) == 0 && !t.counting {
		return loaded // nothing else is left
	}
	return max(t.left, loaded)
}
