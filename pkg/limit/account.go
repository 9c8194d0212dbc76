package limit

import (
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Account is one of the accounts, projects or IP pools a provider is reached
// through.
type Account struct {
	Name  string
	Rate  float64 // messages per second; Unlimited: no limit of ours
	Burst int     // messages at once; default: a second's worth, at least 1
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
		return notify.Invalid("bad_rate", "accounts.rate", "must be more than 0 messages per second")
	case a.Burst < 0:
		return notify.Invalid("bad_burst", "accounts.burst", "must not be negative")
	}
	return nil
}

// account is an Account at work. Its Pool's lock guards it.
//
// Bulk draws from two buckets, its own of share*rate and the account's; the
// fast lane only from the account's. Bulk then never takes more than share of
// burst + rate*t in any t seconds, so the rest is always there for the fast
// lane: of two flows that each keep to their part, neither waits for the other.
type account struct {
	name    string
	all     tokens
	bulk    tokens
	breaker *Breaker
	blocked time.Time // refused until then, for every worker
}

func newAccount(now time.Time, a Account, share float64, b BreakerConfig) *account {
	a = a.withDefaults()
	burst := float64(a.Burst)
	return &account{
		name:    a.Name,
		all:     newTokens(now, a.Rate, burst),
		bulk:    newTokens(now, a.Rate*share, bulkBurst(burst, share)),
		breaker: newBreaker(now, b),
	}
}

// bulkBurst is at least one message: with less, bulk could never send.
func bulkBurst(burst, share float64) float64 { return max(1, math.Floor(burst*share)) }

// most returns how many messages the lane can ever take at once.
func (a *account) most(l Lane) int {
	if l == Bulk {
		return int(min(a.bulk.burst, a.all.burst))
	}
	return int(a.all.burst)
}

// available reports whether the lane would get least messages now; if not, when.
func (a *account) available(now time.Time, l Lane, least int) (ok bool, at time.Time) {
	wait := a.all.wait(now, float64(least))
	if l == Bulk {
		wait = max(wait, a.bulk.wait(now, float64(least)))
	}
	return wait == 0, now.Add(wait)
}

// take takes up to n messages. It takes one at least where available said so.
func (a *account) take(now time.Time, l Lane, n int) int {
	n = a.all.whole(now, n)
	if l == Bulk {
		n = a.bulk.whole(now, n)
		a.bulk.take(float64(n))
	}
	a.all.take(float64(n))
	return n
}

func (a *account) setRate(now time.Time, rate float64, burst int, share float64) {
	a.all.setRate(now, rate, float64(burst))
	a.bulk.setRate(now, rate*share, bulkBurst(float64(burst), share))
}

// block refuses the account until a time and lets it start empty there, in both
// buckets: else bulk, with tokens saved up, would take what the fast lane waits
// for.
func (a *account) block(now, until time.Time) {
	if !until.After(a.blocked) {
		return
	}
	a.blocked = until
	a.all.penalize(now, until)
	a.bulk.penalize(now, until)
}
