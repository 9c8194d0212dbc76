package trigger

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Later stores index rows; nil means durable, and released at its time even if
// its minute was closed meanwhile. It follows engine.Timers.Put: the same row
// again changes nothing.
type Later interface {
	Put(ctx context.Context, ts []engine.Timer) error
}

// ToQueue returns a Publish for timers of TimerKind: it hands their messages to
// the dispatchers. A timer of another kind is notify.KindInvalid and nothing is
// enqueued: whoever routes timers by kind keeps it away.
func ToQueue(q engine.Queue) func(ctx context.Context, ts []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		ms := make([]engine.Message, len(ts))
		now := time.Now()
		for i := range ts {
			if ts[i].Kind != TimerKind {
				return notify.Invalid("bad_timer", "kind", fmt.Sprintf("a timer of kind %d leads to no trigger", ts[i].Kind))
			}
			// A timer comes when it is due. One that does not must not fire early.
			wait := min(max(time.UnixMilli(ts[i].FireAt).Sub(now), 0), engine.MaxQueueDelay)
			ms[i] = engine.Message{Body: ts[i].Payload, Delay: wait}
		}
		return q.Enqueue(ctx, ms)
	}
}
