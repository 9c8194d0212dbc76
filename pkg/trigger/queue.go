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

// Later stores index rows. If Put returns nil, all rows are durable and will be released at their
// time, even if the timer engine closed the minute of a row in the meantime (engine.Timers.Closed).
// As with engine.Timers.Put, storing the same row again changes nothing.
type Later interface {
	Put(ctx context.Context, ts []engine.Timer) error
}

// ToQueue returns a function for Publish of a timer.Config. The function accepts timers of TimerKind
// and adds their messages to the queue of the dispatchers. If one timer has another kind, the
// function returns notify.KindInvalid and adds nothing.
func ToQueue(q engine.Queue) func(ctx context.Context, ts []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		ms, err := messages(ts)
		if err != nil {
			return err
		}
		return q.Enqueue(ctx, ms)
	}
}

// BacklogPace limits how fast late triggers are added to the delay queue. A number that is 0 means
// its default.
type BacklogPace struct {
	// If the backlog lane has at least this many messages, the pace is slow. Default 5,000.
	Deep int
	// Triggers a second while the pace is slow, for all processes together. Default 2,000.
	Slow int
	// Share returns this process's share of Slow, from 0 to 1. nil: all of Slow.
	Share func() float64
}

// ToBacklog is like ToQueue, for triggers that are caught up after an outage. The function adds
// their messages to the backlog lane. While that lane has many messages, the function adds messages
// at the slow pace. It never stops completely, because timers of other kinds wait behind these
// triggers.
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

	mu sync.Mutex
	// How many messages may be added until the depth of the lane must be read again. Computed when
	// the depth was last read.
	untilDeep int
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
		// The share may still be 0, if this process has just taken over the timers. Use a rate
		// above 0, so that the messages do not wait for ever.
		b.slow.SetLimit(rate.Limit(float64(b.pace) * max(b.share(), 0.001)))
		for n := len(ms); n > 0; n -= b.slow.Burst() {
			if err := b.slow.WaitN(ctx, min(n, b.slow.Burst())); err != nil {
				return err
			}
		}
	}
	return b.q.Enqueue(ctx, ms)
}

// isShallow reports whether the lane has room for n messages. It does not read the depth of the
// lane for each call, only when the counted room is used up.
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

// If a timer is later than lateAfter, its message goes to the backlog lane, so that it does not
// delay messages on time. This is needed after a short outage, when all missed timers are released
// at once, without a pace.
const lateAfter = 2 * time.Second

// messages returns the messages for due timers.
func messages(ts []engine.Timer) ([]engine.Message, error) {
	ms := make([]engine.Message, len(ts))
	now := time.Now()
	for i := range ts {
		if ts[i].Kind != TimerKind {
			return nil, notify.Invalid("bad_timer", "kind", fmt.Sprintf("a timer of kind %d leads to no trigger", ts[i].Kind))
		}
		// Timers usually arrive when they are due. If one arrives early, its message is delayed, so
		// that it does not fire early.
		wait := min(max(time.UnixMilli(ts[i].FireAt).Sub(now), 0), engine.MaxQueueDelay)
		ms[i] = engine.Message{Body: ts[i].Payload, Delay: wait, Backlog: now.Sub(time.UnixMilli(ts[i].FireAt)) > lateAfter}
	}
	return ms, nil
}
