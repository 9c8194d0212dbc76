package trigger

import (
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// The state machine of a trigger, as functions of a row and a time. The Dispatcher uses these
// functions to compute the rows that it swaps; the functions write nothing to the store. Cancels
// and reschedules are in change.go, and repairs are in mend.go.
//
//	                 claim                    2xx
//	PENDING ─────────────────────> IN_FLIGHT ─────> FIRED
//	 │ │ │ <─────────────────────── │     │
//	 │ │ │   retry, or given back   │     └───────> FAILED (permanent, out of attempts,
//	 │ │ │                          └─┐                     too late for another one)
//	 │ │ │              lease expired └─> IN_FLIGHT, next epoch
//	 │ │ └─ cancel ──> CANCELLED
//	 │ └─ too late, never claimed, late_policy drop ──> EXPIRED
//	 └─ too late otherwise ──> FAILED

// DefaultSchedule is the list of waits between attempts for a trigger without its own schedule. It
// allows 6 attempts.
var DefaultSchedule = []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute}

// Reasons in a row. Other reasons come from a call (http_503, timeout, …) and from the causes of
// deferrals.
const (
	reasonLate = "late"        // later than max_lateness allows
	reasonOld  = "too_old"     // later than MaxAge and the schedule allow
	reasonLost = "claims_lost" // too many processes died while they called the trigger
)

// callRules are the configured rules for calls.
type callRules struct {
	schedule      []time.Duration
	lease         time.Duration
	skew          time.Duration // largest difference between the clocks of two machines
	maxAge        time.Duration
	maxRetryAfter time.Duration
	maxLost       int
}

func (x *callRules) scheduleOf(t *engine.Trigger) []time.Duration {
	if len(t.Schedule) > 0 {
		return t.Schedule
	}
	return x.schedule
}

// messageVerdict is what to do with a message.
type messageVerdict uint8

const (
	verdictDrop   messageVerdict = iota // the message is no longer needed
	verdictOrphan                       // the row, or the message's generation, is not stored yet
	verdictEarly                        // the trigger is not due before the time that judge returns
	verdictLeased                       // another claim is valid; it may end at the time that judge returns
	verdictDue                          // claim the trigger
	verdictOver                         // too late: end the trigger without a call
	verdictOwed                         // FAILED, but its dead letter may not be written yet
)

// judge decides what to do with a message at the time now (ms since 1970). The parameters are the
// row of its trigger and gen, the generation in the message. The result cause is the reason if the
// message is dropped or must wait. For verdictEarly and verdictLeased, the wait ends at the time
// until (ms since 1970).
func (x *callRules) judge(row *engine.Trigger, gen uint32, now int64) (v messageVerdict, cause string, until int64) {
	switch {
	case row.ID == "" || gen > row.Gen:
		// The state row, or its generation gen, is not stored. It may still be written, because the
		// index row is written first.
		return verdictOrphan, CauseOrphan, 0
	case row.State == engine.TriggerFailed && row.NextAt != 0:
		return verdictOwed, "", 0
	case isTerminal(row.State):
		return verdictDrop, StateName(row.State), 0
	case gen < row.Gen:
		return verdictDrop, "rescheduled", 0
	case row.State == engine.TriggerInFlight:
		if end := row.LeaseUntil + x.skew.Milliseconds(); now <= end {
			return verdictLeased, CauseLeased, end + 1
		}
	case row.NextAt > now:
		return verdictEarly, CauseEarly, row.NextAt
	}
	if x.whyTooLate(row, now) != "" || x.tooManyLost(row) {
		return verdictOver, "", 0
	}
	return verdictDue, "", 0
}

// whyTooLate returns the reason why no call may start at startAt (ms since 1970). It returns "" if
// a call may start.
func (x *callRules) whyTooLate(row *engine.Trigger, startAt int64) string {
	if row.MaxLateness > 0 && row.Late != engine.LateFire && startAt > row.FireAt+row.MaxLateness.Milliseconds() {
		return reasonLate
	}
	age := x.maxAge
	for _, w := range x.scheduleOf(row) {
		age += w
	}
	if startAt > row.FireAt+age.Milliseconds() {
		return reasonOld
	}
	return ""
}

// tooManyLost reports whether too many claims of a row expired. The number is limited because a
// call that kills the process that makes it must not be made again and again.
func (x *callRules) tooManyLost(row *engine.Trigger) bool {
	n := 0
	for i := range row.Log {
		if row.Log[i].Class == ClassLost {
			n++
		}
	}
	if row.State == engine.TriggerInFlight {
		n++
	}
	return n >= x.maxLost
}

