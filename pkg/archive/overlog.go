package archive

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// OverLog is a History that reads the log itself. The log must keep its records longer than
// Config.After. A record that is in the log twice is archived twice.
type OverLog struct {
	Offsets Offsets
	// Read calls fn with the records of each partition, from the offset starts[partition] up to, but
	// not including, the offset ends[partition].
	Read   func(ctx context.Context, starts, ends map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error
	Topics []string
	// Skipped is called for records that the log removed before they were archived: the records with
	// the offsets [from, to).
	Skipped func(p history.Part, from, to int64)
}

// Offsets reads offsets of the log. *log.Admin implements it.
type Offsets interface {
	StartOffsets(ctx context.Context, topics ...string) (map[log.TopicPartition]int64, error)
	OffsetsSince(ctx context.Context, earliest time.Time, topics ...string) (map[log.TopicPartition]int64, error)
}

// Settled implements History.
func (l OverLog) Settled(ctx context.Context, cutoff int64) (map[history.Part]int64, error) {
	young, err := l.Offsets.OffsetsSince(ctx, time.UnixMilli(cutoff), l.Topics...)
	if err != nil {
		return nil, err
	}
	out := make(map[history.Part]int64, len(young))
	for tp, at := range young {
		out[history.Part(tp)] = at
	}
	return out, nil
}

// Range implements History. It counts each gap of removed records as one damaged chunk.
func (l OverLog) Range(ctx context.Context, from, to map[history.Part]int64, fn func(env *notify.Envelope) error) (damaged int, err error) {
	starts, err := l.Offsets.StartOffsets(ctx, l.Topics...)
	if err != nil {
		return 0, err
	}
	begin, end := map[log.TopicPartition]int64{}, map[log.TopicPartition]int64{}
	for p, last := range to {
		tp := log.TopicPartition(p)
		first, known := from[p]
		if start := starts[tp]; first < start {
			if known && last > first {
				damaged++
				l.Skipped(p, first, min(start, last))
			}
			first = start
		}
		begin[tp], end[tp] = first, last
	}
	return damaged, l.Read(ctx, begin, end, func(tp log.TopicPartition, r *log.Record) error {
		var env notify.Envelope
		err := notify.DecodeEnvelope(r.Value, &env)
		switch {
		case errors.Is(err, notify.ErrNewer):
			return err // a process of the newer release must archive this record
		case err != nil: // a lost record, or a record that no release can decode
			damaged++
			return nil
		}
		return fn(&env)
	})
}
