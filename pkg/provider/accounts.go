package provider

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Blocks is what all workers know of blocked accounts. engine.Limits has it.
type Blocks interface {
	// Block marks an account as blocked until a time.
	Block(ctx context.Context, account string, until time.Time) error
	// Blocked returns until when each account is blocked; the zero time: it is not.
	Blocked(ctx context.Context, accounts []string) ([]time.Time, error)
}

const (
	blockMin    = time.Second // doubles with each refusal in a row
	blockMax    = time.Minute
	blockConfig = 5 * time.Minute
	blocksAge   = 100 * time.Millisecond // how old our view of the shared blocks may be
)

// accounts picks who sends next: round robin over those that are not blocked
// and have room. A blocked account's share is not made up for by the others:
// each keeps to its own rate and concurrency.
//
// One goroutine per lane chooses at a time, in order of arrival; the bulk lane
// has a queue of its own and leaves a quarter of each account's slots.
type accounts struct {
	provider string
	blocks   Blocks // nil: this process only
	log      *slog.Logger
	turn     [2]chan struct{} // fast, bulk
	freed    [2]chan struct{}

	mu     sync.Mutex
	list   []*account
	next   int
	viewed time.Time
}

type account struct {
	name  string // as in Result.Provider and in the shared store
	rate  *limit.Bucket
	slots int // requests at a time
	at    int // position in the configuration

	// guarded by accounts.mu
	inflight int
	until    time.Time // blocked
	refusals int       // in a row
}

func newAccounts(provider string, blocks Blocks, log *slog.Logger) *accounts {
	p := &accounts{provider: provider, blocks: blocks, log: log}
	for i := range p.turn {
		p.turn[i], p.freed[i] = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	return p
}

func (p *accounts) add(name string, rate float64, burst, slots int) {
	p.list = append(p.list, &account{name: name, at: len(p.list), slots: slots, rate: limit.NewBucket(time.Now(), rate, burst)})
}

func laneIndex(c notify.Category) int {
	if c.Bulk() {
		return 1
	}
	return 0
}

// take waits for an account with room for a request of n tokens and takes a
// slot of it; give it back with done. With all accounts blocked it returns a
// KindThrottled error at once, whose RetryAfter is the earliest end.
func (p *accounts) take(ctx context.Context, lane, n int) (*account, error) {
	select {
	case p.turn[lane] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.turn[lane] }()
	for {
		p.view(ctx)
		a, wait, err := p.choose(time.Now(), lane, n)
		if a != nil || err != nil {
			return a, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		case <-p.freed[lane]:
			t.Stop()
		}
	}
}

// choose returns an account, or how long to wait for one unless a slot is freed
// before.
func (p *accounts) choose(now time.Time, lane, n int) (*account, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Duration(-1)
	var earliest time.Time
	healthy := false
	for i := range p.list {
		a := p.list[(p.next+i)%len(p.list)]
		if a.until.After(now) {
			if earliest.IsZero() || a.until.Before(earliest) {
				earliest = a.until
			}
			continue
		}
		healthy = true
		if a.inflight >= a.room(lane) {
			continue
		}
		ok, w := a.rate.Take(now, n)
		if ok {
			a.inflight++
			p.next = (p.next + i + 1) % len(p.list)
			return a, 0, nil
		}
		if wait < 0 || w < wait {
			wait = w
		}
	}
	switch {
	case !healthy:
		return nil, 0, &notify.Error{Kind: notify.KindThrottled, Code: p.provider + "_blocked",
			Msg: "all accounts are blocked", RetryAfter: earliest.Sub(now)}
	case wait < 0 || wait > time.Second:
		wait = time.Second // somebody frees a slot before; blocks are looked at again
	}
	return nil, wait, nil
}

func (a *account) room(lane int) int {
	if lane == 0 {
		return a.slots
	}
	return max(1, a.slots*3/4)
}

// done gives the slot back.
func (p *accounts) done(a *account) {
	p.mu.Lock()
	a.inflight--
	p.mu.Unlock()
	for i := range p.freed {
		select {
		case p.freed[i] <- struct{}{}:
		default:
		}
	}
}

// well notes that the account was not refused.
func (p *accounts) well(a *account) {
	p.mu.Lock()
	a.refusals = 0
	p.mu.Unlock()
}

// block keeps everybody away from the account for d; 0 stands for 1 s, doubling
// with each refusal in a row. It returns the time.
func (p *accounts) block(ctx context.Context, a *account, d time.Duration) time.Duration {
	now := time.Now()
	p.mu.Lock()
	if d <= 0 {
		d = min(blockMin<<min(a.refusals, 10), blockMax)
	}
	// Answers to requests that were under way together are one refusal.
	if !a.until.After(now) {
		a.refusals++
	}
	until := now.Add(d)
	if until.After(a.until) {
		a.until = until
	} else {
		until = a.until
	}
	p.mu.Unlock()
	if p.blocks != nil {
		if err := p.blocks.Block(ctx, a.name, until); err != nil {
			p.log.Warn("a blocked account could not be shared", "account", a.name, "err", err)
		}
	}
	return until.Sub(now)
}

// view takes over what other workers found out. When the store is away, what
// this process knows has to do.
func (p *accounts) view(ctx context.Context) {
	if p.blocks == nil {
		return
	}
	now := time.Now()
	p.mu.Lock()
	fresh := now.Sub(p.viewed) < blocksAge
	if !fresh {
		p.viewed = now
	}
	p.mu.Unlock()
	if fresh {
		return
	}
	names := make([]string, len(p.list))
	for i, a := range p.list {
		names[i] = a.name
	}
	until, err := p.blocks.Blocked(ctx, names)
	if err != nil || len(until) != len(names) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, a := range p.list {
		if until[i].After(a.until) {
			a.until = until[i]
		}
	}
}
