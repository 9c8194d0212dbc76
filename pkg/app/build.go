package app

import (
	"context"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/pkg/worker"
)

// builder builds the stages of a process from its stores.
type builder struct{ *Node }

// build builds the stages. It starts nothing.
func (n builder) build() error {
	cfg := &n.cfg
	n.groups.shared, n.groups.admin, n.groups.log = n.embedded == nil, n.admin, n.log
	var err error
	if n.prefs, err = users.New(n.st.prefs, users.Config{Shares: n.embedded == nil, Log: n.log}); err != nil {
		return err
	}
	cancels := n.st.cancels
	if n.seams.cancels != nil {
		cancels = n.seams.cancels(cancels)
	}
	if n.cancels, err = users.NewCancels(cancels, users.Config{Log: n.log}); err != nil {
		return err
	}
	n.outcomeCallers = outcomehook.NewAsked(n.st.callers, n.log)
	if n.feeds, err = deadletter.OpenFeeds(context.Background(), n.st.letters, n.st.meta); err != nil {
		return err
	}
	if n.archive, err = openArchive(context.Background(), n.Node); err != nil {
		return err
	}
	if err = n.buildLater(); err != nil {
		return err
	}
	if n.provs, err = newProviders(cfg, n.st.limits, n.log); err != nil {
		return err
	}
	if n.health, err = worker.NewHealth(cfg.breaker(), n.log); err != nil {
		return err
	}
	n.solo = worker.NewSolo()
	// The committer makes this number of writes at the same time. With embedded engines one is enough,
	// because all waiting rows share the next fsync.
	lanes := 1
	if cfg.Engines == EnginesDistributed {
		lanes = 3
	}
	n.committer = worker.NewCommitter(worker.CommitterConfig{Put: n.st.status.Put, Lanes: lanes, Logger: n.log, Stalled: n.metrics.Stalled})
	if err := n.followOperators(context.Background()); err != nil {
		return err
	}
	calls := &n.parallel
	if n.embedded == nil {
		calls.divide(n.provs, func(topic string) int { return n.st.spread(topic).Most() })
	}
	for _, l := range notify.Lanes() {
		if err := n.buildLane(l, calls); err != nil {
			return err
		}
	}
	if err := n.addGroup(log.GroupConfig{Group: deadletter.DeadLetterGroup, FetchWait: quietFetch}, &deadletter.Indexer{Store: n.later.teller.Watch(n.feeds), Logger: n.log, Decode: map[string]func([]byte) (engine.DeadLetter, error){trigger.TopicDLQ: triggerLetter}, Undecodable: func(topic string) { metrics.Add(n.metrics.Poison, 1, topic) }}); err != nil {
		return err
	}
	n.receipts = &receipts{
		provs: n.provs, publicURL: cfg.publicURL(), history: n.st.history, status: n.st.status, prefs: n.prefs, outcomeCallers: n.outcomeCallers,
		producer: n.producer, metrics: n.metrics, log: n.log,
	}
	if err := n.buildOutcomes(); err != nil {
		return err
	}
	if n.servers != nil {
		err := n.addGroup(log.GroupConfig{
			Group: history.WritersGroup, FetchWait: quietFetch, CommitEvery: 100 * time.Millisecond, MaxPollRecords: 2000, MaxInFlight: 4000,
		}, history.Writer{To: n.servers.historian})
		if err != nil {
			return err
		}
	}
	n.admission = newAdmission(n.Node)
	n.intake, err = intake.New(intake.Stores{
		Log: n.intakeLog(), Partitions: func(topic string, base notify.Base) int { return n.st.spread(topic).PartsOf(base[:]) }, Idem: n.st.idem, Campaigns: n.st.campaigns,
		Cancels: n.st.cancels, Spill: n.st.spill, Gate: n.st.gate, Later: traceLater(n.tracer, n.later.schedules), LaterGate: gate(n.st.laterGate),
		Clock: gate(n.clock.Err), BulkGate: bulkGate(n.st.bulkGate),
	}, intake.Config{
		Admission: n.admission,
		MaxDelay:  cfg.Timers.MaxDelay, Jitter: cfg.Timers.Jitter,
		Refuse: refusals(cfg.Intake.Refuse), SMS: categories(cfg.Intake.SMS), Keep: cfg.Intake.Idempotency,
		SpillBytes: int64(cfg.Intake.SpillMiB) << 20, Exclusive: n.st.exclusive, Events: n.metrics.Intake(), Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.deferred = &worker.DeferredCounter{Timers: n.st.timers, Shards: n.shards.Now, Pause: n.seams.recount, Logger: n.log}
	n.auditor = newAuditor(n.Node)
	if err := n.buildJobs(); err != nil {
		return err
	}
	return n.buildServer()
}

// quietFetch is how long a fetch waits for records in a group whose records are rare or not urgent.
// A record that arrives ends the wait at once. But a partition that was just assigned, or whose
// pause has just ended, is read only after the running fetch has ended.
const quietFetch = time.Second

// buildLane builds the two workers of a lane, for first attempts and for retries. It also builds
// the consumer groups of the two workers.
func (n builder) buildLane(l notify.Lane, calls *callShare) error {
	set, prov := n.cfg.lane(l), n.provs.lane(l)
	if n.seams.provider != nil {
		prov = n.seams.provider(prov)
	}
	if n.onStubCall != nil && n.cfg.Providers.Stub {
		prov = observedProvider{prov, n.onStubCall}
	}
	for _, role := range []worker.Role{worker.First, worker.Retries} {
		group, hasty, opening, wait := l.RetryGroup(), (func() bool)(nil), (*worker.Opening)(nil), quietFetch
		if role == worker.First {
			group, opening, wait = l.Group(), openingOf(n.Node, l), 0 // 0: the default of the group
		}
		if opening != nil {
			hasty = opening.NeedsCommit
		}
		w := worker.New(worker.Config{
			Lane: l, Role: role, Order: n.cfg.order(l), Holds: n.st.holds, Window: set.Window, Ahead: set.Ahead, InFlight: set.InFlight,
			MaxRetries: n.cfg.Workers.MaxRetries, BatchAge: n.cfg.Workers.BatchAge, CallLimit: n.cfg.Workers.CallLimit,
			Routes: n.provs.routes(l.Channel), Log: n.producer, Status: n.st.status, Committer: n.committer,
			Prefs: preferences{n.prefs.Snapshot(), n.prefs}, Cancels: n.cancels, Parker: n.later.timers,
			Provider: prov, Health: n.health, Gate: n.lanes.Gate(l), Campaigns: &n.campaignHolds, Spread: func() notify.Spread { return n.st.spread(l.Topic()) }, Opening: opening, Solo: n.solo, Events: n.metrics.Worker(n.tail, n.observe), Logger: n.log, ChunkIndexes: n.firstCopyReceivers, HasOutcomesURL: n.outcomeCallers.Tells, Tracer: n.tracer,
		})
		c := log.GroupConfig{Group: group, FetchWait: wait, Hasty: hasty, MaxInFlight: worker.MaxRecords, MaxPollRecords: worker.MaxPoll, Poison: (&log.Poisoner{Log: n.producer}).Poison}
		if role == worker.First {
			calls.followLane(l, &c.Events)
		}
		if err := n.addGroup(c, w); err != nil {
			return err
		}
	}
	return nil
}

// addGroup makes the consumer group c.Group, which reads the topics in topicsOf[c.Group], and adds
// it to n.groups.
func (n builder) addGroup(c log.GroupConfig, h log.Handler) error {
	c.Owner, c.Counts = n.owner, func(topic string) []int { return n.st.spread(topic).Counts() }
	assigned, gone := c.Events.Assigned, c.Events.Gone
	c.Conn, c.Topics, c.DrainTimeout, c.Events = connOf(c.Group, n.st.conn), topicsOf[c.Group], n.cfg.Workers.Drain, n.metrics.Group(n.log)
	c.Events.Assigned, c.Events.Gone = assigned, gone
	g, err := log.NewGroup(c, h)
	if err != nil {
		return err
	}
	n.groups.add(c.Group, g)
	return nil
}

// preferences combines two types that workers need: the Snapshot finds profiles in memory, and the
// Service suppresses addresses and returns the age of the Snapshot.
type preferences struct {
	*users.Snapshot
	*users.Service
}

// followOperators reads which lanes and campaigns operators have paused, and which circuits they
// hold open or closed. It must run before the workers are built, so that no worker makes a call
// that an operator has stopped.
func (n builder) followOperators(ctx context.Context) (err error) {
	if n.lanes, err = cluster.OpenLanes(ctx, n.st.meta, n.log, n.lookAtLane); err != nil {
		return err
	}
	if n.campaigns, err = cluster.OpenCampaignHolds(ctx, n.st.meta, &n.campaignHolds); err != nil {
		return err
	}
	n.circuits, err = cluster.OpenCircuits(ctx, cluster.CircuitConfig{
		Meta: n.st.meta, Routes: n.provs.routeNames(), Health: n.health, Callers: n.later.dispatcher, SingleProcess: n.embedded != nil, Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.grants, err = cluster.OpenGrants(ctx, n.st.meta, n.st.id, n.log, cardWriter(n).worstProviders)
	n.cards = &cluster.Cards{Owner: n.owner, Own: cardWriter(n).buildCard}
	if n.servers != nil {
		n.cards.Beats = n.st.beats
		n.servers.tails = cluster.NewTails(n.tail, n.cfg.instance(), n.st.broadcast, n.servers.standings, n.cards)
	}
	return err
}

// refusals parses the setting intake.refuse: the categories that are refused on each channel.
// Config.validate has already checked the names.
func refusals(in map[string][]string) map[notify.Channel][]notify.Category {
	out := map[notify.Channel][]notify.Category{}
	for name, cats := range in {
		if ch, ok := notify.ParseChannel(name); ok {
			out[ch] = categories(cats)
		}
	}
	return out
}

func categories(names []string) (out []notify.Category) {
	for _, name := range names {
		if c, ok := notify.ParseCategory(strings.TrimSpace(name)); ok {
			out = append(out, c)
		}
	}
	return out
}
