package api

import (
	"encoding/json"
	"time"
)

// Content types of the API.
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
	// HeaderIdempotencyFallback with the value AtLeastOnce makes the server accept a request even
	// while it cannot look up idempotency keys. Then a repeated request may be sent twice.
	HeaderIdempotencyFallback = "Idempotency-Fallback"
	HeaderRequestID           = "X-Request-Id"
	HeaderTraceparent         = "Traceparent"
	HeaderTracestate          = "Tracestate"
	HeaderContext             = "Notify-Context"  // operator's name for the server; for the audit log
	HeaderReason              = "Notify-Reason"   // reason of an operator's change; for the audit log
	HeaderAuditID             = "Notify-Audit-Id" // in an answer: the audit row of a change
)

// AtLeastOnce is the only allowed value of HeaderIdempotencyFallback.
const AtLeastOnce = "at-least-once"

// Scopes of a token's claim "scope".
const (
	ScopeSend    = "send"    // send and cancel notifications
	ScopeTrigger = "trigger" // register and cancel triggers
	ScopeRead    = "read"    // read the caller's own notifications, and users
	ScopeUsers   = "users"   // change users' preferences and addresses
	ScopeOperate = "operate" // operators: read and change the data of all callers
	ScopeObserve = "observe" // operators: read only; operate includes it
)

// Scopes lists every scope.
var Scopes = [...]string{ScopeSend, ScopeTrigger, ScopeRead, ScopeUsers, ScopeOperate, ScopeObserve}

// Content is the content of a notification: a provider's template, or inline text in which
// variables replace {{name}}. Sizes are in bytes.
type Content struct {
	Template    string          `json:"template,omitempty"`     // id of a provider's template, at most 128 bytes
	Title       string          `json:"title,omitempty"`        // subject of a mail, title of a push; at most 1 KiB
	Body        string          `json:"body,omitempty"`         // at most 16 KiB
	HTML        string          `json:"html,omitempty"`         // email only, at most 256 KiB
	Variables   json.RawMessage `json:"variables,omitempty"`    // JSON object, at most 8 KiB
	Data        json.RawMessage `json:"data,omitempty"`         // push only: JSON object for the app, at most 3 KiB
	CollapseKey string          `json:"collapse_key,omitempty"` // push only: replaces an earlier push with the same key on the device
	From        string          `json:"from,omitempty"`         // a configured sender; empty: the default sender
}

// Notification is the body of POST /v1/notifications and one item of a batch.
type Notification struct {
	Channel     string     `json:"channel"`  // push, sms, email
	Category    string     `json:"category"` // otp, alert, transactional, marketing, digest
	To          Receiver   `json:"to"`
	Content     Content    `json:"content"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"` // nil or a past time: now
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`   // nil: it does not expire
}

// Accepted is the answer to one notification.
type Accepted struct {
	NotificationID string `json:"notification_id"`
	Status         string `json:"status"` // ACCEPTED or SCHEDULED
	// Replayed means that an earlier request with the same key was accepted. This is the answer to
	// that request; nothing was sent again. The field comes from a header, not from the body.
	Replayed bool `json:"replayed,omitempty"`
}

// BatchItem is the answer to one item of a batch: an id, or an error.
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

// BatchResult is the answer to a batch, in the order of the request's items.
type BatchResult struct {
	Results  []BatchItem `json:"results"`
	Accepted int         `json:"accepted"`
	Rejected int         `json:"rejected"`
}

// Receiver is the target of a notification.
type Receiver struct {
	UserID    string          `json:"user_id"`             // at most 128 bytes
	Address   string          `json:"address,omitempty"`   // empty: looked up in the profile when the notification is sent
	Variables json.RawMessage `json:"variables,omitempty"` // replace variables of the content with the same name
}

// Receivers are the receivers of a fan-out. In JSON, a receiver that has only a user id is a plain
// string.
type Receivers []Receiver

// Fanout is the body of POST /v1/notifications:fanout: one content for many receivers. Campaign and
// Part make several requests one campaign. In this case (campaign, part) is the idempotency key of
// each request.
type Fanout struct {
	Channel     string     `json:"channel"`
	Category    string     `json:"category"`
	Content     Content    `json:"content"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"`
	ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	Campaign    string     `json:"campaign,omitempty"` // cmp_<ULID>, made by the client
	Part        uint32     `json:"part,omitempty"`     // 0, 1, 2...
	Receivers   Receivers  `json:"receivers"`          // must be the last field: SendFanout appends to it
}

