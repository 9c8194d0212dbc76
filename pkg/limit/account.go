package limit

import (
	"fmt"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Account is one account, project or IP pool through which notifyd calls a provider.
type Account struct {
	Name  string
	Rate  float64 // messages per second; Unlimited: notifyd sets no limit
	Burst int     // messages that may be sent at once; default: one second's worth, at least 1
}

func (a Account) withDefaults() Account {
	if a.Burst == 0 {
		a.Burst = int(max(1, math.Ceil(min(a.Rate, 1<<30))))
	}
	return a
}

func (a Account) validate() error {
	switch {
	case a.Name == "":
		return notify.Invalid("no_name", "accounts.name", "an account needs a name")
	case !(a.Rate > 0):
		return notify.Invalid("bad_rate", "accounts.rate", fmt.Sprintf("the rate of the account %q must be more than 0 messages per second, not %g", a.Name, a.Rate))
	case a.Burst < 0:
		return notify.Invalid("bad_burst", "accounts.burst", fmt.Sprintf("the burst of the account %q must not be negative, but is %d", a.Name, a.Burst))
	}
	return nil
}

// account is the running state of an Account. The lock of its Pool guards it.
//
// Bulk messages use tokens of two buckets: the bulk bucket, refilled at share*rate (share is
// PoolConfig.BulkShare), and the total bucket. Fast messages use only the total bucket. So in any t
// seconds the bulk lane uses at most share*(burst + rate*t) tokens, and all other tokens are always
// free for the fast lane. If each lane sends no more than its share, neither lane waits for the
// other.
type account struct {
	name    string
	total   tokens
	bulk    tokens
	breaker *Breaker
	blocked time.Time // no worker may use the account before this time
}

func newAccount(now time.Time, a Account, share float64, b BreakerConfig) *account {
	a = a.withDefaults()
	burst := float64(a.Burst)
	return &account{
		name:    a.Name,
		total:   newTokens(now, a.Rate, burst),
		bulk:    newTokens(now, a.Rate*share, bulkBurst(burst, share)),
		breaker: newBreaker(now, b),
	}
}

// bulkBurst returns the burst of the bulk bucket. The burst is at least one message. With a
// smaller burst the bulk lane could never send a message.
func bulkBurst(burst, share float64) float64 { return max(1, math.Floor(burst*share)) }

// maxAtOnce returns how many messages the lane can send at once when its buckets are full.
func (a *account) maxAtOnce(l Lane) int {
	if l == Bulk {
		return int(min(a.bulk.burst, a.total.burst))
	}
	return int(a.total.burst)
}

// available reports whether the lane has the needed tokens now. If not, the result availableAt is
// the time when the lane will have them.
func (a *account) available(now time.Time, l Lane, needed int) (ok bool, availableAt time.Time) {
	wait := a.total.wait(now, float64(needed))
	if l == Bulk {
		wait = max(wait, a.bulk.wait(now, float64(needed)))
	}
	return wait == 0, now.Add(wait)
}

// take uses up to n tokens and returns how many it used. If the method available reported true,
// take uses at least one token.
func (a *account) take(now time.Time, l Lane, n int) int {
	n = a.total.wholeTokens(now, n)
	if l == Bulk {
		n = a.bulk.wholeTokens(now, n)
		a.bulk.take(float64(n))
	}
	a.total.take(float64(n))
	return n
}

func (a *account) setRate(now time.Time, rate float64, burst int, share float64) {
	a.total.setRate(now, rate, float64(burst))
	a.bulk.setRate(now, rate*share, bulkBurst(float64(burst), share))
}

// block blocks the account until the given time. Both buckets are empty when the block ends. If
// the bulk bucket still had tokens then, the bulk lane could use more than its share of the tokens
// that the total bucket gains, and the fast lane would wait.
func (a *account) block(now, until time.Time) {
	if !until.After(a.blocked) {
		return
	}
	a.blocked = until
	a.total.penalize(now, until)
	a.bulk.penalize(now, until)
}
