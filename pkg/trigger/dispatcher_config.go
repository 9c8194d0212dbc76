package trigger

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
	"github.com/notifyd/notifyd/pkg/limit"
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

	// CallerInFlight is how many calls of a caller run at a time, unless its own
	// record says otherwise: its bulkhead. Default 100.
	CallerInFlight int
	// Share is how much of such a number this process may use, where others
	// dispatch beside it; asked with each call, under a lock: it must be quick.
	// Below 1 counts as 1. Default: all of it.
	Share func(limit int) int
	// MaxInFlight is how many calls run at a time in all. As they get scarce,
	// every caller's share shrinks; one call each is always allowed, so that
	// callers that hang cannot shut others out. Default 4,096.
	MaxInFlight int
	// MaxQueued is how many messages wait in memory for a place in all; one
	// caller's may be as many as are still free. Default 32,768.
	MaxQueued int
	// MaxQueuedBytes bounds the same in bytes. Default 64 MiB.
	MaxQueuedBytes int
	// Batch is how many messages are received, read and written at a time.
	// Default 256.
	Batch int
	// Visibility of a received message; it is extended while the message is
	// held. Default 30 s.
	Visibility time.Duration
	// Lease of a claim, at least the egress's Timeout and 5 s. After it anyone
	// may claim again. Default 30 s.
	Lease time.Duration
	// Skew is how far the clocks of two machines may be apart. Default 2 s.
	Skew time.Duration
	// Clock says why the clock of this process is off by more than it may be; nil: it is
	// not. While it is off no message is received and no row judged, claimed or called:
	// other dispatchers do that. Default: it is right.
	Clock func() error
	// Schedule are the waits between attempts of triggers without one of their
	// own. Default DefaultSchedule.
	Schedule []time.Duration
	// MaxRetryAfter is the longest Retry-After that is honoured. Default 1 h.
	MaxRetryAfter time.Duration
	// Hold is the longest wait that stays in the queue; longer ones become index
	// rows. Default 10 s, at most engine.MaxQueueDelay.
	Hold time.Duration
	// MaxAge is how long a trigger may be put off, beside the waits of its
	// schedule, before it is FAILED. Default 72 h.
	MaxAge time.Duration
	// MaxLost is how many claims of a trigger may run out, because whoever made
	// the call died, before it is FAILED. Default 10.
	MaxLost int
	// Orphan is how long a message waits for its state row. Default 1 min; not
	// less than the Service's.
	Orphan time.Duration
	// PolicyAge is how old a caller's record may be when a call starts. Default
	// 1 s; below 0: read for every batch and call.
	PolicyAge time.Duration
	// Drain is how long a stop waits for what is under way. Default 20 s.
	Drain time.Duration
	// Breaker of each caller. Default: more than half of at least 10 calls in
	// 30 s failing opens it for 60 s; 3 probes.
	Breaker limit.BreakerConfig
	// Events are told what happened. Default: nothing.
	Events Events
	// Tracer makes a span of each call. Default: no spans; a trigger's traceparent
	// is sent all the same.
	Tracer *trace.Tracer
	// Logger gets failures of the stores, which are tried again. Default:
	// discarded.
	Logger *slog.Logger

	hit  func(string) // fault.Hit, or a test's
	post poster       // the egress's, or a test's
}

// poster makes one call.
type poster func(ctx context.Context, u *url.URL, header http.Header, body []byte) result

func (c DispatcherConfig) withDefaults() DispatcherConfig {
	c.CallerInFlight = or(c.CallerInFlight, 100)
	if c.Share == nil {
		c.Share = func(limit int) int { return limit }
	}
	if c.Clock == nil {
		c.Clock = func() error { return nil }
	}
	c.MaxInFlight = or(c.MaxInFlight, 4096)
	c.MaxQueued = or(c.MaxQueued, 32_768)
	c.MaxQueuedBytes = or(c.MaxQueuedBytes, 64<<20)
	c.Batch = or(c.Batch, 256)
	c.Visibility = or(c.Visibility, 30*time.Second)
	c.Lease = or(c.Lease, 30*time.Second)
	c.Skew = or(c.Skew, 2*time.Second)
	if len(c.Schedule) == 0 {
		c.Schedule = DefaultSchedule
	}
	c.MaxRetryAfter = or(c.MaxRetryAfter, time.Hour)
	c.Hold = or(c.Hold, 10*time.Second)
	c.MaxAge = or(c.MaxAge, 72*time.Hour)
	c.MaxLost = or(c.MaxLost, 10)
	c.Orphan = or(c.Orphan, time.Minute)
	c.PolicyAge = or(c.PolicyAge, time.Second)
	c.Drain = or(c.Drain, 20*time.Second)
	if c.Census == nil {
		c.Census = NewCensus(c.Triggers, false)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.hit == nil {
		c.hit = fault.Hit
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
	case c.CallerInFlight < 1 || c.MaxInFlight < 1 || c.MaxQueued < 2 || c.MaxQueuedBytes < 2 || c.Batch < 1 || c.MaxLost < 1:
		return errors.New("trigger: CallerInFlight, MaxInFlight, MaxQueued, Batch and MaxLost must be above 0")
	case c.Lease < c.Egress.cfg.Timeout+5*time.Second:
		return errors.New("trigger: Lease must be at least the egress's timeout and 5 s: a call must end within its claim")
	case c.Visibility < time.Second || c.Skew < 0 || c.MaxRetryAfter < 0 || c.MaxAge < 0 || c.Orphan < time.Second || c.Drain < 0:
		return errors.New("trigger: Visibility and Orphan must be at least 1 s, and no duration below 0")
	case c.Hold < 0 || c.Hold > engine.MaxQueueDelay:
		return errors.New("trigger: Hold must be from 0 to the longest delay of a queue")
	}
	return nil
}
