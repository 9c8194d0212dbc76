package conserve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Classes of findings: Finding.Class.
const (
	// Missing: nothing will wake it. A trigger's timer is written; of a scheduled
	// notification the content is gone with its timer: left for people.
	Missing = "missing"
	// Late: due longer ago than the grace. A trigger is enqueued anew, under the
	// next generation; a notification goes once a scheduler releases its timer.
	Late = "late"
	// Stuck: a notification was put off, and neither a timer nor a record leads
	// on. It is handed on again.
	Stuck = "stuck"
	// Orphan: a timer of a trigger that was never answered. It is dropped when it
	// fires.
	Orphan = "orphan"
	// ClaimExpired: a dispatcher or a worker claimed it and will not end it. A
	// trigger is enqueued anew, a notification resumed.
	ClaimExpired = "claim_expired"
	// LetterOwed: a trigger failed, and its record in triggers-dlq is not known to
	// be written. The record is written.
	LetterOwed = "dead_letter_owed"
	// OpenBucket: a minute in the past holds timers: its shard has no owner, or one
	// that does not get on. A scheduler must run.
	OpenBucket = "open_bucket"
	// StatusAlone: outcome rows of what neither history nor log know. Left for
	// people.
	StatusAlone = "status_alone"
	// RecordAlone: it was accepted, its record was passed, and no row has its
	// outcome. It is claimed, and resumed.
	RecordAlone = "record_alone"
	// Unreadable: a trigger's row or timer of another release, or a damaged one.
	// Left for people.
	Unreadable = "unreadable"
)

// classOf is what an audit's drift is in a report.
var classOf = map[string]string{
	api.DriftScheduleGone: Missing, api.DriftHandonGone: Stuck, api.DriftClaimGone: ClaimExpired,
	api.DriftRowAlone: StatusAlone, api.DriftRecordGone: RecordAlone,
}

// Kinds of what a finding is about.
const (
	KindNotification = "notification"
	KindTrigger      = "trigger"
)

// repairs says what can be repaired here.
var repairs = map[string]map[string]bool{
	KindTrigger:      {Late: true, ClaimExpired: true, Missing: true, LetterOwed: true},
	KindNotification: {Stuck: true, ClaimExpired: true, RecordAlone: true},
}

// Finding is one thing that does not fit: of a trigger its row, of a notification
// its latest outcome row and what is wrong in words.
type Finding = api.ReconcileFinding

// Report is what was found at a moment.
type Report api.ReconcileReport

func newReport(now time.Time) Report {
	return Report{ID: "rec_" + notify.NewBase(now).String(), Counts: map[string]int{}, Findings: []Finding{}}
}

func (r Report) digest() string {
	r.Digest = ""
	b, _ := json.Marshal(r) // strings and numbers always marshal
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// list lists a finding, or notes that there are more than most.
func (r *Report) list(f Finding, most int) {
	if len(r.Findings) < most {
		r.Findings = append(r.Findings, f)
	} else {
		r.Truncated = true
	}
}

// add counts a finding of n receivers or of one trigger, and lists it.
func (r *Report) add(f Finding, n, most int) {
	r.Counts[f.Class] += n
	r.list(f, most)
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

// Report looks at all triggers that are not over, and at the notifications that
// were accepted since then (zero: all that are kept); it changes nothing. It takes
// as long as an audit does. An error means that a store or the log was away.
func (a *Auditor) Report(ctx context.Context, since time.Time) (deadletter.Findings, error) {
	began := time.Now()
	rep := newReport(began)
	if err := a.triggers.find(ctx, &rep); err != nil {
		return deadletter.Findings{}, err
	}
	if err := findTimers(ctx, a, &rep, true); err != nil {
		return deadletter.Findings{}, err
	}
	ledger, err := a.books.Notifications(ctx, since, a.cfg.MaxListed)
	if err != nil {
		return deadletter.Findings{}, err
	}
	rep.Notifications, rep.Truncated = ledger.Accepted, rep.Truncated || ledger.Truncated
	if !since.IsZero() {
		rep.Since = since.UnixMilli()
	}
	for i := range ledger.Findings {
		rep.list(findingOf(&ledger.Findings[i]), a.cfg.MaxListed)
	}
	for class, n := range ledger.Classes {
		rep.Counts[classOf[class]] += int(n)
	}
	rep.Made, rep.Took = time.Now().UnixMilli(), time.Since(began)
	rep.Digest = rep.digest()
	b, err := json.Marshal(&rep)
	return findings(&rep, b), err
}

func findingOf(d *api.Drift) Finding {
	return Finding{
		Kind: KindNotification, Class: classOf[d.Class], ID: d.ID, Caller: d.Caller, State: d.State, Updated: d.Updated, Detail: d.Detail,
	}
}

// findings is what there is to know of a report.
func findings(rep *Report, b []byte) deadletter.Findings {
	out := deadletter.Findings{Report: b, Digest: rep.Digest, Counts: rep.Counts, Listed: len(rep.Findings)}
	for i := range rep.Findings {
		if repairs[rep.Findings[i].Kind][rep.Findings[i].Class] {
			out.Mend++
		}
	}
	return out
}

// Check says whether a report may be applied: notify.KindInvalid for one that was
// altered, notify.KindConflict for one that is older than MaxAge.
func (a *Auditor) Check(report json.RawMessage) (deadletter.Findings, error) {
	rep, err := read(report)
	if err != nil {
		return deadletter.Findings{}, err
	}
	if time.Since(time.UnixMilli(rep.Made)) > a.cfg.MaxAge {
		return deadletter.Findings{}, &notify.Error{Kind: notify.KindConflict, Code: "stale_report", Field: "report", Msg: "the report is too old: make another"}
	}
	return findings(&rep, nil), nil
}

// Triggers looks at all triggers that are not over. It changes nothing. An error
// means that a store was away.
func (a *Auditor) Triggers(ctx context.Context) (Report, error) {
	rep := newReport(time.Now())
	err := a.triggers.find(ctx, &rep)
	if err == nil {
		err = findTimers(ctx, a, &rep, false)
	}
	return rep, err
}

// MendTriggers looks at all triggers every interval and repairs what it finds,
// until ctx ends. It tells told of each time: of the findings and of the repairs
// by class. What failed is tried again the next time.
func (a *Auditor) MendTriggers(ctx context.Context, interval time.Duration, told func(found, mended map[string]int, err error)) error {
	for notify.Sleep(ctx, interval) {
		rep, err := a.Triggers(ctx)
		var mended map[string]int
		if err == nil {
			mended, err = a.Mend(ctx, rep.Findings)
		}
		if ctx.Err() == nil {
			told(rep.Counts, mended, err)
		}
	}
	return nil
}

// Mend repairs what is still so of findings of triggers, and counts by class what it
// repaired. An error in the middle leaves the rest for the next report.
func (a *Auditor) Mend(ctx context.Context, fs []Finding) (map[string]int, error) {
	mended := map[string]int{}
	for page := range slices.Chunk(fs, a.cfg.Page) {
		done, err := a.triggers.mend(ctx, page)
		if err != nil {
			return mended, err
		}
		for i := range done {
			if done[i] {
				mended[page[i].Class]++
			}
		}
	}
	return mended, nil
}

// triggerStates are the states of triggers as the API spells them.
var triggerStates = map[engine.TriggerState]string{
	engine.TriggerPending: "PENDING", engine.TriggerInFlight: "IN_FLIGHT", engine.TriggerFired: "FIRED",
	engine.TriggerFailed: "FAILED", engine.TriggerCancelled: "CANCELLED", engine.TriggerExpired: "EXPIRED",
}