// Rejected is a receiver that a fan-out refused. The other receivers were accepted.
type Rejected struct {
	Index  uint32 `json:"index"`
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
}

// FanoutResult is the answer to a fan-out. FirstID is the id of the first receiver and ends in -0.
// The id of the receiver at index i ends in -i instead. Rejected lists refused receivers, up to the
// limit in the server's configuration. RejectedCount counts all refused receivers.
type FanoutResult struct {
	FirstID       string     `json:"first_id"`
	Accepted      int        `json:"accepted"`
	RejectedCount int        `json:"rejected_count"`
	Rejected      []Rejected `json:"rejected"`
}

// Status is the state of one notification.
type Status struct {
	NotificationID string     `json:"notification_id"`
	Status         string     `json:"status"`
	Channel        string     `json:"channel"`
	Category       string     `json:"category"`
	Caller         string     `json:"caller"`
	Campaign       string     `json:"campaign,omitempty"`
	UserID         string     `json:"user_id"`
	Epoch          uint16     `json:"epoch"`    // 0 at first; each replay adds 1
	Attempts       int        `json:"attempts"` // calls to a provider in this epoch
	Code           string     `json:"code,omitempty"`
	AcceptedAt     time.Time  `json:"accepted_at"`
	UpdatedAt      *time.Time `json:"updated_at,omitempty"`
	ExpiresAt      *time.Time `json:"expires_at,omitempty"`
	ScheduledAt    *time.Time `json:"scheduled_at,omitempty"` // due time, jitter included
	TraceID        string     `json:"trace_id,omitempty"`     // trace of the request's traceparent, or a trace that the server began
}

// Summary counts the receivers of a fan-out or a campaign by state. One page counts a limited
// number of receivers, and Next is where the next page begins. To get the total, add up the counts
// of all pages. If a page begins at the first receiver, Accepted = Pending + the sum of Counts.
type Summary struct {
	NotificationID string         `json:"notification_id,omitempty"`
	CampaignID     string         `json:"campaign_id,omitempty"`
	Caller         string         `json:"caller"`
	Channel        string         `json:"channel,omitempty"`
	Category       string         `json:"category,omitempty"`
	CreatedAt      time.Time      `json:"created_at"`
	Parts          int            `json:"parts,omitempty"`    // only for campaigns
	Accepted       int64          `json:"accepted,omitempty"` // accepted receivers of all parts; 0: not known
	Rejected       int64          `json:"rejected,omitempty"` // only for campaigns
	TraceID        string         `json:"trace_id,omitempty"` // only for fan-outs
	ScheduledAt    *time.Time     `json:"scheduled_at,omitempty"`
	CancelledAt    *time.Time     `json:"cancelled_at,omitempty"`
	Hold           *CampaignHold  `json:"hold,omitempty"` // only for campaigns that are paused or have a rate
	Counted        int64          `json:"counted"`        // receivers in Counts
	Counts         map[string]int `json:"counts"`         // by state
	Complete       bool           `json:"complete"`       // the last receiver is counted
	// Pending is how many accepted receivers have no state in Counts. Either they are not counted
	// yet, or (if Complete is true) they have no rows. Pending is set only if the page begins at
	// the first receiver.
	Pending *int64 `json:"pending,omitempty"`
	Next    string `json:"next,omitempty"`
}

// TimelineEvent is one event in the history of a notification.
type TimelineEvent struct {
	At                *time.Time `json:"at,omitempty"` // when it was recorded; nil: only the order is known
	Type              string     `json:"type"`         // accepted, scheduled, rescheduled, released, claimed, attempt, deferred, receipt, outcome, cancel, dead_letter, replayed, discarded
	State             string     `json:"state,omitempty"`
	Epoch             uint16     `json:"epoch"`
	Attempt           int        `json:"attempt,omitempty"` // 1 is the first attempt
	Address           int        `json:"address"`           // index of the address in the receiver's addresses
	Addresses         int        `json:"addresses,omitempty"`
	Provider          string     `json:"provider,omitempty"`
	Code              string     `json:"code,omitempty"`
	Class             string     `json:"class,omitempty"` // class of the provider's answer: accepted, retry, permanent, throttled, ...
	Log               *LogPlace  `json:"log,omitempty"`   // position of its record in the log
	ProviderMessageID string     `json:"provider_message_id,omitempty"`
	Until             *time.Time `json:"until,omitempty"`
	Detail            string     `json:"detail,omitempty"`
}

