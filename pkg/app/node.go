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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/kfake"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/ops"
	"github.com/notifyd/notifyd/pkg/prefs"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/stream"
	"github.com/notifyd/notifyd/pkg/trigger"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Roles of a process.
const (
	RoleAll       = "all"
	RoleAPI       = "api"
	RoleWorker    = "worker"
	RoleScheduler = "scheduler"
)

// Roles lists the roles a process may take.
var Roles = []string{RoleAll, RoleAPI, RoleWorker, RoleScheduler}

// Node is one notifyd process.
type Node struct {
	cfg Config
	log *slog.Logger

	store      *pebble.Store
	limits     *memory.Limits
	broker     *kfake.Broker
	producer   *stream.Producer
	reader     *stream.Reader
	admin      *stream.Admin
	history    *history.Store
	prefs      *prefs.Service
	cancels    *prefs.Cancels
	later      later
	feeds      *ops.Feeds
	intake     *intake.Service
	server     *server.Server
	verifier   *server.Verifier
	health     *worker.Health
	commit     *worker.Committer
	provs      *providers
	groups     []*stream.Group
	groupNames []string
	metrics    *metrics
	tail       *ops.Tail[api.Event]
	listener   net.Listener // of the API; the server's once there is one
	served     bool         // the server has run, and closed its listeners
	finished   func(*notify.Envelope)
	backingUp  sync.Mutex
	about      About
	seams      seams
}

// seams are what only tests change.
type seams struct {
	storeFS    vfs.FS        // of the store
	historyAge time.Duration // when a history segment is sealed at the latest
	segment    int64         // bytes of a segment of the log
	gathered   func()        // between two parts of a backup
	provider   func(worker.Provider) worker.Provider
}

// New opens the engines and builds everything; nothing runs before Run. Who
// does not call Run must call Close.
func New(cfg Config, log *slog.Logger) (*Node, error) { return newNode(cfg, log, seams{}) }

func newNode(cfg Config, log *slog.Logger, seams seams) (_ *Node, err error) {
	n := &Node{cfg: cfg, log: log, tail: &ops.Tail[api.Event]{}, seams: seams}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := n.open(); err != nil {
		return nil, err
	}
	n.metrics = newMetrics(n)
	if err := n.build(); err != nil {
		return nil, err
	}
	return n, nil
}

// MakeDataDir makes a folder that can be written to, or says
// notify.KindUnavailable with code "data_dir".
func MakeDataDir(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(dir, ".probe-*"); err == nil {
			err = errors.Join(probe.Close(), os.Remove(probe.Name()))
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil // full is not read-only: what is there can be delivered
	}
	if err != nil {
		return BadDataDir(dir, err)
	}
	return nil
}

// BadDataDir is the error of a folder that cannot be written to.
func BadDataDir(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot write to the data folder " + dir, Err: err}
}

// open opens the stores. Pebble first: its lock guards the folder.
func (n *Node) open() error {
	cfg := &n.cfg
	err := MakeDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	if n.store, err = pebble.Open(pebble.Config{Dir: filepath.Join(cfg.DataDir, "store"), FS: n.seams.storeFS, Logger: n.log}); err != nil {
		return err
	}
	// What a backup that was cut short left: links, which hold the room of files
	// that are removed.
	if err := os.RemoveAll(filepath.Join(cfg.DataDir, stagingName)); err != nil {
		return BadDataDir(cfg.DataDir, err)
	}
	n.limits = memory.NewLimits()
	ctx := context.Background()
	// Before anything is told where the API is: its port may be any.
	if n.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.API.Listen); err != nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "listen", Msg: "cannot listen on " + cfg.API.Listen, Err: err}
	}
	cfg.API.Listen = n.listener.Addr().String()
	id, err := n.store.Meta().GetMeta(ctx, "store_id")
	if err != nil {
		return err
	}
	durability := kfake.Fsync
	if !cfg.Log.Sync {
		durability = kfake.PageCache
	}
	port, err := portOf(cfg.Log.Listen)
	if err != nil {
		return err
	}
	// Before the log: what is sealed says how far the log reached.
	n.history, err = history.Open(history.Config{
		Dir: filepath.Join(cfg.DataDir, "history"), Retention: cfg.History.Retention, Barrier: n.barrier, Log: n.log,
		SegmentAge: n.seams.historyAge, SegmentBytes: segmentBytes(cfg),
	})
	if err != nil {
		return err
	}
	n.broker, err = kfake.Open(kfake.Config{
		Dir: filepath.Join(cfg.DataDir, "log"), Durability: durability, Port: port, Topics: topics(cfg), StoreID: string(id),
		CapBytes: int64(cfg.Log.CapMiB) << 20, MinFreeBytes: int64(cfg.Log.MinFreeMiB) << 20, Logger: n.log,
		SegmentBytes: n.seams.segment, Kept: n.kept(),
	})
	if err != nil {
		return err
	}
	for _, l := range n.broker.Losses() {
		if l.Kept < l.To && slices.Contains(firstTopics(), l.Topic) {
			n.history.Lost(l.After, l.Before)
		}
	}
	if len(id) == 0 {
		if err := n.store.Meta().PutMeta(ctx, "store_id", []byte(n.broker.StoreID())); err != nil {
			return err
		}
	}
	conn := n.conn()
	if n.producer, err = stream.NewProducer(stream.ProducerConfig{Conn: conn, Linger: linger(cfg.Log.Linger), AppendTimeout: 20 * time.Second, Appended: n.broker.Appended}); err != nil {
		return err
	}
	if n.reader, err = stream.NewReader(conn); err != nil {
		return err
	}
	n.admin, err = stream.NewAdmin(stream.AdminConfig{Conn: conn})
	return err
}

