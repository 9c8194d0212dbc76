package embedded

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Durability says when an append is acknowledged.
type Durability string

// The levels.
const (
	// Fsync: after its batch was fsynced. It survives a loss of power.
	Fsync Durability = "fsync"
	// PageCache: after its batch was written. It survives a kill of the process.
	PageCache Durability = "page-cache"
)

// Config of a Broker. The zero value of a field means its default.
type Config struct {
	// Dir holds the log; it is created. Empty: in memory.
	Dir string
	// Durability defaults to Fsync.
	Durability Durability `default:"fsync" oneof:"fsync page-cache"`
	// Port is where readers such as kcat connect, on Host; they cannot write. 0: the
	// port of the last start if it is free, else any.
	Port int `min:"0" max:"65535"`
	// Host is a loopback address.
	Host string `default:"127.0.0.1"`
	// NoPort leaves the port out: the log is reached by Broker.Dial and by Socket.
	NoPort bool
	// Socket is the name of a unix socket through which tools of the same user read
	// and write, of mode 0600, in a folder that only the user may enter. Empty: none.
	Socket string
	// Topics and their partition counts. Missing ones are created; one that has
	// another count keeps it, since keys would move.
	Topics map[string]int
	// StoreID is the id the database next to this log carries; empty when the
	// database is new, which then must store Broker.StoreID before anything is
	// appended.
	StoreID string
	// Kept[topic][partition] is the offset below which records were read and are
	// kept elsewhere: the log held them at least. A log that ends below it has
	// lost records.
	Kept map[string]map[int32]int64
	// CapBytes is the size on disk at which Guard says log_full.
	CapBytes int64 `default:"2048MiB" min:"0"`
	// MinFreeBytes is the room on the volume below which Guard says disk_full.
	MinFreeBytes int64 `default:"256MiB" min:"0"`
	// MaxBatchBytes is the largest batch.
	MaxBatchBytes int `default:"8256KiB" min:"0"`
	// SegmentBytes is when a partition's file is closed; only whole files are
	// trimmed. Default 32 MiB, less where the partitions' open files together
	// could hold more than half of CapBytes.
	SegmentBytes int64
	// Measure is how often size and room are measured and the volume is fsynced.
	Measure time.Duration `default:"500ms" min:"0"`
	// TrimEvery defaults to 1 s.
	TrimEvery time.Duration `default:"1s" min:"0"`
	// Logger gets the broker's warnings.
	Logger *slog.Logger `default:"discard"`
}

const (
	maxSegment = 32 << 20
	minSegment = 256 << 10
)

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	if c.SegmentBytes == 0 {
		partitions := 0
		for _, n := range c.Topics {
			partitions += n
		}
		c.SegmentBytes = min(max(c.CapBytes/int64(2*max(partitions, 1)), minSegment), maxSegment)
	}
	return c
}

func (c Config) validate() error {
	for t, n := range c.Topics {
		if n < 1 {
			return fmt.Errorf("kfake: %d partitions for %s", n, t)
		}
	}
	return setting.Err("log", &c)
}
