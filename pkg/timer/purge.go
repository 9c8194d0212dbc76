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

// purge runs every hour until ctx ends. It deletes each schedule whose fire time was more than
// Config.Retention ago. Only the owner of shard 0 purges.
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
	before, err := k.purgeBefore(ctx)
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

// purgeBefore returns the time before which schedules may be deleted: Retention ago, or earlier if
// older timers are not released yet. The head of a timer must exist until the timer is released.
// Without its head, a cancelled timer would be released.
func (k *housekeeper) purgeBefore(ctx context.Context) (int64, error) {
	before := k.now() - k.cfg.Retention.Milliseconds()
	for n := range k.shards() {
		// First read the list of cold days, then read the watermark. A day that is promoted between
		// these reads is still in the list. A day that was promoted earlier is in k.overdue.
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
