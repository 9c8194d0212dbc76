package pebble

import (
	"log/slog"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config says where the store lies and what it may use.
type Config struct {
	// Dir is the folder; it is created when it is missing. Required.
	Dir string
	// FS is the file system. Default: the operating system's, with a warning
	// in the log for each operation that takes over 5 seconds.
	FS vfs.FS
	// CacheBytes bounds the block cache; memtables come on top.
	CacheBytes int64 `default:"128MiB" min:"1MiB"`
	// MemTableBytes is the size of one memtable; up to four exist at a time.
	MemTableBytes int64 `default:"64MiB" min:"256KiB" max:"1024MiB"`
	// Logger receives what the store does in the background.
	Logger *slog.Logger `default:"discard"`

	// writes is how groups are committed. Only the power-loss test sets it, to
	// show that it finds a store that does not sync.
	writes *pebbledb.WriteOptions
}
