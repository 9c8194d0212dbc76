package provider

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	firstBlock   = time.Second // how long an account is blocked after a first refusal that names no time; doubles with each further refusal in a row
	longestBlock = time.Minute
	blocksMaxAge = 250 * time.Millisecond // greatest age of this process's copy of the shared blocks
	longestWait  = time.Second            // longest wait before the first call in a queue asks for a permit again
)

// accounts contains the accounts of a provider and gives permits to use them. A limit.Pool contains
// the rates of the accounts, their blocks (a blocked account is not called until a given time) and
// their circuit breakers. Their concurrent calls are counted here.
//
// A call that needs a permit waits in the queue of its lane (see the method admit). Each queue is
// ordered by category and then by arrival. Only the first call in each queue asks the pool, so a
// thousand waiting calls need one timer. While a call of the fast lane waits, the bulk lane gets no
// permit. Each concurrent call uses a slot of its account. The bulk lane never gets more than its
// share of the slots.
type accounts struct {
	provider      string
	pool          *limit.Pool
	bulkShare     float64
	gather        time.Duration // a call with many messages may wait this long for more tokens; see minWorth
	perCall       bool          // each message is a separate call and needs a slot
	shared        bool          // blocks are shared with other processes
	sharedBuckets *limit.Shared // token buckets shared by all processes; nil: each process has its own
	log           *slog.Logger

	mu           sync.Mutex                   // guards the fields below
	list         []*account                   // not changed after newAccounts
	queues       [2]limit.Queue[permitSignal] // by limit.Lane
	blocksReadAt time.Time                    // when the shared blocks were last read
	share        Share                        // this process's part of each account's concurrent calls
	pendingShare *time.Timer                  // timer that sets a greater share; nil: no greater share is pending
}

// Share is the part of a channel's partitions that this process has. Fast is its part of the fast
// lane's partitions, and Bulk its part of the bulk lane's partitions, each from 0 to 1. In each
// lane the shares of all processes add up to 1.
type Share struct{ Fast, Bulk float64 }

// shareRaisedAfter is the delay before a greater share takes effect. Another process had the added
// part before, and the calls of that process can end during the delay. A smaller share takes effect
// at once.
const shareRaisedAfter = time.Second

type account struct {
	name  string // as in Result.Provider and in the shared store
	index int    // index in the configuration
	slots int    // largest number of concurrent calls, over all processes

	// Guarded by accounts.mu.
	inflight int // slots in use in this process
	refusals int // consecutive refusals
}

// accountConfig is one account of a pool: its rate, and how many concurrent calls it allows.
type accountConfig struct {
	limit.Account
	calls int
}

// newAccounts makes one account for each config. The parameter blocks tells the other processes which
// accounts are blocked, and until when. If it is nil, a block applies in this process only.
func newAccounts(provider string, configs []accountConfig, bulkShare float64, breaker limit.BreakerConfig, blocks limit.Blocks, log *slog.Logger) (*accounts, error) {
	p := &accounts{provider: provider, shared: blocks != nil, log: log, bulkShare: cmp.Or(bulkShare, 0.5), share: Share{1, 1}}
	p.sharedBuckets, _ = blocks.(*limit.Shared)
	cfg := limit.PoolConfig{BulkShare: p.bulkShare, Breaker: breaker, Blocks: blocks}
	for i, s := range configs {
		cfg.Accounts = append(cfg.Accounts, s.Account)
		p.list = append(p.list, &account{name: s.Name, index: i, slots: s.calls})
	}
	var err error
	p.pool, err = limit.NewPool(time.Now(), cfg)
	return p, err
}

func (p *accounts) findAccount(name string) *account {
	for _, a := range p.list {
		if a.name == name {
			return a
		}
	}
	return nil
}

// slotsFor returns how many of the account's slots (concurrent calls) a lane may use in this
// process, at least 1. Some slots are only for the fast lane; this process may use the part
// p.share.Fast of them. The other slots are for both lanes; this process may use the part
// p.share.Bulk of them. So all processes together use at most all slots, even if some processes
// have only bulk partitions. The caller holds p.mu.
func (p *accounts) slotsFor(a *account, lane limit.Lane) int {
	bulk := p.bulkShare * p.share.Bulk
	if lane == limit.Bulk {
		return wholeSlots(float64(a.slots) * bulk)
	}
	return wholeSlots(float64(a.slots) * ((1-p.bulkShare)*p.share.Fast + bulk))
}

// wholeSlots rounds n down, but not below 1. It corrects the rounding error of float64.
func wholeSlots(n float64) int { return max(1, int(n+1e-9)) }