// LogPlace is the position of a record in the log.
type LogPlace struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Timeline is the history of a notification, oldest event first.
type Timeline struct {
	Status
	Events []TimelineEvent `json:"events"`
	Next   string          `json:"next"` // one sentence: what happens next, and when
}

// Cancelled is the answer to a cancel. The cancel stops all calls that start at BindsAt or later.
// It does not stop calls that are in progress at that time. If Final is true, the notification was
// not due yet, and no call will be made.
type Cancelled struct {
	Scope       string    `json:"scope"`
	CancelledAt time.Time `json:"cancelled_at"`
	BindsAt     time.Time `json:"binds_at"`
	Final       bool      `json:"final"`
}

// Scheduled is a request that is scheduled, or that was cancelled before its time.
type Scheduled struct {
	NotificationID string     `json:"notification_id"` // without an index for a fan-out
	Status         string     `json:"status"`          // SCHEDULED, CANCELLED, or ACCEPTED after it was released
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
	Generation     uint32     `json:"generation"`         // 0 until the request is moved
	MovedAt        *time.Time `json:"moved_at,omitempty"` // when it was last moved
	MovedBy        string     `json:"moved_by,omitempty"` // the caller that moved it last
}

// List is one page of a list.
type List[T any] struct {
	Items  []T    `json:"items"`
	Cursor string `json:"cursor,omitempty"` // empty: this is the last page
	// Missing are the processes that did not answer. Items contains nothing from them.
	Missing []Process `json:"missing,omitempty"`
	// Omits lists what the request asked for but the list does not contain. The only value is
	// OmitsFanouts.
	Omits []string `json:"omits,omitempty"`
}

// OmitsFanouts means that a list by user does not contain the notifications that the user got by
// fan-outs.
const OmitsFanouts = "fanouts"

// ScheduledPage is one page of schedules, newest request first.
type ScheduledPage = List[Scheduled]

// Forecast counts the receivers and triggers that become due in [From, To). Complete is false if
// the server stopped before the end, because there was too much to read for one answer.
type Forecast struct {
	From     time.Time        `json:"from"`
	To       time.Time        `json:"to"`
	Total    int64            `json:"total"`
	Complete bool             `json:"complete"`
	Minutes  []ForecastMinute `json:"minutes"` // minutes with a count, in order
}

// ForecastMinute counts the receivers of one channel, or the triggers, that become due in one
// minute.
type ForecastMinute struct {
	Minute time.Time `json:"minute"`
	What   string    `json:"what"`  // push, sms, email, trigger
	Count  int64     `json:"count"` // receivers, or triggers
}

// UserHistory is one page of a user's notifications, newest first.
type UserHistory = List[Status]

// NotificationContent is the content for one receiver, and its addresses.
type NotificationContent struct {
	NotificationID string   `json:"notification_id"`
	Channel        string   `json:"channel"`
	Caller         string   `json:"caller"`
	UserID         string   `json:"user_id"`
	Addresses      []string `json:"addresses"` // masked, unless the request asked for full addresses
	// FromProfile is true if the request contained no address. Then Addresses are the addresses in
	// the profile now.
	FromProfile bool            `json:"from_profile"`
	Content     Content         `json:"content"`             // content of the request
	Variables   json.RawMessage `json:"variables,omitempty"` // variables of this receiver
}

// QuietHours is a daily period in local time. From may be later than To; then the period includes
// midnight.
type QuietHours struct {
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "07:30"
}

