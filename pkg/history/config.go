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
	Time      int64  // the log's timestamp, ms since 1970; 0: now. Retention counts from it
}

// Config of a Store. Only Dir is required.
type Config struct {
	// Dir is the folder of the segments. It belongs to one Store; the caller
	// holds a lock that makes sure of it.
	Dir string
	// FS is the file system; nil: the operating system's.
	FS FS
	// SegmentReceivers seals a tail that holds so many receivers; 1..4Mi.
	SegmentReceivers int `default:"1048576" min:"1" max:"4194304"`
	// SegmentBytes seals a tail whose bodies reach this size.
	SegmentBytes int64 `default:"64MiB" min:"1"`
	// SegmentAge seals a tail so long after its first record, which bounds how much log a
	// quiet system keeps.
	SegmentAge time.Duration `default:"5m" min:"0"`
	// CacheBytes is how much of the newest segments may stay in the page cache. Beyond, the
	// system is told that it needs them no more: at 5M receivers a second history writes 80
	// MB/s, and memory that is taken anew costs far more than memory that is used again (on a
	// machine whose host gives it memory on demand, 110 MB/s against 1 GB/s).
	CacheBytes int64 `default:"256MiB" min:"1"`
	// BufferBytes is how much of the bodies is gathered before a write.
	BufferBytes int `default:"1MiB" min:"1"`
	// Retention removes segments whose youngest record is older.
	Retention time.Duration `default:"720h" min:"0"`
	// RemovalTime, when set, is the time that Retention and ArchiveWait are counted
	// back from, in place of time.Now: a clock that jumped must not remove
	// everything at once. After an error nothing is removed.
	RemovalTime func(ctx context.Context) (time.Time, error)
	// Archived, when set, returns of each partition the offset below which
	// everything is archived: a segment beyond it is kept when its retention is
	// over, for ArchiveWait at most (0: without limit).
	Archived    func() map[Part]int64
	ArchiveWait time.Duration
	// MergeCount is how many small segments of similar size become one; at least 2.
	MergeCount int `default:"8" min:"2"`
	// Barrier returns the end offset of every partition of the log as of now.
	// Find asks for it on a miss and waits until Append has passed it, so that
	// an id answered before is found. nil: a miss is believed.
	Barrier func(ctx context.Context) (map[Part]int64, error)
	// MaxWait is how long Find and Each wait at the barrier; then they are
	// notify.KindUnavailable.
	MaxWait time.Duration `default:"5s" min:"0"`
	// Log receives what goes wrong in the background.
	Log *slog.Logger `default:"discard"`
}
