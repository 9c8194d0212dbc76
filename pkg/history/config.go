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
	// SegmentReceivers seals a tail that holds so many receivers; 1..4Mi,
	// default 1Mi.
	SegmentReceivers int
	// SegmentBytes seals a tail whose bodies reach this size; default 64 MiB.
	SegmentBytes int64
	// SegmentAge seals a tail so long after its first record, which bounds how
	// much log a quiet system keeps; default 5 min.
	SegmentAge time.Duration
	// CacheBytes is how much of the newest segments may stay in the page cache;
	// default 256 MiB. Beyond, the system is told that it needs them no more: at
	// 5M receivers a second history writes 80 MB/s, and memory that is taken anew
	// costs far more than memory that is used again (on a machine whose host
	// gives it memory on demand, 110 MB/s against 1 GB/s).
	CacheBytes int64
	// BufferBytes is how much of the bodies is gathered before a write; default 1 MiB.
	BufferBytes int
	// Retention removes segments whose youngest record is older; default 30 days.
	Retention time.Duration
	// RemovalTime, when set, is the time that Retention and ArchiveWait are counted
	// back from, in place of time.Now: a clock that jumped must not remove
	// everything at once. After an error nothing is removed.
	RemovalTime func(ctx context.Context) (time.Time, error)
	// Archived, when set, returns of each partition the offset below which
	// everything is archived: a segment beyond it is kept when its retention is
	// over, for ArchiveWait at most (0: without limit).
	Archived    func() map[Part]int64
	ArchiveWait time.Duration
	// MergeCount is how many small segments of similar size become one; at
	// least 2, default 8.
	MergeCount int
	// Barrier returns the end offset of every partition of the log as of now.
	// Find asks for it on a miss and waits until Append has passed it, so that
	// an id answered before is found. nil: a miss is believed.
	Barrier func(ctx context.Context) (map[Part]int64, error)
	// MaxWait is how long Find and Each wait at the barrier; then they are
	// notify.KindUnavailable. Default 5 s.
	MaxWait time.Duration
	// Log receives what goes wrong in the background; default: discarded.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = osFS{}
	}
	if c.SegmentReceivers == 0 {
		c.SegmentReceivers = 1 << 20
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 64 << 20
	}
	if c.SegmentAge == 0 {
		c.SegmentAge = 5 * time.Minute
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = 256 << 20
	}
	if c.BufferBytes == 0 {
		c.BufferBytes = 1 << 20
	}
	if c.Retention == 0 {
		c.Retention = 30 * 24 * time.Hour
	}
	if c.MergeCount == 0 {
		c.MergeCount = 8
	}
	if c.MaxWait == 0 {
		c.MaxWait = 5 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Dir == "":
		return fmt.Errorf("history: no folder configured")
	case c.SegmentReceivers < 1 || c.SegmentReceivers > 4<<20:
		return fmt.Errorf("history: segments of %d receivers; 1 to %d are possible", c.SegmentReceivers, 4<<20)
	case c.SegmentBytes < 1 || c.CacheBytes < 1 || c.BufferBytes < 1:
		return fmt.Errorf("history: sizes must be positive")
	case c.SegmentAge < 0 || c.Retention < 0 || c.MaxWait < 0:
		return fmt.Errorf("history: durations must be positive")
	case c.MergeCount < 2:
		return fmt.Errorf("history: merging %d segments into one is no merge", c.MergeCount)
	}
	return nil
}
