package trigger

import (
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// The state machine of a trigger, as functions of a row and the time. Whoever
// swaps rows uses these; nothing here writes anything.
//
//	                 claim                    2xx
//	PENDING ─────────────────────> IN_FLIGHT ─────> FIRED
//	 │ │ │ <─────────────────────── │     │
//	 │ │ │   retry, or given back   │     └───────> FAILED (permanent, out of attempts,
//	 │ │ │                          └─┐                     too late for another one)
//	 │ │ │                  lease out └─> IN_FLIGHT, next epoch
//	 │ │ └─ cancel ──> CANCELLED
//	 │ └─ too late, never claimed, policy drop ──> EXPIRED
//	 └─ too late otherwise ──> FAILED

// DefaultSchedule are the waits between attempts where a trigger has none of
// its own: 6 attempts.
var DefaultSchedule = []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute}

// Reasons of a row, beside those of a call (http_503, timeout, …) and the
// causes of deferrals.
const (
	reasonLate = "late"        // later than max_lateness
	reasonOld  = "too_old"     // put off for longer than MaxAge
	reasonLost = "claims_lost" // too many who called it died over it
)

// terms are the rules a dispatcher goes by.
type terms struct {
	schedule      []time.Duration
	lease         time.Duration
	skew          time.Duration // of clocks, between machines
	maxAge        time.Duration
	maxRetryAfter time.Duration
	maxLost       int
}

func (x *terms) scheduleOf(t *engine.Trigger) []time.Duration {
	if len(t.Schedule) > 0 {
		return t.Schedule
	}
	return x.schedule
}

// verdict is what a message for a trigger leads to.
type verdict uint8

const (
	drop   verdict = iota // the message is of no use any more
	orphan                // the row, or the message's generation, is not there yet
	early                 // wait until at
	leased                // somebody's claim holds until at
	due                   // claim it
	over                  // too late: swap to the row next
	owed                  // FAILED, and its dead letter is not known to be written
)

// judge decides about a message of generation gen for row at now (ms since
// 1970). cause names a drop; at is the time that early and leased mean.
func (x *terms) judge(row *engine.Trigger, gen uint32, now int64) (v verdict, cause string, at int64) {
	switch {
	case row.ID == "" || gen > row.Gen:
		// The index row is written first: the state row may be on its way.
		return orphan, CauseOrphan, 0
	case row.State == engine.TriggerFailed && row.NextAt != 0:
		return owed, "", 0
	case terminal(row.State):
		return drop, StateName(row.State), 0
	case gen < row.Gen:
		return drop, "rescheduled", 0
	case row.State == engine.TriggerInFlight:
		if at := row.LeaseUntil + x.skew.Milliseconds(); now <= at {
			return leased, CauseLeased, at + 1
		}
	case row.NextAt > now:
		return early, CauseEarly, row.NextAt
	}
	if x.overdue(row, now) != "" || x.lost(row) {
		return over, "", 0
	}
	return due, "", 0
}

// overdue returns why no call may start at a time any more; "" if one may.
func (x *terms) overdue(row *engine.Trigger, at int64) string {
	if row.MaxLateness > 0 && row.Late != engine.LateFire && at > row.FireAt+row.MaxLateness.Milliseconds() {
		return reasonLate
	}
	age := x.maxAge
	for _, w := range x.scheduleOf(row) {
		age += w
	}
	if at > row.FireAt+age.Milliseconds() {
		return reasonOld
	}
	return ""
}

