package trigger

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/trace"
)

// DispatcherConfig configures a Dispatcher. Triggers, Callers, Queue, Later, Dead and Egress are
// required. A zero value in any other field means its default.
type DispatcherConfig struct {
	Triggers engine.Triggers
	Callers  engine.Callers
	// Queue delivers the messages that ToQueue adds. Its MaxReceives must be at least 8.
	Queue  engine.Queue
	Later  Later
	Dead   DeadLog
	Egress *Egress
	// Census counts the waiting triggers of callers. The Dispatcher subtracts each trigger that
	// ends. Default: a Census that nothing else reads.
	Census *Census

	// CallerInFlight is how many calls of one caller may be in progress at the same time. The
	// record of a caller may set another limit.
	CallerInFlight int `default:"100" min:"1"`
	// Share returns how much of a caller's limit of calls this process may use while other
	// processes dispatch too. It is called for each call, under a lock, so it must be quick. A
	// result below 1 counts as 1. Default: the whole limit.
	Share func(limit int) int
	// MaxInFlight is how many calls may be in progress in total. A caller may start a call only
	// while it has fewer calls in progress than half of the number that is still free. But each
	// caller may always have one call, so that callers whose receivers do not answer cannot stop
	// other callers.
	MaxInFlight int `default:"4096" min:"1"`
	// MaxQueued is how many messages may wait in memory for their call, for all callers together.
	// One caller may use half of the room that is still free. Another 2*MaxQueued messages may wait
	// without their rows. Further messages are put off.
	MaxQueued int `default:"32768" min:"2"`
	// MaxQueuedBytes is how many bytes the rows of the messages that MaxQueued counts may have
	// together.
	MaxQueuedBytes int `default:"64MiB" min:"2"`
	// Batch is the largest number of messages that are received, read or written together.
	Batch int `default:"256" min:"1"`
	// Visibility is the visibility timeout of a received message. The Dispatcher extends it while
	// the message is in memory.
	Visibility time.Duration `default:"30s" min:"1s"`
	// Lease is how long a claim is valid. It must be at least the egress's Timeout plus 5 s. After a
	// claim has expired, any process may claim the row again.
	Lease time.Duration `default:"30s"`
	// Skew is the largest difference between the clocks of two machines.
	Skew time.Duration `default:"2s" min:"0"`
	// Clock returns an error while the clock of this process is wrong by more than is allowed. During
	// that time this process receives no messages, claims no triggers and makes no calls. The
	// dispatchers of other processes do this work. Default: never an error.
	Clock func() error
	// Schedule is the list of waits between attempts, for triggers without their own schedule.
	// Default DefaultSchedule.
	Schedule []time.Duration
	// MaxRetryAfter is the longest Retry-After that is used. A longer value is cut to it.
	MaxRetryAfter time.Duration `default:"1h" min:"0"`
	// Hold is the longest wait during which a message stays in the queue. For a longer wait an
	// index row is written. Hold must be at most engine.MaxQueueDelay.
	Hold time.Duration `default:"10s" min:"0"`
	// MaxAge is how long after its fire time a trigger may still be called, in addition to the
	// waits of its schedule. After that time the trigger is FAILED.
	MaxAge time.Duration `default:"72h" min:"0"`
	// MaxLost is the number of expired claims after which a trigger is FAILED. A claim expires if
	// the process that made the call died.
	MaxLost int `default:"10" min:"1"`
	// Orphan is how long a message waits for its state row before it is dropped.
	Orphan time.Duration `default:"1m" min:"1s"`
	// PolicyAge is how old the record of a caller may be when a call starts.
	PolicyAge time.Duration `default:"1s"`
	// Drain is how long a stop waits for calls and writes in progress.
	Drain time.Duration `default:"20s" min:"0"`
	// Breaker of each caller. Default: it opens for 60 s if more than half of at least 10 calls in
	// 30 s fail. Then 3 probes decide whether it closes.
	Breaker limit.BreakerConfig
	// Events are called when something happens. Default: no calls.
	Events Events
	// Tracer makes a span of each call. Default: no spans. The traceparent of a trigger is sent
	// even without a Tracer.
	Tracer *trace.Tracer
	// Logger logs failures of the stores. The Dispatcher tries the failed operations again.
	Logger *slog.Logger `default:"discard"`

	hit  func(string) // killpoint.Hit, or a function of a test
	post postFunc     // Egress.post, or a function of a test
}

// postFunc makes one call.
type postFunc func(ctx context.Context, u *url.URL, header http.Header, body []byte) result

func (c DispatcherConfig) withDefaults() DispatcherConfig {
	c = setting.Fill(c)
	if c.Share == nil {
		c.Share = func(limit int) int { return limit }
	}
	if c.Clock == nil {
		c.Clock = func() error { return nil }
	}
	if len(c.Schedule) == 0 {
		c.Schedule = DefaultSchedule
	}
	if c.Census == nil {
		c.Census = NewCensus(c.Triggers, false)
	}
	if c.hit == nil {
		c.hit = killpoint.Hit
	}
	if c.post == nil {
		c.post = c.Egress.post
	}
	return c
}

func (c DispatcherConfig) validate() error {
	switch {
	case c.Triggers == nil || c.Callers == nil || c.Queue == nil || c.Later == nil || c.Dead == nil || c.Egress == nil:
		return errors.New("trigger: Triggers, Callers, Queue, Later, Dead and Egress are required")
	case c.Lease < c.Egress.cfg.Timeout+5*time.Second:
		return errors.New("trigger: Lease must be at least the egress's timeout plus 5 s, because a call must end before its claim expires")
	case c.Hold > engine.MaxQueueDelay:
		return errors.New("trigger: Hold must be at most 15 minutes, the longest delay of a message in a queue")
	}
	return setting.Err("trigger", &c)
}
