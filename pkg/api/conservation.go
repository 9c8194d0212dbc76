package api

import (
	"context"
	"net/url"
	"time"
)

// Conservation is the result of an audit. It shows whether accepted = terminal + pending + lost for
// every caller, channel and hour. It also lists all items whose stored data do not agree.
type Conservation struct {
	At      time.Time        `json:"at"`
	TookMS  int64            `json:"took_ms"`
	Since   *time.Time       `json:"since,omitempty"` // start of the audited time
	Drift   int64            `json:"drift"`           // sum of Classes; 0: everything agrees
	Ledger                   // sum of all groups
	States  map[string]int64 `json:"states"`  // terminal items by state
	Waiting map[string]int64 `json:"waiting"` // pending items, by the place where the audit found them
	// Classes is the number of drift items of each class.
	Classes map[string]int64 `json:"classes"`
	// Findings lists drift, at most 100 of each class.
	Findings  []Drift             `json:"findings"`
	Truncated bool                `json:"truncated"` // Findings is not complete
	Groups    []ConservationGroup `json:"groups"`
	// Unanswered lists requests that perhaps got no answer because of a crash. They are schedules
	// that were made before the audited process started and that lack timers. They do not count as
	// drift.
	Unanswered []string `json:"unanswered,omitempty"`
	Chunks     int64    `json:"chunks"`    // original chunks that were read
	Repeated   int64    `json:"repeated"`  // copies of chunks, written by repeated requests
	Rows       int64    `json:"rows"`      // outcome rows that were read
	Triggers   int64    `json:"triggers"`  // state rows of triggers that were read
	Confirmed  int64    `json:"confirmed"` // items that seemed lost at first but were not
}

// Ledger contains counts of receivers and triggers: Accepted = Terminal + Pending + Lost.
type Ledger struct {
	Accepted int64 `json:"accepted"`
	Terminal int64 `json:"terminal"`
	Pending  int64 `json:"pending"`
	Lost     int64 `json:"lost"`
}

// ConservationGroup is the ledger of one caller and channel ("trigger" for triggers) for one hour
// of acceptance. If there are more than 10,000 groups, the rest is added up under the caller
// "(others)".
type ConservationGroup struct {
	Caller  string    `json:"caller"`
	Channel string    `json:"channel"`
	Hour    time.Time `json:"hour"`
	Ledger
}

// Drift is one item whose stored data do not agree. For example, it was accepted, but has no
// outcome and no record.
type Drift struct {
	Class   string `json:"class"`
	ID      string `json:"id"` // id of a notification, a request or a trigger
	Caller  string `json:"caller,omitempty"`
	State   string `json:"state,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Updated int64  `json:"updated_ms,omitempty"` // time of its latest outcome row, ms since 1970; 0: no outcome row
}

// DriftClasses lists all classes of drift.
var DriftClasses = [...]string{DriftRecordGone, DriftClaimGone, DriftHandonGone, DriftScheduleGone, DriftRowAlone, DriftTriggerGone}

// Classes of drift.
const (
	DriftRecordGone   = "record_gone"   // accepted, but without an outcome and without a record
	DriftClaimGone    = "claim_gone"    // a worker claimed it, but its record is gone
	DriftHandonGone   = "handon_gone"   // deferred, but without a timer and without a record
	DriftScheduleGone = "schedule_gone" // scheduled, but its timer is gone
	DriftRowAlone     = "row_alone"     // an outcome without an accepted request
	DriftTriggerGone  = "trigger_gone"  // a waiting trigger without a timer and without a message in the queue
)

// Conservation compares everything that was accepted since a time with its outcomes. A zero time
// means everything that is stored. It needs the scope "observe". It takes long, because the server
// reads all records.
func (cl *Client) Conservation(ctx context.Context, since time.Time) (Conservation, error) {
	q := url.Values{}
	setTime(q, "since", since)
	return getJSON[Conservation](ctx, cl, "/v1/ops/audit:run", q)
}
