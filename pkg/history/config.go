package history

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Part is one partition of one topic of the log.
type Part struct {
	Topic     string
	Partition int32
}

func (p Part) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// Record is one record of the log. Value may be reused after Append.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Value     []byte // a notify.Envelope
	Time      int64  // timestamp in the log, ms since 1970; 0: now. Retention is counted from it
}

// Config configures a Store. Only Dir is required.
type Config struct {
	// Dir is the folder of the segments. Only one Store may use it. The caller holds a lock that
	// guarantees this.
	Dir string
	// FS is the file system. nil means the operating system's file system.
	FS FS
	// SegmentReceivers is the number of receivers at which a tail is sealed, 1 to 4Mi.
	SegmentReceivers int `default:"1048576" min:"1" max:"4194304"`
	// SegmentBytes is the total size of the bodies at which a tail is sealed.
	SegmentBytes int64 `default:"64MiB" min:"1"`
	// SegmentAge is the age at which a tail is sealed even if it is not full. Without this limit,
	// the log of a quiet system could not be trimmed.
	SegmentAge time.Duration `default:"5m" min:"0"`
	// CacheBytes is how many bytes of the newest segments may stay in the page cache. For older
	// segments, the Store tells the operating system that it may drop them. Without this limit,
	// the history would always write into new pages of memory. On a virtual machine that gets
	// memory on demand, new pages are slow: 110 MB/s, against 1 GB/s for pages that are used
	// again. The history writes 80 MB/s at 5M receivers a second.
	CacheBytes int64 `default:"256MiB" min:"1"`
	// BufferBytes is how many bytes of bodies are collected before a write.
	BufferBytes int `default:"1MiB" min:"1"`
	// Retention is the age at which a record may be removed. A segment is removed when its youngest
	// record has this age.
	Retention time.Duration `default:"720h" min:"0"`
	// RemovalTime, when set, returns the current time for Retention and ArchiveWait, instead of
	// time.Now. It protects against a clock that jumps, which could remove all segments at once. If
	// it returns an error, no segment is removed.
	RemovalTime func(ctx context.Context) (time.Time, error)
	// Archived, when set, returns for each partition the offset below which all records are
	// archived. A segment with records at or above that offset is kept after its retention, for at
	// most ArchiveWait (0: without limit).
	Archived    func() map[Part]int64
	ArchiveWait time.Duration
	// MergeCount is how many small segments of similar size are merged into one segment; at least
	// 2.
	MergeCount int `default:"8" min:"2"`
	// Barrier returns the current end offset of every partition of the log. When Find finds
	// nothing, it calls Barrier and waits until Append has passed these offsets. So Find finds
	// every id that was returned to a caller before. nil: Find does not wait.
	Barrier func(ctx context.Context) (map[Part]int64, error)
	// MaxWait is the longest time that Find and Each wait for the offsets of Barrier. After that
	// they return notify.KindUnavailable.
	MaxWait time.Duration `default:"5s" min:"0"`
	// Log receives errors of the background work.
	Log *slog.Logger `default:"discard"`
}
