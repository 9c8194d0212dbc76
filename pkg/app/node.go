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
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/metrics"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/outcomehook"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/trace"
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
	shards        *cluster.Spread      // over which timers are spread
	later         later
	feeds         *deadletter.Feeds
	archive       *archive.Archiver // nil: there is none
	intake        *intake.Service
	admission     *limit.Admission
	server        *server.Server
	verifier      *server.Verifier
	health        *worker.Health
	commit        *worker.Committer
	solo          *worker.Solo
	provs         *providers
	parallel      callShare          // of providers.twilio.parallel
	asked         *outcomehook.Asked // who is told of every end
	groups        groups
	receipts      *receipts
	metrics       *metrics.Metrics
	rates         *metrics.Rates
	tail          *deadletter.Tail // the outcomes of this process
	closers       []func() error   // of engines and clients of the log, in the order they were opened
	lock          *Lock            // of the data folder
	listener      net.Listener     // of the API; the server's once there is one
	adminListener net.Listener     // likewise; nil: none
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
	grants        *cluster.Grants
	cards         *cluster.Cards // what all processes tell operators of themselves
	started       time.Time
	draining      atomic.Bool
	tasks         cluster.Tasks // set by RunAs
	roles         []string      // of tasks
	tracer        *trace.Tracer // nil: no collector is configured
}

// seams are what only tests change.
type seams struct {
	storeFS    vfs.FS        // of the store
	historyAge time.Duration // when a history segment is sealed at the latest
	segment    int64         // bytes of a segment of the log
	gathered   func()        // between two parts of a backup
	provider   func(worker.Provider) worker.Provider
	cancels    func(users.CancelStore) users.CancelStore
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
	n := &Node{removals: cluster.Removals{Log: logger}, testing: make(chan struct{}, 1), cfg: cfg, log: logger, tail: &deadletter.Tail{}, started: time.Now(), seams: seams, progress: func(string) {}}
	for _, o := range opts {
		o(n)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := (opener{n}).open(); err != nil {
		return nil, err
	}
	if err := (sealer{n}).sealCallers(context.Background()); err != nil {
		return nil, err
	}
	n.metrics = metrics.New()
	n.metrics.Registry.MustRegister(&nodeCollector{n})
	n.rates = metrics.NewRates(n.metrics)
	if n.tracer, err = newTracer(n); err != nil {
		return nil, err
	}
	if err := (builder{n}).build(); err != nil {
		return nil, err
	}
	return n, nil
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

// SeedCaller gives a caller callback URLs and a signing secret where it lacks
// them. What it gave at an earlier start makes room for what it gives now, for
// ports may be others; what somebody has set or taken away since stays so. Call
// it before Run.
func (n *Node) SeedCaller(ctx context.Context, id string, urls []string, secret string) error {
	return seedCaller(ctx, n.st.meta, n.st.callers, id, urls, secret)
}

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
