package kfake

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
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
	Durability Durability
	// Port is where readers such as kcat connect, on Host; they cannot write. 0: the
	// port of the last start if it is free, else any.
	Port int
	// Host is a loopback address. Default 127.0.0.1.
	Host string
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
	// CapBytes is the size on disk at which Guard says log_full. Default 2 GiB:
	// the log is read into memory when it opens.
	CapBytes int64
	// MinFreeBytes is the room on the volume below which Guard says disk_full.
	// Default 256 MiB.
	MinFreeBytes int64
	// MaxBatchBytes is the largest batch. Default 8 MiB + 64 KiB.
	MaxBatchBytes int
	// SegmentBytes is when a partition's file is closed; only whole files are
	// trimmed. Default 32 MiB, less where the partitions' open files together
	// could hold more than half of CapBytes.
	SegmentBytes int64
	// Measure is how often size and room are measured and the volume is
	// fsynced. Default 500 ms.
	Measure time.Duration
	// TrimEvery defaults to 1 s.
	TrimEvery time.Duration
	// Logger gets the broker's warnings. Default: nothing.
	Logger *slog.Logger
}

const (
	maxSegment = 32 << 20
	minSegment = 256 << 10
)

func (c Config) withDefaults() Config {
	if c.Durability == "" {
		c.Durability = Fsync
	}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.CapBytes == 0 {
		c.CapBytes = 2 << 30
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 256 << 20
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 8<<20 + 64<<10
	}
	if c.SegmentBytes == 0 {
		partitions := 0
		for _, n := range c.Topics {
			partitions += n
		}
		c.SegmentBytes = min(max(c.CapBytes/int64(2*max(partitions, 1)), minSegment), maxSegment)
	}
	if c.Measure == 0 {
		c.Measure = 500 * time.Millisecond
	}
	if c.TrimEvery == 0 {
		c.TrimEvery = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Durability != Fsync && c.Durability != PageCache:
		return fmt.Errorf("kfake: no durability is called %q", c.Durability)
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("kfake: port %d", c.Port)
	case c.CapBytes < 0 || c.MinFreeBytes < 0 || c.MaxBatchBytes < 0 || c.SegmentBytes < 0:
		return errors.New("kfake: negative size")
	case c.Measure < 0 || c.TrimEvery < 0:
		return errors.New("kfake: negative interval")
	}
	for t, n := range c.Topics {
		if n < 1 {
			return fmt.Errorf("kfake: %d partitions for %s", n, t)
		}
	}
	return nil
}
