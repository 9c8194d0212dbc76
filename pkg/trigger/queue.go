package trigger

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Later stores index rows. A nil error means that each is durable and is released at its time, even
// if its minute was closed in the meantime. It follows engine.Timers.Put: to store the same row
// again changes nothing.
type Later interface {
	Put(ctx context.Context, ts []engine.Timer) error
}

// ToQueue returns a Publish for timers of TimerKind: it enqueues their messages for the
// dispatchers. For a timer of another kind it returns notify.KindInvalid and enqueues nothing. The
// code that routes timers by kind must keep those away.
func ToQueue(q engine.Queue) func(ctx context.Context, ts []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		ms, err := messages(ts)
		if err != nil {
			return err
		}
		return q.Enqueue(ctx, ms)
	}
}

// BacklogPace bounds how fast late triggers go into the delay queue. The zero value of a number
// means its default.
type BacklogPace struct {
	Deep int // messages in the backlog lane from which on the pace is slow; default 5,000, what a dispatcher keeps of one caller
	Slow int // triggers a second while it is slow, over all processes; default 2,000
	// Share returns this process's part of Slow, from 0 to 1. Nil: all of it.
	Share func() float64
}

// ToBacklog is like ToQueue, for triggers that are caught up after an outage: their messages go
// into the backlog lane. While that lane is deep, because the dispatchers do not keep up, the pace
// is slow. It never stops, because timers of other kinds wait behind.
func ToBacklog(q engine.Queue, pace BacklogPace) func(ctx context.Context, ts []engine.Timer) error {
	b := backlogQueue{q: q, deep: orDefault(pace.Deep, 5000)}
	b.pace = orDefault(pace.Slow, 2000)
	b.slow = rate.NewLimiter(rate.Limit(b.pace), max(b.pace/10, 1))
	b.share = func() float64 { return 1 }
	if pace.Share != nil {
		b.share = pace.Share
	}
	return b.publish
}

type backlogQueue struct {
	q     engine.Queue
	deep  int
	pace  int // BacklogPace.Slow
	share func() float64
	slow  *rate.Limiter

	mu        sync.Mutex
	untilDeep int // messages until the lane may be deep, as of the last read of its depth
}

func (b *backlogQueue) publish(ctx context.Context, ts []engine.Timer) error {
	ms, err := messages(ts)
	if err != nil {
		return err
	}
	for i := range ms {
		ms[i].Backlog = true
	}
	if !b.isShallow(ctx, len(ms)) {
		// Not 0: messages that this process just took over must not wait for ever.
		b.slow.SetLimit(rate.Limit(float64(b.pace) * max(b.share(), 0.001)))
		for n := len(ms); n > 0; n -= b.slow.Burst() {
			if err := b.slow.WaitN(ctx, min(n, b.slow.Burst())); err != nil {
				return err
			}
		}
	}
	return b.q.Enqueue(ctx, ms)
}

// isShallow reports whether the lane has room for n messages. It reads the depth only once in many
// messages.
func (b *backlogQueue) isShallow(ctx context.Context, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.untilDeep < n {
		d, err := b.q.Depth(ctx)
		if err != nil {
			return false // the slow pace does no harm
		}
		b.untilDeep = b.deep - d.Backlog
	}
	if b.untilDeep < n {
		return false
	}
	b.untilDeep -= n
	return true
}

// lateAfter is how late a timer must be to wait in the backlog lane behind messages on time. After
// a short outage all missed timers come at once and are not paced.
const lateAfter = 2 * time.Second

// messages returns the messages of due timers.
func messages(ts []engine.Timer) ([]engine.Message, error) {
	ms := make([]engine.Message, len(ts))
	now := time.Now()
	for i := range ts {
		if ts[i].Kind != TimerKind {
			return nil, notify.Invalid("bad_timer", "kind", fmt.Sprintf("a timer of kind %d leads to no trigger", ts[i].Kind))
		}
		// Timers come when they are due. A timer that comes earlier must not fire early.
		wait := min(max(time.UnixMilli(ts[i].FireAt).Sub(now), 0), engine.MaxQueueDelay)
		ms[i] = engine.Message{Body: ts[i].Payload, Delay: wait, Backlog: now.Sub(time.UnixMilli(ts[i].FireAt)) > lateAfter}
	}
	return ms, nil
}
