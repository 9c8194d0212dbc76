// Package limit holds the logic that decides when a provider may be called and
// on which account: token buckets, breakers, account pools, backoff.
//
// Nothing but Shared has a clock, and nothing a goroutine or a source of
// randomness: the caller passes now and rand in. Every now is expected to move forward; one that lies
// before the latest counts as the latest. Bucket, Breaker and Pool are safe for
// concurrent use and hold no lock while they call anything.
package limit

import "github.com/notifyd/notifyd/pkg/notify"

// Lane is a share of an account's capacity.
type Lane uint8

const (
	// Fast is the lane of otp, alert and transactional.
	Fast Lane = iota
	// Bulk is the lane of marketing and digest, which gets at most a share.
	Bulk
)

// LaneOf returns the share that a channel's lane draws from.
func LaneOf(l notify.Lane) Lane {
	if l.Bulk {
		return Bulk
	}
	return Fast
}
