package embedded

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/setting"
)

// Durability decides when an append is acknowledged.
type Durability string

// The levels of durability.
const (
	// Fsync: the append is acknowledged after its batch was fsynced. Records survive a power loss.
	Fsync Durability = "fsync"
	// PageCache: the append is acknowledged after its batch was written. Records survive a kill of the
	// process, but not a power loss.
	PageCache Durability = "page-cache"
)

// Config configures a Broker. The zero value of a field means its default.
type Config struct {
	// Dir is the folder of the log. Open creates it. Empty: the log is in memory.
	Dir string
	// Durability decides when an append is acknowledged.
	Durability Durability `default:"fsync" oneof:"fsync page-cache"`
	// Port is the port on Host for readers such as kcat. Clients of this port cannot write. 0: the port
	// of the last start if that port is free; otherwise any free port.
	Port int `min:"0" max:"65535"`
	// Host is the loopback address of Port.
	Host string `default:"127.0.0.1"`
	// NoPort is true if the broker opens no port. Clients then use Broker.Dial or Socket.
	NoPort bool
	// Socket is the path of a unix socket of mode 0600. Tools of the same user read and write through
	// the socket. Only that user may have access to the folder of the socket. Empty: no socket.
	Socket string
	// Topics holds the number of partitions of each topic. Missing topics are created. If a topic
	// already has another number of partitions, the number does not change, because a change would move
	// keys to other partitions.
	Topics map[string]int
	// StoreID is the id of this log that the database holds. Empty: the database is new, and the caller
	// must store Broker.StoreID in it before the first append.
	StoreID string
	// Kept[topic][partition] is the offset below which all records were read from the log and are
	// stored elsewhere. So a log that ends below this offset has lost records.
	Kept map[string]map[int32]int64
	// CapBytes is the size on disk, in bytes, at which Guard returns log_full.
	CapBytes int64 `default:"2048MiB" min:"0"`
	// MinFreeBytes is the minimum of free space on the volume, in bytes. If less space is free, Guard
	// returns disk_full.
	MinFreeBytes int64 `default:"256MiB" min:"0"`
	// MaxBatchBytes is the size in bytes of the largest batch that the broker accepts.
	MaxBatchBytes int `default:"8256KiB" min:"0"`
	// SegmentBytes is the size in bytes at which a segment is closed. Only whole segments are
	// trimmed. The default is 32 MiB, or less if the open segments of all partitions could hold
	// more than half of CapBytes.
	SegmentBytes int64
	// Measure is the interval of the measurements of size and free space. At the same interval the
	// broker probes the volume with an fsync.
	Measure time.Duration `default:"500ms" min:"0"`
	// TrimEvery is the interval of Trim.
	TrimEvery time.Duration `default:"1s" min:"0"`
	// Logger gets the log lines of the broker and the warnings of this package.
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
			return fmt.Errorf("embedded log: topic %s must have at least 1 partition, not %d", t, n)
		}
	}
	return setting.Err("log", &c)
}
