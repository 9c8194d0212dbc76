package embedded

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Durability says when an append is acknowledged.
type Durability string

// The levels of durability.
const (
	// Fsync: after its batch was fsynced. The records survive a power loss.
	Fsync Durability = "fsync"
	// PageCache: after its batch was written. The records survive a kill of the process.
	PageCache Durability = "page-cache"
)

// Config of a Broker. The zero value of a field means its default.
type Config struct {
	// Dir holds the log; it is created. Empty: in memory.
	Dir string
	// Durability defaults to Fsync.
	Durability Durability `default:"fsync" oneof:"fsync page-cache"`
	// Port is the port on Host for readers such as kcat, which cannot write. 0: the port of the
	// last start if it is free, else any.
	Port int `min:"0" max:"65535"`
	// Host is a loopback address.
	Host string `default:"127.0.0.1"`
	// NoPort opens no port: clients use Broker.Dial or Socket.
	NoPort bool
	// Socket is the name of a unix socket, of mode 0600, through which tools of the same user
	// read and write. Its folder must be accessible only to that user. Empty: none.
	Socket string
	// Topics holds the topics and their numbers of partitions. Missing topics are created. A
	// topic that exists with another number keeps it, because keys would move.
	Topics map[string]int
	// StoreID is the id that the database of this log carries. It is empty if the database is
	// new; the database must then store Broker.StoreID before anything is appended.
	StoreID string
	// Kept[topic][partition] is the offset below which records were read and are kept elsewhere.
	// It proves that the log held them: a log that ends below it has lost records.
	Kept map[string]map[int32]int64
	// CapBytes is the size on disk at which Guard returns log_full.
	CapBytes int64 `default:"2048MiB" min:"0"`
	// MinFreeBytes is the free space on the volume below which Guard returns disk_full.
	MinFreeBytes int64 `default:"256MiB" min:"0"`
	// MaxBatchBytes is the largest batch.
	MaxBatchBytes int `default:"8256KiB" min:"0"`
	// SegmentBytes is the size at which a segment is closed. Only whole segments are trimmed.
	// Default 32 MiB, or less if the partitions' open segments together could hold more than
	// half of CapBytes.
	SegmentBytes int64
	// Measure is the interval at which size and free space are measured and the volume is
	// probed by an fsync.
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
			return fmt.Errorf("embedded log: %d partitions for %s", n, t)
		}
	}
	return setting.Err("log", &c)
}
