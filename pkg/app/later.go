package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/users"
)

// later holds the stages of delayed work: the timer engine, scheduled notifications, and triggers with
// their dispatcher.
type later struct {
	timers     *timer.Engine
	schedules  *schedule.Service
	egress     *trigger.Egress
	triggers   *trigger.Service
	dispatcher *trigger.Dispatcher
	mender     trigger.Mender
	census     *trigger.Census
	queue      engine.Queue
	teller     *outcomehook.Teller // notifies callers of failures, with triggers that call their outcomes URLs
}

// triggerQueue is the name of the delay queue of triggers. A message that was received
// triggerReceives times counts as dead. reconcileEvery is the time between two repairs of triggers.
const (
	triggerQueue    = "triggers"
	triggerReceives = 1000 // a trigger ends by its own rules long before this number
	reconcileEvery  = time.Hour
)

// buildLater builds n.later. With embedded engines one process owns every shard. So it needs no lease
// and no queue of near timers (see nearQueue).
func (n builder) buildLater() error {
	cfg := &n.cfg
	l := &n.later
	var err error
	if n.shards, err = openShards(context.Background(), n.st.meta, cfg, n.log); err != nil {
		return err
	}
	queue, err := n.st.queue(triggerQueue, triggerReceives)
	if err != nil {
		return err
	}
	l.queue = queue
	toLog, toQueue, toBacklog := timer.ToLog(n.producer), trigger.ToQueue(l.queue), trigger.ToBacklog(l.queue, trigger.BacklogPace{Share: func() float64 { return l.timers.Share() }})
	tc := timer.Config{
		Store: n.st.timers, Schedules: n.st.schedules, Cold: n.st.cold, Lease: n.st.lease, Heartbeats: n.st.beats,
		Owner: n.owner, Spread: n.shards.Now, CatchUpRate: cfg.Timers.CatchUpRate, Logger: n.log,
		Publish:   traceRelease(n.tracer, func(ctx context.Context, ts []engine.Timer) error { return routeDueTimers(ctx, ts, toLog, toQueue) }),
		CaughtUp:  traceRelease(n.tracer, func(ctx context.Context, ts []engine.Timer) error { return routeDueTimers(ctx, ts, toLog, toBacklog) }),
		Cancelled: cancelledTimers(n.producer),
		Events:    timer.Events{Released: n.metrics.Released},
	}
	share := func(limit int) int { return limit }
	if n.servers != nil {
		tc.ClockOffset, tc.MaxClockOffset = n.clock.Offset, cluster.MaxClockOffset
		if tc.Queue, err = n.st.queue(nearQueue, nearReceives); err != nil {
			return err
		}
		n.servers.dispatchers = cluster.NewPeers(n.st.beats, "dispatchers", n.owner)
		share = n.servers.dispatchers.Share
	}
	l.timers = timer.New(tc)
	l.schedules = schedule.New(schedule.Config{
		Schedules: n.st.schedules, Timers: n.st.timers, Cold: n.st.cold, Shards: n.shards.Now,
		Park: l.timers.Park, Store: l.timers.ParkScheduled, Gate: n.st.laterGate,
		Forget: n.st.schedules.ForgetTimers,
		Clock:  n.clock.Err, Ended: cancelledTimers(n.producer), Guard: tc.Guard(), MaxDelay: cfg.Timers.MaxDelay, Logger: n.log,
	})
	policy, err := cfg.egress()
	if err != nil {
		return err
	}
	if l.egress, err = trigger.NewEgress(trigger.EgressConfig{Policy: policy, Timeout: cfg.Triggers.Timeout}); err != nil {
		return err
	}
	var rows trigger.Later = parker{l.timers}
	if n.tracer != nil {
		rows = tracedRows{rows, n.tracer}
	}
	callers := n.st.callers
	if n.embedded == nil { // this cache saves reads, and works while PostgreSQL is unavailable for a short time
		callers = users.NewCallers(callers)
	}
	l.census = trigger.NewCensus(n.st.triggers, n.servers != nil)
	events := n.metrics.Triggers()
	if l.triggers, err = trigger.New(trigger.Config{
		Triggers: n.st.triggers, Callers: callers, Idem: n.st.idem, Later: rows, Egress: l.egress, Census: l.census,
		MaxDelay: cfg.Timers.MaxDelay, Jitter: cfg.Timers.Jitter, MaxPending: cfg.Triggers.MaxPending, Keep: cfg.Intake.Idempotency, Exclusive: n.st.exclusive,
		Gate: n.st.laterGate, Events: events, Logger: n.log,
	}); err != nil {
		return err
	}
	if l.dispatcher, err = trigger.NewDispatcher(trigger.DispatcherConfig{
		Triggers: n.st.triggers, Callers: callers, Queue: l.queue, Later: rows, Dead: deadTriggers{n.producer},
		Egress: l.egress, Census: l.census, Clock: n.clock.Err, CallerInFlight: cfg.Triggers.CallerInFlight, Share: share, MaxInFlight: cfg.Triggers.InFlight,
		Drain: cfg.Workers.Drain, Events: events, Logger: n.log, Tracer: n.tracer,
	}); err != nil {
		return err
	}
	l.mender = trigger.Mender{Triggers: n.st.triggers, Later: rows, Dead: deadTriggers{n.producer}, Events: events}
	l.teller, err = outcomehook.New(outcomehook.Config{
		Letters: n.feeds, Callers: n.st.callers, Meta: n.st.meta, Triggers: l.triggers, Logger: n.log,
		Told: func(k int) { n.metrics.OutcomesTold.Add(float64(k)) }, Refused: func(code string) { metrics.Add(n.metrics.OutcomesRefused, 1, code) },
	})
	return err
}

