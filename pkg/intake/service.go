package intake

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Version is the version of the way in which this build splits requests into records. The reservation
// of the idempotency key stores it, because another version could not write the same records again.
const Version = 2 // version 1 derived the ids of a batch with SHA-256

// Log appends records durably, in the given order within a partition. If Append returns nil, all
// records are acknowledged, and the log keeps no reference to them. If it returns an error, each
// record may or may not be stored, and the log may still refer to the records.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Gate returns an error while something that intake needs cannot be used. For example, the log
// cannot accept records while it has reached its maximum size, or while its volume is full or
// broken.
type Gate interface {
	Err() error
}

// A Later is a store that keeps schedules and their timers until they are due. It stores the
// schedules first. Storing the same values again changes nothing. The store may keep references
// to the payloads.
type Later interface {
	Put(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error
}

// Campaigns stores campaigns and their parts; store.Campaigns implements it.
type Campaigns interface {
	AddPart(ctx context.Context, campaign, caller string, part uint32, base notify.Base, accepted, rejected int64, at int64) error
	Get(ctx context.Context, campaign string) (c engine.Campaign, ok bool, err error)
}

// Cancels reads cancellations; users.CancelStore implements it.
type Cancels interface {
	Get(ctx context.Context, scope string) (c engine.Cancel, ok bool, err error)
}

// Stores are the stores that intake uses.
type Stores struct {
	Log Log // required
	// Partitions returns the number of partitions of a topic over which the request with this base
	// is spread: 1 to 65535, or 0 if the number is not known. It is required. The number may grow.
	// The chunks of fan-outs are appended to partitions chosen with this number. For keyed records
	// the log chooses the partition when the records are appended, and this number decides only the
	// field Chunk.Partition of their envelopes.
	Partitions func(topic string, base notify.Base) int
	Idem       request.Idem // required
	Campaigns  Campaigns    // required
	Cancels    Cancels      // required
	Spill      Spill        // nil: while the log is down, critical messages are refused too
	Gate       Gate         // nil: always open
	BulkGate   Gate         // gate for requests with only bulk records; nil: the field Gate applies to them
	Later      Later        // nil: requests for a later time are refused
	LaterGate  Gate         // for the store that Later uses; nil: always open
	// Clock returns an error while this process's clock is not reliable. nil: the clock is always
	// reliable.
	Clock Gate
}

// Config contains the limits and rules of intake. The zero value is ready to use.
type Config struct {
	// MaxRecord is the largest size of a record value, in bytes. Default 983,040. It must be at
	// least 524,288, so that one receiver always fits. With Kafka, the setting max.message.bytes of
	// the brokers must be larger.
	MaxRecord int `default:"983040" min:"524288"`
	// MaxBatch is the largest number of items in a batch.
	MaxBatch int `default:"1000" min:"1"`
	// MaxRejected is the largest number of refused receivers that the answer of a fan-out lists.
	// The answer counts all refused receivers.
	MaxRejected int `default:"10000" min:"1"`
	// BlockReceivers is how many receivers a chunk should contain. A block has this many receivers
	// for each partition, rounded up to a power of two.
	BlockReceivers int `default:"8192" min:"1"`
	// Refuse contains, for each channel, the categories that are not admitted. Default: no
	// categories.
	Refuse map[notify.Channel][]notify.Category
	// SMS lists the categories that may be sent by SMS. Default: otp and alert.
	SMS []notify.Category
	// MaxDelay is how far into the future a notification may be scheduled.
	MaxDelay time.Duration `default:"8784h" min:"0"`
	// Jitter spreads the fire times of scheduled notifications. It only makes a fire time later, by
	// at most a tenth of the delay. It never changes the fire time of otp and alert.
	Jitter time.Duration `min:"0"`
	// TimerKind is the value of the field Kind of timers that contain an envelope.
	TimerKind uint8 `default:"1"`
	// Lease is how long a request may work on a reserved idempotency key before a repeat takes over
	// the key.
	Lease time.Duration `default:"30s" min:"1s"`
	// Keep is the shortest time for which an idempotency key is stored.
	Keep time.Duration `default:"24h"`
	// Grace is how long the idempotency key of a scheduled request is stored after the fire time.
	Grace time.Duration `default:"1h" min:"0"`
	// SpillBytes is the largest size of the spill buffer.
	SpillBytes int64 `default:"64MiB" min:"1"`
	// Owner is the name of this process in leases. It must differ between processes, and between
	// two starts of one process. Default: a new id.
	Owner string
	// Exclusive means that no other process can have Stores.Idem open (see request.Once).
	Exclusive bool
	// Admission bounds the work on large requests. Default: no bound.
	Admission *limit.Admission
	// Events are called when something happens. Default: no calls.
	Events Events
	// Logger logs failures that do not change an answer.
	Logger *slog.Logger `default:"discard"`
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	if c.SMS == nil {
		c.SMS = []notify.Category{notify.OTP, notify.Alert}
	}
	if c.Owner == "" {
		c.Owner = notify.NewBase(time.Now()).String()
	}
	return c
}

func (c Config) validate() error {
	if c.Keep < c.Lease {
		return errors.New("intake: Keep must be at least Lease")
	}
	return setting.Err("intake", &c)
}

// Service is the intake of one process. Its methods may be called from any goroutine. They keep no
// reference to the body after they return.
type Service struct {
	cfg              Config
	stores           Stores
	rules            rules
	once             request.Once
	spillUnreadUntil atomic.Int64 // the spill buffer is not read before this time, ns since 1970
	spillLooks       sharedLooks  // shared reads of the spill buffer
	// If the spill buffer cannot be read, it counts as filled until this time, ns since 1970.
	// 0: the last read found the buffer empty.
	spillHeldUntil atomic.Int64
	fans           sync.Pool // *splitter
	notes          sync.Pool // *noteWriter
}

// errNewerRelease is the error for a key that a newer release has reserved.
var errNewerRelease = &notify.Error{
	Kind: notify.KindUnavailable, Code: "intake_version", RetryAfter: retryUnavailable,
	Msg: "a newer release of notifyd has reserved this Idempotency-Key; only a process of that release can answer the request",
}

// New returns a Service that uses st. It returns an error if cfg is not valid or a required store
// is missing.
func New(st Stores, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if st.Log == nil || st.Partitions == nil || st.Idem == nil || st.Campaigns == nil || st.Cancels == nil {
		return nil, errors.New("intake: Log, Partitions, Idem, Campaigns and Cancels are required")
	}
	s := &Service{cfg: cfg, stores: st, rules: newRules(cfg), once: request.Once{
		Idem: st.Idem, Version: Version, Newer: errNewerRelease,
		Lease: cfg.Lease, Keep: cfg.Keep, Grace: cfg.Grace, Owner: cfg.Owner, Exclusive: cfg.Exclusive,
		Replayed: cfg.Events.Replayed, TakenOver: cfg.Events.TakenOver, Logger: cfg.Logger,
	}}
	s.rules.later, s.rules.clock = st.Later != nil, st.Clock
	s.notes.New = func() any { return new(noteWriter) }
	s.fans.New = func() any { return newSplitter() }
	return s, nil
}

// Events are callbacks for metrics; each may be nil. The goroutine of the request calls them, so
// they must not block.
type Events struct {
	// Accepted: n receivers are durable, as records or as timers.
	Accepted func(ch notify.Channel, cat notify.Category, caller string, n int)
	// Rejected: n receivers or items were refused with this error code.
	Rejected func(caller, code string, n int)
	// Refused: a whole request was refused or failed with this error code.
	Refused func(caller, code string)
	// Body: the body of a request, n bytes, was read.
	Body func(route string, n int)
	// Done: a request was answered. The parameter duration is how long that took, and code is the
	// error code, or empty if the request succeeded.
	Done func(route, code string, duration time.Duration)
	// Replayed: a repeat got the stored answer of its key.
	Replayed func(caller string)
	// TakenOver: a repeat took over the work of a request that died.
	TakenOver func(caller string)
	// Spilled: n records went to the spill buffer instead of the log.
	Spilled func(n int)
}

func (e *Events) accepted(ch notify.Channel, cat notify.Category, caller string, n int) {
	if e.Accepted != nil && n > 0 {
		e.Accepted(ch, cat, caller, n)
	}
}

func (e *Events) rejected(caller, code string, n int) {
	if e.Rejected != nil && n > 0 {
		e.Rejected(caller, code, n)
	}
}

func (e *Events) spilled(n int) {
	if e.Spilled != nil {
		e.Spilled(n)
	}
}

// beginRequest reports the size of the body. The caller must call the returned function with the
// error of the request.
func (e *Events) beginRequest(m request.Meta, size int) func(error) {
	if e.Body != nil {
		e.Body(m.Route, size)
	}
	if e.Done == nil && e.Refused == nil {
		return func(error) {}
	}
	start := time.Now()
	return func(err error) {
		code := ""
		if err != nil {
			code = codeOf(err)
			if e.Refused != nil {
				e.Refused(m.Caller, code)
			}
		}
		if e.Done != nil {
			e.Done(m.Route, code, time.Since(start))
		}
	}
}
