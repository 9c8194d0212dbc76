package timer

import (
	"context"
	"strconv"

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
				// Of a later release. It must hold nobody else up, and not be lost.
				recs = append(recs, stream.Record{Topic: notify.TopicPoison, Partition: -1, Key: ts[i].ID, Value: ts[i].Payload, Headers: []stream.Header{
					{Key: stream.HeaderCause, Value: []byte("timer of unknown kind " + strconv.Itoa(int(ts[i].Kind)))},
				}})
				continue
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