// lost reports whether too many claims of a row ran out: a call that kills who
// makes it must not be made for ever.
func (x *terms) lost(row *engine.Trigger) bool {
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

// giveUp returns the row of a trigger that is over. EXPIRED stands only where
// no call can have been made.
func (x *terms) giveUp(row engine.Trigger, now int64) engine.Trigger {
	row.Reason = x.overdue(&row, now)
	if row.Reason == "" {
		row.Reason = reasonLost
	}
	row.Log = logLost(&row)
	row.State, row.NextAt = engine.TriggerFailed, now
	if row.Reason == reasonLate && row.Late == engine.LateDrop && row.Epoch == 0 {
		row.State, row.NextAt = engine.TriggerExpired, 0
	}
	row.Ended, row.LeaseUntil = now, 0
	return row
}

// claim returns the claimed row. It is the one write after which a call may be
// made, and cancel is too late.
func (x *terms) claim(row engine.Trigger, now time.Time, deferrals int) engine.Trigger {
	row.Log = logLost(&row)
	row.State = engine.TriggerInFlight
	row.Epoch++
	row.Deferrals += deferrals
	row.LeaseUntil = ceilMillis(now.Add(x.lease))
	return row
}

// logLost adds the claim that ran out to the log of a row that is IN_FLIGHT.
func logLost(row *engine.Trigger) []engine.Attempt {
	if row.State != engine.TriggerInFlight {
		return row.Log
	}
	return appendLog(row.Log, engine.Attempt{
		N: row.Attempts + 1, At: row.LeaseUntil, Class: ClassLost, Detail: "the claim ran out: the call may have been made",
	})
}

// giveBack returns a claimed row to the state before its claim, for no call was
// made: a deferral, not an attempt.
func giveBack(row engine.Trigger, cause string) engine.Trigger {
	row.State, row.LeaseUntil, row.Reason = engine.TriggerPending, 0, cause
	row.Deferrals++
	return row
}

// settle returns the row after a call.
func (x *terms) settle(row engine.Trigger, base notify.Base, r *result, started time.Time, now int64) engine.Trigger {
	row.Attempts++
	row.LeaseUntil = 0
	row.Log = appendLog(row.Log, engine.Attempt{
		N: row.Attempts, At: started.UnixMilli(), Took: r.took, Status: r.status, Class: r.class,
		Detail: r.detail, Body: r.body, Address: r.address,
	})
	fail := func(reason string) engine.Trigger {
		// NextAt other than 0 says that the dead letter is owed.
		row.State, row.Ended, row.NextAt, row.Reason = engine.TriggerFailed, now, now, reason
		return row
	}
	waits := x.scheduleOf(&row)
	switch {
	case r.class == ClassOK:
		row.State, row.Ended, row.NextAt, row.Reason = engine.TriggerFired, now, 0, ""
		return row
	case r.permanent() || row.Attempts > len(waits):
		return fail(reasonOf(r))
	}
	next := now + x.backoff(base, waits[row.Attempts-1], r.retryAfter, row.Attempts).Milliseconds()
	if why := x.overdue(&row, next); why != "" {
		return fail(why)
	}
	row.State, row.NextAt, row.Reason = engine.TriggerPending, next, reasonOf(r)
	return row
}

// backoff is the wait before the next attempt: the schedule's or the
// receiver's, whichever is longer, and up to a tenth more. Jitter only adds:
// a Retry-After is never undercut.
func (x *terms) backoff(base notify.Base, wait, retryAfter time.Duration, attempts int) time.Duration {
	wait = max(wait, min(retryAfter, x.maxRetryAfter))
	wait += spread(base, uint32(attempts)^0x72657472, wait/10)
	return wait + time.Millisecond - 1 // the sum is cut to milliseconds
}

func reasonOf(r *result) string {
	if r.status != 0 && r.class != ClassOK {
		return "http_" + strconv.Itoa(r.status)
	}
	return r.class
}

const (
	maxLog    = 40 // attempts that are kept; 21 calls and the claims lost between them fit
	maxBodies = 4  // of the latest, with the beginning of their answers
)

// appendLog adds to a log without writing to its array, which a swap of
// unknown outcome may still refer to.
func appendLog(log []engine.Attempt, a engine.Attempt) []engine.Attempt {
	from := max(len(log)+1-maxLog, 0)
	out := append(make([]engine.Attempt, 0, len(log)+1-from), log[from:]...)
	out = append(out, a)
	for i := range len(out) - maxBodies {
		out[i].Body = nil
	}
	return out
}
