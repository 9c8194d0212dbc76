package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Offsets is what an Opening asks of the log: it is log.Admin.
type Offsets interface {
	StartOffsets(ctx context.Context, topics ...string) (map[log.TopicPartition]int64, error)
	// OffsetsSince returns the first offset of each partition with a time at or after
	// at, its end where there is none.
	OffsetsSince(ctx context.Context, at time.Time, topics ...string) (map[log.TopicPartition]int64, error)
	Committed(ctx context.Context, group string) (map[log.TopicPartition]int64, error)
}

// Opening decides when the worker may begin with a partition that was added to its topic.
// Until the raise the users of such a partition were in another one, the old one: the
// remainder of the new one's number by the number of partitions before. What they were sent
// then may still wait there, and comes first. So a new partition waits until the group has
// finished, in the old one, all that was appended by the number before.
//
// Each append that is acknowledged at all is acknowledged within Settle of the raise: it asks
// for the number when it begins, and fails after its time limit. So what counts is the offset
// of the old partition at that time.
type Opening struct {
	Spread  func() notify.Spread // over the partitions of the topic, as it is known
	Offsets Offsets
	Group   string
	// Settle is the longest append and how far two clocks may differ.
	Settle time.Duration
	Logger *slog.Logger

	mu    sync.Mutex
	cuts  map[int64]map[log.TopicPartition]int64 // by the time of the raise, in ms
	done  map[log.TopicPartition]int64           // what the group has committed
	until time.Time                              // when done is to be read again
}

// openEvery is how often the positions of the old partitions are read while new ones wait.
const openEvery = 100 * time.Millisecond

// Hasty reports whether new partitions may soon wait, or wait, for what the group commits.
func (o *Opening) Hasty() bool {
	raised := o.Spread().Since()
	return !raised.IsZero() && time.Until(raised) < 2*time.Second && time.Since(raised) < time.Minute
}

// wait returns true when the worker may begin with the partition, false when ctx has ended
// before.
func (o *Opening) wait(ctx context.Context, tp log.TopicPartition) bool {
	told, named := false, false
	for {
		spread := o.Spread()
		before, raised := spread.Raise(int(tp.Partition))
		switch {
		case int(tp.Partition) >= spread.Most():
			// It was made and is not announced yet, or this process has not read that.
			if !told {
				told = true
				o.Logger.Warn("records in a partition that is not announced wait; notifyd migrate up announces it", "partition", tp.String())
			}
			if !notify.Sleep(ctx, openEvery) {
				return false
			}
			continue
		case before == 0:
			return true
		}
		if !notify.Sleep(ctx, time.Until(raised.Add(o.Settle))) {
			return false
		}
		old := log.TopicPartition{Topic: tp.Topic, Partition: tp.Partition % int32(before)}
		finished, err := o.finished(ctx, old, raised)
		switch {
		case err == nil && finished:
			return true
		case ctx.Err() != nil:
			return false
		case err != nil:
			o.Logger.Error("cannot read how far the old partition is; the new one waits", "partition", tp.String(), "old", old.String(), "err", err)
		case !named:
			named = true
			o.Logger.Info("a new partition waits for what its users have in the old one", "partition", tp.String(), "old", old.String())
		}
		if !notify.Sleep(ctx, openEvery) {
			return false
		}
	}
}

// finished reports whether the group has finished, in an old partition, what was appended
// before Settle after a raise.
func (o *Opening) finished(ctx context.Context, old log.TopicPartition, raised time.Time) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cut, ok := o.cuts[raised.UnixMilli()]
	if !ok {
		var err error
		if cut, err = o.Offsets.OffsetsSince(ctx, raised.Add(o.Settle), old.Topic); err != nil {
			return false, err
		}
		if o.cuts == nil {
			o.cuts = map[int64]map[log.TopicPartition]int64{}
		}
		o.cuts[raised.UnixMilli()] = cut
	}
	if now := time.Now(); !now.Before(o.until) {
		done, err := o.Offsets.StartOffsets(ctx, old.Topic) // nothing that is gone is waited for
		if err != nil {
			return false, err
		}
		committed, err := o.Offsets.Committed(ctx, o.Group)
		if err != nil {
			return false, err
		}
		for tp, at := range committed {
			done[tp] = max(done[tp], at)
		}
		o.done, o.until = done, now.Add(openEvery)
	}
	at, ok := cut[old]
	return ok && o.done[old] >= at, nil
}
