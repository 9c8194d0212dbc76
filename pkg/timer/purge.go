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

// purge deletes schedules Retention after their fire time. It runs every hour until ctx ends. Only
// the owner of shard 0 purges.
func (k *housekeeper) purge(ctx context.Context) {
	for notify.Sleep(ctx, purgeEvery) {
		if err := k.purgeOnce(ctx); err != nil && ctx.Err() == nil {
			k.complaints.report("cannot purge schedules", err)
		}
	}
}

func (k *housekeeper) purgeOnce(ctx context.Context) error {
	if _, owned := k.termOf(0); !owned {
		return nil
	}
	before, err := k.settledBefore(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		n, err := k.cfg.Schedules.Purge(ctx, before, purgeBatch)
		if err != nil {
			return err
		}
		k.counters.purged.Add(uint64(n))
		if n < purgeBatch {
			break
		}
	}
	return nil
}

// settledBefore returns the time before which no schedule can be pending. That is Retention ago, or
// an earlier time while older timers are still being caught up. If a head were deleted before its
// timers are released, a cancelled timer would be released.
func (k *housekeeper) settledBefore(ctx context.Context) (int64, error) {
	before := k.now() - k.cfg.Retention.Milliseconds()
	for n := range k.shards() {
		// Read the cold days before the watermark. A day that is promoted after this read is still
		// in the list. A day that was promoted before this read is in k.overdue.
		var days []int64
		if k.cfg.Cold != nil {
			var err error
			if days, err = k.cfg.Cold.Buckets(ctx, uint16(n), 0, before/dayMs); err != nil {
				return 0, err
			}
		}
		st, err := k.cfg.Store.Shard(ctx, uint16(n))
		if err != nil {
			return 0, err
		}
		before = k.overdueBefore(uint16(n), st.Watermark, min(before, (st.Watermark+1)*60_000))
		if len(days) > 0 {
			before = min(before, days[0]*dayMs)
		}
	}
	return before, nil
}
