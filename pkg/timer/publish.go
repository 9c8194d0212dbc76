package timer

import (
	"context"
	"errors"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// KindEnvelope marks a timer whose payload is an envelope, to be appended to
// the topic in its Target.
const KindEnvelope = 1

// refused reports whether a publish failed for what is in one of its timers: tried
// again, it fails again, and holds the others up.
func refused(err error) bool {
	kind := notify.KindOf(err)
	return kind == notify.KindTooLarge || kind == notify.KindInvalid || errors.Is(err, notify.ErrNewer)
}

// Log takes records; nil means every one is acknowledged.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// ToLog returns a Publish that appends envelopes to their topics: single notifications by
// their user, parts of fan-outs in the partition of their chunk, so that a user's records
// are in one partition. It returns
// notify.ErrNewer, and appends nothing, if one of them is of a newer release: an engine
// puts that one off, so that it holds no other up, and a process of that release that
// owns the shard by then publishes it.
func ToLog(to Log) func(ctx context.Context, ts []engine.Timer) error {
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
				// Consumers know what to do with it: it becomes poison there,
				// with its origin, instead of holding the timers behind it.
				recs = append(recs, log.Record{Topic: ts[i].Target, Partition: 0, Value: ts[i].Payload})
				continue
			}
			recs = append(recs, log.Record{Topic: ts[i].Target, Partition: int32(env.Chunk.Partition), Key: env.LogKey(), Value: ts[i].Payload})
		}
		return to.Append(ctx, recs)
	}
}
