// Package app turns a configuration into a running process: it opens the
// engines, builds the stages, runs them and stops them in order. It is the only
// package that knows more than one engine, and the only place that wires.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/trace"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/users"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Node is one notifyd process.
type Node struct {
	cfg Config
	log *slog.Logger

	st            stores
	own           *embeddedEngines // nil: the engines are servers
	servers       *servers         // nil: they are this process's own
	owner         string           // names this process, unlike any other over the same stores
	producer      *log.Producer
	reader        *log.Reader
	admin         *log.Admin
	prefs         *users.Service
	cancels       *users.Cancels
	sealed        *users.SealedCallers // what st.callers is
	later         later
	feeds         *deadletter.Feeds
	archive       *archive.Archiver // nil: there is none
	intake        *intake.Service
	server        *server.Server
	verifier      *server.Verifier
	health        *worker.Health
	commit        *worker.Committer
	solo          *worker.Solo
	provs         *providers
	asked         *outcomehook.Asked // who is told of every end
	groups        groups
	receipts      *receipts
	metrics       *metrics.Metrics
	rates         *metrics.Rates
	tail          *deadletter.Tail[api.Event]
	closers       []func() error // of engines and clients of the log, in the order they were opened
	lock          *Lock          // of the data folder
	listener      net.Listener   // of the API; the server's once there is one
	adminListener net.Listener   // likewise; nil: none
	progress      func(step string)
	served        bool // the server has run, and closed its listeners
	removals      cluster.Removals
	finished      func(*notify.Envelope)
	taken         func(*notify.Call) // told of what stub providers accept; nil: nobody
	backingUp     sync.Mutex
	testing       chan struct{} // held by the test of a provider that runs
	about         About
	seams         seams
	jobs          *deadletter.Manager
	audit         *deadletter.AuditLog
	auditor       *conserve.Auditor
	deferred      *worker.DeferredCounter
	clock         *cluster.Clock // nil: there are no servers to compare with
	lanes         *cluster.Lanes
	campaigns     *cluster.CampaignHolds
	held          worker.Campaigns // as campaigns says
	circuits      *cluster.Circuits
	tasks         cluster.Tasks // set by RunAs
	tracer        *trace.Tracer // nil: no collector is configured
}

// seams are what only tests change.
type seams struct {
	storeFS    vfs.FS        // of the store
	historyAge time.Duration // when a history segment is sealed at the latest
	segment    int64         // bytes of a segment of the log
	gathered   func()        // between two parts of a backup
	provider   func(worker.Provider) worker.Provider
	cancels    func(engine.Cancels) engine.Cancels
	settle     time.Duration                            // between two looks of an audit
	recount    time.Duration                            // between two counts of deferred receivers
	traceQueue int                                      // spans that wait for the collector
	traceEvery time.Duration                            // how long a span waits for others
	servers    func(ctx context.Context, n *Node) error // in place of the servers: fills st but for what useServers does
}

// Option is something a process is given that no configuration says.
type Option func(*Node)

// WithListener makes the API use a listener that is open already, instead of
// opening api.listen. The node closes it.
func WithListener(l net.Listener) Option { return func(n *Node) { n.listener = l } }

// WithProgress calls f with each step of the start, before it is taken.
func WithProgress(f func(step string)) Option { return func(n *Node) { n.progress = f } }

// New opens the engines and builds everything; nothing runs before Run. Who
// does not call Run must call Close. Another process in the data folder is an
// error of code "data_dir_locked", before anything is opened.
func New(cfg Config, logger *slog.Logger, opts ...Option) (*Node, error) {
	return newNode(cfg, logger, seams{}, opts...)
}

