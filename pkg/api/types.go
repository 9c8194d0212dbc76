package api

import (
	"encoding/json"
	"time"
)

// Content types the sending routes take.
const (
	TypeJSON     = "application/json"
	TypeNDJSON   = "application/x-ndjson"
	TypeBackup   = "application/zstd"
	TypeProtobuf = "application/x-protobuf"
	TypeProblem  = "application/problem+json"
)

// Header names of the API.
const (
	HeaderIdempotencyKey      = "Idempotency-Key"
	HeaderIdempotencyReplayed = "Idempotency-Replayed"
	HeaderIdempotencyFallback = "Idempotency-Fallback" // AtLeastOnce: rather twice than not while nobody can look keys up
	HeaderRequestID           = "X-Request-Id"
	HeaderTraceparent         = "Traceparent"
	HeaderTracestate          = "Tracestate"
	HeaderContext             = "Notify-Context"  // what the operator's client calls the server; for the audit log
	HeaderReason              = "Notify-Reason"   // why an operator changes something; for the audit log
	HeaderAuditID             = "Notify-Audit-Id" // of an answer: the row of the audit log that a change was recorded as
)

// AtLeastOnce is the one value of HeaderIdempotencyFallback.
const AtLeastOnce = "at-least-once"

// Scopes of a token's claim "scope".
const (
	ScopeSend    = "send"    // send and cancel notifications
	ScopeTrigger = "trigger" // register and cancel triggers
	ScopeRead    = "read"    // read the caller's own notifications, and users
	ScopeUsers   = "users"   // change users' preferences and addresses
	ScopeOperate = "operate" // operators: everything of every caller
	ScopeObserve = "observe" // operators who only look; part of operate
)

// Scopes lists every scope.
var Scopes = [...]string{ScopeSend, ScopeTrigger, ScopeRead, ScopeUsers, ScopeOperate, ScopeObserve}

// Content is what a receiver is sent: a provider's template, or inline text in
// which {{name}} is replaced by a variable. Sizes in bytes.
type Content struct {
	Template    string          `json:"template,omitempty"`     // a provider's template id, at most 128
	Title       string          `json:"title,omitempty"`        // subject of a mail, title of a push; at most 1 KiB
	Body        string          `json:"body,omitempty"`         // at most 16 KiB
	HTML        string          `json:"html,omitempty"`         // email only, at most 256 KiB
	Variables   json.RawMessage `json:"variables,omitempty"`    // JSON object, at most 8 KiB
	Data        json.RawMessage `json:"data,omitempty"`         // push only: JSON object for the app, at most 3 KiB
	CollapseKey string          `json:"collapse_key,omitempty"` // push only: replaces an earlier one on the device
	From        string          `json:"from,omitempty"`         // a configured sender; empty: the default one
}

// Notification is the body of POST /v1/notifications and one item of a batch.
type Notification struct {
	Channel     string     `json:"channel"`  // push, sms, email
	Category    string     `json:"category"` // otp, alert, transactional, marketing, digest
	To          Receiver   `json:"to"`
	Content     Content    `json:"content"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"` // nil or past: now
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`   // nil: never
}

// Accepted is the answer to one notification.
type Accepted struct {
	NotificationID string `json:"notification_id"`
	Status         string `json:"status"` // ACCEPTED or SCHEDULED
	// Replayed: an earlier request of the same key was accepted, and this is its
	// answer; nothing was sent again. Of the header, not of the body.
	Replayed bool `json:"replayed,omitempty"`
}

// BatchItem is the answer to one item of a batch: an id, or what was wrong.
type BatchItem struct {
	NotificationID string     `json:"notification_id,omitempty"`
	Status         string     `json:"status,omitempty"`
	Error          *ItemError `json:"error,omitempty"`
}

// ItemError says why an item of a batch was not accepted.
type ItemError struct {
	Code   string `json:"code"`
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// BatchResult is the answer to a batch; results stand in the order of the
// request's items.
type BatchResult struct {
	Results  []BatchItem `json:"results"`
	Accepted int         `json:"accepted"`
	Rejected int         `json:"rejected"`
}

// Receiver is whom a notification goes to.
type Receiver struct {
	UserID    string          `json:"user_id"`             // at most 128 bytes
	Address   string          `json:"address,omitempty"`   // empty: looked up when it is sent
	Variables json.RawMessage `json:"variables,omitempty"` // win over the content's
}

// Receivers are those of a fan-out. On the wire one is a plain string when it
// is only a user id.
type Receivers []Receiver

// Fanout is the body of POST /v1/notifications:fanout: one content, many
// receivers. Campaign and Part join many requests; (campaign, part) is then
// the request's idempotency key.
type Fanout struct {
	Channel     string     `json:"channel"`
	Category    string     `json:"category"`
	Content     Content    `json:"content"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	Campaign    string     `json:"campaign,omitempty"` // cmp_<ULID>, made by the client
	Part        uint32     `json:"part,omitempty"`     // 0, 1, 2...
	Receivers   Receivers  `json:"receivers"`          // the last field: SendFanout fills it in a stream
}

