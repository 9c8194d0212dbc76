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
	// Missing: the timer is missing, so nothing will ever wake the trigger or notification. The
	// repair writes the timer of a trigger. A scheduled notification loses its content with its
	// timer, so a person must decide what to do.
	Missing = "missing"
	// Late: a trigger or notification has been due for longer than Grace. The repair enqueues a
	// trigger again, with the next generation. A notification is sent once a scheduler releases
	// its timer.
	Late = "late"
	// Stuck: a notification was deferred, and neither a timer nor a record contains it. The repair
	// sends it to the log or the timer store again.
	Stuck = "stuck"
	// Orphan: a timer whose trigger has no row, because the request for the trigger was never
	// answered. The timer is dropped when it fires.
	Orphan = "orphan"
	// ClaimExpired: a dispatcher has claimed a trigger, or a worker has claimed a notification, and
	// will not finish the claim. The repair enqueues a trigger again, and resumes a notification.
	ClaimExpired = "claim_expired"
	// LetterOwed: a trigger failed, and its record in triggers-dlq may not have been written. The
	// repair writes the record.
	LetterOwed = "dead_letter_owed"
	// OpenBucket: a minute in the past still contains timers. Its shard has no owner, or an owner
	// that makes no progress. A scheduler must run.
	OpenBucket = "open_bucket"
	// StatusAlone: there are outcome rows of a request that is neither in the history nor in the
	// log. A person must decide what to do.
	StatusAlone = "status_alone"
	// RecordAlone: a notification was accepted, the consumer group has committed an offset after its
	// record, and no row has its outcome. The repair claims and resumes the notification.
	RecordAlone = "record_alone"
	// Unreadable: a row or timer of a trigger is damaged, or another release wrote it. A person must
	// decide what to do.
	Unreadable = "unreadable"
)

// classOf contains, for each class of an audit's drift, the class that the finding has in a report.
var classOf = map[string]string{
	api.DriftScheduleGone: Missing, api.DriftHandonGone: Stuck, api.DriftClaimGone: ClaimExpired,
	api.DriftRowAlone: StatusAlone, api.DriftRecordGone: RecordAlone,
}

// Kinds of findings: Finding.Kind.
const (
	KindNotification = "notification"
	KindTrigger      = "trigger"
)

// repairs says, by kind and class, which findings this package can repair.
var repairs = map[string]map[string]bool{
	KindTrigger:      {Late: true, ClaimExpired: true, Missing: true, LetterOwed: true},
	KindNotification: {Stuck: true, ClaimExpired: true, RecordAlone: true},
}

// Finding describes one thing that is wrong: usually a trigger or notification that is neither
// terminal nor pending, but also a timer (Orphan, Unreadable), a minute of a shard (OpenBucket) or a
// request (StatusAlone). For a trigger it has the fields of its row. For a notification it has the
// time of its latest outcome row, and a text that says what is wrong.
type Finding = api.ReconcileFinding

// Report lists findings at one moment. Its digest shows whether the report was changed.
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

// listFinding adds a finding to the list. If the list already has maxListed findings, it marks the
// report as truncated instead.
func (r *Report) listFinding(f Finding, maxListed int) {
	if len(r.Findings) < maxListed {
		r.Findings = append(r.Findings, f)
	} else {
		r.Truncated = true
	}
}

// addFinding lists a finding and adds n to the count of the finding's class. The number n is how
// many receivers the finding is about, or 1 if the finding is not about a notification.
func (r *Report) addFinding(f Finding, n, maxListed int) {
	r.Counts[f.Class] += n
	r.listFinding(f, maxListed)
}

// parseReport decodes a report. It returns bad_report if b is not a report, and bad_digest if the
// report was changed.
func parseReport(b []byte) (rep Report, err error) {
	switch {
	case json.Unmarshal(b, &rep) != nil || rep.Digest == "":
		err = notify.Invalid("bad_report", "report", "must be the unchanged report of a reconcile plan (\"notifyctl reconcile\" makes one)")
	case rep.Digest != rep.digest():
		err = notify.Invalid("bad_digest", "report", "the report was changed after it was made; use the report unchanged, or make a new report")
	}
	return rep, err
}

