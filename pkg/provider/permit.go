package provider

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// permit allows the sending of some messages over one account. It holds tokens of the account's
// rate until they are used or given back, and slots of the account's concurrent calls until they
// are given back. It implements notify.Permit and is safe for concurrent use.
type permit struct {
	accounts *accounts
	lane     limit.Lane
	account  *account
	size     int // messages that the permit covers

	mu     sync.Mutex // guards the fields below
	tokens int        // tokens that are not used yet
	slots  int        // slots that are not given back yet
}

// Messages implements notify.Permit.
func (m *permit) Messages() int { return m.size }

// useTokens takes up to n tokens from the permit, for a call. It returns how many it took.
func (m *permit) useTokens(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = min(n, m.tokens)
	m.tokens -= n
	return n
}

// freeSlot gives back the slot of a call that has ended.
func (m *permit) freeSlot() {
	m.mu.Lock()
	held := min(m.slots, 1)
	m.slots -= held
	m.mu.Unlock()
	m.accounts.freeSlots(m.account, held)
}

// Release implements notify.Permit.
func (m *permit) Release() { m.accounts.freeSlots(m.account, m.giveBack()) }

// giveBack gives back the unused tokens. It returns the number of slots that the permit had. The
// caller must give these slots back.
func (m *permit) giveBack() (slots int) {
	m.mu.Lock()
	tokens := m.tokens
	slots, m.tokens, m.slots = m.slots, 0, 0
	m.mu.Unlock()
	// If no token was used, no call was made. But the account's circuit breaker may have allowed
	// this permit only to test the account. So tell the breaker that there is no result to wait
	// for.
	if tokens == m.size {
		m.accounts.pool.Report(time.Now(), m.account.name, limit.Neutral, 1)
	}
	m.accounts.pool.Return(time.Now(), m.account.name, m.lane, tokens)
	return slots
}

// freeSlots gives slots of an account back and wakes the first call of each queue. The woken calls may
// also find the tokens that giveBack has given back: giveBack itself wakes no call.
func (p *accounts) freeSlots(a *account, slots int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.inflight -= slots
	p.wakeFirst()
}

// permitSignal wakes a call that waits for its permit. It is sent when slots were freed, or when
// the call may have become the first in its queue.
type permitSignal chan struct{}

// wakeFirst wakes the first call of each queue. The caller holds p.mu.
func (p *accounts) wakeFirst() {
	for i := range p.queues {
		if w := p.queues[i].First(); w != nil {
			select {
			case w.Value <- struct{}{}:
			default:
			}
		}
	}
}

// mayAsk returns true if the waiting call w may ask the pool now. The call w must be the first in
// its queue. If it is in the bulk lane, it may ask only while no call waits in the fast lane.
func (p *accounts) mayAsk(lane limit.Lane, w *limit.Waiting[permitSignal]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queues[lane].First() == w && (lane == limit.Fast || p.queues[limit.Fast].Len() == 0)
}

// admit waits until up to n messages of a category may be sent over one of the accounts. It returns
// a permit for the number that may be sent now, at least 1. If no account is in service, it returns
// an error at once. The error says why, and its RetryAfter says when an account may be in service
// again. If ctx ends first, admit returns ctx's error.
func (p *accounts) admit(ctx context.Context, lane limit.Lane, cat notify.Category, n int) (*permit, error) {
	p.mu.Lock()
	w := p.queues[lane].Add(cat, make(permitSignal, 1))
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.queues[lane].Remove(w)
		p.wakeFirst()
		p.mu.Unlock()
	}()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		wait := longestAsk // a call that is not the first is woken when it becomes the first
		if p.mayAsk(lane, w) {
			var m *permit
			var err error
			if m, wait, err = p.askForPermit(ctx, lane, n); m != nil || err != nil {
				return m, err
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-w.Value:
		}
		t.Stop()
	}
}

// longestAsk is how long a call that is not the first in its queue waits before it checks again.
const longestAsk = time.Hour

// tryAdmit does the same as admit for one message, but does not wait. If an account is in service
// but no account has a token and a slot now, it returns nil without an error.
func (p *accounts) tryAdmit(ctx context.Context, lane limit.Lane) (*permit, error) {
	m, _, err := p.askForPermit(ctx, lane, 1)
	return m, err
}

// admitFor does the same as admit for the lane of a channel and category, and returns a
// notify.Permit.
func (p *accounts) admitFor(ctx context.Context, ch notify.Channel, cat notify.Category, n int) (notify.Permit, error) {
	m, err := p.admit(ctx, limit.LaneOf(notify.LaneOf(ch, cat)), cat, n)
	if err != nil {
		return nil, err // returning m would make a non-nil interface from a nil *permit
	}
	return m, nil
}

