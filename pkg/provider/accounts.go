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
	viewAge      = 250 * time.Millisecond // how old our view of the shared blocks may be
	lookIn       = time.Second            // whoever waits looks again after this at the latest
)

// accounts gives out permits: rate, blocks and breakers are a limit.Pool's, the
// number of calls at a time is kept here.
//
// A caller of Admit waits in a queue of its lane, ordered by category and then
// by arrival. Only the first of a queue asks the pool, so a thousand waiting calls
// are one timer. Bulk takes nothing while the fast lane waits, and never more than
// its share of an account's slots.
type accounts struct {
	provider  string
	pool      *limit.Pool
	bulkShare float64
	gather    time.Duration // a permit for many messages is worth this long a wait for tokens
	perCall   bool          // each message is a call of its own and takes a slot
	shared    bool
	common    *limit.Shared // buckets of all processes; nil: each has its own
	log       *slog.Logger

	mu     sync.Mutex
	list   []*account
	queues [2]limit.Queue[admission] // by limit.Lane
	viewed time.Time
	share  Share       // of each account's calls at a time
	raise  *time.Timer // makes a greater share count; nil: none is due
}

// Share is the part of the work on a channel that this process has: of the partitions of
// the fast lane and of bulk, each from 0 to 1. Those of all processes add up to 1.
type Share struct{ Fast, Bulk float64 }

// shareRaised is how long a greater share waits before it counts. A smaller one counts at
// once. So calls that another process began by its greater share have had that time to end.
const shareRaised = time.Second

type account struct {
	name  string // as in Result.Provider and in the shared store
	at    int    // position in the configuration
	slots int    // calls at a time, of all processes

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
	p := &accounts{provider: provider, shared: blocks != nil, log: log, bulkShare: cmp.Or(bulkShare, 0.5), share: Share{1, 1}}
	p.common, _ = blocks.(*limit.Shared)
	cfg := limit.PoolConfig{BulkShare: p.bulkShare, Breaker: breaker, Blocks: blocks}
	for i, s := range of {
		cfg.Accounts = append(cfg.Accounts, s.Account)
		p.list = append(p.list, &account{name: s.Name, at: i, slots: s.calls})
	}
	var err error
	p.pool, err = limit.NewPool(time.Now(), cfg)
	return p, err
}

func (p *accounts) find(name string) *account {
	for _, a := range p.list {
		if a.name == name {
			return a
		}
	}
	return nil
}

// room is how many of the account's slots a lane may fill in this process, at least one.
// The fast lane's own part goes with the partitions of the fast lane, and the part that bulk
// may use with those of bulk: so all processes together keep to the account's slots, also
// where some of them work on bulk alone. Called with p.mu held.
func (p *accounts) room(a *account, lane limit.Lane) int {
	bulk := p.bulkShare * p.share.Bulk
	if lane == limit.Bulk {
		return wholeSlots(float64(a.slots) * bulk)
	}
	return wholeSlots(float64(a.slots) * ((1-p.bulkShare)*p.share.Fast + bulk))
}

// wholeSlots rounds down, but for what a float64 lacks.
func wholeSlots(n float64) int { return max(1, int(n+1e-9)) }

// setShare makes to the share of this process: what is smaller of it at once, what is
// greater after shareRaised.
func (p *accounts) setShare(to Share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.raise != nil {
		p.raise.Stop()
		p.raise = nil
	}
	p.share.Fast, p.share.Bulk = min(p.share.Fast, to.Fast), min(p.share.Bulk, to.Bulk)
	if p.share == to {
		return
	}
	var due *time.Timer
	due = time.AfterFunc(shareRaised, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.raise == due { // else there is a later share
			p.raise, p.share = nil, to
			p.wake()
		}
	})
	p.raise = due
}

// SetShare divides the calls at a time of each account between processes.
func (t *Twilio) SetShare(s Share) { t.accounts.setShare(s) }

// AccountStatus is what an operator sees of an account or IP pool.
type AccountStatus struct {
	limit.AccountStatus
	InFlight int // calls now
	Limit    int // of them, in this process
}

func (p *accounts) status() (out []AccountStatus) {
	all := p.pool.Status(time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range all {
		out = append(out, AccountStatus{all[i], p.list[i].inflight, p.room(p.list[i], limit.Fast)})
	}
	return out
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

// done tells how a call over an account went.
func (p *accounts) done(a *account, class notify.Class) {
	p.pool.Report(time.Now(), a.name, limit.OutcomeOf(class), 1)
	if class == notify.ClassAccepted {
		p.mu.Lock()
		a.refusals = 0
		p.mu.Unlock()
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
func (t *Twilio) Accounts() []AccountStatus { return t.accounts.status() }

// Accounts is what an operator sees of the IP pools.
func (s *SendGrid) Accounts() []AccountStatus { return s.accounts.status() }
