package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Classes of findings. Those of triggers alone are trigger.FindLetterOwed and
// trigger.FindUnreadable.
const (
	// Missing: nothing will wake it. A trigger's index row is written; of a
	// scheduled notification the content is gone with its timer: left for people.
	Missing = trigger.FindNoIndex
	// Late: due longer ago than the grace. A trigger is enqueued anew; a
	// notification goes once a scheduler releases its timer.
	Late = trigger.FindOverdue
	// Stuck: a notification was put off, and neither a timer nor a record leads
	// on. It is handed on again.
	Stuck = "stuck"
	// Orphan: an index row of a trigger that was never answered. It is dropped when
	// it fires.
	Orphan = trigger.FindOrphanIndex
	// ClaimExpired: a dispatcher or a worker claimed it and will not end it. A
	// trigger is enqueued anew, a notification resumed.
	ClaimExpired = trigger.FindClaimExpired
	// OpenBucket: a minute in the past holds timers. A scheduler must run.
	OpenBucket = trigger.FindOpenBucket
	// StatusAlone: outcome rows of what neither history nor log know. Left for
	// people.
	StatusAlone = "status_alone"
	// RecordAlone: it was accepted, its record was passed, and no row has its
	// outcome. It is claimed, and resumed.
	RecordAlone = "record_alone"
)

var classOf = map[string]string{
	api.DriftScheduleGone: Missing, api.DriftHandonGone: Stuck, api.DriftClaimGone: ClaimExpired,
	api.DriftRowAlone: StatusAlone, api.DriftRecordGone: RecordAlone,
}

// Kinds of what a finding is about.
const (
	KindNotification = "notification"
	KindTrigger      = "trigger"
)

// Finding is one thing that does not fit. Of a trigger it has what trigger.Finding
// has; of a notification Class, ID, Caller, State, NextAt and the rest below.
type Finding struct {
	Kind string `json:"kind"`
	trigger.Finding
	Updated int64  `json:"updated_ms,omitempty"` // the latest of its outcome rows, ms since 1970
	Detail  string `json:"detail,omitempty"`
}

// mends reports whether a finding of this kind and class can be repaired here.
func (f *Finding) mends() bool {
	switch {
	case f.Kind == KindTrigger:
		return trigger.Mends(f.Class)
	case f.Class == Stuck, f.Class == ClaimExpired, f.Class == RecordAlone:
		return true
	}
	return false
}

// Report is what was found at a moment.
type Report struct {
	ID            string         `json:"report_id"` // rec_<ULID>
	Made          int64          `json:"made_ms"`
	Since         int64          `json:"since_ms,omitempty"` // of notifications, those accepted since then
	Took          time.Duration  `json:"took_ns"`
	Rows          int            `json:"rows"`          // state rows of triggers that were read
	Index         int            `json:"index"`         // their index rows
	Notifications int64          `json:"notifications"` // that were accounted for
	Counts        map[string]int `json:"counts"`        // by class
	Findings      []Finding      `json:"findings"`
	Truncated     bool           `json:"truncated"` // there are more than are listed
	Digest        string         `json:"digest"`    // of all the rest
}

func (r Report) digest() string {
	r.Digest = ""
	b, _ := json.Marshal(r) // strings and numbers always marshal
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (r *Report) add(f Finding, n, most int) {
	r.Counts[f.Class] += n
	if len(r.Findings) < most {
		r.Findings = append(r.Findings, f)
	} else {
		r.Truncated = true
	}
}

// read returns a report as it was made, or what is wrong with it.
func read(b []byte) (rep Report, err error) {
	switch {
	case json.Unmarshal(b, &rep) != nil || rep.Digest == "":
		err = notify.Invalid("bad_report", "report", "a report of a plan, unchanged")
	case rep.Digest != rep.digest():
		err = notify.Invalid("bad_digest", "report", "the report is not what it was when it was made")
	}
	return rep, err
}