// gate is a function that implements the interface of the intake's gates.
type gate func() error

func (g gate) Err() error { return g() }

// shardsMeta is the name of the row of engine.Meta with the number of timer shards.
const shardsMeta = "timer_shards"

// openShards reads the number of shards over which the timers of a store are spread. At the first start
// of the store it stores the configured number. At later starts the configuration may hold the stored
// number or an earlier number. With servers it may also hold a higher number, if Migrate has not raised
// the number yet. For any other number openShards returns bad_config.
func openShards(ctx context.Context, meta engine.Meta, cfg *Config, logger *slog.Logger) (*cluster.Spread, error) {
	want, alone := cfg.Timers.Shards, cfg.Engines != EnginesDistributed
	shards, err := cluster.OpenSpread(ctx, meta, shardsMeta, want, alone)
	if err != nil {
		return nil, err
	}
	stored, err := shards.Now()
	switch {
	case err != nil || stored.HadParts(want):
		return shards, err
	case !alone && want > stored.Most():
		logger.Warn("timers are spread over fewer shards than configured; notifyd migrate up raises their number", "timers.shards", want, "shards", stored.Most())
		return shards, nil
	default:
		return nil, otherShards(want, stored.Most())
	}
}

// otherShards returns the error for a configured number of shards that the store has never used.
func otherShards(want, stored int) error {
	return notify.Invalid("bad_config", "timers.shards", fmt.Sprintf("is %d, but the timers of this store are spread over %d shards: set it to %d", want, stored, stored))
}

// routeDueTimers calls toQueue with the due timers of triggers, and toLog with all other due
// timers. These include timers of an unknown kind, which toLog must put aside.
func routeDueTimers(ctx context.Context, ts []engine.Timer, toLog, toQueue func(context.Context, []engine.Timer) error) error {
	isTrigger := func(t engine.Timer) bool { return t.Kind == trigger.TimerKind }
	if !slices.ContainsFunc(ts, isTrigger) {
		return toLog(ctx, ts)
	}
	var envelopes, triggers []engine.Timer
	for _, t := range ts {
		if isTrigger(t) {
			triggers = append(triggers, t)
		} else {
			envelopes = append(envelopes, t)
		}
	}
	if err := toQueue(ctx, triggers); err != nil || len(envelopes) == 0 {
		return err
	}
	return toLog(ctx, envelopes)
}

// cancelledTimers returns a function that records the outcome of timers whose schedule was cancelled.
// It appends the envelopes of the timers to the log, marked as cancelled. For such an envelope a worker
// writes CANCELLED and makes no call. So cancelled notifications get their outcome as all others do,
// and status, history and counts need no code for schedules.
func cancelledTimers(producer *log.Producer) func(context.Context, []engine.Timer) error {
	return func(ctx context.Context, ts []engine.Timer) error {
		recs := make([]log.Record, 0, len(ts))
		for i := range ts {
			var e notify.Envelope
			if err := notify.DecodeEnvelope(ts[i].Payload, &e); err != nil {
				return err
			}
			e.Cause = notify.CauseCancelled
			recs = append(recs, log.Record{Topic: ts[i].Target, Partition: int32(e.Chunk.Partition), Key: e.LogKey(), Value: notify.AppendEnvelope(nil, &e)})
		}
		return producer.Append(ctx, recs)
	}
}

// parker stores the timers of triggers, which package trigger calls index rows.
type parker struct{ timers *timer.Engine }

func (p parker) Put(ctx context.Context, ts []engine.Timer) error { return p.timers.Park(ctx, ts) }

// deadTriggers appends records to the topic triggers-dlq.
type deadTriggers struct{ log timer.Log }

func (d deadTriggers) Append(ctx context.Context, rs []trigger.DeadRecord) error {
	recs := make([]log.Record, len(rs))
	for i, r := range rs {
		recs[i] = log.Record{Topic: trigger.TopicDLQ, Partition: 0, Key: r.Key, Value: r.Value}
	}
	return d.log.Append(ctx, recs)
}

// reconcile repairs triggers that would never be called, because their timer and their message are
// lost. It does so every hour.
func (n runner) reconcile(ctx context.Context) error {
	return n.auditor.MendTriggers(ctx, reconcileEvery, func(found, mended map[string]int, err error) {
		n.metrics.Reconciled(found, err)
		switch {
		case err != nil:
			n.log.Warn("the repair of triggers failed; the next repair tries again", "err", err)
		case len(found) > 0:
			n.log.Warn("reconcile found triggers that no timer or message would have woken", "found", found, "repaired", mended)
		}
	})
}

func (l *later) checkURL(ctx context.Context, raw string) (api.URLVerdict, error) {
	v, err := l.egress.CheckURL(ctx, raw)
	if err != nil {
		return api.URLVerdict{}, err
	}
	out := api.URLVerdict{URL: v.URL, Host: v.Host, Port: int(v.Port), Allowed: v.Allowed, Addresses: []api.AddressVerdict{}}
	for _, a := range v.Addresses {
		out.Addresses = append(out.Addresses, api.AddressVerdict{Address: a.Address.String(), Allowed: a.Allowed, Why: a.Why})
	}
	return out, nil
}
