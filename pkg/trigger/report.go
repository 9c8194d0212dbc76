package trigger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// What a reconciler finds: Finding.Class.
const (
	// FindOverdue: a trigger waits although it was due longer ago than Grace.
	// Repair: it is enqueued anew, under the next generation.
	FindOverdue = "late"
	// FindClaimExpired: a claim ran out longer ago than Grace. Repair: the same.
	FindClaimExpired = "claim_expired"
	// FindNoIndex: a trigger waits, and no index row leads to it. Repair: the row.
	FindNoIndex = "missing"
	// FindLetterOwed: a trigger failed, and its record in triggers-dlq is not
	// known to be written. Repair: the record.
	FindLetterOwed = "dead_letter_owed"
	// FindOrphanIndex: an index row of a create that was never answered. It is
	// dropped when it fires; there is nothing to repair.
	FindOrphanIndex = "orphan"
	// FindOpenBucket: a minute in the past holds timers: its shard has no owner,
	// or one that does not get on. A scheduler must run; nothing is repaired here.
	FindOpenBucket = "open_bucket"
	// FindUnreadable: a row of another release, or a damaged one. It is left for
	// people.
	FindUnreadable = "unreadable"
)

// Finding is one thing a reconciler found.
type Finding struct {
	Class      string `json:"class"`
	ID         string `json:"id,omitempty"`
	Caller     string `json:"caller,omitempty"`
	State      string `json:"state,omitempty"`
	Version    uint64 `json:"version,omitempty"` // of the row; it is repaired only if it still has it
	Gen        uint32 `json:"generation,omitempty"`
	NextAt     int64  `json:"next_at_ms,omitempty"`
	LeaseUntil int64  `json:"lease_until_ms,omitempty"`
	Shard      uint16 `json:"shard,omitempty"`
	Minute     int64  `json:"minute,omitempty"`
	Owner      string `json:"owner,omitempty"`  // of the shard, the last
	Closed     int64  `json:"closed,omitempty"` // the shard's last closed minute
}

func findingOf(class string, t *engine.Trigger) Finding {
	return Finding{
		Class: class, ID: t.ID, Caller: t.Caller, State: StateName(t.State), Version: t.Version,
		Gen: t.Gen, NextAt: t.NextAt, LeaseUntil: t.LeaseUntil,
	}
}

// Report is what a reconciler saw at a moment.
type Report struct {
	ID        string         `json:"report_id"` // rec_<ULID>
	Made      int64          `json:"made_ms"`
	Took      time.Duration  `json:"took_ns"`
	Rows      int            `json:"rows"`  // state rows that were read
	Index     int            `json:"index"` // index rows that were read
	Counts    map[string]int `json:"counts"`
	Findings  []Finding      `json:"findings"`
	Truncated bool           `json:"truncated"` // there are more than are listed
	Digest    string         `json:"digest"`    // of all the rest
}

func newReport(now time.Time) Report {
	return Report{ID: "rec_" + notify.NewBase(now).String(), Made: now.UnixMilli(), Counts: map[string]int{}, Findings: []Finding{}}
}

// Clean reports whether nothing was found.
func (r *Report) Clean() bool { return len(r.Findings) == 0 }