func newNode(cfg Config, logger *slog.Logger, seams seams, opts ...Option) (_ *Node, err error) {
	n := &Node{removals: cluster.Removals{Log: logger}, testing: make(chan struct{}, 1), cfg: cfg, log: logger, tail: &deadletter.Tail[api.Event]{}, seams: seams, progress: func(string) {}}
	for _, o := range opts {
		o(n)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := n.open(); err != nil {
		return nil, err
	}
	if err := n.sealCallers(context.Background()); err != nil {
		return nil, err
	}
	n.metrics = metrics.New()
	n.metrics.Registry.MustRegister(&nodeCollector{n})
	n.rates = metrics.NewRates(n.metrics)
	if err := n.openTracer(); err != nil {
		return nil, err
	}
	if err := n.build(); err != nil {
		return nil, err
	}
	return n, nil
}

// build makes the stages.
func (n *Node) build() error {
	cfg := &n.cfg
	n.groups.shared, n.groups.admin, n.groups.log = n.own == nil, n.admin, n.log
	var err error
	if n.prefs, err = users.New(n.st.prefs, users.Config{Log: n.log}); err != nil {
		return err
	}
	cancels := n.st.cancels
	if n.seams.cancels != nil {
		cancels = n.seams.cancels(cancels)
	}
	if n.cancels, err = users.NewCancels(cancels, users.Config{Log: n.log}); err != nil {
		return err
	}
	n.asked = outcomehook.NewAsked(n.st.callers, n.log)
	if n.feeds, err = deadletter.OpenFeeds(context.Background(), n.st.letters, n.st.meta); err != nil {
		return err
	}
	if err = n.buildArchive(context.Background()); err != nil {
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
	n.commit = worker.NewCommitter(worker.CommitterConfig{Put: n.st.status.Put, Logger: n.log, Stalled: n.metrics.Stalled})
	if err := n.followOperators(context.Background()); err != nil {
		return err
	}
	for _, l := range notify.Lanes() {
		if err := n.lane(l); err != nil {
			return err
		}
	}
	if err := n.addGroup(log.GroupConfig{Group: deadletter.DeadLetterGroup}, &deadletter.Indexer{Store: n.later.teller.Watch(n.feeds), Logger: n.log, Decode: map[string]func([]byte) (engine.DeadLetter, error){trigger.TopicDLQ: triggerLetter}, Undecodable: func(topic string) { metrics.Add(n.metrics.Poison, 1, topic) }}); err != nil {
		return err
	}
	n.receipts = &receipts{
		provs: n.provs, publicURL: cfg.publicURL(), history: n.st.history, status: n.st.status, prefs: n.prefs, asked: n.asked,
		producer: n.producer, metrics: n.metrics, log: n.log,
	}
	if err := n.buildOutcomes(); err != nil {
		return err
	}
	if err := n.buildServers(); err != nil {
		return err
	}
	n.intake, err = intake.New(intake.Stores{
		Log: n.counted(), Partitions: n.st.partitions, Idem: n.st.idem, Campaigns: n.st.campaigns,
		Cancels: n.st.cancels, Spill: n.st.spill, Gate: n.st.gate, Later: n.tracedLater(), LaterGate: gate(n.st.laterGate),
		Clock: gate(n.clock.Err),
	}, intake.Config{
		MaxDelay: cfg.Timers.MaxDelay, Jitter: cfg.Timers.Jitter,
		Refuse: refusals(cfg.Intake.Refuse), SMS: categories(cfg.Intake.SMS), Keep: cfg.Intake.Idempotency,
		SpillBytes: int64(cfg.Intake.SpillMiB) << 20, Exclusive: n.st.exclusive, Events: n.metrics.Intake(), Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.deferred = &worker.DeferredCounter{Timers: n.st.timers, Shards: cfg.Timers.Shards, Pause: n.seams.recount, Logger: n.log}
	n.buildConservation()
	if err := n.buildJobs(); err != nil {
		return err
	}
	return n.buildServer()
}

// lane builds the two workers of a lane and their consumer groups.
func (n *Node) lane(l notify.Lane) error {
	set, prov := n.cfg.lane(l), n.provs.lane(l)
	if n.seams.provider != nil {
		prov = n.seams.provider(prov)
	}
	if n.taken != nil && n.cfg.Providers.Stub {
		prov = tellsTaken{prov, n.taken}
	}
	for _, role := range []worker.Role{worker.First, worker.Retries} {
		w := worker.New(worker.Config{
			Lane: l, Role: role, Order: n.cfg.order(l), Holds: n.st.holds, Window: set.Window, Ahead: set.Ahead, InFlight: set.InFlight,
			MaxRetries: n.cfg.Workers.MaxRetries, BatchAge: n.cfg.Workers.BatchAge, CallLimit: n.cfg.Workers.CallLimit,
			Routes: n.provs.routes(l.Channel), Log: n.producer, Status: n.st.status, Committer: n.commit,
			Prefs: preferences{n.prefs.Snapshot(), n.prefs}, Cancels: n.cancels, Parker: n.later.timers,
			Provider: prov, Health: n.health, Gate: n.lanes.Gate(l), Campaigns: &n.held, Partitions: n.st.partitions(l.Topic()), Solo: n.solo, Events: n.metrics.Worker(n.tail, n.observe), Logger: n.log, Seen: n.seen, Tells: n.asked.Tells, Tracer: n.tracer,
		})
		group := l.Group()
		if role == worker.Retries {
			group = l.RetryGroup()
		}
		if err := n.addGroup(log.GroupConfig{
			Group: group, MaxInFlight: worker.MaxRecords, MaxPollRecords: worker.MaxPoll, Poison: (&log.Poisoner{Log: n.producer}).Poison,
		}, w); err != nil {
			return err
		}
	}
	return nil
}

// addGroup makes a consumer group over the topics of its name.
func (n *Node) addGroup(c log.GroupConfig, h log.Handler) error {
	c.Conn, c.Topics, c.DrainTimeout, c.Events = n.st.conn, topicsOf[c.Group], n.cfg.Workers.Drain, n.metrics.Group(n.log)
	g, err := log.NewGroup(c, h)
	if err != nil {
		return err
	}
	n.groups.add(c.Group, g)
	return nil
}

// preferences is what workers see of them: the snapshot to read, the service to
// suppress and to know how old the snapshot is.
type preferences struct {
	*users.Snapshot
	*users.Service
}

// barrier returns the end of every first-attempt topic.
func (n *Node) barrier(ctx context.Context) (map[history.Part]int64, error) {
	ends, err := n.admin.EndOffsets(ctx, notify.FirstTopics()...)
	if err != nil {
		return nil, err
	}
	out := make(map[history.Part]int64, len(ends))
	for tp, at := range ends {
		out[history.Part(tp)] = at
	}
	return out, nil
}

// followOperators reads what operators hold back, before the workers are made.
func (n *Node) followOperators(ctx context.Context) (err error) {
	if n.lanes, err = cluster.OpenLanes(ctx, n.st.meta, n.log, n.lookAtLane); err != nil {
		return err
	}
	if n.campaigns, err = cluster.OpenCampaignHolds(ctx, n.st.meta, &n.held); err != nil {
		return err
	}
	n.circuits, err = cluster.OpenCircuits(ctx, cluster.CircuitConfig{
		Meta: n.st.meta, Routes: n.provs.routeNames(), Health: n.health, Callers: n.later.dispatcher, Alone: n.own != nil, Logger: n.log,
	})
	return err
}

// lookAtLane adds what this process knows of a lane.
func (n *Node) lookAtLane(lane notify.Lane, out *api.Lane) {
	for _, g := range n.groups.lags() {
		if g.Group == lane.Group() || g.Group == lane.RetryGroup() {
			out.Lag += g.Lag
			out.InFlight += g.InFlight
		}
	}
	out.Stands = n.stands(lane)
}

// seen reads the receivers of the envelope a row is about: from the log, or from
// the history when that was trimmed.
func (n *Node) seen(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error) {
	seen := map[uint32]struct{}{}
	var env notify.Envelope
	rec, err := n.reader.Fetch(ctx, log.TopicPartition{Topic: row.Topic, Partition: row.LogPart}, row.Offset)
	switch kind := notify.KindOf(err); {
	case err == nil:
		err = notify.DecodeEnvelope(rec.Value, &env)
	case kind == notify.KindGone, kind == notify.KindNotFound:
		var kept engine.Found
		kept, err = n.st.firstCopy(ctx, row.Key.Chunk, row.Digest)
		env = kept.Envelope
	}
	if err != nil {
		return nil, fmt.Errorf("the first copy of the chunk: %w", err)
	}
	rd := notify.ReadReceivers(env.Receivers)
	for r := (notify.Receiver{}); rd.Next(&r); {
		seen[r.Index] = struct{}{}
	}
	return seen, nil
}

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

// Addr is where the API listens.
func (n *Node) Addr() string { return n.server.Addr() }

// Admin is where metrics and pprof are; empty: nowhere.
func (n *Node) Admin() string { return n.server.AdminAddr() }

// Kafka is where the log listens: the embedded one, for readers, or the first of the
// brokers. Empty: the embedded log has no port.
func (n *Node) Kafka() string {
	if n.own != nil && !n.own.broker.HasPort() {
		return ""
	}
	return n.st.conn.Brokers[0]
}

// KafkaSocket is the unix socket of the embedded log.
func (n *Node) KafkaSocket() string { return filepath.Join(n.cfg.DataDir, SocketName) }

// Close frees what New opened, in the reverse order.
func (n *Node) Close() error {
	var errs []error
	switch {
	case n.server != nil && !n.served:
		errs = append(errs, n.server.Close())
	case n.server == nil:
		for _, l := range []net.Listener{n.listener, n.adminListener} {
			if l != nil {
				_ = l.Close() // the server may have, before it gave up
			}
		}
	}
	n.tracer.Close()
	for _, closeOne := range slices.Backward(n.closers) {
		errs = append(errs, closeOne())
	}
	return errors.Join(errs...)
}

// silently is a closer that cannot fail.
func silently(f func()) func() error {
	return func() error {
		f()
		return nil
	}
}
