package conserve

import (
	"context"
	"errors"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// WorkerLog implements Log over the topics that workers read.
type WorkerLog struct {
	Admin  *log.Admin
	Reader *log.Reader
	// Gone reports whether damage of the log destroyed a record.
	Gone func(tp log.TopicPartition, offset int64) bool
}

// Bounds implements Log.
func (l WorkerLog) Bounds(ctx context.Context) (map[log.TopicPartition]Bounds, error) {
	var topics []string
	committed := map[log.TopicPartition]int64{}
	for _, lane := range notify.Lanes() {
		topics = append(topics, lane.Topic(), lane.DLQTopic())
		for _, group := range []string{lane.Group(), lane.RetryGroup()} {
			at, err := l.Admin.Committed(ctx, group)
			if err != nil {
				return nil, err
			}
			for tp, offset := range at {
				committed[tp] = offset
			}
		}
	}
	// Read the starts before the ends. In the other order, a partition that is trimmed in between
	// could have an end before its start.
	starts, err := l.Admin.StartOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	ends, err := l.Admin.EndOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	out := make(map[log.TopicPartition]Bounds, len(ends))
	for tp, end := range ends {
		out[tp] = Bounds{Start: starts[tp], Committed: committed[tp], End: end}
	}
	return out, nil
}

// errReadDone ends the reader once Read has all requested records.
var errReadDone = errors.New("read to the end")

// Read implements Log.
func (l WorkerLog) Read(ctx context.Context, starts, ends map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error {
	left := map[log.TopicPartition]bool{}
	at := map[log.TopicPartition]int64{}
	for tp, first := range starts {
		if first < ends[tp] {
			at[tp], left[tp] = first, true
		}
	}
	if len(left) == 0 {
		return nil
	}
	err := l.Reader.Run(ctx, at, func(tp log.TopicPartition, recs []log.Record) error {
		if !left[tp] {
			return nil // these offsets are not below ends[tp]
		}
		for i := range recs {
			if recs[i].Offset < ends[tp] {
				if err := fn(tp, &recs[i]); err != nil {
					return err
				}
			}
			if recs[i].Offset >= ends[tp]-1 {
				delete(left, tp)
				break
			}
		}
		if len(left) == 0 {
			return errReadDone
		}
		return nil
	})
	switch {
	case errors.Is(err, errReadDone):
		return nil
	case err == nil:
		return context.Cause(ctx) // Run returns nil when ctx ends
	}
	return err
}

// Lost implements Log.
func (l WorkerLog) Lost(tp log.TopicPartition, offset int64) bool { return l.Gone(tp, offset) }