// Rejected is one receiver a fan-out refused; the others went on.
type Rejected struct {
	Index  uint32 `json:"index"`
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
}

// FanoutResult is the answer to a fan-out. The id of the receiver at index i is
// FirstID's with -i in place of -0. Rejected lists at most the server's
// configured number of the RejectedCount refused ones.
type FanoutResult struct {
	FirstID       string     `json:"first_id"`
	Accepted      int        `json:"accepted"`
	RejectedCount int        `json:"rejected_count"`
	Rejected      []Rejected `json:"rejected"`
}

// Status is where one notification stands.
type Status struct {
	NotificationID string     `json:"notification_id"`
	Status         string     `json:"status"`
	Channel        string     `json:"channel"`
	Category       string     `json:"category"`
	Caller         string     `json:"caller"`
	Campaign       string     `json:"campaign,omitempty"`
	UserID         string     `json:"user_id"`
	Epoch          uint16     `json:"epoch"`    // raised by a replay
	Attempts       int        `json:"attempts"` // calls to a provider in this epoch
	Code           string     `json:"code,omitempty"`
	AcceptedAt     time.Time  `json:"accepted_at"`
	UpdatedAt      *time.Time `json:"updated_at,omitempty"`
	ExpiresAt      *time.Time `json:"expires_at,omitempty"`
	ScheduledAt    *time.Time `json:"scheduled_at,omitempty"` // when it became or becomes due, jitter included
	TraceID        string     `json:"trace_id,omitempty"`     // of the request's traceparent, or of the trace the server began
}

// Summary counts the receivers of a fan-out, or of a campaign, by state.
// Counting stops after a number of receivers; Next then goes on behind them,
// and the counts of the pages add up. Accepted = Pending + the sum of Counts, when
// counted from the beginning.
type Summary struct {
	NotificationID string         `json:"notification_id,omitempty"`
	CampaignID     string         `json:"campaign_id,omitempty"`
	Caller         string         `json:"caller"`
	Channel        string         `json:"channel,omitempty"`
	Category       string         `json:"category,omitempty"`
	CreatedAt      time.Time      `json:"created_at"`
	Parts          int            `json:"parts,omitempty"`    // campaigns
	Accepted       int64          `json:"accepted,omitempty"` // receivers the answer said yes to, of all parts; 0: not known
	Rejected       int64          `json:"rejected,omitempty"` // campaigns
	TraceID        string         `json:"trace_id,omitempty"` // fan-outs
	ScheduledAt    *time.Time     `json:"scheduled_at,omitempty"`
	CancelledAt    *time.Time     `json:"cancelled_at,omitempty"`
	Hold           *CampaignHold  `json:"hold,omitempty"` // campaigns that are paused or have a rate
	Counted        int64          `json:"counted"`        // receivers in Counts
	Counts         map[string]int `json:"counts"`         // by state
	Complete       bool           `json:"complete"`       // Counts reach the end
	// Pending is how many accepted receivers are in no state here: those still to
	// be counted or, when Complete, those of whom nothing is found. It is there
	// on a page that begins at the first receiver.
	Pending *int64 `json:"pending,omitempty"`
	Next    string `json:"next,omitempty"`
}

// TimelineEvent is one thing that happened to a notification.
type TimelineEvent struct {
	At                *time.Time `json:"at,omitempty"` // when it was recorded; nil when only the order is known
	Type              string     `json:"type"`         // accepted, scheduled, rescheduled, released, claimed, attempt, deferred, receipt, outcome, cancel, dead_letter, replayed, discarded
	State             string     `json:"state,omitempty"`
	Epoch             uint16     `json:"epoch"`
	Attempt           int        `json:"attempt,omitempty"` // 1 is the first
	Address           int        `json:"address"`           // ordinal among the receiver's addresses
	Addresses         int        `json:"addresses,omitempty"`
	Provider          string     `json:"provider,omitempty"`
	Code              string     `json:"code,omitempty"`
	Class             string     `json:"class,omitempty"` // what kind of answer it was: accepted, retry, permanent, throttled, ...
	Log               *LogPlace  `json:"log,omitempty"`   // where its record lies
	ProviderMessageID string     `json:"provider_message_id,omitempty"`
	Until             *time.Time `json:"until,omitempty"`
	Detail            string     `json:"detail,omitempty"`
}

