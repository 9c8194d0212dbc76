// Package limit decides when a provider may be called, and on which account: token buckets, circuit
// breakers, pools of accounts, backoff.
//
// The token buckets, Breaker, Pool and Backoff have no clock, no goroutine and no source of
// randomness: the caller passes the current time and a random function. Shared and Admission read
// the clock themselves. The current time that callers pass should only grow. If a caller passes an
// earlier time than before, the latest time counts. Breaker and Pool are safe for concurrent use.
// Pool holds no lock while it calls PoolConfig.Blocks.
//
// Start reading at Pool.Pick in pool.go. Pick checks an account's buckets (account.go, bucket.go)
// and its breaker (breaker.go, window.go). Shared (shared.go) calls the buckets that several
// processes share. Admission (admission.go) is separate: it bounds the work on large requests.
package limit

import "github.com/notifyd/notifyd/pkg/notify"

// Lane is a share of an account's capacity.
type Lane uint8

const (
	// Fast is the lane of the categories otp, alert and transactional.
	Fast Lane = iota
	// Bulk is the lane of the categories marketing and digest. It uses at most PoolConfig.BulkShare
	// of an account.
	Bulk
)

// LaneOf returns the lane of an account's capacity that messages of the channel's lane l use.
func LaneOf(l notify.Lane) Lane {
	if l.Bulk {
		return Bulk
	}
	return Fast
}