// setShare sets the share of this process. If the share of a lane becomes smaller, the change takes
// effect at once. If the share becomes greater, the change takes effect after shareRaisedAfter.
func (p *accounts) setShare(target Share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pendingShare != nil {
		p.pendingShare.Stop()
		p.pendingShare = nil
	}
	p.share.Fast, p.share.Bulk = min(p.share.Fast, target.Fast), min(p.share.Bulk, target.Bulk)
	if p.share == target {
		return
	}
	var due *time.Timer
	due = time.AfterFunc(shareRaisedAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pendingShare == due { // otherwise a later setShare has replaced this timer
			p.pendingShare, p.share = nil, target
			p.wakeFirst()
		}
	})
	p.pendingShare = due
}

// SetShare sets this process's part of each account's concurrent calls.
func (t *Twilio) SetShare(s Share) { t.accounts.setShare(s) }

// AccountStatus is the state of an account or IP pool, for operators.
type AccountStatus struct {
	limit.AccountStatus
	InFlight int // calls in flight
	Limit    int // concurrent calls allowed in this process
}

func (p *accounts) status() (out []AccountStatus) {
	all := p.pool.Status(time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range all {
		out = append(out, AccountStatus{all[i], p.list[i].inflight, p.slotsFor(p.list[i], limit.Fast)})
	}
	return out
}

// outOfService returns the error for the case that no account can be called. Each account is
// blocked, or its circuit breaker is open because calls failed or because the provider refused the
// account. The parameter at is the time at which the first account may be called again.
func (p *accounts) outOfService(now, at time.Time) error {
	e := &notify.Error{Kind: notify.KindUnauthorized, Code: p.provider + "_refused", Msg: "the provider refused all accounts or their settings", RetryAfter: at.Sub(now)}
	for _, s := range p.pool.Status(now) {
		switch {
		case s.Blocked.After(now):
			e.Kind, e.Code, e.Msg = notify.KindThrottled, p.provider+"_blocked", "no account can be called: accounts are blocked after a rate limit of the provider"
			return e
		case s.Breaker.Reason != limit.ReasonConfig:
			e.Kind, e.Code, e.Msg = notify.KindUnavailable, p.provider+"_circuit_open", "no account can be called: the circuit breakers are open after failed calls"
		}
	}
	return e
}

// callEnded reports the result of a call to the account's circuit breaker.
func (p *accounts) callEnded(a *account, class notify.Class) {
	p.pool.Report(time.Now(), a.name, limit.OutcomeOf(class), 1)
	if class == notify.ClassAccepted {
		p.mu.Lock()
		a.refusals = 0
		p.mu.Unlock()
	}
}

// blockAccount stops all processes from calling the account for the time d, and returns d. If d is
// 0, the first block lasts 1 s. After each further refusal in a row the block is twice as long, up
// to longestBlock.
func (p *accounts) blockAccount(ctx context.Context, a *account, d time.Duration) time.Duration {
	now := time.Now()
	blocked := p.pool.Status(now)[a.index].Blocked
	p.mu.Lock()
	if d <= 0 {
		if blocked.After(now) {
			// A call that ran at the same time was refused before and has blocked the account. Both
			// refusals count as one, so the time is not doubled again.
			d = blocked.Sub(now)
		} else {
			d = min(firstBlock<<min(a.refusals, 10), longestBlock)
			a.refusals++
		}
	}
	p.mu.Unlock()
	if err := p.pool.Block(ctx, now, a.name, now.Add(d)); err != nil {
		p.log.Warn("cannot tell other processes that an account is blocked", "account", a.name, "err", err)
	}
	return d
}

// readBlocks reads the blocks that other processes have set. If the shared store is unreachable,
// this process uses the blocks that it has read before.
func (p *accounts) readBlocks(ctx context.Context) {
	if !p.shared {
		return
	}
	now := time.Now()
	p.mu.Lock()
	fresh := now.Sub(p.blocksReadAt) < blocksMaxAge
	if !fresh {
		p.blocksReadAt = now
	}
	p.mu.Unlock()
	if fresh {
		return
	}
	if err := p.pool.Sync(ctx, now); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot read which accounts other processes have blocked", "err", err)
	}
}

// Accounts returns the state of the accounts, for operators.
func (t *Twilio) Accounts() []AccountStatus { return t.accounts.status() }

// Accounts returns the state of the IP pools, for operators.
func (s *SendGrid) Accounts() []AccountStatus { return s.accounts.status() }