// LogPlace is the place of a record in the log.
type LogPlace struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Timeline tells what became of a notification, oldest first.
type Timeline struct {
	Status
	Events []TimelineEvent `json:"events"`
	Next   string          `json:"next"` // one sentence: what happens next, and when
}

// Cancelled is the answer to a cancel. It binds calls that start at BindsAt or
// later; what is running then is not stopped. A final one was answered before
// the notification was due: no call for it is ever made.
type Cancelled struct {
	Scope       string    `json:"scope"`
	CancelledAt time.Time `json:"cancelled_at"`
	BindsAt     time.Time `json:"binds_at"`
	Final       bool      `json:"final"`
}

// Scheduled is a request that waits for its time, or was cancelled before it.
type Scheduled struct {
	NotificationID string     `json:"notification_id"` // of a fan-out without an index
	Status         string     `json:"status"`          // SCHEDULED, CANCELLED, or ACCEPTED once it was released
	Channel        string     `json:"channel"`
	Category       string     `json:"category"`
	Caller         string     `json:"caller"`
	UserID         string     `json:"user_id,omitempty"` // empty: a fan-out, or an address without a user
	Campaign       string     `json:"campaign,omitempty"`
	Receivers      int64      `json:"receivers"`
	AcceptedAt     time.Time  `json:"accepted_at"`
	ScheduledAt    time.Time  `json:"scheduled_at"` // jitter included
	ExpiresAt      *time.Time `json:"expires_at,omitempty"`
	CancelledAt    *time.Time `json:"cancelled_at,omitempty"`
	Generation     uint32     `json:"generation"`         // 0 until it is moved
	MovedAt        *time.Time `json:"moved_at,omitempty"` // the last time
	MovedBy        string     `json:"moved_by,omitempty"` // the caller that moved it then
}

// List is one page of a list.
type List[T any] struct {
	Items  []T    `json:"items"`
	Cursor string `json:"cursor,omitempty"` // empty: there is no more
	// Missing are the processes that Items tells nothing of, because they did not answer.
	Missing []Process `json:"missing,omitempty"`
	// Omits says what the list leaves out although it was asked for: OmitsFanouts.
	Omits []string `json:"omits,omitempty"`
}

// OmitsFanouts says that a list by user leaves out what the user was sent by fan-outs.
const OmitsFanouts = "fanouts"

// ScheduledPage is one page of schedules, newest request first.
type ScheduledPage = List[Scheduled]

// Forecast says how much becomes due in [From, To). It is not complete when
// there is more than the server reads for one answer.
type Forecast struct {
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	Total    int64            `json:"total"`
	Complete bool             `json:"complete"`
	Minutes  []ForecastMinute `json:"minutes"` // those with anything in them, in order
}

// ForecastMinute is what becomes due in one minute.
type ForecastMinute struct {
	Minute time.Time `json:"minute"`
	What   string    `json:"what"`  // push, sms, email, trigger
	Count  int64     `json:"count"` // receivers, or triggers
}

// UserHistory is one page of what a user was sent, newest first.
type UserHistory = List[Status]

// NotificationContent is what one receiver was sent, and where.
type NotificationContent struct {
	NotificationID string          `json:"notification_id"`
	Channel        string          `json:"channel"`
	Caller         string          `json:"caller"`
	UserID         string          `json:"user_id"`
	Addresses      []string        `json:"addresses"`           // masked, unless they were asked for in full
	FromProfile    bool            `json:"from_profile"`        // the request named no address: these are the profile's now
	Content        Content         `json:"content"`             // of the request
	Variables      json.RawMessage `json:"variables,omitempty"` // of this receiver
}

// QuietHours is a daily span of local time; From may lie after To.
type QuietHours struct {
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "07:30"
}

// User is what a user set. Suppressed and UserID are ignored in a PUT; Version
// other than 0 makes the PUT conditional.
type User struct {
	UserID     string              `json:"user_id,omitempty"`
	Addresses  map[string][]string `json:"addresses,omitempty"`
	OptOut     []string            `json:"opt_out,omitempty"` // "push", "marketing", "email/marketing"
	QuietHours *QuietHours         `json:"quiet_hours,omitempty"`
	TimeZone   string              `json:"time_zone,omitempty"` // IANA name
	Suppressed map[string]string   `json:"suppressed,omitempty"`
	Version    uint64              `json:"version,omitempty"`
}

