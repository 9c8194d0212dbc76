// Package app turns a configuration into a running process. It opens the engines and builds the stages
// that use them, such as the intake, the timer engine, the dispatcher and the workers. It runs the
// stages and stops them in order. It is the only package that knows more than one engine, and the only
// package that connects stages with each other.
//
// Load reads the configuration (load.go, validate.go). New opens the engines (open.go; embedded.go, or
// distributed.go and openservers.go) and sets the fields of Node.st to them. Then New builds the stages
// (build.go, later.go, serve.go). Run runs the stages in three rings and stops the rings from the
// outside to the inside (run.go). Migrate, Backup and RestoreCluster are for operators.
//
// New fails if the data folder is in use or damaged, if a server is not migrated, or if the
// configuration is wrong. Later, the first part that fails ends the process.
//
// Start reading at Node, New and RunAs.
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

	st             stores
	embedded       *embeddedEngines // nil: the engines are servers
	servers        *servers         // nil: the engines are embedded
	owner          string           // unique name of this process among all processes with the same stores
	producer       *log.Producer
	reader         *log.Reader
	admin          *log.Admin
	prefs          *users.Service
	cancels        *users.Cancels
	sealed         *users.SealedCallers // the same value as st.callers
	shards         *cluster.Spread      // the shards over which timers are spread
	later          later
	feeds          *deadletter.Feeds
	archive        *archive.Archiver // nil: there is no archive
	intake         *intake.Service
	admission      *limit.Admission
	server         *server.Server
	verifier       *server.Verifier
	health         *worker.Health
	committer      *worker.Committer
	solo           *worker.Solo
	provs          *providers
	parallel       callShare          // this process's share of providers.twilio.parallel
	outcomeCallers *outcomehook.Asked // the callers that want to be notified of every outcome
	groups         groups
	receipts       *receipts
	metrics        *metrics.Metrics
	rates          *metrics.Rates
	tail           *deadletter.Tail // outcomes of this process
	closers        []func() error   // close functions of engines and log clients, in the order in which they were opened
	lock           *Lock            // lock of the data folder
	listener       net.Listener     // listener of the API; once the field server is set, the server owns the listener
	adminListener  net.Listener     // listener of the admin routes, with the same owner as the field listener; nil: no admin routes
	progress       func(step string)
	served         bool // true: Run has started, so the server closes its listeners itself
	removals       cluster.Removals
	onFinished     func(*notify.Envelope)
	onStubCall     func(*notify.Call) // called with each call that a stub provider accepts; may be nil
	backingUp      sync.Mutex
	testTurn       chan struct{} // capacity 1; a running test of a provider holds the slot
	about          About
	seams          seams
	jobs           *deadletter.Manager
	audit          *deadletter.AuditLog
	auditor        *conserve.Auditor
	deferred       *worker.DeferredCounter
	clock          *cluster.Clock // nil: there are no servers whose clocks can be compared
	lanes          *cluster.Lanes
	campaigns      *cluster.CampaignHolds
	campaignHolds  worker.Campaigns // the holds of campaigns in the form that workers use; the field campaigns updates them
	circuits       *cluster.Circuits
	grants         *cluster.Grants
	cards          *cluster.Cards // the reports of all processes about themselves
	started        time.Time
	draining       atomic.Bool
	tasks          cluster.Tasks // set by RunAs, before any part runs
	roles          []string      // the roles that RunAs was given
	tracer         *trace.Tracer // nil: no collector is configured
}

// seams holds hooks and settings that only tests change.
type seams struct {
	storeFS    vfs.FS        // file system of the store
	historyAge time.Duration // longest time until a history segment is sealed
	segment    int64         // size of a segment of the log, bytes
	gathered   func()        // called between two parts of a backup
	provider   func(worker.Provider) worker.Provider
	cancels    func(users.CancelStore) users.CancelStore
	settle     time.Duration                            // time between two reads of an audit
	recount    time.Duration                            // time between two counts of deferred receivers
	traceQueue int                                      // maximum number of spans that wait for the collector
	traceEvery time.Duration                            // how long a span waits for other spans before it is sent
	servers    func(ctx context.Context, n *Node) error // replaces openServers: sets the fields of st that useServers does not set
}

