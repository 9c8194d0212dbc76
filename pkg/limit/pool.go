package limit

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Blocks shares between all workers which accounts are blocked, and until when.
type Blocks interface {
	// Block marks an account as blocked until the given time. If the stored time is later, Block
	// changes nothing.
	Block(ctx context.Context, account string, until time.Time) error
	// Blocked returns, for each account, the time at which its block ends. A zero time means that
	// the account is not blocked.
	Blocked(ctx context.Context, accounts []string) ([]time.Time, error)
}

// PoolConfig describes the accounts of one provider.
type PoolConfig struct {
	Accounts  []Account     // at least one, names unique
	BulkShare float64       // bulk may use at most this share of an account's capacity, up to 1; default 0.5
	Breaker   BreakerConfig // breaker of each account
	Blocks    Blocks        // nil: a block applies in this process only
}

// Pool spreads calls over accounts, round robin. It uses the accounts that are healthy, not blocked
// and within their rate. If an account fails, the other accounts do not replace its capacity: each
// keeps its own rate, and messages above these rates wait.
type Pool struct {
	blocks Blocks
	share  float64
	names  []string

	mu       sync.Mutex
	accounts []*account
	next     int // index of the account that the next call of Pick tries first
}

// NewPool returns a pool with full buckets. It returns notify.KindInvalid if cfg is not valid.
func NewPool(now time.Time, cfg PoolConfig) (*Pool, error) {
	cfg.BulkShare = cmp.Or(cfg.BulkShare, 0.5)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Pool{blocks: cfg.Blocks, share: cfg.BulkShare}
	for _, a := range cfg.Accounts {
		p.names = append(p.names, a.Name)
		p.accounts = append(p.accounts, newAccount(now, a, cfg.BulkShare, cfg.Breaker))
	}
	return p, nil
}

func (c PoolConfig) validate() error {
	if len(c.Accounts) == 0 {
		return notify.Invalid("no_accounts", "accounts", "a provider needs at least one account")
	}
	if !(c.BulkShare > 0 && c.BulkShare <= 1) {
		return notify.Invalid("bad_share", "bulk_share", "must be more than 0 and at most 1")
	}
	seen := map[string]bool{}
	for _, a := range c.Accounts {
		if err := a.validate(); err != nil {
			return err
		}
		if seen[a.Name] {
			return notify.Invalid("same_name", "accounts.name", fmt.Sprintf("two accounts have the name %q", a.Name))
		}
		seen[a.Name] = true
	}
	return c.Breaker.validate()
}

// Want is what a caller of Pick wants to send.
type Want struct {
	Lane Lane
	N    int // messages, at least 1
	// Min is the smallest number of messages that is worth a call; default 1. If an account's
	// full buckets contain fewer messages, Pick uses their number instead of Min.
	Min int
}

// Grant permits one call with N messages over an account. The caller reports the outcome of the
// call to Report.
type Grant struct {
	Account string
	N       int
	// Probe is true if the account's breaker is not closed and this call tests whether the
	// account works again. N is then 1.
	Probe bool
}

// Pick reserves capacity for a call. If no account has capacity, the result ok is false, and
// earliest is the first time at which an account may have capacity. Another caller may use that
// capacity first.
func (p *Pool) Pick(now time.Time, w Want) (g Grant, ok bool, earliest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.accounts {
		i := (p.next + k) % len(p.accounts)
		a := p.accounts[i]
		g, at := a.grant(now, w)
		if g.N > 0 {
			p.next = i + 1
			return g, true, time.Time{}
		}
		if earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
	}
	return Grant{}, false, earliest
}

// grant reserves capacity of one account. If Grant.N is 0, the account has no capacity now, and the
// returned time is when to try again.
func (a *account) grant(now time.Time, w Want) (Grant, time.Time) {
	if now.Before(a.blocked) {
		return Grant{}, a.blocked
	}
	n := max(w.N, 1)
	least := min(max(w.Min, 1), n, a.maxAtOnce(w.Lane))
	probe := a.breaker.State(now).State != Closed
	if probe {
		n, least = 1, 1
	}
	// Check the bucket before the breaker: in the half-open state each call that Allow permits
	// uses up a probe. A probe without tokens would be wasted.
	if ok, at := a.available(now, w.Lane, least); !ok {
		return Grant{}, at
	}
	if ok, at := a.breaker.Allow(now); !ok {
		return Grant{}, at
	}
	return Grant{Account: a.name, N: a.take(now, w.Lane, n), Probe: probe}, time.Time{}
}

