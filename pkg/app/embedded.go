package app

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
)

// embeddedEngines holds the engines of one process, for the work that only embedded engines can do:
// limiting and trimming the log, sealing segments of the history, and backing up all data.
// Node.embedded is nil if the engines are servers.
type embeddedEngines struct {
	store              *pebble.Store
	broker             *embedded.Broker
	history            *history.Store
	lostGroupPositions []string // committed offsets of consumer groups that the log had lost when this process opened it
}

// SocketName is the name of the unix socket in the data folder. Tools of the same user read and write
// the embedded log through it.
const SocketName = "kafka.sock"

// openEmbedded locks the data folder and opens the engines in the folder.
func (n opener) openEmbedded(ctx context.Context) error {
	cfg := &n.cfg
	n.embedded = &embeddedEngines{}
	err := MakeDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	self := Self()
	if n.lock, err = LockFolder(cfg.DataDir, self); err != nil {
		return err
	}
	n.closers = append(n.closers, n.lock.Close) // closed last, because after that the next process may open all engines
	n.progress("opening the store")
	if n.embedded.store, err = pebble.Open(pebble.Config{Dir: filepath.Join(cfg.DataDir, "store"), FS: n.seams.storeFS, Logger: n.log}); err != nil {
		return err
	}
	n.closers = append(n.closers, n.embedded.store.Close)
	// An interrupted backup leaves hard links. While the links exist, removing a file frees no disk
	// space.
	if err := os.RemoveAll(filepath.Join(cfg.DataDir, stagingName)); err != nil {
		return BadDataDir(cfg.DataDir, err)
	}
	if err := n.listen(ctx); err != nil {
		return err
	}
	self.API = "http://" + cfg.API.Listen
	n.lock.Tell(self)
	id, err := n.embedded.store.Meta().GetMeta(ctx, "store_id")
	if err != nil {
		return err
	}
	durability := embedded.Fsync
	if !cfg.Log.Sync {
		durability = embedded.PageCache
	}
	host, port := "", 0
	if !noPort(cfg.Log.Listen) {
		if host, port, err = portOf(cfg.Log.Listen); err == nil {
			err = checkPortFree(ctx, "log.listen", cfg.Log.Listen)
		}
		if err != nil {
			return err
		}
	}
	n.progress("opening the history")
	// The history is opened before the log, because the log needs the offsets below which the history
	// has sealed all records: if a partition of the log ends below its offset, records were lost.
	var archived func() map[history.Part]int64
	if cfg.Archive.Dir != "" {
		archived = func() map[history.Part]int64 { // called only while the process runs; n.archive is set before that
			at, _ := n.archive.Positions(context.Background()) // reads memory, so it returns no error
			return at
		}
	}
	n.embedded.history, err = history.Open(history.Config{
		Dir: filepath.Join(cfg.DataDir, "history"), Retention: cfg.History.Retention, Barrier: n.firstTopicEnds, Log: n.log,
		RemovalTime: n.removals.Begin("history", n.embedded.store.Meta()).Advance,
		SegmentAge:  n.seams.historyAge, SegmentBytes: segmentBytes(cfg), Archived: archived, ArchiveWait: cfg.Archive.Wait,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.embedded.history.Close)
	n.progress("reading and checking the log")
	n.embedded.broker, err = embedded.Open(embedded.Config{
		Dir: filepath.Join(cfg.DataDir, "log"), Durability: durability, Host: host, Port: port, NoPort: noPort(cfg.Log.Listen),
		Socket: filepath.Join(cfg.DataDir, SocketName), Topics: topics(cfg), StoreID: string(id),
		CapBytes: int64(cfg.Log.CapMiB) << 20, MinFreeBytes: int64(cfg.Log.MinFreeMiB) << 20, Logger: n.log,
		SegmentBytes: n.seams.segment, Kept: n.embedded.sealedOffsets(),
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.embedded.broker.Close)
	n.useEmbedded()
	if n.embedded.lostGroupPositions, err = n.embedded.lostPositions(ctx); err != nil {
		return err
	}
	if len(n.embedded.lostGroupPositions) > 0 {
		n.log.Error("positions lost: the log no longer knows how far these groups had read; they read all records that are still in the log again, and finished work is not done again",
			"groups", strings.Join(n.embedded.lostGroupPositions, ", "))
	}
	for _, l := range n.embedded.broker.Losses() {
		if l.Kept < l.To && slices.Contains(notify.FirstTopics(), l.Topic) {
			n.embedded.history.Lost(l.After, l.Before)
		}
	}
	if len(id) == 0 {
		if err := n.embedded.store.Meta().PutMeta(ctx, "store_id", []byte(n.embedded.broker.StoreID())); err != nil {
			return err
		}
	}
	return nil
}

// useEmbedded sets the fields of n.st to the embedded engines.
func (n opener) useEmbedded() {
	store, broker, kept := n.embedded.store, n.embedded.broker, n.embedded.history
	n.owner = broker.StoreID() // unique, because only one process can hold the lock of the data folder
	spread := map[string]notify.Spread{}
	for _, t := range notify.FirstTopics() {
		spread[t] = notify.SpreadOver(broker.Partitions(t))
	}
	n.st = stores{
		id: broker.StoreID(), status: store.Status(), history: kept, audited: kept, prefs: store.Prefs(), callers: store.Callers(),
		cancels: store.Cancels(), campaigns: store.Campaigns(), idem: store.Idem(), exclusive: true, spill: store.Spill(), letters: store.DeadLetters(),
		jobs: store.Jobs(), audit: store.Audit(), holds: store.Holds(), meta: store.Meta(), timers: store.Timers(), cold: store.ColdTimers(),
		schedules: store.Schedules(), triggers: store.Triggers(), limits: memory.NewLimits(),
		jobLease: memory.NewLease(), beats: memory.NewHeartbeats(),
		queue:  func(name string, maxReceives int) (engine.Queue, error) { return store.Queue(name, maxReceives), nil },
		bodies: store.QueueBodies,
		conn:   log.Conn{Brokers: []string{broker.Addr()}, Dial: broker.Dial, Local: broker.Local(), Logger: n.log}, spread: func(topic string) notify.Spread { return spread[topic] },
		gate: broker.Guard(), bulkGate: broker.Guard().Bulk, laterGate: broker.Guard().Disk, appended: broker.Guard().Appended,
		ready: func() error {
			if err := store.Err(); err != nil {
				return err
			}
			return broker.Guard().Err()
		},
		firstCopy: func(_ context.Context, c notify.Chunk, digest uint64) (engine.Found, error) {
			return kept.Copy(c, digest)
		},
	}
}

// segmentBytes returns the size at which the history seals a segment. The log cannot trim records
// that are in no sealed segment yet. With this size, such records fill less than half of the log's
// cap. With larger segments, a log that has reached its cap could not be trimmed.
func segmentBytes(cfg *Config) int64 {
	tails := 0
	for _, l := range notify.Lanes() {
		tails += cfg.partitions(l.Channel)
	}
	return max(min(64<<20, int64(cfg.Log.CapMiB)<<20/int64(2*max(tails, 1))), 64<<10)
}
