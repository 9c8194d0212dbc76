package intake

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
)

// Version names the way this build splits requests into records. It is frozen
// in a reservation: another version could not write the same records again.
const Version = 2 // 1 derived the ids of a batch by SHA-256

// Log appends records durably, in the order given per partition. A nil error:
// every record is acknowledged and none is referred to any more. An error: any
// of them may or may not be stored, and may still be referred to.
type Log interface {
	Append(ctx context.Context, recs []stream.Record) error
}

// Gate says whether the log may take anything: an error when it is at its cap
// or its volume is full or broken.
type Gate interface {
	Err() error
}

// Later keeps envelopes until they are due: first the schedules, then their
// timers. Storing the same again changes nothing. It may keep the payloads.
type Later interface {
	Put(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error
}

// Stores are what intake writes to.
type Stores struct {
	Log        Log                    // required
	Partitions func(topic string) int // partitions of a topic, 1..65535; required
	Idem       engine.Idem            // required
	Campaigns  engine.Campaigns       // required
	Cancels    engine.Cancels         // required
	Spill      engine.Spill           // nil: critical messages are refused too while the log is away
	Gate       Gate                   // nil: always open
	Later      Later                  // nil: scheduling is refused
	LaterGate  Gate                   // of what Later writes to; nil: always open
	Clock      Gate                   // says why this process cannot tell whether a time has passed; nil: it can
}

// Config are the limits and rules of intake. The zero value is ready.
type Config struct {
	// MaxRecord is the largest record value, in bytes. Default 983,040; at
	// least 524,288, so that one receiver always fits; the broker's
	// max.message.bytes must be above it.
	MaxRecord int
	// MaxBatch is how many items a batch may have. Default 1,000.
	MaxBatch int
	// MaxRejected is how many refused receivers a fan-out's answer lists; it
	// always counts all. Default 10,000.
	MaxRejected int
	// BlockReceivers is how many receivers a chunk is meant to hold; a block
	// is this many per partition, rounded up to a power of two. Default 8,192.
	BlockReceivers int
	// Refuse lists categories that are not admitted, by channel. Default none.
	Refuse map[notify.Channel][]notify.Category
	// SMS lists the categories SMS takes. Default otp and alert.
	SMS []notify.Category
	// MaxDelay is how far ahead a notification may be scheduled. Default 366 days.
	MaxDelay time.Duration
	// Jitter spreads scheduled notifications: later only, by at most a tenth of
	// the delay; never otp and alert.
	// Default 0.
	Jitter time.Duration
	// TimerKind is engine.Timer.Kind of an envelope. Default 1, as pkg/timer has it.
	TimerKind uint8
	// Lease is how long a request may work on a reserved key before a repeat
	// takes over. Default 30 s.
	Lease time.Duration
	// Keep is how long a key is kept at least. Default 24 h.
	Keep time.Duration
	// Grace is how long a key of a scheduled request is kept after it fired.
	// Default 1 h.
	Grace time.Duration
	// SpillBytes bounds the spill buffer. Default 64 MiB.
	SpillBytes int64
	// Owner names this process in leases; it must differ between processes, and
	// between starts of one. Default: a fresh id.
	Owner string
	// Exclusive: no other process can have Stores.Idem open (request.Once).
	Exclusive bool
	// Events are told what happened. Default: nothing.
	Events Events
	// Logger gets failures that do not change an answer. Default: discarded.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.MaxRecord = or(c.MaxRecord, 983_040)
	c.MaxBatch = or(c.MaxBatch, 1000)
	c.MaxRejected = or(c.MaxRejected, 10_000)
	c.BlockReceivers = or(c.BlockReceivers, 8192)
	c.MaxDelay = or(c.MaxDelay, 366*24*time.Hour)
	c.TimerKind = or(c.TimerKind, 1)
	c.Lease = or(c.Lease, 30*time.Second)
	c.Keep = or(c.Keep, 24*time.Hour)
	c.Grace = or(c.Grace, time.Hour)
	c.SpillBytes = or(c.SpillBytes, 64<<20)
	if c.SMS == nil {
		c.SMS = []notify.Category{notify.OTP, notify.Alert}
	}
	if c.Owner == "" {
		c.Owner = notify.NewBase(time.Now()).String()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (c Config) validate() error {
	switch {
	case c.MaxRecord < 512<<10:
		return errors.New("intake: MaxRecord is below 524,288 bytes, one receiver might not fit")
	case c.MaxBatch < 1, c.MaxRejected < 1, c.BlockReceivers < 1, c.SpillBytes < 1:
		return errors.New("intake: MaxBatch, MaxRejected, BlockReceivers and SpillBytes must be above 0")
	case c.Lease < time.Second, c.Keep < c.Lease, c.Grace < 0, c.Jitter < 0, c.MaxDelay < 0:
		return errors.New("intake: Lease must be at least 1 s, Keep at least Lease, and no duration below 0")
	}
	return nil
}

// Service is the intake of one process. Its methods may be called from any
// goroutine; they keep nothing of the body after they returned.
type Service struct {
	cfg   Config
	st    Stores
	rules rules
	once  request.Once
	blind atomic.Int64 // until then the spill buffer is not asked, ns since 1970
	holds atomic.Int64 // until then it is taken to hold something while it cannot be read, ns since 1970; 0: it was seen empty
	fans  sync.Pool    // *splitter
	notes sync.Pool    // *noteWriter
}

// New returns a Service over st.
func New(st Stores, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if st.Log == nil || st.Partitions == nil || st.Idem == nil || st.Campaigns == nil || st.Cancels == nil {
		return nil, errors.New("intake: Log, Partitions, Idem, Campaigns and Cancels are required")
	}
	s := &Service{cfg: cfg, st: st, rules: newRules(cfg), once: request.Once{
		Idem: st.Idem, Version: Version, Newer: notify.Unavailable("intake_version", retryUnavailable, nil),
		Lease: cfg.Lease, Keep: cfg.Keep, Grace: cfg.Grace, Owner: cfg.Owner, Exclusive: cfg.Exclusive,
		Replayed: cfg.Events.Replayed, TakenOver: cfg.Events.TakenOver, Logger: cfg.Logger,
	}}
	s.rules.later, s.rules.clock = st.Later != nil, st.Clock
	s.notes.New = func() any { return new(noteWriter) }
	s.fans.New = func() any { return newSplitter() }
	return s, nil
}
