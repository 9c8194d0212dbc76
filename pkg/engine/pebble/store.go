package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/store"
)

// formatVersion is the version of the layout of keys and values. This build reads and
// writes only this version, because no release had another version.
const formatVersion = 6

// Store is one open database folder. Its methods return implementations of the contracts.
// Any goroutine may use these implementations until Close.
type Store struct {
	cfg     Config
	fs      vfs.FS
	fsClose io.Closer
	db      *pebbledb.DB
	lock    *pebbledb.Lock
	latch   *latch
	commit  *committer
	locks   *rows.Locks

	*store.Contracts // implemented with partRows
}

// Open opens or creates the store in cfg.Dir. It returns
//   - KindUnavailable "store_locked" if another process uses the folder;
//   - KindConflict "store_newer" if a newer release wrote the folder, "store_foreign" if
//     the folder contains a database that notifyd did not write;
//   - KindInternal "store_wal_missing" if the newest write-ahead log is missing,
//     "store_corrupt" if the store is damaged.
//
// The goroutines of Pebble and of the committer run until Close.
func Open(cfg Config) (_ *Store, err error) {
	cfg = setting.Fill(cfg)
	if cfg.writes == nil {
		cfg.writes = pebbledb.Sync
	}
	if cfg.Dir == "" {
		return nil, notify.Invalid("bad_config", "store.dir", "the store needs a folder: set store.dir")
	}
	if err := setting.Err("store", &cfg); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, fs: cfg.FS, latch: newLatch(cfg.Logger)}
	if s.fs == nil {
		s.fs, s.fsClose = vfs.WithDiskHealthChecks(vfs.Default, 5*time.Second, nil, func(i vfs.DiskSlowInfo) {
			cfg.Logger.Warn("an operation of the disk takes longer than 5 seconds", "op", i.OpType.String(), "file", i.Path, "seconds", i.Duration.Seconds())
		})
	}
	defer func() {
		if err != nil && s.fsClose != nil {
			s.fsClose.Close()
		}
	}()
	if err := s.fs.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, translate(err)
	}
	if s.lock, err = pebbledb.LockDirectory(cfg.Dir, s.fs); err != nil {
		return nil, lockError(cfg.Dir, err)
	}
	if err = s.open(); err != nil {
		s.lock.Close()
		return nil, translateOpen(cfg.Dir, err)
	}
	s.locks = rows.NewLocks(s.latch.failed, s.Err, contextError)
	s.Contracts = store.OnRows(&partRows{reader: reader{s.db}, s: s, lastNumbers: map[rows.Partition]*uint64{}})
	if err = s.loadContracts(); err != nil {
		return nil, errors.Join(translate(err), s.db.Close(), s.lock.Close())
	}
	s.latch.armed.Store(true)
	s.commit = newCommitter(s.db, cfg.writes, s.latch)
	go s.commit.run()
	return s, nil
}

// open opens the database. If the folder has no database, open first calls create. It does
// not let Pebble create a database in the folder, because Pebble gives a new database a
// write-ahead log of the oldest format. In that format damage looks like the end of the
// log, so acknowledged writes after the damage would be lost silently. A log of a later
// format also contains the position up to which it was synced.
func (s *Store) open() error {
	was, err := pebbledb.Peek(s.cfg.Dir, s.fs)
	switch {
	case err == nil && was.Exists:
		err = checkNewest(s.fs, s.cfg.Dir)
	case err == nil:
		err = s.create()
	}
	if err != nil {
		return err
	}
	// Pebble retries a failed flush at once and without end, also while it opens a database.
	// The armed latch prevents this: it blocks Pebble's goroutine for ever at the first
	// failure. open does not wait for that goroutine and returns the failure.
	s.latch.armed.Store(true)
	defer s.latch.armed.Store(false)
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if r := recover(); r != nil { // Pebble panics on some damaged folders
				err = fmt.Errorf("the database in %s cannot be opened: %v", s.cfg.Dir, r)
			}
			done <- err
		}()
		s.db, err = pebbledb.Open(s.cfg.Dir, s.options())
	}()
	select {
	case err := <-done:
		return err
	case <-s.latch.failed:
		return s.latch.cause()
	}
}

