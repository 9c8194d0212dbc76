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

// embeddedEngines are the engines that belong to one process, with what only they can:
// the log is capped and trimmed, the history seals segments, all of it is backed
// up. Nil where the engines are servers.
type embeddedEngines struct {
	store   *pebble.Store
	broker  *embedded.Broker
	history *history.Store
	posLost []string // positions the log had lost when it was opened
}

// SocketName is the unix socket in the data folder through which tools of the same user
// read and write the embedded log.
const SocketName = "kafka.sock"

// openEmbedded opens the engines of this process, once their folder is ours.
func (n opener) openEmbedded(ctx context.Context) error {
	cfg := &n.cfg
	n.own = &embeddedEngines{}
	err := MakeDataDir(cfg.DataDir)
	if err != nil {
		return err
	}
	self := Self()
	if n.lock, err = LockFolder(cfg.DataDir, self); err != nil {
		return err
	}
	n.closers = append(n.closers, n.lock.Close) // called last: who gets the lock finds all of it free
	n.progress("opening the store")
	if n.own.store, err = pebble.Open(pebble.Config{Dir: filepath.Join(cfg.DataDir, "store"), FS: n.seams.storeFS, Logger: n.log}); err != nil {
		return err
	}
	n.closers = append(n.closers, n.own.store.Close)
	// What a backup that was cut short left: links, which hold the room of files
	// that are removed.
	if err := os.RemoveAll(filepath.Join(cfg.DataDir, stagingName)); err != nil {
		return BadDataDir(cfg.DataDir, err)
	}
	if err := n.listen(ctx); err != nil {
		return err
	}
	self.API = "http://" + cfg.API.Listen
	n.lock.Tell(self)
	id, err := n.own.store.Meta().GetMeta(ctx, "store_id")
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
			err = free(ctx, "log.listen", cfg.Log.Listen)
		}
		if err != nil {
			return err
		}
	}
	n.progress("opening the history")
	// Before the log: what is sealed says how far the log reached.
	var archived func() map[history.Part]int64
	if cfg.Archive.Dir != "" {
		archived = func() map[history.Part]int64 { // asked once the process runs
			at, _ := n.archive.Positions(context.Background()) // from memory, without an error
			return at
		}
	}
	n.own.history, err = history.Open(history.Config{
		Dir: filepath.Join(cfg.DataDir, "history"), Retention: cfg.History.Retention, Barrier: n.barrier, Log: n.log,
		RemovalTime: n.removals.Begin("history", n.own.store.Meta()).Advance,
		SegmentAge:  n.seams.historyAge, SegmentBytes: segmentBytes(cfg), Archived: archived, ArchiveWait: cfg.Archive.Wait,
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.own.history.Close)
	n.progress("reading and checking the log")
	n.own.broker, err = embedded.Open(embedded.Config{
		Dir: filepath.Join(cfg.DataDir, "log"), Durability: durability, Host: host, Port: port, NoPort: noPort(cfg.Log.Listen),
		Socket: filepath.Join(cfg.DataDir, SocketName), Topics: topics(cfg), StoreID: string(id),
		CapBytes: int64(cfg.Log.CapMiB) << 20, MinFreeBytes: int64(cfg.Log.MinFreeMiB) << 20, Logger: n.log,
		SegmentBytes: n.seams.segment, Kept: n.own.kept(),
	})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, n.own.broker.Close)
	n.useOwn()
	if n.own.posLost, err = n.own.lostPositions(ctx); err != nil {
		return err
	}
	if len(n.own.posLost) > 0 {
		n.log.Error("positions lost: the log knows no more how far these groups had read; what is still in the log is read again, and what was done is not done again",
			"groups", strings.Join(n.own.posLost, ", "))
	}
	for _, l := range n.own.broker.Losses() {
		if l.Kept < l.To && slices.Contains(notify.FirstTopics(), l.Topic) {
			n.own.history.Lost(l.After, l.Before)
		}
	}
	if len(id) == 0 {
		if err := n.own.store.Meta().PutMeta(ctx, "store_id", []byte(n.own.broker.StoreID())); err != nil {
			return err
		}
	}
	return nil
}

// useOwn makes the engines of this process those of its stages.
func (n opener) useOwn() {
	store, broker, kept := n.own.store, n.own.broker, n.own.history
	n.owner = broker.StoreID() // one process has the folder
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
