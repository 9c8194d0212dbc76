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

// Provider is the client that calls a provider.
type Provider interface {
	// Send delivers all items of the call. Before it returns, it reports the result of each item
	// exactly once. It may call report from several goroutines at the same time.
	Send(ctx context.Context, call *notify.Call, report notify.Report)
}

// Preferences decides, from memory, whether and where a user may be reached.
type Preferences interface {
	// DecideMany decides for many users at once: answers[i] is for users[i]. Calling Decide for
	// each user takes more than twice as long. allKnown is false if the answer for at least one
	// user is users.Unknown.
	DecideMany(answers []users.Answer, users [][]byte, ch notify.Channel, cat notify.Category, now time.Time) (allKnown bool)
	Decide(user []byte, ch notify.Channel, cat notify.Category, now time.Time) users.Verdict
	Addresses(dst []notify.Target, user []byte, ch notify.Channel) []notify.Target
	Suppressed(ch notify.Channel, address []byte) bool
	// Suppresses reports whether any address is suppressed, that is, whether Suppressed can return
	// true.
	Suppresses() bool
	Suppress(ctx context.Context, user string, ch notify.Channel, address, reason string) error
	// Unsubscribe opts out a user who told a provider to send no more messages. It applies to the
	// categories marketing and digest on the channel. Messages of the other categories react to
	// something that the user did, so they are still sent.
	Unsubscribe(ctx context.Context, user string, ch notify.Channel) error
	// Hold keeps the profiles of the users of partition n in memory, until the caller releases the
	// returned Holding. The parameter partitions is the number of partitions. Hold does not wait
	// until the profiles are loaded.
	Hold(ch notify.Channel, partitions int, n int32) *users.Holding
	// Fetch reads the profiles of users for whom the answer is users.Unknown.
	Fetch(ctx context.Context, ch notify.Channel, users [][]byte) error
	// Fresh reports whether the loaded preferences are recent enough for bulk messages.
	Fresh(now time.Time) bool
	// Loaded reports whether preferences were read at least once. Until then the addresses of
	// users are not known.
	Loaded() bool
}

// Cancels knows which notifications were cancelled.
type Cancels interface {
	Cancelled(e *notify.Envelope, index uint32) bool
	// MayBeCancelled reports whether Cancelled can be true for any receiver of the envelope.
	// MayBeCancelled is cheaper than Cancelled.
	MayBeCancelled(e *notify.Envelope) bool
	// Fresh reports whether the loaded cancellations are recent enough for bulk messages.
	Fresh(now time.Time) bool
}

// Holds stores, for strict lanes, the queue of waiting notifications of each user. store.Holds
// implements it.
type Holds interface {
	Update(ctx context.Context, add, remove []engine.Hold) error
	Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error)
}

// Log appends records. A nil error means that all of them are acknowledged.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Parker stores envelopes until they are due. A nil error means that they are durable.
type Parker interface {
	Park(ctx context.Context, ts []engine.Timer) error
}

// Role says which topic of its lane a worker reads.
type Role uint8

const (
	// First reads first attempts and deferrals from the lane's topic, and keeps the order of
	// first attempts per user.
	First Role = iota
	// Retries reads retries from the lane's -dlq topic.
	Retries
)

// Order says what a lane guarantees about the order of a user's messages.
type Order uint8

const (
	// Relaxed guarantees only the order of first attempts.
	Relaxed Order = iota
	// Strict also makes a user's later messages wait in the timer store until the earlier message
	// has ended.
	Strict
)

