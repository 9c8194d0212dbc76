package worker

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/trace"
	"github.com/notifyd/notifyd/pkg/users"
)

// Provider takes a call to the outside world.
type Provider interface {
	// Send delivers every item of call and reports each exactly once, possibly
	// concurrently, before it returns.
	Send(ctx context.Context, call *notify.Call, report notify.Report)
}

// Preferences decides, from memory, whether and where a user is reached.
type Preferences interface {
	// Look decides for many users at once: answers[i] is for users[i]. One by one
	// takes more than twice as long. False: one of them is users.Unknown.
	Look(answers []users.Answer, users [][]byte, ch notify.Channel, cat notify.Category, now time.Time) (known bool)
	Decide(user []byte, ch notify.Channel, cat notify.Category, now time.Time) users.Verdict
	Addresses(dst []notify.Target, user []byte, ch notify.Channel) []notify.Target
	Suppressed(ch notify.Channel, address []byte) bool
	// Suppresses reports whether Suppressed may be true of any address.
	Suppresses() bool
	Suppress(ctx context.Context, user string, ch notify.Channel, address, reason string) error
	// Unsubscribe opts a user who told a provider to stop out of what is not about
	// something that they did: marketing and digest on the channel.
	Unsubscribe(ctx context.Context, user string, ch notify.Channel) error
	// Hold keeps the profiles of the users of a partition in memory until it is
	// released. It does not wait for them to be loaded.
	Hold(ch notify.Channel, partitions int, n int32) *users.Holding
	// Fetch reads the profiles of users who are users.Unknown.
	Fetch(ctx context.Context, ch notify.Channel, users [][]byte) error
	// Fresh reports whether what is known is recent enough for bulk.
	Fresh(now time.Time) bool
	// Loaded reports whether anything is known: where users are reached is not,
	// until the preferences were read once.
	Loaded() bool
}

// Cancels knows what was cancelled.
type Cancels interface {
	Cancelled(e *notify.Envelope, index uint32) bool
	// Maybe reports whether Cancelled may be true of any receiver of the envelope.
	Maybe(e *notify.Envelope) bool
	// Fresh reports whether what is known is recent enough for bulk.
	Fresh(now time.Time) bool
}

// Holds keeps the notifications of strict lanes that wait: it is store.Holds.
type Holds interface {
	Update(ctx context.Context, add, remove []engine.Hold) error
	Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error)
}

// Log takes records; nil means every one is acknowledged.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Parker keeps envelopes until their time; nil means durable.
type Parker interface {
	Park(ctx context.Context, ts []engine.Timer) error
}

// Role says which topic of its lane a worker reads.
type Role uint8

const (
	// First takes first attempts and deferrals from the lane's topic and keeps
	// the order of first attempts per user.
	First Role = iota
	// Retries takes retries from the lane's -dlq topic.
	Retries
)

// Order is what a lane promises of a user's messages beyond their first attempts.
type Order uint8

const (
	// Relaxed keeps the order of first attempts only.
	Relaxed Order = iota
	// Strict parks a user's messages behind one that waits, until it has ended.
	Strict
)

