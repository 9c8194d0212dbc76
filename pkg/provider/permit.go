package provider

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// permit is leave to send messages over one account. It holds tokens of the
// account's rate and slots of its calls at a time, until they are used or given
// back. It implements notify.Permit. Safe for concurrent use.
type permit struct {
	of   *accounts
	lane limit.Lane
	a    *account
	size int

	mu     sync.Mutex
	tokens int // not used yet
	slots  int // held
}

// Messages implements notify.Permit.
func (m *permit) Messages() int { return m.size }

// use takes up to n tokens for a call and returns how many there were.
func (m *permit) use(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = min(n, m.tokens)
	m.tokens -= n
	return n
}

// free gives back a slot whose call has ended.
func (m *permit) free() {
	m.mu.Lock()
	held := min(m.slots, 1)
	m.slots -= held
	m.mu.Unlock()
	m.of.freed(m.a, held)
}

// Release implements notify.Permit.
func (m *permit) Release() { m.of.freed(m.a, m.giveBack()) }

// giveBack gives back all but the slots it held, which it returns.
func (m *permit) giveBack() (slots int) {
	m.mu.Lock()
	tokens := m.tokens
	slots, m.tokens, m.slots = m.slots, 0, 0
	m.mu.Unlock()
	if tokens == m.size { // no call was made: a probe must not wait for its answer
		m.of.pool.Report(time.Now(), m.a.name, limit.Neutral, 1)
	}
	m.of.pool.Return(time.Now(), m.a.name, m.lane, tokens)
	return slots
}

// freed gives slots of an account back and wakes the first of each queue, also
// for tokens that were given back before.
func (p *accounts) freed(a *account, slots int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.inflight -= slots
	p.wake()
}

// admission is a call that waits for its permit. It is signalled when it may be its
// turn, or when slots were freed.
type admission chan struct{}

// wake lets the first of each queue look again. Called with p.mu held.
func (p *accounts) wake() {
	for i := range p.queues {
		if w := p.queues[i].First(); w != nil {
			select {
			case w.Value <- struct{}{}:
			default:
			}
		}
	}
}

// mayAsk reports whether it is w's turn to ask the pool.
func (p *accounts) mayAsk(lane limit.Lane, w *limit.Waiting[admission]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queues[lane].First() == w && (lane == limit.Fast || p.queues[limit.Fast].Len() == 0)
}

// admit waits until up to n messages of a category may be sent over some account
// and returns a permit for as many as may be sent now, at least one. With no
// account in service it returns at once, with an error that says why and, in
// RetryAfter, until when. It returns ctx's error if ctx ends first.
func (p *accounts) admit(ctx context.Context, lane limit.Lane, cat notify.Category, n int) (*permit, error) {
	p.mu.Lock()
	w := p.queues[lane].Add(cat, make(admission, 1))
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.queues[lane].Remove(w)
		p.wake()
		p.mu.Unlock()
	}()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		wait := longestAsk // it is woken when its turn comes
		if p.mayAsk(lane, w) {
			var m *permit
			var err error
			if m, wait, err = p.ask(ctx, lane, n); m != nil || err != nil {
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

// longestAsk is when whoever waits behind others looks again at the latest.
const longestAsk = time.Hour

// tryAdmit is admit for one message that does not wait; nil without an error: an
// account is in service, but none has a token and a slot now.
func (p *accounts) tryAdmit(ctx context.Context, lane limit.Lane) (*permit, error) {
	m, _, err := p.ask(ctx, lane, 1)
	return m, err
}

// permit is admit for a channel, as a notify.Permit.
func (p *accounts) permit(ctx context.Context, ch notify.Channel, cat notify.Category, n int) (notify.Permit, error) {
	m, err := p.admit(ctx, limit.LaneOf(notify.LaneOf(ch, cat)), cat, n)
	if err != nil {
		return nil, err // (not m: a nil *permit is no nil interface)
	}
	return m, nil
}

// permitted is the permit of a call, or nil where it has none of these accounts.
func (p *accounts) permitted(call *notify.Call) *permit {
	if m, ok := call.Permit.(*permit); ok && m.of == p {
		return m
	}
	return nil
}

func laneOf(call *notify.Call) limit.Lane {
	return limit.LaneOf(notify.LaneOf(call.Channel, call.Category))
}

// ask returns a permit, or how long to wait unless something is given back before.
func (p *accounts) ask(ctx context.Context, lane limit.Lane, n int) (*permit, time.Duration, error) {
	p.view(ctx)
	now := time.Now()
	if ok, at := p.pool.Ready(now); !ok {
		return nil, 0, p.outOfService(now, at)
	}
	m, wait := p.choose(now, lane, n)
	if m == nil {
		return nil, wait, nil
	}
	got, wait := p.agreed(ctx, now, m.a, m.tokens)
	if got == 0 {
		// This wakes no waiter: it would wake the asker itself, which must wait.
		slots := m.giveBack()
		p.mu.Lock()
		m.a.inflight -= slots
		p.mu.Unlock()
		return nil, wait, nil
	}
	if got < m.tokens {
		p.pool.Return(now, m.a.name, lane, m.tokens-got)
		m.keep(got)
	}
	return m, 0, nil
}

// keep makes a new permit one for n messages.
func (m *permit) keep(n int) {
	m.size, m.tokens = n, n
	if m.of.perCall && m.slots > n {
		m.of.freed(m.a, m.slots-n)
		m.slots = n
	}
}

// agreed takes tokens of the bucket that all processes share. Tokens
// of a permit that are given back later return to the process's bucket alone.
func (p *accounts) agreed(ctx context.Context, now time.Time, a *account, n int) (got int, wait time.Duration) {
	rate, burst := p.pool.Rate(a.name)
	if p.common == nil || rate == limit.Unlimited {
		return n, 0
	}
	got, wait = p.common.TakeUpTo(ctx, now, p.provider+"/"+a.name, n, rate, burst)
	return got, min(max(wait, time.Microsecond), lookIn)
}

// choose returns a permit of an account that has tokens and a slot, or how long to
// wait unless a slot is freed before. Tokens of an account whose slots are taken
// are given back, and so is a probe: the breaker would wait for its answer.
func (p *accounts) choose(now time.Time, lane limit.Lane, n int) (*permit, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := 0
	for _, a := range p.list {
		most = max(most, p.room(a, lane)-a.inflight)
	}
	if most <= 0 {
		return nil, lookIn
	}
	if p.perCall {
		n = min(n, most)
	}
	for range p.list {
		g, ok, earliest := p.pool.Pick(now, limit.Want{Lane: lane, N: n, Min: p.worth(lane, n)})
		if !ok {
			return nil, min(max(earliest.Sub(now), time.Microsecond), lookIn)
		}
		a := p.find(g.Account)
		free := p.room(a, lane) - a.inflight
		got, slots := g.N, 1
		if p.perCall {
			got = min(got, free)
			slots = got
		}
		if free > 0 {
			p.pool.Return(now, a.name, lane, g.N-got)
			a.inflight += slots
			return &permit{of: p, lane: lane, a: a, size: got, tokens: got, slots: slots}, 0
		}
		p.pool.Return(now, a.name, lane, g.N)
		if g.Probe {
			p.pool.Report(now, g.Account, limit.Neutral, 1)
		}
	}
	return nil, lookIn
}

// worth is how many of n messages are worth a call: what the slowest account gains
// for the lane in the time p.gather.
func (p *accounts) worth(lane limit.Lane, n int) int {
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
