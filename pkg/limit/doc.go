// Package limit decides when a provider may be called, and on which account: token buckets, circuit
// breakers, pools of accounts, backoff.
//
// Bucket, Breaker, Pool and Backoff have no clock, no goroutine and no source of randomness: the
// caller passes now and rand in. Shared and Admission read the clock themselves. Time should only
// move forward: a now before the latest one counts as the latest. Breaker and Pool are safe for
// concurrent use and hold no lock while they call anything.
//
// Start reading at Pool.Pick in pool.go, which asks an account's buckets (account.go, bucket.go)
// and its breaker (breaker.go, window.go). Shared (shared.go) holds the buckets that several
// processes share. Admission (admission.go) is separate: it bounds the work on large requests.
package limit

import "github.com/notifyd/notifyd/pkg/notify"

// Lane is a share of an account's capacity.
type Lane uint8

const (
	// Fast is the lane of otp, alert and transactional.
	Fast Lane = iota
	// Bulk is the lane of marketing and digest. It gets at most PoolConfig.BulkShare of an account.
	Bulk
)

// LaneOf returns the lane of an account's capacity that a channel's lane draws from.
func LaneOf(l notify.Lane) Lane {
	if l.Bulk {
		return Bulk
	}
	return Fast
}
