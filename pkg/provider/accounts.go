package provider

import (
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
	viewAge      = 250 * time.Millisecond // how old our view of the shared blocks may be
	lookIn       = time.Second            // whoever waits looks again after this at the latest
)

// accounts gives out permissions to call: rate, blocks and breakers are a
// limit.Pool's, the number of calls at a time is kept here.
//
// One goroutine per lane chooses at a time, in order of arrival, so that a
// thousand waiting items are one timer; the bulk lane has a queue of its own and
// leaves a quarter of each account's slots.
type accounts struct {
	provider string
	pool     *limit.Pool
	shared   bool
	common   *limit.Shared // buckets of all processes; nil: each has its own
	log      *slog.Logger
	turn     [2]chan struct{} // by limit.Lane
	freed    [2]chan struct{}

	mu     sync.Mutex
	list   []*account
	viewed time.Time
}

type account struct {
	name  string // as in Result.Provider and in the shared store
	at    int    // position in the configuration
	slots int    // calls at a time

	// guarded by accounts.mu
	inflight int
	refusals int // in a row
}

// slot is one account of a pool: its rate, and how many calls at a time.
type slot struct {
	limit.Account
	calls int
}

func newAccounts(provider string, of []slot, bulkShare float64, breaker limit.BreakerConfig, blocks limit.Blocks, log *slog.Logger) (*accounts, error) {
	p := &accounts{provider: provider, shared: blocks != nil, log: log}
	p.common, _ = blocks.(*limit.Shared)
	cfg := limit.PoolConfig{BulkShare: bulkShare, Breaker: breaker, Blocks: blocks}
	for i, s := range of {
		cfg.Accounts = append(cfg.Accounts, s.Account)
		p.list = append(p.list, &account{name: s.Name, at: i, slots: s.calls})
	}
	for i := range p.turn {
		p.turn[i], p.freed[i] = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	var err error
	p.pool, err = limit.NewPool(time.Now(), cfg)
	return p, err
}

func laneOf(call *notify.Call) limit.Lane {
	return limit.LaneOf(notify.LaneOf(call.Channel, call.Category))
}

// take waits for an account that may be called for up to n messages, and takes
// a slot of it; got of them are allowed. Give the slot back with done. With no
// account in service it returns at once, with an error that says why and when.
func (p *accounts) take(ctx context.Context, lane limit.Lane, n int) (a *account, got int, err error) {
	select {
	case p.turn[lane] <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	defer func() { <-p.turn[lane] }()
	for {
		p.view(ctx)
		now := time.Now()
		if ok, at := p.pool.Ready(now); !ok {
			return nil, 0, p.outOfService(now, at)
		}
		a, got, wait := p.choose(now, lane, n)
		if a != nil {
			if got, wait = p.agreed(ctx, now, a, got); got > 0 {
				return a, got, nil
			}
			p.giveBack(a)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, 0, ctx.Err()
		case <-t.C:
		case <-p.freed[lane]:
			t.Stop()
		}
	}
}

// agreed takes what this process's bucket allows of the one that all share.
func (p *accounts) agreed(ctx context.Context, now time.Time, a *account, n int) (got int, wait time.Duration) {
	rate, burst := p.pool.Rate(a.name)
	if p.common == nil || rate == limit.Unlimited {
		return n, 0
	}
	got, wait = p.common.TakeUpTo(ctx, now, p.provider+"/"+a.name, n, rate, burst)
	return got, min(max(wait, time.Microsecond), lookIn)
}

// giveBack undoes a choice that led to no call.
func (p *accounts) giveBack(a *account) {
	p.pool.Report(time.Now(), a.name, limit.Neutral, 1)
	p.mu.Lock()
	a.inflight--
	p.mu.Unlock()
}

// choose returns an account, or how long to wait unless a slot is freed before.
// A grant for an account whose slots are taken is let go: the account is then
// slower than its rate, so the tokens are not missed. A probe let go is given
// back: the breaker would wait for its answer.
func (p *accounts) choose(now time.Time, lane limit.Lane, n int) (*account, int, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := false
	for _, a := range p.list {
		free = free || a.inflight < a.room(lane)
	}
	if !free {
		return nil, 0, lookIn
	}
	for range p.list {
		g, ok, earliest := p.pool.Pick(now, limit.Want{Lane: lane, N: n, Min: n})
		if !ok {
			return nil, 0, min(max(earliest.Sub(now), time.Microsecond), lookIn)
		}
		if a := p.find(g.Account); a.inflight < a.room(lane) {
			a.inflight++
			return a, g.N, 0
		}
		if g.Probe {
			p.pool.Report(now, g.Account, limit.Neutral, 1)
		}
	}
	return nil, 0, lookIn
}

func (p *accounts) find(name string) *account {
	for _, a := range p.list {
		if a.name == name {
			return a
		}
	}
	return nil
}

func (a *account) room(lane limit.Lane) int {
	if lane == limit.Fast {
		return a.slots
	}
	return max(1, a.slots*3/4)
}

// outOfService says why no account can be called: blocked, refused, or in
// trouble.
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

// done gives the slot back and tells how the call went.
func (p *accounts) done(a *account, class notify.Class) {
	p.pool.Report(time.Now(), a.name, limit.OutcomeOf(class), 1)
	p.mu.Lock()
	a.inflight--
	if class == notify.ClassAccepted {
		a.refusals = 0
	}
	p.mu.Unlock()
	for i := range p.freed {
		select {
		case p.freed[i] <- struct{}{}:
		default:
		}
	}
}

// block keeps everybody away from the account for d; 0 stands for 1 s, doubling
// with each refusal in a row. It returns the time.
func (p *accounts) block(ctx context.Context, a *account, d time.Duration) time.Duration {
	now := time.Now()
	blocked := p.pool.Status(now)[a.at].Blocked
	p.mu.Lock()
	if d <= 0 {
		if blocked.After(now) {
			// It was under way together with the one that was refused first.
			d = blocked.Sub(now)
		} else {
			d = min(firstBlock<<min(a.refusals, 10), longestBlock)
			a.refusals++
		}
	}
	p.mu.Unlock()
	if err := p.pool.Block(ctx, now, a.name, now.Add(d)); err != nil {
		p.log.Warn("a blocked account could not be shared", "account", a.name, "err", err)
	}
	return d
}

// view takes over what other workers found out. When the store is away, what
// this process knows has to do.
func (p *accounts) view(ctx context.Context) {
	if !p.shared {
		return
	}
	now := time.Now()
	p.mu.Lock()
	fresh := now.Sub(p.viewed) < viewAge
	if !fresh {
		p.viewed = now
	}
	p.mu.Unlock()
	if fresh {
		return
	}
	if err := p.pool.Sync(ctx, now); err != nil && ctx.Err() == nil {
		p.log.Warn("blocked accounts could not be read", "err", err)
	}
}

// Accounts is what an operator sees of a client's accounts or IP pools.
func (t *Twilio) Accounts() []limit.AccountStatus { return t.accounts.pool.Status(time.Now()) }

// Accounts is what an operator sees of the IP pools.
func (s *SendGrid) Accounts() []limit.AccountStatus { return s.accounts.pool.Status(time.Now()) }