// Config configures a Worker. The zero value of a number means its default.
type Config struct {
	Lane notify.Lane
	Role Role
	// Order says what a user's later messages do while an earlier message waits for a retry or for
	// a later time. With Relaxed, the default, the later messages overtake the earlier message.
	// With Strict, the later messages wait for the earlier message.
	Order Order

	Window int // receivers per claim window; default: push and email 1,000, sms 50
	// Ahead is the number of claim windows that a partition may normally have open, default 16. If
	// calls take a second or longer on average, the partition may open more windows, as long as the
	// open windows of all partitions contain at most InFlight receivers. Without these additional
	// windows, a slow provider would get less work than InFlight allows. After a crash, at
	// most Ahead windows of each partition are ambiguous. If the provider is slow, up to InFlight
	// further receivers may be ambiguous.
	Ahead    int `default:"16"`
	InFlight int // most addresses at the provider at once; default: push 10,000, sms 500, email 16,000

	MaxRetries int           `default:"3"`   // attempts after the first
	Hold       time.Duration `default:"5s"`  // longest wait in memory; a receiver that must wait longer goes to the timer store
	BatchAge   time.Duration `default:"5s"`  // longest time that a mail waits for other mails with the same content; < 0: mails do not wait
	CallLimit  time.Duration `default:"30s"` // time limit of a provider call
	MaxStarts  int           `default:"3"`   // how often a window is started before its receivers are called in solo runs (see Solo)
	Backoff    limit.Backoff // 1 s, 2 s, 4 s with jitter

	// Routes maps an address to the name of the provider that serves it. Each name has its own
	// circuit breaker: "apns", "fcm", "twilio", "sendgrid".
	Routes Routes
	// Unknown lists the categories whose receivers become UNKNOWN after an ambiguous answer.
	// After such an answer, receivers of other categories are called again. Default: marketing and
	// digest for sms and email, none for push.
	Unknown []notify.Category

	Spread  func() notify.Spread // number of partitions of the lane's topic; nil: 1
	Opening *Opening             // delays the first use of partitions that were added to the topic; nil: partitions are never added

	Log       Log
	Status    engine.Status
	Committer *Committer
	Prefs     Preferences
	Cancels   Cancels
	Parker    Parker
	Provider  Provider
	Health    *Health
	Gate      *Gate      // shut while an operator pauses the lane; nil: always open
	Campaigns *Campaigns // campaigns that are paused or have a rate; nil: none
	Solo      *Solo      // shared by all workers of the process; nil: this worker has its own
	Holds     Holds      // only for a strict lane
	// ChunkIndexes returns the receivers of a row's envelope, as indexes in the request. It reads
	// these indexes from history or from the log. The worker calls it when a chunk is read again
	// with other receivers.
	ChunkIndexes func(ctx context.Context, row *notify.Row) (map[uint32]struct{}, error)
	// HasOutcomesURL reports whether a caller is informed of every outcome, not only of failures.
	// For such a caller, the worker also writes the outcomes other than failures, to the topic
	// notifications-outcomes. The worker calls HasOutcomesURL for each finished envelope. nil: no
	// caller is informed of every outcome.
	HasOutcomesURL func(caller string) bool
	Events         Events
	Logger         *slog.Logger  `default:"discard"`
	Tracer         *trace.Tracer // nil: no spans are made, but traceparents are still passed on
	MaxEnvelope    int           `default:"900000"` // largest record of a derived envelope (a retry or a wait), in bytes
}

// MaxRecords and MaxPoll limit the records that a consumer group should send to a worker.
// MaxRecords is the largest number of records of a partition that are not done. MaxPoll is the
// largest number of records in one poll. MaxRecords may be exceeded by up to one poll.
//
// An envelope with one receiver needs a goroutine while it waits: 7 KB for an SMS, 18 KB for a
// claimed push. So 60,000 waiting pushes of a stopped lane took 1.1 GB. With at most 4,000 records
// for each partition, they take a third of that memory, and the CPU time of their delivery stays
// the same. A lower limit would have two disadvantages. Fewer mails could wait for other mails with
// the same content. And an otp message behind unfinished records would be read later. Chunks of a
// fan-out reach the group's limit in bytes long before MaxRecords.
const (
	MaxRecords = 4000
	MaxPoll    = 1000
)

// Routes names the providers of a lane and finds the provider of an address.
type Routes struct {
	Names []string
	Of    func(address []byte) int // returns an index into Names, or -1 if no provider serves the address
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

// Events contains functions that are called once per window or envelope, never per receiver. A nil
// function is skipped.
type Events struct {
	// Settled reports the outcomes of one window.
	Settled func(SettledInfo)
	// Finished reports an envelope whose outcome row is durable.
	Finished func(lane notify.Lane, e *notify.Envelope)
	// Resumed reports receivers that were started before a crash and have no outcome.
	Resumed func(lane notify.Lane, receivers int)
	// New reports envelopes that certainly have no outcome row, so that the worker did not need to
	// read a row for them.
	New func(lane notify.Lane, envelopes int)
	// Duplicate reports an envelope that was finished before, or whose first copy is being worked
	// on now.
	Duplicate func(lane notify.Lane, receivers int)
	// Parked reports receivers put into the timer store.
	Parked func(lane notify.Lane, receivers int)
	// Poison reports a record that cannot be decoded.
	Poison func(topic string)
	// Damaged reports an outcome row that cannot be decoded. All receivers of its envelope may
	// have been called.
	Damaged func(lane notify.Lane)
	// Panic reports a panic of the provider or the worker during a call.
	Panic func(lane notify.Lane, v any)
}

// SettledInfo describes the outcomes of one window.
type SettledInfo struct {
	Lane     notify.Lane
	Envelope *notify.Envelope
	Row      notify.RowKey
	Count    int
	States   [notify.States]int
	Codes    map[string]int // number of receivers by code; nil if none has a code
	Called   time.Duration  // time from the first provider call until all outcomes are known; 0: no call was made
	Age      time.Duration  // time from acceptance to the first provider call
}
