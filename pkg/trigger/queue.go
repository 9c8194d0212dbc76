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
		ms, err := messages(ts)
		if err != nil {
			return err
		}
		return q.Enqueue(ctx, ms)
	}
}

// BacklogPace says how fast what is late anyway goes into the delay queue. The
// zero value of a number means its default.
type BacklogPace struct {
	Deep int // messages in the backlog lane from which on it is slow: 5,000, what a dispatcher keeps of one caller
	Slow int // triggers a second then, over all processes: 2,000
	// Share returns this process's part of Slow, from 0 to 1. Nil: all of it.
	Share func() float64
}

// ToBacklog is ToQueue for what is caught up after an outage: its messages go
// into the backlog lane. While that is deep, because dispatchers do not keep up,
// they go slowly, and never not at all: timers of other kinds wait behind them.
func ToBacklog(q engine.Queue, pace BacklogPace) func(ctx context.Context, ts []engine.Timer) error {
	b := backlogger{q: q, deep: or(pace.Deep, 5000)}
	b.pace = or(pace.Slow, 2000)
	b.slow = rate.NewLimiter(rate.Limit(b.pace), max(b.pace/10, 1))
	b.share = func() float64 { return 1 }
	if pace.Share != nil {
		b.share = pace.Share
	}
	return b.publish
}

type backlogger struct {
	q     engine.Queue
	deep  int
	pace  int // BacklogPace.Slow
	share func() float64
	slow  *rate.Limiter

	mu   sync.Mutex
	left int // messages until the lane may be deep, as of the last look
}

func (b *backlogger) publish(ctx context.Context, ts []engine.Timer) error {
	ms, err := messages(ts)
	if err != nil {
		return err
	}
	for i := range ms {
		ms[i].Backlog = true
	}
	if !b.fits(ctx, len(ms)) {
		// Not 0: what this process took over a moment ago must not wait for ever.
		b.slow.SetLimit(rate.Limit(float64(b.pace) * max(b.share(), 0.001)))
		for n := len(ms); n > 0; n -= b.slow.Burst() {
			if err := b.slow.WaitN(ctx, min(n, b.slow.Burst())); err != nil {
				return err
			}
		}
	}
	return b.q.Enqueue(ctx, ms)
}

// fits reports whether the lane is shallow. It looks once in many messages.
func (b *backlogger) fits(ctx context.Context, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < n {
		d, err := b.q.Depth(ctx)
		if err != nil {
			return false // slowly does no harm
		}
		b.left = b.deep - d.Backlog
	}
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

// lateAfter is how late a timer is when it stands behind what is due now: after a
// short outage all that was missed comes at once, not paced.
const lateAfter = 2 * time.Second

// messages makes the messages of due timers.
func messages(ts []engine.Timer) ([]engine.Message, error) {
	ms := make([]engine.Message, len(ts))
	now := time.Now()
	for i := range ts {
		if ts[i].Kind != TimerKind {
			return nil, notify.Invalid("bad_timer", "kind", fmt.Sprintf("a timer of kind %d leads to no trigger", ts[i].Kind))
		}
		// A timer comes when it is due. One that does not must not fire early.
		wait := min(max(time.UnixMilli(ts[i].FireAt).Sub(now), 0), engine.MaxQueueDelay)
		ms[i] = engine.Message{Body: ts[i].Payload, Delay: wait, Backlog: now.Sub(time.UnixMilli(ts[i].FireAt)) > lateAfter}
	}
	return ms, nil
}