// Config of a Worker. The zero value of a number means its default.
type Config struct {
	Lane notify.Lane
	Role Role
	// Order says what a user's next messages do while one waits for a retry or a
	// later time: pass it (Relaxed, the default), or wait behind it (Strict).
	Order Order

	Window int // receivers a claim window: push 1000, email 1000, sms 50
	// Ahead is how many claim windows a partition has open: 16. More are opened
	// while calls take a second and more and the windows of all partitions hold
	// fewer receivers than InFlight: a slow provider would else have less to do
	// than it may be given. So what a crash leaves ambiguous is at most Ahead
	// windows a partition, plus InFlight receivers where the provider is slow.
	Ahead    int `default:"16"`
	InFlight int // addresses at the provider at once: push 10,000, sms 500, email 16,000

	MaxRetries int           `default:"3"`   // attempts after the first
	Hold       time.Duration `default:"5s"`  // longest wait that is not parked
	BatchAge   time.Duration `default:"5s"`  // longest wait of a mail for others of its content; < 0: none
	CallLimit  time.Duration `default:"30s"` // longest provider call
	MaxStarts  int           `default:"3"`   // starts of a window before its receivers run solo
	Backoff    limit.Backoff // 1 s, 2 s, 4 s with jitter

	// Routes maps an address to the name of the provider that serves it, for
	// breakers: "apns", "fcm", "twilio", "sendgrid".
	Routes Routes
	// Unknown lists the categories that become UNKNOWN, not resent, when an
	// answer is ambiguous. Default: marketing and digest by sms and email.
	Unknown []notify.Category

	Spread  func() notify.Spread // over the partitions of the lane's topic; nil: it has one
	Opening *Opening             // of partitions that were added to it; nil: none ever are

	Log       Log
	Status    engine.Status
	Committer *Committer
	Prefs     Preferences
	Cancels   Cancels
	Parker    Parker
	Provider  Provider
	Health    *Health
	Gate      *Gate      // shut while operators pause the lane; nil: never
	Campaigns *Campaigns // paused ones, and those with a rate; nil: none
	Solo      *Solo      // of all workers of the process; nil: one of its own
	Holds     Holds      // of a strict lane
	// Seen returns the request indexes of the envelope a row is about, read
	// from history or the log; used when a chunk comes again with other
	// receivers.
	Seen func(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error)
	// Tells says whether a caller is told of every end of its notifications, not
	// of failures alone: then they go to notifications-outcomes. It is asked for
	// each finished envelope. Nil: nobody is.
	Tells       func(caller string) bool
	Events      Events
	Logger      *slog.Logger  `default:"discard"`
	Tracer      *trace.Tracer // nil: no spans; a traceparent is carried all the same
	MaxEnvelope int           `default:"900000"` // bytes of a derived record
}

// What a worker should be handed of a partition: at most MaxRecords that are not
// done, about MaxPoll at a time, by which it may be passed. A single takes a
// goroutine while it waits: 7 KB of an SMS, 18 KB of a push that is claimed, so
// 60,000 pushes of a lane that stood took 1.1 GB. With 4,000 a partition they take
// a third, and are delivered afterwards in the same CPU time. (Fewer still would
// bound how many mails can be held for others of their content, and how far a
// code is seen behind others in the log.) Chunks of a fan-out are bounded by
// their bytes long before.
const (
	MaxRecords = 4000
	MaxPoll    = 1000
)

// Routes names the providers of a lane and finds the one of an address.
type Routes struct {
	Names []string
	Of    func(address []byte) int // index into Names; -1: none serves it
}

func (c Config) withDefaults() Config {
	window, inFlight := 1000, 16_000
	switch c.Lane.Channel {
	case notify.Push:
		inFlight = 10_000
	case notify.SMS:
		window, inFlight = 50, 500
	}
	c = setting.Fill(c)
	if c.Spread == nil {
		c.Spread = func() notify.Spread { return notify.SpreadOver(1) }
	}
	c.Window, c.InFlight = cmp.Or(c.Window, window), cmp.Or(c.InFlight, inFlight)
	if c.Unknown == nil && c.Lane.Channel != notify.Push {
		c.Unknown = []notify.Category{notify.Marketing, notify.Digest}
	}
	if c.Solo == nil {
		c.Solo = NewSolo()
	}
	return c
}

// Events are told what happens, once per window or envelope and never per
// receiver. Nil functions are skipped.
type Events struct {
	// Settled reports the outcomes of one window.
	Settled func(SettledInfo)
	// Finished reports an envelope whose outcome row is durable.
	Finished func(lane notify.Lane, e *notify.Envelope)
	// Resumed reports receivers found started without an outcome after a crash.
	Resumed func(lane notify.Lane, receivers int)
	// New reports envelopes that surely had no outcome row, so that none was read.
	New func(lane notify.Lane, envelopes int)
	// Duplicate reports an envelope that had been finished before.
	Duplicate func(lane notify.Lane, receivers int)
	// Parked reports receivers put into the timer store.
	Parked func(lane notify.Lane, receivers int)
	// Poison reports a record nobody could decode.
	Poison func(topic string)
	// Damaged reports an outcome row that cannot be decoded: an envelope whose
	// receivers may all have been called.
	Damaged func(lane notify.Lane)
	// Panic reports a panic of a provider or of ours while handling a window.
	Panic func(lane notify.Lane, v any)
}

// SettledInfo is what became of one window.
type SettledInfo struct {
	Lane     notify.Lane
	Envelope *notify.Envelope
	Row      notify.RowKey
	Count    int
	States   [notify.States]int
	Codes    map[string]int // of receivers with a code; nil when none has one
	Called   time.Duration  // in the provider
	Age      time.Duration  // from acceptance to the provider call
}
