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
	firstBlock   = time.Second // doubles with each refusal in a row
	longestBlock = time.Minute
	blocksMaxAge = 250 * time.Millisecond // how old this process's copy of the shared blocks may become
	longestWait  = time.Second            // longest wait before a waiting call looks again
)

// accounts hands out permits for the accounts of a provider. A limit.Pool keeps rates, blocks
// and circuit breakers; accounts keeps the number of concurrent calls.
//
// A caller of admit waits in the queue of its lane, ordered by category and then by arrival.
// Only the first of each queue asks the pool, so a thousand waiting calls need one timer. Bulk
// gets nothing while the fast lane waits, and never more than its share of an account's slots.
type accounts struct {
	provider      string
	pool          *limit.Pool
	bulkShare     float64
	gather        time.Duration // a permit for many messages may wait this long for tokens
	perCall       bool          // each message is a call of its own and takes a slot
	shared        bool
	sharedBuckets *limit.Shared // token buckets shared by all processes; nil: each process has its own
	log           *slog.Logger

	mu           sync.Mutex                   // guards the fields below
	list         []*account                   // not changed after newAccounts
	queues       [2]limit.Queue[permitSignal] // by limit.Lane
	blocksReadAt time.Time                    // when the shared blocks were last read
	share        Share                        // part of each account's concurrent calls
	pendingShare *time.Timer                  // puts a greater share into effect; nil: none is pending
}

// Share is the part of a channel's work that this process has: of the partitions of the fast
// lane and of bulk, each from 0 to 1. The shares of all processes add up to 1.
type Share struct{ Fast, Bulk float64 }

// shareRaisedAfter is how long a greater share waits before it takes effect. A smaller one takes
// effect at once. During the wait, calls that another process began under its greater share can
// end.
const shareRaisedAfter = time.Second

type account struct {
	name  string // as in Result.Provider and in the shared store
	index int    // index in the configuration
	slots int    // concurrent calls, over all processes

	// Guarded by accounts.mu.
	inflight int
	refusals int // consecutive refusals
}

// accountConfig is one account of a pool: its rate, and how many concurrent calls it allows.
type accountConfig struct {
	limit.Account
	calls int
}

// newAccounts returns the accounts of configs. blocks may be nil: then blocks are known only to
// this process.
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

// slotsFor returns how many of the account's slots a lane may use in this process, at least one.
// The part that only the fast lane may use grows with this process's partitions of the fast
// lane, and the part that bulk may use grows with its partitions of bulk. So all processes
// together respect the account's slots, even if some of them work on bulk alone. The caller
// holds p.mu.
func (p *accounts) slotsFor(a *account, lane limit.Lane) int {
	bulk := p.bulkShare * p.share.Bulk
	if lane == limit.Bulk {
		return wholeSlots(float64(a.slots) * bulk)
	}
	return wholeSlots(float64(a.slots) * ((1-p.bulkShare)*p.share.Fast + bulk))
}

// wholeSlots rounds n down, at least to 1. It corrects for the rounding of float64.
func wholeSlots(n float64) int { return max(1, int(n+1e-9)) }

// setShare sets the share of this process. A smaller part takes effect at once, a greater one
// after shareRaisedAfter.
func (p *accounts) setShare(to Share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pendingShare != nil {
		p.pendingShare.Stop()
		p.pendingShare = nil
	}
	p.share.Fast, p.share.Bulk = min(p.share.Fast, to.Fast), min(p.share.Bulk, to.Bulk)
	if p.share == to {
		return
	}
	var due *time.Timer
	due = time.AfterFunc(shareRaisedAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pendingShare == due { // otherwise a later call has replaced this one
			p.pendingShare, p.share = nil, to
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
	InFlight int // calls under way
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

// outOfService returns the error for a provider of which no account can be called: all are
// blocked, refused, or have an open breaker.
func (p *accounts) outOfService(now, at time.Time) error {
	e := &notify.Error{Kind: notify.KindUnauthorized, Code: p.provider + "_refused", Msg: "every account was refused", RetryAfter: at.Sub(now)}
	for _, s := range p.pool.Status(now) {
		switch {
		case s.Blocked.After(now):
			e.Kind, e.Code, e.Msg = notify.KindThrottled, p.provider+"_blocked", "every account is blocked"
			return e
		case s.Breaker.Reason != limit.ReasonConfig:
			e.Kind, e.Code, e.Msg = notify.KindUnavailable, p.provider+"_circuit_open", "every account is in trouble"
		}
	}
	return e
}

// callEnded reports the result of a call to the account's breaker.
func (p *accounts) callEnded(a *account, class notify.Class) {
	p.pool.Report(time.Now(), a.name, limit.OutcomeOf(class), 1)
	if class == notify.ClassAccepted {
		p.mu.Lock()
		a.refusals = 0
		p.mu.Unlock()
	}
}

// blockAccount keeps all processes from calling the account for d and returns that time. If d is 0, it
// blocks for 1 s, doubling with each consecutive refusal.
func (p *accounts) blockAccount(ctx context.Context, a *account, d time.Duration) time.Duration {
	now := time.Now()
	blocked := p.pool.Status(now)[a.index].Blocked
	p.mu.Lock()
	if d <= 0 {
		if blocked.After(now) {
			// Another call, under way at the same time, was refused first. Do not double again.
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
// this process uses what it knows.
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
