package pebble

import (
	"log/slog"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config is the configuration of a Store.
type Config struct {
	// Dir is the folder of the store. Open creates it if it is missing. Required.
	Dir string
	// FS is the file system. Default: the file system of the operating system. With the
	// default, each operation that takes longer than 5 seconds causes a warning in the log.
	FS vfs.FS
	// CacheBytes is the greatest size of the block cache. The memory of memtables is
	// additional.
	CacheBytes int64 `default:"128MiB" min:"1MiB"`
	// MemTableBytes is the size of one memtable; up to four exist at a time.
	MemTableBytes int64 `default:"64MiB" min:"256KiB" max:"1024MiB"`
	// Logger receives messages about failures and about work in the background.
	Logger *slog.Logger `default:"discard"`

	// writes contains the options of each commit; nil: every commit is synced. Only the
	// power-loss test sets writes: it turns fsync off to prove that it detects a store that
	// does not sync.
	writes *pebbledb.WriteOptions
}
