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

// Version is the version of the way in which this build splits requests into records. The
// reservation stores it, because another version could not write the same records again.
const Version = 2 // 1 derived the ids of a batch by SHA-256

// Log appends records durably, in the given order per partition. If the error is nil, every record
// is acknowledged and the log keeps no reference to them. Otherwise each of them may or may not be
// stored, and the log may still refer to them.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Gate returns an error while the log cannot take anything: it is at its cap, or its volume is full
// or broken.
type Gate interface {
	Err() error
}

// Later stores schedules and then their timers until they are due. Storing the same values again
// changes nothing. It may keep the payloads.
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

// Stores are the stores to which intake writes.
type Stores struct {
	Log Log // required
	// Partitions returns the number of partitions of a topic, 1 to 65535, over which the request of
	// a base is spread; 0 if it is not known. It is required. The number may grow. The log chooses
	// the partition of keyed records when they are appended, and only their ids use this number.
	// The chunks of fan-outs go to partitions by it.
	Partitions func(topic string, base notify.Base) int
	Idem       request.Idem // required
	Campaigns  Campaigns    // required
	Cancels    Cancels      // required
	Spill      Spill        // nil: critical messages are refused too while the log is away
	Gate       Gate         // nil: always open
	BulkGate   Gate         // Gate for requests of the bulk lane alone; nil: Gate
	Later      Later        // nil: scheduling is refused
	LaterGate  Gate         // for the store behind Later; nil: always open
	Clock      Gate         // error while this process cannot tell whether a time has passed; nil: it always can
}

// Config holds the limits and rules of intake. The zero value is ready.
type Config struct {
	// MaxRecord is the largest record value, in bytes. Default 983,040; at
	// least 524,288, so that one receiver always fits; the broker's
	// max.message.bytes must be above it.
	MaxRecord int `default:"983040" min:"524288"`
	// MaxBatch is how many items a batch may have.
	MaxBatch int `default:"1000" min:"1"`
	// MaxRejected is how many refused receivers the answer of a fan-out lists. It always counts all
	// of them.
	MaxRejected int `default:"10000" min:"1"`
	// BlockReceivers is how many receivers a chunk should hold. A block is this many per partition,
	// rounded up to a power of two.
	BlockReceivers int `default:"8192" min:"1"`
	// Refuse lists categories that are not admitted, by channel. Default none.
	Refuse map[notify.Channel][]notify.Category
	// SMS lists the categories SMS takes. Default otp and alert.
	SMS []notify.Category
	// MaxDelay is how far ahead a notification may be scheduled.
	MaxDelay time.Duration `default:"8784h" min:"0"`
	// Jitter spreads scheduled notifications. It moves them later only, by at most a tenth of the
	// delay, and never moves otp and alert.
	Jitter time.Duration `min:"0"`
	// TimerKind is the engine.Timer.Kind of an envelope.
	TimerKind uint8 `default:"1"`
	// Lease is how long a request may work on a reserved key before a repeat takes over.
	Lease time.Duration `default:"30s" min:"1s"`
	// Keep is how long a key is kept at least.
	Keep time.Duration `default:"24h"`
	// Grace is how long a key of a scheduled request is kept after it fired.
	Grace time.Duration `default:"1h" min:"0"`
	// SpillBytes bounds the spill buffer.
	SpillBytes int64 `default:"64MiB" min:"1"`
	// Owner names this process in leases; it must differ between processes, and
	// between starts of one. Default: a fresh id.
	Owner string
	// Exclusive: no other process can have Stores.Idem open (request.Once).
	Exclusive bool
	// Admission bounds the work on large requests. Default: unbounded.
	Admission *limit.Admission
	// Events are called when something happens. Default: none.
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
	spillLooks       sharedLooks  // at the spill buffer
	spillHeldUntil   atomic.Int64 // until then the buffer counts as filled while it cannot be read, ns since 1970; 0: last seen empty
	fans             sync.Pool    // *splitter
	notes            sync.Pool    // *noteWriter
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
	s := &Service{cfg: cfg, stores: st, rules: newRules(cfg), once: request.Once{
		Idem: st.Idem, Version: Version, Newer: notify.Unavailable("intake_version", retryUnavailable, nil),
		Lease: cfg.Lease, Keep: cfg.Keep, Grace: cfg.Grace, Owner: cfg.Owner, Exclusive: cfg.Exclusive,
		Replayed: cfg.Events.Replayed, TakenOver: cfg.Events.TakenOver, Logger: cfg.Logger,
	}}
	s.rules.later, s.rules.clock = st.Later != nil, st.Clock
	s.notes.New = func() any { return new(noteWriter) }
	s.fans.New = func() any { return newSplitter() }
	return s, nil
}

// Events are callbacks for metrics; each may be nil. They are called on the
// request's goroutine and must not block.
type Events struct {
	// Accepted: n receivers are durable, now or as timers.
	Accepted func(ch notify.Channel, cat notify.Category, caller string, n int)
	// Rejected: n receivers or items were refused with code.
	Rejected func(caller, code string, n int)
	// Refused: a whole request was refused or failed.
	Refused func(caller, code string)
	// Body: a request's body of n bytes was read.
	Body func(route string, n int)
	// Done: a request was answered after d; code is empty for an answer.
	Done func(route, code string, d time.Duration)
	// Replayed: a repeat got the first answer of its key.
	Replayed func(caller string)
	// TakenOver: a repeat took over the work of a dead request.
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

// beginRequest reports the body. The caller calls the result with the error of the request.
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