// create makes an empty database in memory and copies its files to the folder. It writes
// the marker file last, because a folder without the marker file counts as empty. If a
// call of create was interrupted, the next call overwrites the files.
func (s *Store) create() error {
	mem := vfs.NewMem()
	db, err := pebbledb.Open(s.cfg.Dir, &pebbledb.Options{FS: mem, FormatMajorVersion: pebbledb.FormatNewest, Merger: firstWins, Logger: pebbleLog{s.latch}})
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	names, err := mem.List(s.cfg.Dir)
	if err != nil {
		return err
	}
	const marker = "marker.manifest."
	slices.SortFunc(names, func(a, b string) int {
		last := func(name string) int { return strings.Count(name, marker) }
		return cmp.Or(last(a)-last(b), strings.Compare(a, b))
	})
	for _, name := range names {
		if name == "LOCK" { // Open has already locked the file LOCK in the folder
			continue
		}
		if strings.HasPrefix(name, marker) {
			if err := s.syncDir(); err != nil { // the files that the marker names must be durable first
				return err
			}
		}
		if err := vfs.CopyAcrossFS(mem, mem.PathJoin(s.cfg.Dir, name), s.fs, s.fs.PathJoin(s.cfg.Dir, name)); err != nil {
			return err
		}
	}
	return s.syncDir()
}

func (s *Store) syncDir() error { return syncFolder(s.fs, s.cfg.Dir) }

// lockError translates an error of LockDirectory. It returns "store_locked" if another
// process uses the folder. For another error, such as a read-only or full disk, it returns
// the result of translate.
func lockError(dir string, err error) error {
	for _, e := range []error{os.ErrPermission, os.ErrNotExist, syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, e) && !errors.Is(err, syscall.EACCES) {
			return translate(err)
		}
	}
	return lockedError(dir, err)
}

func (s *Store) options() *pebbledb.Options {
	o := &pebbledb.Options{
		FS:   &failStopFS{FS: s.fs, dir: s.cfg.Dir, l: s.latch},
		Lock: s.lock,
		// Pebble subtracts the size of three memtables from CacheSize: one that is being
		// filled, one that is being flushed, and a spare. So add these three memtables. Without
		// them a lookup in the cache took 26 us.
		CacheSize:                   s.cfg.CacheBytes + 3*s.cfg.MemTableBytes,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64, // high, to avoid slow writes; compactions begin much earlier
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		// Sync in small steps. If the kernel collects many dirty pages, it writes them in
		// bursts, and every fsync stalls during a burst.
		BytesPerSync:       512 << 10,
		WALBytesPerSync:    512 << 10,
		FormatMajorVersion: pebbledb.FormatNewest,
		Logger:             pebbleLog{s.latch},
		Merger:             firstWins,
		EventListener: &pebbledb.EventListener{
			BackgroundError: func(err error) { s.backgroundError(err) },
			WriteStallBegin: func(i pebbledb.WriteStallBeginInfo) {
				s.cfg.Logger.Warn("writes are stalled", "why", i.Reason)
			},
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].FilterType = pebbledb.TableFilter
		o.Levels[i].BlockSize = 16 << 10
	}
	return o
}

// backgroundError handles a failed flush or compaction. No row is lost, because the
// write-ahead log still contains the rows. But a store must accept no more writes after its
// disk has failed, so backgroundError trips the latch.
func (s *Store) backgroundError(err error) {
	if errors.Is(err, pebbledb.ErrClosed) || errors.Is(err, pebbledb.ErrCancelledCompaction) {
		return
	}
	s.latch.trip(err)
}

// loadContracts checks the format of the database and loads the state that the contracts
// keep in memory.
func (s *Store) loadContracts() error {
	if err := s.checkFormat(); err != nil {
		return err
	}
	return s.Load(context.Background())
}

// formatKey is the key of the stored formatVersion.
var formatKey = append([]byte{tFormat}, "format"...)

func (s *Store) checkFormat() error {
	return reader{s.db}.get(formatKey, func(v []byte) error {
		if v == nil {
			return s.writeFormat()
		}
		found, err := strconv.Atoi(string(v))
		switch {
		case err != nil || found < formatVersion:
			return foreignError(s.cfg.Dir)
		case found > formatVersion:
			return newerError(s.cfg.Dir, found, formatVersion)
		}
		return nil
	})
}

