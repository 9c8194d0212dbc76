package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Offsets is the part of the log that an Opening uses. log.Admin implements it.
type Offsets interface {
	StartOffsets(ctx context.Context, topics ...string) (map[log.TopicPartition]int64, error)
	// OffsetsSince returns one offset for each partition: the offset of the first record whose time
	// is since or later. If there is no such record, it is the end offset of the partition.
	OffsetsSince(ctx context.Context, since time.Time, topics ...string) (map[log.TopicPartition]int64, error)
	Committed(ctx context.Context, group string) (map[log.TopicPartition]int64, error)
}

// Opening decides when the worker may begin with a partition that was added to its topic. Before
// the topic was enlarged, the users of the new partition were in another partition, the old
// partition. (Its number is the remainder of the new number divided by the earlier number of
// partitions.) Notifications to these users may still wait in the old partition, and must be
// delivered first. So the new partition waits until the group has finished everything that was
// appended to the old partition with the earlier number of partitions.
//
// An append reads the number of partitions when it begins, and has a time limit. So when the
// duration Settle has passed after the change, no append with the earlier number is still running.
// The worker waits until the group has committed the end offset that the old partition had at that
// moment.
type Opening struct {
	Spread  func() notify.Spread // numbers of the topic's partitions over time
	Offsets Offsets
	Group   string
	// Settle is the longest duration of an append plus the largest difference between two
	// clocks.
	Settle time.Duration
	Logger *slog.Logger

	mu          sync.Mutex                             // guards the fields below
	settledAt   map[int64]map[log.TopicPartition]int64 // by time of the change, in ms since 1970: the offsets to wait for
	committedTo map[log.TopicPartition]int64           // the group's committed offsets, or the start offsets if they are higher
	readAgainAt time.Time                              // when committedTo must be read again
}

// openEvery is the time between two reads of the group's progress while new partitions wait.
const openEvery = 100 * time.Millisecond

// NeedsCommit returns true if new partitions wait, or will soon wait, for commits of the group.
// Then the group should commit more often.
func (o *Opening) NeedsCommit() bool {
	raised := o.Spread().Since()
	return !raised.IsZero() && time.Until(raised) < 2*time.Second && time.Since(raised) < time.Minute
}

// waitToBegin returns true when the worker may begin with the partition. It returns false if ctx
// ends first.
func (o *Opening) waitToBegin(ctx context.Context, tp log.TopicPartition) bool {
	warned, logged := false, false
	for {
		spread := o.Spread()
		before, raised := spread.Raise(int(tp.Partition))
		switch {
		case int(tp.Partition) >= spread.Most():
			// The partition was created but not announced, or this process has not read the
			// announcement yet.
			if !warned {
				warned = true
				o.Logger.Warn("records wait in a partition that is not announced; run notifyd migrate up, which announces the partition", "partition", tp.String())
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
		finished, err := o.oldPartFinished(ctx, old, raised)
		switch {
		case err == nil && finished:
			return true
		case ctx.Err() != nil:
			return false
		case err != nil:
			o.Logger.Error("cannot read the progress of the old partition; the new partition waits", "partition", tp.String(), "old", old.String(), "err", err)
		case !logged:
			logged = true
			o.Logger.Info("a new partition waits until the old partition has delivered the earlier notifications of its users", "partition", tp.String(), "old", old.String())
		}
		if !notify.Sleep(ctx, openEvery) {
			return false
		}
	}
}

// oldPartFinished returns true if the group has finished everything that was appended to an old
// partition until shortly after the topic got more partitions. The parameter raised is the time at
// which it got them. Records count if they were appended less than Settle after that time.
func (o *Opening) oldPartFinished(ctx context.Context, old log.TopicPartition, raised time.Time) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cut, ok := o.settledAt[raised.UnixMilli()]
	if !ok {
		var err error
		if cut, err = o.Offsets.OffsetsSince(ctx, raised.Add(o.Settle), old.Topic); err != nil {
			return false, err
		}
		if o.settledAt == nil {
			o.settledAt = map[int64]map[log.TopicPartition]int64{}
		}
		o.settledAt[raised.UnixMilli()] = cut
	}
	if now := time.Now(); !now.Before(o.readAgainAt) {
		done, err := o.Offsets.StartOffsets(ctx, old.Topic) // removed records need no wait
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
		o.committedTo, o.readAgainAt = done, now.Add(openEvery)
	}
	at, ok := cut[old]
	return ok && o.committedTo[old] >= at, nil
}
