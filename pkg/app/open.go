package app

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/kfake"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// open opens the stores, once the folder is ours.
func (n *Node) open() error {
	cfg := &n.cfg
	err := MakeDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	self := Self()
	if n.lock, err = LockFolder(cfg.DataDir, self); err != nil {
		return err
	}
	n.progress("opening the store")
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
	if n.listener == nil {
		if n.listener, err = Listen(ctx, "api.listen", cfg.API.Listen); err != nil {
			return err
		}
	}
	if cfg.API.Admin != "" {
		if n.adminListener, err = Listen(ctx, "api.admin", cfg.API.Admin); err != nil {
			return err
		}
	}
	cfg.API.Listen = n.listener.Addr().String()
	self.API = "http://" + cfg.API.Listen
	n.lock.Tell(self)
	id, err := n.store.Meta().GetMeta(ctx, "store_id")
	if err != nil {
		return err
	}
	durability := kfake.Fsync
	if !cfg.Log.Sync {
		durability = kfake.PageCache
	}
	port, err := portOf(cfg.Log.Listen)
	if err == nil {
		err = free(ctx, "log.listen", cfg.Log.Listen)
	}
	if err != nil {
		return err
	}
	n.progress("opening the history")
	// Before the log: what is sealed says how far the log reached.
	var archived func() map[history.Part]int64
	if cfg.Archive.Dir != "" {
		archived = n.archived
	}
	n.history, err = history.Open(history.Config{
		Dir: filepath.Join(cfg.DataDir, "history"), Retention: cfg.History.Retention, Barrier: n.barrier, Log: n.log,
		SegmentAge: n.seams.historyAge, SegmentBytes: segmentBytes(cfg), Archived: archived, ArchiveWait: cfg.Archive.Wait,
	})
	if err != nil {
		return err
	}
	n.progress("reading and checking the log")
	n.broker, err = kfake.Open(kfake.Config{
		Dir: filepath.Join(cfg.DataDir, "log"), Durability: durability, Port: port, Topics: topics(cfg), StoreID: string(id),
		CapBytes: int64(cfg.Log.CapMiB) << 20, MinFreeBytes: int64(cfg.Log.MinFreeMiB) << 20, Logger: n.log,
		SegmentBytes: n.seams.segment, Kept: n.kept(),
	})
	if err != nil {
		return err
	}
	if err := n.findPositions(ctx); err != nil {
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
	if n.producer, err = stream.NewProducer(stream.ProducerConfig{Conn: conn, Brokers: stream.OneBroker, Linger: linger(cfg.Log.Linger), AppendTimeout: 20 * time.Second, Appended: n.broker.Appended}); err != nil {
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
	ts := map[string]int{notify.TopicFailed: 1, notify.TopicOutcomes: 1, notify.TopicPoison: 1, trigger.TopicDLQ: 1}
	for _, l := range notify.Lanes() {
		ts[l.Topic()] = cfg.partitions(l.Channel)
		ts[l.DLQTopic()] = cfg.partitions(l.Channel)
	}
	return ts
}
