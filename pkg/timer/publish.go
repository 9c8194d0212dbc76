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

// isRefused reports whether a publish failed because of the content of a timer: it would fail again
// each time, and hold up the others.
func isRefused(err error) bool {
	kind := notify.KindOf(err)
	return kind == notify.KindTooLarge || kind == notify.KindInvalid || errors.Is(err, notify.ErrNewer)
}

// Log appends records. A nil error means that every record is acknowledged.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// ToLog returns a Publish that appends envelopes to their topics: single notifications by their
// user, parts of fan-outs in the partition of their chunk, so that a user's records are in one
// partition. If one of them is of a newer release, it returns notify.ErrNewer and appends nothing.
// The engine then puts that timer off, so that it holds up no other, until a process of the newer
// release owns the shard and publishes it.
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
				// The consumer stores it as poison, with its origin. Here it would hold up the
				// timers behind it.
				recs = append(recs, log.Record{Topic: ts[i].Target, Partition: 0, Value: ts[i].Payload})
				continue
			}
			recs = append(recs, log.Record{Topic: ts[i].Target, Partition: int32(env.Chunk.Partition), Key: env.LogKey(), Value: ts[i].Payload})
		}
		return to.Append(ctx, recs)
	}
}