// writeFormat stores formatVersion in an empty database. It returns "store_foreign" if the
// database has rows.
func (s *Store) writeFormat() error {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return err
	}
	if !empty {
		return foreignError(s.cfg.Dir)
	}
	return s.db.Set(formatKey, strconv.AppendInt(nil, formatVersion, 10), pebbledb.Sync)
}

// Close waits until the accepted writes are durable and closes the database. After a
// failure of the store, Close returns the failure and does not close the database.
// Goroutines of the database may then be blocked for ever (see failstop.go). In this case
// the folder stays locked until the process ends.
func (s *Store) Close() error {
	s.commit.close()
	if err := s.latch.cause(); err != nil {
		return translate(err)
	}
	s.latch.armed.Store(false)
	err := errors.Join(s.db.Close(), s.lock.Close())
	if s.fsClose != nil {
		err = errors.Join(err, s.fsClose.Close())
	}
	return translate(err)
}

// Failed returns a channel that is closed at the first failure of the disk. After that,
// every write returns KindUnavailable with code "store", or "store_full" if the disk was
// full. Reads still work as far as possible. Only a new process, which reads what is really
// on the disk, can write again.
func (s *Store) Failed() <-chan struct{} { return s.latch.failed }

// Err returns the failure for which the channel of Failed was closed. It returns nil while
// the store works.
func (s *Store) Err() error { return translate(s.latch.cause()) }

// Checkpoint makes a consistent copy of the store in the folder dir, which must not exist.
// Checkpoint uses hard links if the file system supports them.
func (s *Store) Checkpoint(dir string) error {
	if err := s.latch.cause(); err != nil {
		return translate(err)
	}
	return translate(s.db.Checkpoint(dir, pebbledb.WithFlushedWAL()))
}

// DiskUsage is the usage of the volume with the store's folder, in bytes.
type DiskUsage struct {
	Available, Total uint64 // of the volume; Available does not include space reserved for root
	Store            uint64 // size of the store's own files
}

// DiskUsage reads the disk usage from the file system.
func (s *Store) DiskUsage() (DiskUsage, error) {
	u, err := s.fs.GetDiskUsage(s.cfg.Dir)
	if err != nil {
		return DiskUsage{}, translate(err)
	}
	return DiskUsage{Available: u.AvailBytes, Total: u.TotalBytes, Store: s.db.Metrics().DiskSpaceUsage()}, nil
}

// Metrics describes the state of the store at one moment. Its counters start at 0 at Open.
type Metrics struct {
	DiskBytes      uint64 // size of the store's files
	MemTableBytes  uint64
	CacheBytes     int64
	CacheHits      int64
	CacheMisses    int64
	WALBytes       uint64 // written to the log
	FlushedBytes   uint64 // written by flushes
	CompactedBytes uint64 // written by compactions
	Flushes        int64
	Compactions    int64
	CompactionDebt uint64 // bytes that compactions still have to move
	L0Sublevels    int32  // writes stop when there are 64
	ReadAmp        int
	LogFiles       int64
	Groups, Writes uint64 // group commits, and the writes in all groups
}

// Metrics returns the current Metrics. It is cheap enough for every scrape.
func (s *Store) Metrics() Metrics {
	m := s.db.Metrics()
	total := m.Total()
	return Metrics{
		DiskBytes:      m.DiskSpaceUsage(),
		MemTableBytes:  m.MemTable.Size,
		CacheBytes:     m.BlockCache.Size,
		CacheHits:      m.BlockCache.Hits,
		CacheMisses:    m.BlockCache.Misses,
		WALBytes:       m.WAL.BytesWritten,
		FlushedBytes:   total.TableBytesFlushed,
		CompactedBytes: total.TableBytesCompacted,
		Flushes:        m.Flush.Count,
		Compactions:    m.Compact.Count,
		CompactionDebt: m.Compact.EstimatedDebt,
		L0Sublevels:    m.Levels[0].Sublevels,
		ReadAmp:        m.ReadAmp(),
		LogFiles:       m.WAL.Files,
		Groups:         s.commit.groups.Load(),
		Writes:         s.commit.writes.Load(),
	}
}
