package timer

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
)

// KindEnvelope marks a timer whose payload is an envelope, to be appended to
// the topic in its Target.
const KindEnvelope = 1

// Log takes records; nil means every one is acknowledged.
type Log interface {
	Append(ctx context.Context, recs []stream.Record) error
}

// ToLog returns a Publish that appends envelopes to their topics, in the
// partition of their chunk, so that a user's records stay in one partition.
func ToLog(log Log) func(ctx context.Context, ts []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		recs := make([]stream.Record, 0, len(ts))
		for i := range ts {
			if ts[i].Kind != KindEnvelope {
				return fmt.Errorf("timer of unknown kind %d", ts[i].Kind)
			}
			var env notify.Envelope
			if err := notify.DecodeEnvelope(ts[i].Payload, &env); err != nil {
				// Consumers know what to do with it: it becomes poison there,
				// with its origin, instead of holding the timers behind it.
				recs = append(recs, stream.Record{Topic: ts[i].Target, Partition: 0, Value: ts[i].Payload})
				continue
			}
			recs = append(recs, stream.Record{Topic: ts[i].Target, Partition: int32(env.Chunk.Partition), Value: ts[i].Payload})
		}
		return log.Append(ctx, recs)
	}
}