// Return puts back the tokens of n messages that a grant permitted but that were not sent.
// Without this, later calls would wait for tokens that nothing used. Return ignores unknown
// accounts.
func (p *Pool) Return(now time.Time, account string, lane Lane, n int) {
	a := p.find(account)
	if a == nil || n <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.total.giveBack(now, float64(n))
	if lane == Bulk {
		a.bulk.giveBack(now, float64(n))
	}
}

// Take reserves the tokens of an account for one message of the fast lane, whatever the state of
// the account's breaker. Take is for a test by an operator. The outcome of such a test is not
// reported to the breaker. If the account is blocked or out of tokens, the result ok is false and
// retryAt is the time at which to try again.
func (p *Pool) Take(now time.Time, account string) (ok bool, retryAt time.Time) {
	a := p.find(account)
	if a == nil {
		return false, now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(a.blocked) {
		return false, a.blocked
	}
	if ok, retryAt = a.available(now, Fast, 1); ok {
		a.take(now, Fast, 1)
	}
	return ok, retryAt
}

// Ready returns true if at least one account is not blocked and its breaker is not open. It does
// not check the tokens. If no account is ready, the result earliest is the first time at which an
// account may be ready. A lane stops reading while none of its pools is ready.
func (p *Pool) Ready(now time.Time) (ok bool, earliest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.accounts {
		at := a.breaker.State(now).Until
		if a.blocked.After(at) {
			at = a.blocked
		}
		if !at.After(now) {
			return true, time.Time{}
		}
		if earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
	}
	return false, earliest
}

// Report passes the outcome of n messages to the account's breaker. It ignores unknown accounts.
func (p *Pool) Report(now time.Time, account string, o Outcome, n int) {
	if a := p.find(account); a != nil {
		a.breaker.ReportN(now, o, n)
	}
}

// Block blocks an account until the given time: in this process at once, in other processes at
// their next Sync. After the block the account starts with empty buckets. If the call of
// PoolConfig.Blocks fails, Block returns the error, but the account is blocked in this process
// all the same.
func (p *Pool) Block(ctx context.Context, now time.Time, account string, until time.Time) error {
	a := p.find(account)
	if a == nil {
		return notify.NotFound("account")
	}
	p.mu.Lock()
	a.block(now, until)
	p.mu.Unlock()
	if p.blocks == nil {
		return nil
	}
	return p.blocks.Block(ctx, account, until)
}

// Sync reads which accounts other workers blocked. Call Sync about every 250 ms: between two calls
// this pool may use an account that another worker blocked. If Sync fails, the blocks that this
// process already has stay in force.
func (p *Pool) Sync(ctx context.Context, now time.Time) error {
	if p.blocks == nil {
		return nil
	}
	until, err := p.blocks.Blocked(ctx, p.names)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, at := range until[:min(len(until), len(p.accounts))] {
		if at.After(now) {
			p.accounts[i].block(now, at)
		}
	}
	return nil
}

// Rate returns the limits of an account for both lanes together: messages per second, and burst in
// messages. For an unknown account it returns Unlimited and 0.
func (p *Pool) Rate(account string) (rate float64, burst int) {
	a := p.find(account)
	if a == nil {
		return Unlimited, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return a.total.rate, int(a.total.burst)
}

// SetRate changes an account's rate (messages per second) and burst.
func (p *Pool) SetRate(now time.Time, account string, rate float64, burst int) error {
	to := Account{Name: account, Rate: rate, Burst: burst}
	if err := to.validate(); err != nil {
		return err
	}
	a := p.find(account)
	if a == nil {
		return notify.NotFound("account")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.setRate(now, rate, to.withDefaults().Burst, p.share)
	return nil
}

// AccountStatus is the state of an account as operators see it.
type AccountStatus struct {
	Name    string
	Blocked time.Time // zero: not blocked
	Breaker BreakerStatus
	Tokens  float64 // messages that may be sent at once
}

// Status returns the accounts in their configured order.
func (p *Pool) Status(now time.Time) []AccountStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]AccountStatus, len(p.accounts))
	for i, a := range p.accounts {
		a.total.refill(now)
		out[i] = AccountStatus{Name: a.name, Breaker: a.breaker.State(now), Tokens: max(a.total.level, 0)}
		if a.blocked.After(now) {
			out[i].Blocked, out[i].Tokens = a.blocked, 0
		}
	}
	return out
}

// find returns the account with this name, or nil. It needs no lock because the slices names and
// accounts never change.
func (p *Pool) find(name string) *account {
	for i, n := range p.names {
		if n == name {
			return p.accounts[i]
		}
	}
	return nil
}
