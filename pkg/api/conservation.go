package api

import (
	"context"
	"net/url"
	"time"
)

// Conservation is what an audit found: accepted = terminal + pending + lost, of
// every caller, channel and hour, and what else does not agree.
type Conservation struct {
	At      time.Time        `json:"at"`
	TookMS  int64            `json:"took_ms"`
	Since   *time.Time       `json:"since,omitempty"` // what was accepted before is left out
	Drift   int64            `json:"drift"`           // the sum of Classes; 0: all agrees
	Ledger                   // of all groups
	States  map[string]int64 `json:"states"`  // of what is terminal
	Waiting map[string]int64 `json:"waiting"` // of what is pending: where the evidence lies
	// Classes counts drift by what is wrong.
	Classes map[string]int64 `json:"classes"`
	// Findings lists drift, at most 100 of each class.
	Findings  []Drift             `json:"findings"`
	Truncated bool                `json:"truncated"` // there are more than are listed
	Groups    []ConservationGroup `json:"groups"`
	// Unanswered are requests that a crash may have cut before their answer:
	// schedules of an earlier start without all of their timers. No drift.
	Unanswered []string `json:"unanswered,omitempty"`
	Chunks     int64    `json:"chunks"`    // original chunks that were read
	Repeated   int64    `json:"repeated"`  // copies of them that a repeated request wrote
	Rows       int64    `json:"rows"`      // outcome rows that were read
	Triggers   int64    `json:"triggers"`  // state rows of triggers that were read
	Confirmed  int64    `json:"confirmed"` // what looked lost at first, and was not
}

// Ledger is Accepted = Terminal + Pending + Lost, in receivers and triggers.
type Ledger struct {
	Accepted int64 `json:"accepted"`
	Terminal int64 `json:"terminal"`
	Pending  int64 `json:"pending"`
	Lost     int64 `json:"lost"`
}

// ConservationGroup is the ledger of one caller, channel ("trigger": of its
// triggers) and hour in which they were accepted. What does not fit into 10,000
// groups is added up under the caller "(others)".
type ConservationGroup struct {
	Caller  string    `json:"caller"`
	Channel string    `json:"channel"`
	Hour    time.Time `json:"hour"`
	Ledger
}

// Drift is one thing that does not agree.
type Drift struct {
	Class   string `json:"class"`
	ID      string `json:"id"` // of a notification, a request or a trigger
	Caller  string `json:"caller,omitempty"`
	State   string `json:"state,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Updated int64  `json:"updated_ms,omitempty"` // the latest of its outcome rows, ms since 1970; 0: there is none
}

// DriftClasses are all classes of drift.
var DriftClasses = [...]string{DriftRecordGone, DriftClaimGone, DriftHandonGone, DriftScheduleGone, DriftRowAlone, DriftTriggerGone}

// Classes of drift.
const (
	DriftRecordGone   = "record_gone"   // accepted, without an outcome, and no record leads to one
	DriftClaimGone    = "claim_gone"    // a worker has claimed it, and its record is gone
	DriftHandonGone   = "handon_gone"   // put off, and neither a timer nor a record leads on
	DriftScheduleGone = "schedule_gone" // scheduled, and its timer is gone
	DriftRowAlone     = "row_alone"     // an outcome of what nobody accepted
	DriftTriggerGone  = "trigger_gone"  // a trigger waits, and neither a timer nor the queue leads to it
)

// Conservation adds up what was accepted since then (zero: all that is kept)
// against its outcomes. It needs scope observe, and takes its time: the server
// reads all of it.
func (cl *Client) Conservation(ctx context.Context, since time.Time) (Conservation, error) {
	q := url.Values{}
	setTime(q, "since", since)
	return fetch[Conservation](ctx, cl, "/v1/ops/audit:run", q)
}
