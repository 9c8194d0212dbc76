package pebble

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// formatVersion is the layout of keys and values this build writes.
const formatVersion = 1

// Store is one database folder. Its accessors return the contracts; all of them
// may be used from any goroutine until Close.
type Store struct {
	cfg     Config
	fs      vfs.FS
	fsClose io.Closer
	db      *pebbledb.DB
	lock    *pebbledb.Lock
	latch   *latch
	commit  *committer
	locks   *keyLocks

	prefs   prefs
	cancels cancels
	spill   spill
	dead    deadLetters
	idem    idem
}

// Open opens or creates the store in cfg.Dir. Another process in the folder is
// KindUnavailable "store_locked"; a folder of a newer release is KindConflict
// "store_newer". Pebble's goroutines and the committer run until Close.
func Open(cfg Config) (_ *Store, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, fs: cfg.FS, latch: newLatch(cfg.Logger)}
	if s.fs == nil {
		s.fs, s.fsClose = vfs.WithDiskHealthChecks(vfs.Default, 5*time.Second, nil, func(i vfs.DiskSlowInfo) {
			cfg.Logger.Warn("slow disk", "op", i.OpType.String(), "file", i.Path, "seconds", i.Duration.Seconds())
		})
	}
	defer func() {
		if r := recover(); r != nil { // Pebble's answer to some damaged folders
			err = translate(fmt.Errorf("open %s: %v", cfg.Dir, r))
		}
		if err != nil && s.fsClose != nil {
			s.fsClose.Close()
		}
	}()
	if err := s.fs.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, translate(err)
	}
	if s.lock, err = pebbledb.LockDirectory(cfg.Dir, s.fs); err != nil {
		return nil, lockError(cfg.Dir, err)
	}
	if s.db, err = pebbledb.Open(cfg.Dir, s.options()); err != nil {
		s.lock.Close()
		return nil, opening(cfg.Dir, err)
	}
	s.locks = newKeyLocks(s.latch)
	if err = s.load(); err != nil {
		return nil, errors.Join(translate(err), s.db.Close(), s.lock.Close())
	}
	s.latch.armed.Store(true)
	s.commit = newCommitter(s.db, cfg.writes, s.latch)
	go s.commit.run()
	return s, nil
}

// lockError tells a folder in use from one that cannot be used.
func lockError(dir string, err error) error {
	for _, e := range []error{os.ErrPermission, os.ErrNotExist, syscall.ENOSPC, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, e) && !errors.Is(err, syscall.EACCES) {
			return translate(err)
		}
	}
	return locked(dir, err)
}

func (s *Store) options() *pebbledb.Options {
	o := &pebbledb.Options{
		FS:   &failStopFS{FS: s.fs, dir: s.cfg.Dir, l: s.latch},
		Lock: s.lock,
		// Pebble takes memtables (the filling, the flushing and a spare one) out
		// of the cache: without room for them a lookup that hits cost 26 us.
		CacheSize:                   s.cfg.CacheBytes + 3*s.cfg.MemTableBytes,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64, // stalls are latency; the disk is asked to keep up long before
		LBaseMaxBytes:               64 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		// Dirty pages left to the kernel stall every fsync in bursts.
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

// backgroundError hears of failed flushes and compactions. They lose nothing,
// the log has it all, but a store whose disk fails must not take more.
func (s *Store) backgroundError(err error) {
	if errors.Is(err, pebbledb.ErrClosed) || errors.Is(err, pebbledb.ErrCancelledCompaction) {
		return
	}
	s.latch.trip(err)
}

// load checks the format and reads the counters that live in memory.
func (s *Store) load() error {
	if err := s.checkFormat(); err != nil {
		return err
	}
	for _, load := range []func(*Store) error{
		s.prefs.load, s.cancels.load, s.spill.load, s.dead.load, s.idem.load,
	} {
		if err := load(s); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) checkFormat() error {
	name := key(tFormat, "format")
	v, err := s.get(name)
	if err != nil {
		return err
	}
	if v == nil {
		empty := true
		if err := s.each(span{}, func(_, _ []byte) (bool, error) { empty = false; return false, nil }); err != nil {
			return err
		}
		if !empty {
			return foreign(s.cfg.Dir)
		}
		if err := s.db.Set(name, strconv.AppendInt(nil, formatVersion, 10), pebbledb.Sync); err != nil {
			return err
		}
		// The write-ahead log of a folder just made is of the oldest form, in
		// which damage looks like the end and what follows is dropped without a
		// word. The next one says up to where it was synced.
		return s.db.Flush()
	}
	found, err := strconv.Atoi(string(v))
	switch {
	case err != nil:
		return foreign(s.cfg.Dir)
	case found > formatVersion:
		return newer(s.cfg.Dir, found, formatVersion)
	}
	return nil
}

// Close writes what was accepted and closes the database. After a failure it
// returns that failure; if goroutines of the database are held by it (see
// failstop.go) the folder stays locked until the process ends.
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

// Failed is closed at the first failure of the disk. From then on every write
// is KindUnavailable ("store", or "store_full" when the disk was full); reads
// go on as far as they can. Only a new start, which reads what is really on
// the disk, ends it.
func (s *Store) Failed() <-chan struct{} { return s.latch.failed }

// Err is the failure that closed Failed, nil while the store is well.
func (s *Store) Err() error { return translate(s.latch.cause()) }

// Checkpoint makes a consistent copy of the store in dir, which must not exist;
// files are hard links where the file system can.
func (s *Store) Checkpoint(dir string) error {
	if err := s.latch.cause(); err != nil {
		return translate(err)
	}
	return translate(s.db.Checkpoint(dir, pebbledb.WithFlushedWAL()))
}

// DiskUsage is the state of the volume the folder lies on, in bytes.
type DiskUsage struct {
	Available, Total uint64 // of the volume; Available to us, not to root
	Store            uint64 // of the store's own files
}

// DiskUsage asks the file system.
func (s *Store) DiskUsage() (DiskUsage, error) {
	u, err := s.fs.GetDiskUsage(s.cfg.Dir)
	if err != nil {
		return DiskUsage{}, translate(err)
	}
	return DiskUsage{Available: u.AvailBytes, Total: u.TotalBytes, Store: s.db.Metrics().DiskSpaceUsage()}, nil
}

// Metrics is a snapshot for gauges; counters count since Open.
type Metrics struct {
	DiskBytes      uint64 // the store's files
	MemTableBytes  uint64
	CacheBytes     int64
	CacheHits      int64
	CacheMisses    int64
	WALBytes       uint64 // written to the log
	FlushedBytes   uint64 // written by flushes
	CompactedBytes uint64 // written by compactions
	Flushes        int64
	Compactions    int64
	CompactionDebt uint64 // bytes compactions still have to move
	L0Sublevels    int32  // 64 stops writes
	ReadAmp        int
	LogFiles       int64
	Groups, Writes uint64 // commits, and how many writes they held
}

// Metrics reads counters; it is cheap enough for every scrape.
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
