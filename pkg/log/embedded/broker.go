package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Broker is the embedded log. It may be used from any goroutine.
type Broker struct {
	cfg     Config
	cluster *kfake.Cluster
	addr    string
	id      string
	counts  map[string]int    // partitions of the configured topics
	heights map[place]*height // of the configured topics
	guard   *Guard
	watch   *watcher
	found   checked
	cuts    []Truncation
	noting  sync.Mutex // held while ends are written, and while a trim makes true what it wrote
	ends    ends       // as written down last

	trimming sync.Mutex // held while records are removed, or must not be
	door     *door      // nil: Virtual
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// Truncation is a partition that the broker cut when it opened, because what followed
// was no batch to it.
type Truncation struct {
	Topic     string
	Partition int32
	To, End   int64 // the offset behind its last record, now and when it was checked
}

func (t Truncation) String() string {
	return fmt.Sprintf("%s/%d: the broker cut the records from offset %d to %d", t.Topic, t.Partition, t.To, t.End)
}

// Open starts the broker on what Dir holds. It serves from its return on; Run
// keeps its guards up to date. It refuses a folder that does not carry
// Config.StoreID (see there) with an error of code "store_id_mismatch".
func Open(cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, id: cfg.StoreID}
	b.guard = newGuard(cfg)
	b.watch = newWatcher(cfg, b.guard)
	if cfg.Dir == "" {
		if err := b.startBehind(cfg.Port); err != nil {
			return nil, err
		}
		return b, nil
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("kfake: %w", err)
	}
	var err error
	if b.id, err = storeID(cfg.Dir, cfg.StoreID); err != nil {
		return nil, err
	}
	if err := cutTails(cfg.Dir, cfg.Logger); err != nil {
		return nil, err
	}
	if b.found, err = check(cfg); err != nil {
		return nil, err
	}
	if err := keepState(cfg, &b.found.ends); err != nil {
		return nil, fmt.Errorf("kfake: %w", err)
	}
	b.ends = b.found.ends
	if err := makeFolders(b); err != nil {
		return nil, err
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	if err := errors.Join(syncFolders(b), b.measure()); err != nil {
		b.end()
		return nil, err
	}
	if err := noteEnds(b); err != nil { // a full disk must not keep what is there from being delivered
		b.guard.writeFailed(err)
	}
	return b, nil
}

// open starts on the configured port, or on the last one, or on any.
func (b *Broker) open() error {
	if b.cfg.Port != 0 || b.cfg.NoPort {
		return b.startBehind(b.cfg.Port)
	}
	file := filepath.Join(b.cfg.Dir, "port")
	if s, err := os.ReadFile(file); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(s))); err == nil && port > 0 {
			err := b.startBehind(port)
			if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "listen" {
				return err
			}
		}
	}
	if err := b.startBehind(0); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(b.addr)
	if err == nil {
		err = os.WriteFile(file, []byte(port+"\n"), 0o600)
	}
	if err != nil {
		b.end()
		return fmt.Errorf("kfake: remembering the port: %w", err)
	}
	return nil
}

// startBehind starts the broker behind a new door.
func (b *Broker) startBehind(port int) error {
	d := newDoor()
	if !b.cfg.NoPort {
		if err := d.listenPort(net.JoinHostPort(b.cfg.Host, strconv.Itoa(port))); err != nil {
			return fmt.Errorf("kfake: %w", err)
		}
	}
	if name := b.cfg.Socket; name != "" {
		if err := d.listenSocket(name); err != nil { // such as a path of more than 107 bytes
			b.cfg.Logger.Warn("the log has no socket: tools cannot write to it", "socket", name, "err", err)
		}
	}
	b.door, b.dial = d, d.dial
	err := b.start(port, kfake.ListenFn(func(string, string) (net.Listener, error) { return d, nil }))
	if err != nil {
		_ = d.Close()
		d.loops.Wait()
	}
	return err
}

// end stops the broker and waits for what it has begun.
func (b *Broker) end() {
	b.cluster.Close()
	if b.door != nil {
		_ = b.door.Close()
		b.door.loops.Wait()
	}
}

