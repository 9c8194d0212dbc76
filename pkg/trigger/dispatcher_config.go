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

// DispatcherConfig of a Dispatcher. Triggers, Callers, Queue, Later, Dead and
// Egress are required; the zero value of the others means their default.
type DispatcherConfig struct {
	Triggers engine.Triggers
	Callers  engine.Callers
	// Queue brings the messages that ToQueue enqueues. Its MaxReceives must be
	// 8 or more.
	Queue  engine.Queue
	Later  Later
	Dead   DeadLog
	Egress *Egress
	// Census hears of triggers that end. Default: nobody does.
	Census *Census

	// CallerInFlight is how many calls of a caller run at a time, unless its own record says
	// otherwise: its bulkhead.
	CallerInFlight int `default:"100" min:"1"`
	// Share is how much of such a number this process may use, where others
	// dispatch beside it; asked with each call, under a lock: it must be quick.
	// Below 1 counts as 1. Default: all of it.
	Share func(limit int) int
	// MaxInFlight is how many calls run at a time in all. As they get scarce, every caller's
	// share shrinks; one call each is always allowed, so that callers that hang cannot shut
	// others out.
	MaxInFlight int `default:"4096" min:"1"`
	// MaxQueued is how many messages wait in memory for a place in all; one caller's may be
	// half as many as are still free. Twice as many wait behind them, without their rows, and
	// the others are put off.
	MaxQueued int `default:"32768" min:"2"`
	// MaxQueuedBytes bounds the same in bytes.
	MaxQueuedBytes int `default:"64MiB" min:"2"`
	// Batch is how many messages are received, read and written at a time.
	Batch int `default:"256" min:"1"`
	// Visibility of a received message; it is extended while the message is held.
	Visibility time.Duration `default:"30s" min:"1s"`
	// Lease of a claim, at least the egress's Timeout and 5 s. After it anyone may claim
	// again.
	Lease time.Duration `default:"30s"`
	// Skew is how far the clocks of two machines may be apart.
	Skew time.Duration `default:"2s" min:"0"`
	// Clock says why the clock of this process is off by more than it may be; nil: it is
	// not. While it is off no message is received and no row judged, claimed or called:
	// other dispatchers do that. Default: it is right.
	Clock func() error
	// Schedule are the waits between attempts of triggers without one of their
	// own. Default DefaultSchedule.
	Schedule []time.Duration
	// MaxRetryAfter is the longest Retry-After that is honoured.
	MaxRetryAfter time.Duration `default:"1h" min:"0"`
	// Hold is the longest wait that stays in the queue; longer ones become index
	// rows. Default 10 s, at most engine.MaxQueueDelay.
	Hold time.Duration `default:"10s" min:"0"`
	// MaxAge is how long a trigger may be put off, beside the waits of its schedule, before it
	// is FAILED.
	MaxAge time.Duration `default:"72h" min:"0"`
	// MaxLost is how many claims of a trigger may run out, because whoever made the call died,
	// before it is FAILED.
	MaxLost int `default:"10" min:"1"`
	// Orphan is how long a message waits for its state row.
	Orphan time.Duration `default:"1m" min:"1s"`
	// PolicyAge is how old a caller's record may be when a call starts.
	PolicyAge time.Duration `default:"1s"`
	// Drain is how long a stop waits for what is under way.
	Drain time.Duration `default:"20s" min:"0"`
	// Breaker of each caller. Default: more than half of at least 10 calls in
	// 30 s failing opens it for 60 s; 3 probes.
	Breaker limit.BreakerConfig
	// Events are told what happened. Default: nothing.
	Events Events
	// Tracer makes a span of each call. Default: no spans; a trigger's traceparent
	// is sent all the same.
	Tracer *trace.Tracer
	// Logger gets failures of the stores, which are tried again.
	Logger *slog.Logger `default:"discard"`

	hit  func(string) // killpoint.Hit, or a test's
	post poster       // the egress's, or a test's
}

// poster makes one call.
type poster func(ctx context.Context, u *url.URL, header http.Header, body []byte) result

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
		return errors.New("trigger: Lease must be at least the egress's timeout and 5 s: a call must end within its claim")
	case c.Hold > engine.MaxQueueDelay:
		return errors.New("trigger: Hold must be at most the longest delay of a queue")
	}
	return setting.Err("trigger", &c)
}
