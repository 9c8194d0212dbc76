package timer

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	purgeEvery = time.Hour
	purgeBatch = 1000
)

// purge forgets schedules Retention after their fire time, every hour, until ctx
// ends. The owner of shard 0 does it, so that one engine does.
func (e *Engine) purge(ctx context.Context) {
	for notify.Sleep(ctx, purgeEvery) {
		if err := e.purgeOnce(ctx); err != nil && ctx.Err() == nil {
			e.troubl.say("cannot purge schedules", err)
		}
	}
}

func (e *Engine) purgeOnce(ctx context.Context) error {
	if _, owned := e.termOf(0); !owned {
		return nil
	}
	before, err := e.settledBefore(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		n, err := e.cfg.Schedules.Purge(ctx, before, purgeBatch)
		if err != nil {
			return err
		}
		e.count.purged.Add(uint64(n))
		if n < purgeBatch {
			break
		}
	}
	return nil
}

// settledBefore is the time before which no schedule may be pending: Retention
// ago, or earlier while an outage that long is caught up. A head that was
// forgotten before its timers were released would release what was cancelled.
func (e *Engine) settledBefore(ctx context.Context) (int64, error) {
	before := e.now() - e.cfg.Retention.Milliseconds()
	for n := range e.cfg.Shards {
		// Cold days first: a day that is promoted after that look still counts,
		// and one promoted before it has been noted.
		var days []int64
		if e.cfg.Cold != nil {
			var err error
			if days, err = e.cfg.Cold.Buckets(ctx, uint16(n), 0, before/day); err != nil {
				return 0, err
			}
		}
		st, err := e.cfg.Store.Shard(ctx, uint16(n))
		if err != nil {
			return 0, err
		}
		before = e.overdueBefore(uint16(n), st.Watermark, min(before, (st.Watermark+1)*60_000))
		if len(days) > 0 {
			before = min(before, days[0]*day)
		}
	}
	return before, nil
}