func (r Report) digest() string {
	r.Digest = ""
	b, _ := json.Marshal(r) // strings and numbers always marshal
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Applied is what an Apply did. Changed counts by class what was repaired,
// Skipped what was not: it had changed meanwhile, or there is nothing to repair.
type Applied struct {
	ReportID string         `json:"report_id"`
	Changed  map[string]int `json:"changed"`
	Skipped  map[string]int `json:"skipped"`
}

// Apply repairs what a report lists. Each row is looked at again: it is changed
// only if it is still what was found, by compare and swap, so a second Apply of
// the same findings changes nothing and no terminal row is revived. An error in
// the middle leaves the rest for the next report. notify.KindInvalid for a
// report that was altered; notify.KindConflict for one that is older than
// MaxAge, or than one that was applied here.
func (r *Reconciler) Apply(ctx context.Context, rep Report) (Applied, error) {
	if err := r.Check(rep); err != nil {
		return Applied{ReportID: rep.ID, Changed: map[string]int{}, Skipped: map[string]int{}}, err
	}
	r.mu.Lock()
	superseded := r.applied >= rep.Made
	if !superseded {
		r.applied = rep.Made
	}
	r.mu.Unlock()
	if superseded {
		return Applied{ReportID: rep.ID, Changed: map[string]int{}, Skipped: map[string]int{}}, errStale
	}
	done := Applied{ReportID: rep.ID, Changed: map[string]int{}, Skipped: map[string]int{}}
	mended, err := r.Repair(ctx, rep.Findings)
	for i, ok := range mended {
		if ok {
			done.Changed[rep.Findings[i].Class]++
		} else {
			done.Skipped[rep.Findings[i].Class]++
		}
	}
	return done, err
}

var errStale = &notify.Error{Kind: notify.KindConflict, Code: "stale_report", Field: "report_id", Msg: "the report is too old, or one as new was applied: make another"}

// Check says whether a report may be applied: notify.KindInvalid for one that was
// altered, notify.KindConflict for one that is older than MaxAge or than one that
// was applied here.
func (r *Reconciler) Check(rep Report) error {
	if rep.Digest == "" || rep.Digest != rep.digest() {
		return notify.Invalid("bad_digest", "digest", "the report is not what it was when it was made")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.applied >= rep.Made || time.Since(time.UnixMilli(rep.Made)) > r.cfg.MaxAge {
		return errStale
	}
	return nil
}

// Mends reports whether findings of a class can be repaired here.
func Mends(class string) bool {
	switch class {
	case FindOverdue, FindClaimExpired, FindNoIndex, FindLetterOwed:
		return true
	}
	return false
}

// Repair repairs what is still as it was found, however long ago, and returns
// which: a job that was interrupted goes on with it. After an error it returns
// those of the findings that it came to.
func (r *Reconciler) Repair(ctx context.Context, fs []Finding) ([]bool, error) {
	done := make([]bool, len(fs))
	var batch []int
	for i := range fs {
		if Mends(fs[i].Class) {
			batch = append(batch, i)
		}
		if len(batch) == r.cfg.Page || i == len(fs)-1 && len(batch) > 0 {
			if err := r.repair(ctx, fs, batch, done); err != nil {
				return done[:batch[0]], err
			}
			batch = batch[:0]
		}
	}
	return done, nil
}

// repair mends rows that are still what was found.
func (r *Reconciler) repair(ctx context.Context, fs []Finding, which []int, done []bool) error {
	ids := make([]string, len(which))
	for k, i := range which {
		ids[k] = fs[i].ID
	}
	rows, err := r.cfg.Triggers.Get(ctx, ids)
	if err != nil {
		return unavailable("trigger_store", err)
	}
	now := time.Now()
	var index []engine.Timer // before the swaps: a row without one never fires
	var letters []DeadRecord
	var swaps []engine.TriggerSwap
	var of []int // of swaps: their findings
	for k, i := range which {
		f, t := &fs[i], rows[k]
		if t.Version != f.Version {
			continue
		}
		class, err := r.class(ctx, &t, now)
		if err != nil {
			return unavailable("timer_store", err)
		}
		if class != f.Class {
			continue
		}
		base, _ := parseID(t.ID) // class has read it
		switch class {
		case FindNoIndex:
			index = append(index, indexRow(base, &t))
			done[i] = true
		case FindLetterOwed:
			letters = append(letters, letterOf(&t))
			t.NextAt = 0
			swaps, of = append(swaps, engine.TriggerSwap{Old: f.Version, New: t}), append(of, i)
		default:
			t = enqueueAnew(t, ceilMillis(now))
			index = append(index, indexRow(base, &t))
			swaps, of = append(swaps, engine.TriggerSwap{Old: f.Version, New: t}), append(of, i)
		}
	}
	if len(letters) > 0 {
		if err := r.cfg.Dead.Append(ctx, letters); err != nil {
			return unavailable("dead_letters", err)
		}
		r.cfg.Events.deadLettered(len(letters))
	}
	if len(index) > 0 {
		if err := r.cfg.Later.Put(ctx, index); err != nil {
			return unavailable("timer_store", err)
		}
	}
	r.cfg.hit("trigger-requeued-before-mark")
	if len(swaps) == 0 {
		return nil
	}
	won, err := r.cfg.Triggers.Swap(ctx, swaps)
	if err != nil {
		return unavailable("trigger_store", err)
	}
	r.cfg.Events.swaps(len(swaps))
	for k, w := range won {
		done[of[k]] = w
	}
	return nil
}

// enqueueAnew returns the row of a trigger that is due at now once more. Its
// generation is the next: messages of the old one, should there be any, are
// dropped, so that hourly repairs of a long backlog do not pile them up.
func enqueueAnew(t engine.Trigger, now int64) engine.Trigger {
	t.Log = logLost(&t)
	t.State, t.LeaseUntil, t.Reason = engine.TriggerPending, 0, "reconciled"
	t.Gen++
	t.NextAt = now
	return t
}