// Option changes something of a node that is not part of the configuration.
type Option func(*Node)

// WithListener makes the API use an open listener instead of opening api.listen. The node closes the
// listener, also if New fails.
func WithListener(l net.Listener) Option { return func(n *Node) { n.listener = l } }

// WithProgress makes New call f before each step of the start, with the name of the step.
func WithProgress(f func(step string)) Option { return func(n *Node) { n.progress = f } }

// New opens the engines and builds the stages. The stages do not run before Run. A caller that does not
// call Run must call Close. If another process uses the data folder, New returns the error
// "data_dir_locked" before it opens any engine.
func New(cfg Config, logger *slog.Logger, opts ...Option) (*Node, error) {
	return newNode(cfg, logger, seams{}, opts...)
}

func newNode(cfg Config, logger *slog.Logger, seams seams, opts ...Option) (_ *Node, err error) {
	n := &Node{removals: cluster.Removals{Log: logger}, testTurn: make(chan struct{}, 1), cfg: cfg, log: logger, tail: &deadletter.Tail{}, started: time.Now(), seams: seams, progress: func(string) {}}
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

// firstTopicEnds returns the end of every partition of the first-attempt topics.
func (n *Node) firstTopicEnds(ctx context.Context) (map[history.Part]int64, error) {
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

// firstCopyReceivers returns the indexes of the receivers of the envelope to which a row belongs. It
// reads the envelope from the log. If the log was trimmed, it reads the envelope from the history.
func (n *Node) firstCopyReceivers(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error) {
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
		return nil, fmt.Errorf("the first copy of the chunk cannot be read: %w", err)
	}
	rd := notify.ReadReceivers(env.Receivers)
	for r := (notify.Receiver{}); rd.Next(&r); {
		seen[r.Index] = struct{}{}
	}
	return seen, nil
}

// Addr returns the address at which the API listens.
func (n *Node) Addr() string { return n.server.Addr() }

// Admin returns the address of metrics and pprof, or "" if they are turned off.
func (n *Node) Admin() string { return n.server.AdminAddr() }

// Kafka returns the address of the log. With the embedded log it is the address of the port for
// readers, or "" if the log has no port. With servers it is the address of the first broker.
func (n *Node) Kafka() string {
	if n.embedded != nil && !n.embedded.broker.HasPort() {
		return ""
	}
	return n.st.conn.Brokers[0]
}

// KafkaSocket returns the path of the embedded log's unix socket.
func (n *Node) KafkaSocket() string { return filepath.Join(n.cfg.DataDir, SocketName) }

// SeedCaller gives callback URLs and a signing secret to a caller that has none. It replaces the
// values that it gave at an earlier start, because the ports may have changed. It does not change
// values that an operator has set. If an operator removed a value, SeedCaller does not add the
// value again. Call SeedCaller before Run.
func (n *Node) SeedCaller(ctx context.Context, id string, urls []string, secret string) error {
	return seedCaller(ctx, n.st.meta, n.st.callers, id, urls, secret)
}

// Close closes everything that New opened, in the reverse order.
func (n *Node) Close() error {
	var errs []error
	switch {
	case n.server != nil && !n.served:
		errs = append(errs, n.server.Close())
	case n.server == nil:
		for _, l := range []net.Listener{n.listener, n.adminListener} {
			if l != nil {
				_ = l.Close() // server.New may have closed it already, before it failed
			}
		}
	}
	n.tracer.Close()
	for _, closeOne := range slices.Backward(n.closers) {
		errs = append(errs, closeOne())
	}
	return errors.Join(errs...)
}

// silently returns a close function that calls f and always returns nil.
func silently(f func()) func() error {
	return func() error {
		f()
		return nil
	}
}