// Report checks all open triggers, and the notifications that were accepted at the time since or
// later. If since is zero, it checks all stored notifications. It changes nothing, and takes as
// long as an audit. It returns an error if a store or the log is unreachable.
func (a *Auditor) Report(ctx context.Context, since time.Time) (deadletter.Findings, error) {
	began := time.Now()
	rep := newReport(began)
	if err := a.triggers.findDrift(ctx, &rep); err != nil {
		return deadletter.Findings{}, err
	}
	if err := findTimers(ctx, a, &rep, true); err != nil {
		return deadletter.Findings{}, err
	}
	ledger, err := a.notifications.Notifications(ctx, since, a.cfg.MaxListed)
	if err != nil {
		return deadletter.Findings{}, err
	}
	rep.Notifications, rep.Truncated = ledger.Accepted, rep.Truncated || ledger.Truncated
	if !since.IsZero() {
		rep.Since = since.UnixMilli()
	}
	for i := range ledger.Findings {
		rep.listFinding(findingOf(&ledger.Findings[i]), a.cfg.MaxListed)
	}
	for class, n := range ledger.Classes {
		rep.Counts[classOf[class]] += int(n)
	}
	rep.Made, rep.Took = time.Now().UnixMilli(), time.Since(began)
	rep.Digest = rep.digest()
	b, err := json.Marshal(&rep)
	return summarize(&rep, b), err
}

func findingOf(d *api.Drift) Finding {
	return Finding{
		Kind: KindNotification, Class: classOf[d.Class], ID: d.ID, Caller: d.Caller, State: d.State, Updated: d.Updated, Detail: d.Detail,
	}
}

// summarize returns the Findings of a report for package deadletter. b is the report's JSON.
func summarize(rep *Report, b []byte) deadletter.Findings {
	out := deadletter.Findings{Report: b, Digest: rep.Digest, Counts: rep.Counts, Listed: len(rep.Findings)}
	for i := range rep.Findings {
		if repairs[rep.Findings[i].Kind][rep.Findings[i].Class] {
			out.Mend++
		}
	}
	return out
}

// Check returns the findings of a report if the report may be applied. Otherwise it returns an
// error: notify.KindInvalid for a report that was changed, or notify.KindConflict for a report that
// is older than MaxAge.
func (a *Auditor) Check(report json.RawMessage) (deadletter.Findings, error) {
	rep, err := parseReport(report)
	if err != nil {
		return deadletter.Findings{}, err
	}
	if time.Since(time.UnixMilli(rep.Made)) > a.cfg.MaxAge {
		return deadletter.Findings{}, &notify.Error{Kind: notify.KindConflict, Code: "stale_report", Field: "report", Msg: "the report is older than " + a.cfg.MaxAge.String() + "; make a new report"}
	}
	return summarize(&rep, nil), nil
}

// Triggers checks all open triggers. It changes nothing. It returns an error if a store is
// unreachable.
func (a *Auditor) Triggers(ctx context.Context) (Report, error) {
	rep := newReport(time.Now())
	err := a.triggers.findDrift(ctx, &rep)
	if err == nil {
		err = findTimers(ctx, a, &rep, false)
	}
	return rep, err
}

// MendTriggers checks all open triggers and repairs the findings, once per interval until ctx ends.
// After each check it calls onResult with the numbers of findings and of repairs by class. If a
// check or a repair fails, the next check tries again.
func (a *Auditor) MendTriggers(ctx context.Context, interval time.Duration, onResult func(found, mended map[string]int, err error)) error {
	for notify.Sleep(ctx, interval) {
		rep, err := a.Triggers(ctx)
		var mended map[string]int
		if err == nil {
			mended, err = a.Mend(ctx, rep.Findings)
		}
		if ctx.Err() == nil {
			onResult(rep.Counts, mended, err)
		}
	}
	return nil
}

// Mend repairs each finding of a trigger whose row has not changed since the report. It returns
// the number of repairs by class. After an error, the remaining findings are in the next report.
func (a *Auditor) Mend(ctx context.Context, fs []Finding) (map[string]int, error) {
	mended := map[string]int{}
	for page := range slices.Chunk(fs, a.cfg.Page) {
		done, err := a.triggers.mendFindings(ctx, page)
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

// triggerStates contains the names of the triggers' states in the API.
var triggerStates = map[engine.TriggerState]string{
	engine.TriggerPending: "PENDING", engine.TriggerInFlight: "IN_FLIGHT", engine.TriggerFired: "FIRED",
	engine.TriggerFailed: "FAILED", engine.TriggerCancelled: "CANCELLED", engine.TriggerExpired: "EXPIRED",
}