// giveUpRow returns the final row of a trigger that is too late or lost too many claims. The state
// is EXPIRED if the trigger is later than its max_lateness, its late_policy is drop, and certainly
// no call was made. Otherwise the state is FAILED.
func (x *callRules) giveUpRow(row engine.Trigger, now int64) engine.Trigger {
	row.Reason = x.whyTooLate(&row, now)
	if row.Reason == "" {
		row.Reason = reasonLost
	}
	row.Log = appendLostClaim(&row)
	row.State, row.NextAt = engine.TriggerFailed, now
	if row.Reason == reasonLate && row.Late == engine.LateDrop && row.Epoch == 0 {
		row.State, row.NextAt = engine.TriggerExpired, 0
	}
	row.Ended, row.LeaseUntil = now, 0
	return row
}

// claimRow returns the row with a claim. A call may be made only after this row is written. From
// then on a cancel is too late.
func (x *callRules) claimRow(row engine.Trigger, now time.Time, deferrals int) engine.Trigger {
	row.Log = appendLostClaim(&row)
	row.State = engine.TriggerInFlight
	row.Epoch++
	row.Deferrals += deferrals
	row.LeaseUntil = ceilMillis(now.Add(x.lease))
	return row
}

// appendLostClaim returns the log of a row. If the row is IN_FLIGHT, its claim has expired, and
// appendLostClaim adds that claim to the log.
func appendLostClaim(row *engine.Trigger) []engine.Attempt {
	if row.State != engine.TriggerInFlight {
		return row.Log
	}
	return appendLog(row.Log, engine.Attempt{
		N: row.Attempts + 1, At: row.LeaseUntil, Class: ClassLost, Detail: "the claim expired: the call may have been made",
	})
}

// unclaimRow returns the row without its claim. The row is PENDING again, because no call was made.
// unclaimRow counts a deferral, not an attempt.
func unclaimRow(row engine.Trigger, cause string) engine.Trigger {
	row.State, row.LeaseUntil, row.Reason = engine.TriggerPending, 0, cause
	row.Deferrals++
	return row
}

// settleRow returns the row with the outcome of a call.
func (x *callRules) settleRow(row engine.Trigger, base notify.Base, r *result, started time.Time, now int64) engine.Trigger {
	row.Attempts++
	row.LeaseUntil = 0
	row.Log = appendLog(row.Log, engine.Attempt{
		N: row.Attempts, At: started.UnixMilli(), Took: r.took, Status: r.status, Class: r.class,
		Detail: r.detail, Body: r.body, Address: r.address,
	})
	fail := func(reason string) engine.Trigger {
		// A NextAt other than 0 means that the dead letter is not written yet.
		row.State, row.Ended, row.NextAt, row.Reason = engine.TriggerFailed, now, now, reason
		return row
	}
	waits := x.scheduleOf(&row)
	switch {
	case r.class == ClassOK:
		row.State, row.Ended, row.NextAt, row.Reason = engine.TriggerFired, now, 0, ""
		return row
	case r.isPermanent() || row.Attempts > len(waits):
		return fail(reasonOf(r))
	}
	next := now + x.backoff(base, waits[row.Attempts-1], r.retryAfter, row.Attempts).Milliseconds()
	if why := x.whyTooLate(&row, next); why != "" {
		return fail(why)
	}
	row.State, row.NextAt, row.Reason = engine.TriggerPending, next, reasonOf(r)
	return row
}

// backoff returns the wait before the next attempt: the wait of the schedule or the receiver's
// Retry-After (at most MaxRetryAfter), whichever is longer, plus a jitter of up to a tenth. The
// jitter is only added, so the wait is never shorter than that Retry-After.
func (x *callRules) backoff(base notify.Base, wait, retryAfter time.Duration, attempts int) time.Duration {
	wait = max(wait, min(retryAfter, x.maxRetryAfter))
	wait += jitterOf(base, uint32(attempts)^0x72657472, wait/10)
	return wait + time.Millisecond - 1 // round up, because the sum is cut to milliseconds
}

func reasonOf(r *result) string {
	if r.status != 0 && r.class != ClassOK {
		return "http_" + strconv.Itoa(r.status)
	}
	return r.class
}

const (
	maxLog    = 40 // attempts kept; enough for 21 calls and the claims lost between them
	maxBodies = 4  // how many of the latest attempts keep the beginning of the answer
)

// appendLog returns a copy of a trigger's log with the attempt a at the end. The copy keeps at most
// the latest maxLog attempts. It does not write to the array of the old log, because a swap with
// unknown outcome may still use that array.
func appendLog(log []engine.Attempt, a engine.Attempt) []engine.Attempt {
	from := max(len(log)+1-maxLog, 0)
	out := append(make([]engine.Attempt, 0, len(log)+1-from), log[from:]...)
	out = append(out, a)
	for i := range len(out) - maxBodies {
		out[i].Body = nil
	}
	return out
}