// permitOf returns the permit of a call, or nil if the call has no permit of these accounts.
func (p *accounts) permitOf(call *notify.Call) *permit {
	if m, ok := call.Permit.(*permit); ok && m.accounts == p {
		return m
	}
	return nil
}

func laneOf(call *notify.Call) limit.Lane {
	return limit.LaneOf(notify.LaneOf(call.Channel, call.Category))
}

// askForPermit returns a permit for up to n messages, or a nil permit and how long to wait before
// asking again. The caller may ask earlier if slots are freed.
func (p *accounts) askForPermit(ctx context.Context, lane limit.Lane, n int) (*permit, time.Duration, error) {
	p.readBlocks(ctx)
	now := time.Now()
	if ok, at := p.pool.Ready(now); !ok {
		return nil, 0, p.outOfService(now, at)
	}
	m, wait := p.chooseAccount(now, lane, n)
	if m == nil {
		return nil, wait, nil
	}
	got, wait := p.takeShared(ctx, now, m.account, m.tokens)
	if got == 0 {
		// Do not wake the queue: the first call in it is the call that asks here, and it must wait
		// now.
		slots := m.giveBack()
		p.mu.Lock()
		m.account.inflight -= slots
		p.mu.Unlock()
		return nil, wait, nil
	}
	if got < m.tokens {
		p.pool.Return(now, m.account.name, lane, m.tokens-got)
		m.shrink(got)
	}
	return m, 0, nil
}

// shrink reduces a new permit to n messages.
func (m *permit) shrink(n int) {
	m.size, m.tokens = n, n
	if m.accounts.perCall && m.slots > n {
		m.accounts.freeSlots(m.account, m.slots-n)
		m.slots = n
	}
}

// takeShared takes up to n tokens of an account from the bucket that all processes share. It
// returns how many it got and, if it got none, how long to wait. Tokens that a permit later gives
// back unused go only into this process's own bucket, not into the shared one.
func (p *accounts) takeShared(ctx context.Context, now time.Time, a *account, n int) (got int, wait time.Duration) {
	rate, burst := p.pool.Rate(a.name)
	if p.sharedBuckets == nil || rate == limit.Unlimited {
		return n, 0
	}
	got, wait = p.sharedBuckets.TakeUpTo(ctx, now, p.provider+"/"+a.name, n, rate, burst)
	return got, min(max(wait, time.Microsecond), longestWait)
}

// chooseAccount returns a permit for an account that has tokens and a slot. If there is no such
// account, it returns how long to wait; the wait ends earlier if a slot is freed. If an account has
// tokens but no free slot, chooseAccount gives the tokens back. If a circuit breaker gave the
// tokens to test the account, chooseAccount also tells the breaker that no test call was made.
func (p *accounts) chooseAccount(now time.Time, lane limit.Lane, n int) (*permit, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for _, a := range p.list {
		most = max(most, p.slotsFor(a, lane)-a.inflight)
	}
	if most <= 0 {
		return nil, longestWait
	}
	if p.perCall {
		n = min(n, most)
	}
	for range p.list {
		g, ok, earliest := p.pool.Pick(now, limit.Want{Lane: lane, N: n, Min: p.minWorth(lane, n)})
		if !ok {
			return nil, min(max(earliest.Sub(now), time.Microsecond), longestWait)
		}
		a := p.findAccount(g.Account)
		free := p.slotsFor(a, lane) - a.inflight
		got, slots := g.N, 1
		if p.perCall {
			got = min(got, free)
			slots = got
		}
		if free > 0 {
			p.pool.Return(now, a.name, lane, g.N-got)
			a.inflight += slots
			return &permit{accounts: p, lane: lane, account: a, size: got, tokens: got, slots: slots}, 0
		}
		p.pool.Return(now, a.name, lane, g.N)
		if g.Probe {
			p.pool.Report(now, g.Account, limit.Neutral, 1)
		}
	}
	return nil, longestWait
}

// minWorth returns the smallest number of messages for which a call is made at once: as many as the
// slowest account gets tokens for the lane in the time p.gather, but at least 1 and at most n. If
// there are tokens only for fewer messages, the call waits for more tokens.
func (p *accounts) minWorth(lane limit.Lane, n int) int {
	if n == 1 {
		return 1
	}
	least := float64(n)
	for _, a := range p.list {
		rate, _ := p.pool.Rate(a.name)
		if lane == limit.Bulk {
			rate *= p.bulkShare
		}
		least = min(least, rate*p.gather.Seconds())
	}
	return max(1, int(least))
}