// User is a user's profile. A PUT ignores Suppressed and UserID. If Version is not 0, the PUT
// succeeds only if Version equals the stored version.
type User struct {
	UserID     string              `json:"user_id,omitempty"`
	Addresses  map[string][]string `json:"addresses,omitempty"`
	OptOut     []string            `json:"opt_out,omitempty"` // "push", "marketing", "email/marketing"
	QuietHours *QuietHours         `json:"quiet_hours,omitempty"`
	TimeZone   string              `json:"time_zone,omitempty"` // IANA name
	Suppressed map[string]string   `json:"suppressed,omitempty"`
	Version    uint64              `json:"version,omitempty"`
}

// UserVersion is the answer to a PUT of a user. An opt-out stops all calls that start at least a
// second later.
type UserVersion struct {
	UserID  string `json:"user_id"`
	Version uint64 `json:"version"`
}

// DeadLetter is a notification that failed for good, or that is UNKNOWN: notifyd cannot say whether
// it arrived.
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
	Status         string         `json:"status"` // status when the letter was written: FAILED or UNKNOWN
	Class          string         `json:"class"`
	Code           string         `json:"code"`
	Provider       string         `json:"provider,omitempty"`
	Attempts       int            `json:"attempts"`
	State          string         `json:"state"` // dead, replayed, discarded
	FirstFailedAt  time.Time      `json:"first_failed_at"`
	LastFailedAt   time.Time      `json:"last_failed_at"`
	ExpiresAt      *time.Time     `json:"expires_at,omitempty"`
	KeptUntil      *time.Time     `json:"kept_until,omitempty"` // when retention removes it
	Job            string         `json:"job,omitempty"`        // the job that last set State
	Origin         string         `json:"origin,omitempty"`     // topic/partition/offset of the record that failed
	TraceID        string         `json:"trace_id,omitempty"`
	Extra          map[string]any `json:"extra,omitempty"`
}

// FailedPage is one page of a caller's failed feed, oldest first. The next request must continue at
// After, even if Items is empty.
type FailedPage struct {
	Items []DeadLetter `json:"items"`
	After uint64       `json:"after"`
}

// DeadLetterPage is one page of dead letters, newest first.
type DeadLetterPage = List[DeadLetter]

// Event is one line of GET /v1/tail: an outcome, a heartbeat, a gap with the number of dropped
// outcomes, or the list of processes whose outcomes are shown.
type Event struct {
	Type string    `json:"type"` // outcome, heartbeat, gap, processes
	At   time.Time `json:"at"`
	// Process is the process of an outcome. In a gap it is the process that had more outcomes than
	// a tail accepts from one process. In a gap without a process, the reader or its connection was
	// too slow. Process is also empty if there is only one process.
	Process        string    `json:"process,omitempty"`
	NotificationID string    `json:"notification_id,omitempty"`
	Caller         string    `json:"caller,omitempty"`
	Channel        string    `json:"channel,omitempty"`
	Category       string    `json:"category,omitempty"`
	Status         string    `json:"status,omitempty"`
	Code           string    `json:"code,omitempty"`
	Provider       string    `json:"provider,omitempty"`
	Attempt        int       `json:"attempt,omitempty"`
	Receivers      int       `json:"receivers,omitempty"` // more than 1: one line for several receivers of a fan-out
	Dropped        int64     `json:"dropped,omitempty"`
	Processes      []string  `json:"processes,omitempty"` // processes whose outcomes are shown from now on
	Missing        []Process `json:"missing,omitempty"`   // processes that do not answer
}

// Types of Event.
const (
	EventOutcome   = "outcome"
	EventHeartbeat = "heartbeat"
	EventGap       = "gap"
	EventProcesses = "processes" // if there are several processes: sent at the start and at each change
)

// TailFilter selects the outcomes of a tail. An empty field selects all.
type TailFilter struct {
	Caller   string `json:"caller,omitempty"`
	Channel  string `json:"channel,omitempty"`
	Category string `json:"category,omitempty"`
	Status   string `json:"status,omitempty"`
}

// Takes reports whether the filter selects the event e.
func (f *TailFilter) Takes(e *Event) bool {
	return (f.Caller == "" || f.Caller == e.Caller) && (f.Channel == "" || f.Channel == e.Channel) &&
		(f.Category == "" || f.Category == e.Category) && (f.Status == "" || f.Status == e.Status)
}

// Debug contains the files of a process for a debug bundle, by name.
type Debug struct {
	Texts    map[string]string `json:"texts"`
	Binaries map[string][]byte `json:"binaries"`
}
