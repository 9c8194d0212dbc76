package timer

import (
	"context"
	"errors"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// KindEnvelope is the kind of a timer whose payload is an envelope. The envelope is appended to the
// topic in the timer's Target.
const KindEnvelope = 1

// isRefused reports whether a publish failed because of the content of a timer. Such a timer would
// fail each time, and other timers in its batch would wait.
func isRefused(err error) bool {
	kind := notify.KindOf(err)
	return kind == notify.KindTooLarge || kind == notify.KindInvalid || errors.Is(err, notify.ErrNewer)
}

// Log appends records. If Append returns nil, every record is acknowledged.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// ToLog returns a function for Config.Publish that appends envelopes to their topics. The record of
// a single notification has the user as its key. The record of a part of a fan-out goes to the
// partition of its chunk. In both cases all records of a user are in one partition.
//
// If a newer release wrote a timer, the function appends nothing and returns notify.ErrNewer. Then
// the engine delays only that timer. A process of the newer release publishes the timer when it
// owns the shard.
func ToLog(target Log) func(ctx context.Context, ts []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		recs := make([]log.Record, 0, len(ts))
		for i := range ts {
			if ts[i].Kind != KindEnvelope {
				return notify.Newer("the kind of a timer", int(ts[i].Kind), KindEnvelope)
			}
			var env notify.Envelope
			err := notify.DecodeEnvelope(ts[i].Payload, &env)
			if errors.Is(err, notify.ErrNewer) {
				return err
			}
			if err != nil {
				// Append the payload without decoding it. The consumer of the topic stores it as
				// poison, with its origin. An error here would also stop the timers after this
				// timer.
				recs = append(recs, log.Record{Topic: ts[i].Target, Partition: 0, Value: ts[i].Payload})
				continue
			}
			recs = append(recs, log.Record{Topic: ts[i].Target, Partition: int32(env.Chunk.Partition), Key: env.LogKey(), Value: ts[i].Payload})
		}
		return target.Append(ctx, recs)
	}
}
