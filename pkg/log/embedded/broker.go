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
	cfg       Config
	cluster   *kfake.Cluster
	addr      string
	id        string
	counts    map[string]int      // number of partitions of each configured topic
	ackedEnds map[place]*ackedEnd // acknowledged ends of the partitions of the configured topics
	guard     *Guard
	watch     *watcher
	checked   checkResult
	cuts      []Truncation
	endsMu    sync.Mutex // held while an ends file is written; a trim holds it until the records are removed
	ends      ends       // content of the last written ends file

	trimming sync.Mutex // held by a trim while it removes records, and by HoldTrim, so that no trim removes records
	door     *door      // nil: the broker was started by Virtual
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// Truncation is a partition whose end the broker cut when it opened the log. The broker did not
// recognise the removed bytes as batches.
type Truncation struct {
	Topic     string
	Partition int32
	To, End   int64 // To: present end of the partition; End: end that the check had found
}

func (t Truncation) String() string {
	return fmt.Sprintf("%s/%d: the broker cut the records from offset %d to %d", t.Topic, t.Partition, t.To, t.End)
}

// Open checks and repairs the log in Dir and starts the broker. When Open returns, the broker
// serves requests. The caller must then run Run, which measures the log for the guard. If the log
// in the folder does not belong to Config.StoreID, Open returns the error "store_id_mismatch" (see
// storeID).
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
		return nil, fmt.Errorf("embedded log: %w", err)
	}
	var err error
	if b.id, err = storeID(cfg.Dir, cfg.StoreID); err != nil {
		return nil, err
	}
	if err := cutTornEntries(cfg.Dir, cfg.Logger); err != nil {
		return nil, err
	}
	if b.checked, err = check(cfg); err != nil {
		return nil, err
	}
	if err := repairState(cfg, &b.checked.ends); err != nil {
		return nil, fmt.Errorf("embedded log: %w", err)
	}
	b.ends = b.checked.ends
	if err := makeFolders(b); err != nil {
		return nil, err
	}
	if err := b.startOnPort(); err != nil {
		return nil, err
	}
	if err := errors.Join(syncFolders(b), b.measure()); err != nil {
		b.stop()
		return nil, err
	}
	if err := writeEndsIfMoved(b); err != nil { // not fatal: a full disk must not stop the delivery of stored records
		b.guard.writeFailed(err)
	}
	return b, nil
}

// startOnPort starts the broker on the configured port. If no port is configured, it uses the port of
// the last start if that port is free. Otherwise it uses any free port.
func (b *Broker) startOnPort() error {
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
		b.stop()
		return fmt.Errorf("embedded log: storing the port for the next start: %w", err)
	}
	return nil
}

// startBehind starts the broker. The broker accepts its connections from a new door (see door.go).
func (b *Broker) startBehind(port int) error {
	d := newDoor()
	if !b.cfg.NoPort {
		if err := d.listenPort(net.JoinHostPort(b.cfg.Host, strconv.Itoa(port))); err != nil {
			return fmt.Errorf("embedded log: %w", err)
		}
	}
	if name := b.cfg.Socket; name != "" {
		if err := d.listenSocket(name); err != nil { // for example a path of more than 107 bytes
			b.cfg.Logger.Warn("the log has no socket, so tools cannot write to the log", "socket", name, "err", err)
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

// stop stops the broker and waits for the goroutines of its door.
func (b *Broker) stop() {
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
			// Keep the offsets of a group even if the group was stopped for a long time: 100 years.
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
		return fmt.Errorf("embedded log: %w", err)
	}
	b.counts = make(map[string]int, len(b.cfg.Topics))
	for topic, n := range b.cfg.Topics {
		have := len(c.PartitionInfos(topic))
		b.counts[topic] = cmp.Or(have, n)
		if have == n {
			continue
		}
		if have > 0 {
			b.cfg.Logger.Warn("the topic keeps its number of partitions, although another number is configured", "topic", topic, "partitions", have, "configured", n)
			continue
		}
		if err := c.CreateTopic(topic, int32(n), nil); err != nil {
			c.Close()
			return fmt.Errorf("embedded log: creating topic %s: %w", topic, err)
		}
	}
	b.ackedEnds = make(map[place]*ackedEnd)
	for topic := range b.cfg.Topics {
		infos := c.PartitionInfos(topic)
		for i := range infos {
			p := place{topic, int32(i)}
			b.ackedEnds[p] = &ackedEnd{grown: make(chan struct{})}
			if end, to := b.checked.next[p], infos[i].HighWatermark; to < end {
				b.cuts = append(b.cuts, Truncation{topic, p.partition, to, end})
			}
		}
		b.raiseAckedEnds(topic, infos)
	}
	b.cluster, b.addr = c, c.ListenAddrs()[0]
	return nil
}

// Addr returns host:port of the port for readers. If there is no port, Addr returns a placeholder for
// clients that use Dial.
func (b *Broker) Addr() string { return b.addr }

// HasPort reports whether the broker has a port for readers.
func (b *Broker) HasPort() bool { return !b.cfg.NoPort }

// Dial connects to the broker within the process, and ignores its parameters network and address.
// Unlike clients of the port, clients that use Dial may write.
func (b *Broker) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return b.dial(ctx, network, address)
}

// StoreID returns the id of this log. For a log in memory it is Config.StoreID, which may be empty.
func (b *Broker) StoreID() string { return b.id }

// Guard returns the guard, which decides whether the log accepts more records.
func (b *Broker) Guard() *Guard { return b.guard }

// Losses returns the losses that this start and earlier starts have found.
func (b *Broker) Losses() []Loss { return b.checked.losses }

// Committed returns the committed offsets that each group had when the broker opened, by group, topic
// and partition.
func (b *Broker) Committed() map[string]map[string]map[int32]int64 { return byGroup(b.checked.commits) }

// CommittedNow reads the committed offsets that each group has now, by group, topic and partition.
func (b *Broker) CommittedNow() (map[string]map[string]map[int32]int64, error) {
	now, err := readCommits(b.cfg.Dir)
	return byGroup(now), err
}

// Torn returns the unfinished writes that this start removed. They were cut by a crash and contain
// no acknowledged record.
func (b *Broker) Torn() []Torn { return b.checked.torn }

// Truncated returns the partitions whose ends the broker cut when it opened the log. The list
// should be empty, because the check repaired every damaged partition before.
func (b *Broker) Truncated() []Truncation { return b.cuts }

// Partitions returns the number of partitions of a topic, or 0 if the topic does not exist. For a
// configured topic it returns the number that the topic had at the start, and does not ask kfake.
// While kfake writes and fsyncs a batch, it does not answer. But every intake request calls
// Partitions, and a batch request calls it six times.
func (b *Broker) Partitions(topic string) int {
	if n, ok := b.counts[topic]; ok {
		return n
	}
	return len(b.cluster.PartitionInfos(topic))
}

// Close stops the broker and stores the state that is only in memory. Acknowledged records are already
// stored, so a kill of the process without Close loses nothing.
func (b *Broker) Close() error {
	b.stop()
	b.watch.endSpans(func(time.Time) bool { return true })
	if b.cfg.Dir == "" {
		return nil
	}
	return syncFolders(b)
}

// Ephemeral starts a broker in memory, for tests.
func Ephemeral(topics map[string]int) (*Broker, error) { return Open(Config{Topics: topics}) }

// Virtual starts a broker in memory on a network in memory, for tests that use testing/synctest.
// Clients must use Dial.
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