// UserVersion is the answer to a PUT of a user: an opt-out in it binds every
// call that starts a second later.
type UserVersion struct {
	UserID  string `json:"user_id"`
	Version uint64 `json:"version"`
}

// DeadLetter is a notification that failed for good, or may have arrived and may not.
type DeadLetter struct {
	NotificationID string         `json:"notification_id"`
	Epoch          uint16         `json:"epoch"`
	Seq            uint64         `json:"seq"` // position in the caller's feed
	Caller         string         `json:"caller"`
	Campaign       string         `json:"campaign,omitempty"`
	Channel        string         `json:"channel"`
	Category       string         `json:"category"`
	UserID         string         `json:"user_id"`
	Template       string         `json:"template,omitempty"`
	Status         string         `json:"status"` // when it was written: FAILED or UNKNOWN
	Class          string         `json:"class"`
	Code           string         `json:"code"`
	Provider       string         `json:"provider,omitempty"`
	Attempts       int            `json:"attempts"`
	State          string         `json:"state"` // dead, replayed, discarded
	FirstFailedAt  time.Time      `json:"first_failed_at"`
	LastFailedAt   time.Time      `json:"last_failed_at"`
	ExpiresAt      *time.Time     `json:"expires_at,omitempty"`
	KeptUntil      *time.Time     `json:"kept_until,omitempty"` // retention takes it then
	Job            string         `json:"job,omitempty"`        // that moved it to its state
	Origin         string         `json:"origin,omitempty"`     // topic/partition/offset of the record that failed
	TraceID        string         `json:"trace_id,omitempty"`
	Extra          map[string]any `json:"extra,omitempty"`
}

// FailedPage is one page of a caller's failed feed, oldest first. After goes
// into the next request, also when Items is empty.
type FailedPage struct {
	Items []DeadLetter `json:"items"`
	After uint64       `json:"after"`
}

// DeadLetterPage is one page of dead letters, newest first.
type DeadLetterPage = List[DeadLetter]

// Event is one line of GET /v1/tail: an outcome of the caller's, a heartbeat, a gap that
// says how many outcomes were dropped, or which processes the outcomes come from.
type Event struct {
	Type string    `json:"type"` // outcome, heartbeat, gap, processes
	At   time.Time `json:"at"`
	// Process is whose outcome it is. Of a gap: the process had more outcomes than a tail
	// takes of it; empty: the reader or its line was too slow. Empty too with one process.
	Process        string    `json:"process,omitempty"`
	NotificationID string    `json:"notification_id,omitempty"`
	Caller         string    `json:"caller,omitempty"`
	Channel        string    `json:"channel,omitempty"`
	Category       string    `json:"category,omitempty"`
	Status         string    `json:"status,omitempty"`
	Code           string    `json:"code,omitempty"`
	Provider       string    `json:"provider,omitempty"`
	Attempt        int       `json:"attempt,omitempty"`
	Receivers      int       `json:"receivers,omitempty"` // over 1: one line for many of a fan-out
	Dropped        int64     `json:"dropped,omitempty"`
	Processes      []string  `json:"processes,omitempty"` // whose outcomes are shown from now on
	Missing        []Process `json:"missing,omitempty"`   // whose are not: they do not answer
}

// Types of Event.
const (
	EventOutcome   = "outcome"
	EventHeartbeat = "heartbeat"
	EventGap       = "gap"
	EventProcesses = "processes" // with several processes: once it is known, and when it changes
)

// TailFilter says which outcomes a tail shows. An empty field takes all.
type TailFilter struct {
	Caller   string `json:"caller,omitempty"`
	Channel  string `json:"channel,omitempty"`
	Category string `json:"category,omitempty"`
	Status   string `json:"status,omitempty"`
}

// Takes reports whether the tail shows an event.
func (f *TailFilter) Takes(e *Event) bool {
	return (f.Caller == "" || f.Caller == e.Caller) && (f.Channel == "" || f.Channel == e.Channel) &&
		(f.Category == "" || f.Category == e.Category) && (f.Status == "" || f.Status == e.Status)
}

// Debug is what a process tells of itself for a debug bundle: files by name.
type Debug struct {
	Texts    map[string]string `json:"texts"`
	Binaries map[string][]byte `json:"binaries"`
}
