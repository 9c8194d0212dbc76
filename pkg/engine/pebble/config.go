package pebble

import (
	"log/slog"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config says where the store lies and what it may use.
type Config struct {
	// Dir is the folder; it is created when it is missing. Required.
	Dir string
	// FS is the file system. Default: the operating system's, with a warning
	// in the log for each operation that takes over 5 seconds.
	FS vfs.FS
	// CacheBytes bounds the block cache; memtables come on top. Default: 128 MiB.
	CacheBytes int64
	// MemTableBytes is the size of one memtable; up to four exist at a time.
	// Default: 64 MiB.
	MemTableBytes int64
	// Logger receives what the store does in the background. Default: none.
	Logger *slog.Logger

	// writes is how groups are committed. Only the power-loss test sets it, to
	// show that it finds a store that does not sync.
	writes *pebbledb.WriteOptions
}

func (c Config) withDefaults() Config {
	if c.CacheBytes == 0 {
		c.CacheBytes = 128 << 20
	}
	if c.MemTableBytes == 0 {
		c.MemTableBytes = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.writes == nil {
		c.writes = pebbledb.Sync
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Dir == "":
		return notify.Invalid("bad_config", "dir", "the store needs a folder")
	case c.CacheBytes < 1<<20:
		return notify.Invalid("bad_config", "cache_bytes", "the cache needs at least 1 MiB")
	case c.MemTableBytes < 256<<10 || c.MemTableBytes > 1<<30:
		return notify.Invalid("bad_config", "memtable_bytes", "a memtable has 256 KiB to 1 GiB")
	}
	return nil
}