func (b *Broker) start(port int, more ...kfake.Opt) error {
	opts := append([]kfake.Opt{
		kfake.Ports(port),
		kfake.ClusterID(clusterID),
		kfake.WithLogger(b.watch),
		kfake.BrokerConfigs(map[string]string{
			"message.max.bytes":   strconv.Itoa(b.cfg.MaxBatchBytes),
			"log.segment.bytes":   strconv.FormatInt(b.cfg.SegmentBytes, 10),
			"log.retention.ms":    "-1",
			"log.retention.bytes": "-1",
			// A group that was away for long must still find its place: 100 years.
			"offsets.retention.minutes": "52560000",
		}),
	}, more...)
	if b.cfg.Dir != "" {
		opts = append(opts, kfake.DataDir(b.cfg.Dir))
		if b.cfg.Durability == Fsync {
			opts = append(opts, kfake.SyncWrites())
		}
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		return fmt.Errorf("kfake: %w", err)
	}
	b.counts = make(map[string]int, len(b.cfg.Topics))
	for topic, n := range b.cfg.Topics {
		have := len(c.PartitionInfos(topic))
		b.counts[topic] = cmp.Or(have, n)
		if have == n {
			continue
		}
		if have > 0 {
			b.cfg.Logger.Warn("topic keeps its partition count", "topic", topic, "partitions", have, "configured", n)
			continue
		}
		if err := c.CreateTopic(topic, int32(n), nil); err != nil {
			c.Close()
			return fmt.Errorf("kfake: creating %s: %w", topic, err)
		}
	}
	b.heights = make(map[place]*height)
	for topic := range b.cfg.Topics {
		infos := c.PartitionInfos(topic)
		for i := range infos {
			p := place{topic, int32(i)}
			b.heights[p] = &height{grown: make(chan struct{})}
			if end, to := b.found.next[p], infos[i].HighWatermark; to < end {
				b.cuts = append(b.cuts, Truncation{topic, p.partition, to, end})
			}
		}
		b.noteHeights(topic, infos)
	}
	b.cluster, b.addr = c, c.ListenAddrs()[0]
	return nil
}

// Addr is host:port of the port for readers. Without one it is a name that clients
// with Dial can be given as the broker's.
func (b *Broker) Addr() string { return b.addr }

// HasPort reports whether there is a port for readers.
func (b *Broker) HasPort() bool { return !b.cfg.NoPort }

// Dial connects to the broker within the process, whatever the address: clients that
// use it may write.
func (b *Broker) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return b.dial(ctx, network, address)
}

// StoreID is the id of this log; empty in memory unless configured.
func (b *Broker) StoreID() string { return b.id }

// Guard says whether the log may take more.
func (b *Broker) Guard() *Guard { return b.guard }

// Losses lists what was found lost, at this start and at those before.
func (b *Broker) Losses() []Loss { return b.found.losses }

// Committed is what each group had committed when the broker opened, by group,
// topic and partition.
func (b *Broker) Committed() map[string]map[string]map[int32]int64 { return byGroup(b.found.commits) }

// CommittedNow reads what each group has committed by now.
func (b *Broker) CommittedNow() (map[string]map[string]map[int32]int64, error) {
	now, err := readCommits(b.cfg.Dir)
	return byGroup(now), err
}

// Torn lists the unfinished writes that this start removed: a crash leaves
// them, and nothing acknowledged is missing.
func (b *Broker) Torn() []Torn { return b.found.torn }

// Truncated lists the partitions that the broker cut when it opened: the check before
// had found, or made, them whole. There should be none.
func (b *Broker) Truncated() []Truncation { return b.cuts }

// Partitions is the number of partitions of topic; 0: there is no such topic.
// That of a configured topic is the one it had when the broker opened: the
// broker answers only between two batches and their fsyncs, and every request
// asks this, a batch six times.
func (b *Broker) Partitions(topic string) int {
	if n, ok := b.counts[topic]; ok {
		return n
	}
	return len(b.cluster.PartitionInfos(topic))
}

// Close stops the broker and stores what it keeps in memory. Everything
// acknowledged is stored before, so a kill instead loses nothing.
func (b *Broker) Close() error {
	b.end()
	b.watch.settle(func(time.Time) bool { return true })
	if b.cfg.Dir == "" {
		return nil
	}
	return syncFolders(b)
}

// Ephemeral starts a broker in memory, for tests.
func Ephemeral(topics map[string]int) (*Broker, error) { return Open(Config{Topics: topics}) }

// Virtual starts a broker in memory on a network in memory, for tests inside of
// testing/synctest. Clients must use Dial.
func Virtual(topics map[string]int) (*Broker, error) {
	cfg := Config{Topics: topics}.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var vn kfake.VirtualNetwork
	b := &Broker{cfg: cfg, dial: vn.DialContext}
	b.guard = newGuard(cfg)
	b.watch = newWatcher(cfg, b.guard)
	err := b.start(9092, kfake.ListenFn(vn.Listen))
	return b, err
}