// kept is, of each partition, the offset below which the history is sealed.
func (n *Node) kept() map[string]map[int32]int64 {
	out := map[string]map[int32]int64{}
	for p, at := range n.history.Sealed() {
		if out[p.Topic] == nil {
			out[p.Topic] = map[int32]int64{}
		}
		out[p.Topic][p.Partition] = at
	}
	return out
}

// segmentBytes keeps what history has not sealed, and the log therefore cannot
// trim, below half of the log's cap: else a log at its cap would stay there until
// the tails are old enough to be sealed.
func segmentBytes(cfg *Config) int64 {
	tails := 0
	for _, l := range notify.Lanes() {
		tails += cfg.partitions(l.Channel)
	}
	return max(min(64<<20, int64(cfg.Log.CapMiB)<<20/int64(2*max(tails, 1))), 64<<10)
}

// linger keeps the meaning "0: none" that a configuration file has.
func linger(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (n *Node) conn() stream.Conn {
	return stream.Conn{Brokers: []string{n.broker.Addr()}, Local: n.broker.Local(), Logger: n.log}
}

// topics of the embedded log with their partition counts.
func topics(cfg *Config) map[string]int {
	ts := map[string]int{notify.TopicFailed: 1, notify.TopicPoison: 1, trigger.TopicDLQ: 1}
	for _, l := range notify.Lanes() {
		ts[l.Topic()] = cfg.partitions(l.Channel)
		ts[l.DLQTopic()] = cfg.partitions(l.Channel)
	}
	return ts
}

// build makes the stages.
func (n *Node) build() error {
	cfg := &n.cfg
	var err error
	if n.prefs, err = prefs.New(n.store.Prefs(), prefs.Config{Log: n.log}); err != nil {
		return err
	}
	if n.cancels, err = prefs.NewCancels(n.store.Cancels(), prefs.Config{Log: n.log}); err != nil {
		return err
	}
	if n.feeds, err = ops.OpenFeeds(context.Background(), n.store.DeadLetters(), n.store.Meta()); err != nil {
		return err
	}
	if err = n.buildLater(); err != nil {
		return err
	}
	if n.provs, err = newProviders(cfg, n.limits, n.log); err != nil {
		return err
	}
	if n.health, err = worker.NewHealth(cfg.breaker(), n.log); err != nil {
		return err
	}
	n.commit = worker.NewCommitter(worker.CommitterConfig{Put: n.store.Status().Put, Logger: n.log, Stalled: n.metrics.stalled})
	for _, l := range notify.Lanes() {
		if err := n.lane(l); err != nil {
			return err
		}
	}
	index, err := stream.NewGroup(stream.GroupConfig{
		Conn: n.conn(), Group: ops.DeadLetterGroup, Topics: []string{notify.TopicFailed}, DrainTimeout: n.cfg.Workers.Drain,
		Events: n.metrics.group(n.log),
	}, &ops.Indexer{Store: n.feeds, Logger: n.log, Undecodable: func(topic string) { add(n.metrics.poison, 1, topic) }})
	if err != nil {
		return err
	}
	n.groups, n.groupNames = append(n.groups, index), append(n.groupNames, ops.DeadLetterGroup)
	n.intake, err = intake.New(intake.Stores{
		Log: n.counted(), Partitions: n.broker.Partitions, Idem: n.store.Idem(), Campaigns: n.store.Campaigns(),
		Cancels: n.store.Cancels(), Spill: n.store.Spill(), Gate: n.broker.Guard(), Later: n.later.schedules, LaterGate: disk(n.broker.Guard().Disk),
	}, intake.Config{
		MaxDelay: cfg.Timers.MaxDelay, Jitter: cfg.Timers.Jitter,
		Refuse: refusals(cfg.Intake.Refuse), SMS: categories(cfg.Intake.SMS), Keep: cfg.Intake.Idempotency,
		SpillBytes: int64(cfg.Intake.SpillMiB) << 20, Keys: intake.ExclusiveKeys, Events: n.metrics.intake(), Logger: n.log,
	})
	if err != nil {
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
	for _, role := range []worker.Role{worker.First, worker.Retries} {
		w := worker.New(worker.Config{
			Lane: l, Role: role, Order: n.cfg.order(l), Holds: n.store.Holds(), Window: set.Window, Ahead: set.Ahead, InFlight: set.InFlight,
			MaxRetries: n.cfg.Workers.MaxRetries, BatchAge: n.cfg.Workers.BatchAge, CallLimit: n.cfg.Workers.CallLimit,
			Routes: n.provs.routes(l.Channel), Log: n.producer, Status: n.store.Status(), Committer: n.commit,
			Prefs: preferences{n.prefs.Snapshot(), n.prefs}, Cancels: n.cancels, Parker: n.later.timers,
			Provider: prov, Health: n.health, Events: n.metrics.worker(n.tail, n.observe), Logger: n.log, Seen: n.seen,
		})
		topic, group := l.Topic(), l.Group()
		if role == worker.Retries {
			topic, group = l.DLQTopic(), l.RetryGroup()
		}
		g, err := stream.NewGroup(stream.GroupConfig{
			Conn: n.conn(), Group: group, Topics: []string{topic}, DrainTimeout: n.cfg.Workers.Drain,
			MaxInFlight: worker.MaxRecords, MaxPollRecords: worker.MaxPoll,
			Poison: (&stream.Poisoner{Log: n.producer}).Poison, Events: n.metrics.group(n.log),
		}, w)
		if err != nil {
			return err
		}
		n.groups, n.groupNames = append(n.groups, g), append(n.groupNames, group)
	}
	return nil
}

// preferences is what workers see of them: the snapshot to read, the service to
// suppress and to know how old the snapshot is.
type preferences struct {
	*prefs.Snapshot
	*prefs.Service
}

// barrier returns the end of every first-attempt topic.
func (n *Node) barrier(ctx context.Context) (map[history.Part]int64, error) {
	ends, err := n.admin.EndOffsets(ctx, firstTopics()...)
	if err != nil {
		return nil, err
	}
	out := make(map[history.Part]int64, len(ends))
	for tp, at := range ends {
		out[history.Part(tp)] = at
	}
	return out, nil
}

func firstTopics() (ts []string) {
	for _, l := range notify.Lanes() {
		ts = append(ts, l.Topic())
	}
	return ts
}

// seen reads the receivers of the envelope a row is about.
func (n *Node) seen(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error) {
	seen := map[uint32]struct{}{}
	rec, err := n.reader.Fetch(ctx, stream.TopicPartition{Topic: row.Topic, Partition: row.LogPart}, row.Offset)
	if err != nil {
		return nil, fmt.Errorf("the first copy of the chunk: %w", err)
	}
	var env notify.Envelope
	if err := notify.DecodeEnvelope(rec.Value, &env); err != nil {
		return nil, err
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

// Addr is where the API listens, Kafka where the embedded log does.
func (n *Node) Addr() string { return n.server.Addr() }

// Admin is where metrics and pprof are; empty: nowhere.
func (n *Node) Admin() string { return n.server.AdminAddr() }

// Kafka is where the embedded log listens.
func (n *Node) Kafka() string { return n.broker.Addr() }

// Close frees what New opened, in the reverse order.
func (n *Node) Close() error {
	var errs []error
	switch {
	case n.server != nil && !n.served:
		errs = append(errs, n.server.Close())
	case n.server == nil && n.listener != nil:
		_ = n.listener.Close() // the server may have, before it gave up
	}
	if n.history != nil {
		errs = append(errs, n.history.Close())
	}
	if n.admin != nil {
		n.admin.Close()
	}
	if n.reader != nil {
		n.reader.Close()
	}
	if n.producer != nil {
		n.producer.Close()
	}
	if n.broker != nil {
		errs = append(errs, n.broker.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(errs...)
}
