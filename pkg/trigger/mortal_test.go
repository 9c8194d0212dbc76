package trigger

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/request"
)

// mortal is a process that can die: from then on nothing it does has an effect.
// What it wrote before stays, and so do its messages and claims.
type mortal struct {
	p    *plant
	svc  *Service
	stop func()

	mu   sync.Mutex
	dead bool
	kill func(point string) bool // whether to die here
	hits map[string]int
	rng  *rand.Rand
}

func (m *mortal) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// late waits as long as a call to a store is on its way: mostly almost no time, sometimes long. It
// returns true if the process died in that time.
func (m *mortal) late() bool {
	m.mu.Lock()
	d := time.Duration(m.rng.IntN(3)) * time.Millisecond
	if m.rng.IntN(10) == 0 {
		d = time.Duration(m.rng.IntN(2000)) * time.Millisecond
	}
	m.mu.Unlock()
	time.Sleep(d)
	return m.gone()
}

// hit is called at each place where the process may die.
func (m *mortal) hit(point string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hits[point]++
	if !m.dead && m.kill != nil && m.kill(point) {
		m.dead = true
	}
}

// spawn starts a process.
func (p *plant) spawn(seed uint64, kill func(point string) bool) *mortal {
	p.t.Helper()
	m := &mortal{p: p, kill: kill, hits: map[string]int{}, rng: rand.New(rand.NewPCG(seed, 3))}
	scfg, cfg := p.scfg, p.cfg
	scfg.Owner = ""
	scfg.Triggers, scfg.Later, scfg.Idem, scfg.hit, scfg.Census = m.triggers(), mortalLater{m}, mortalIdem{m, p.store.Idem()}, m.hit, nil
	cfg.Triggers, cfg.Later, cfg.Queue, cfg.Dead, cfg.hit, cfg.Census = m.triggers(), mortalLater{m}, mortalQueue{m, p.queue}, mortalDead{m}, m.hit, nil
	cfg.post = func(ctx context.Context, u *url.URL, h http.Header, body []byte) result {
		if m.gone() {
			return result{class: ClassConnect}
		}
		return p.sink.post(ctx, u, h, body)
	}
	var err error
	if m.svc, err = New(scfg); err != nil {
		p.t.Fatal(err)
	}
	d, err := NewDispatcher(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Run(ctx)
	}()
	var once sync.Once
	m.stop = func() { once.Do(func() { cancel(); <-done }) }
	p.t.Cleanup(m.stop)
	return m
}

// bury ends the goroutines of a dead process; it does not wait for them.
func (m *mortal) bury() { go m.stop() }

func (m *mortal) triggers() engine.Triggers {
	return &shaky{Triggers: m.p.store.Triggers(), on: func(string, []string) slip {
		if m.late() {
			return slip{err: errDown}
		}
		return slip{}
	}}
}

type mortalLater struct{ m *mortal }

func (l mortalLater) Put(ctx context.Context, ts []engine.Timer) error {
	if l.m.late() {
		return errDown
	}
	err := l.m.p.wheel.Put(ctx, ts)
	l.m.late()
	return err
}

type mortalDead struct{ m *mortal }

func (l mortalDead) Append(ctx context.Context, rs []DeadRecord) error {
	if l.m.late() {
		return errDown
	}
	return l.m.p.dead.Append(ctx, rs)
}

type mortalIdem struct {
	m *mortal
	request.Idem
}

func (i mortalIdem) Reserve(ctx context.Context, r engine.Reservation, now int64) (engine.Reservation, bool, error) {
	if i.m.late() {
		return r, false, errDown
	}
	return i.Idem.Reserve(ctx, r, now)
}

func (i mortalIdem) TakeOver(ctx context.Context, old engine.Reservation, owner string, until int64) (bool, error) {
	if i.m.late() {
		return false, errDown
	}
	return i.Idem.TakeOver(ctx, old, owner, until)
}

func (i mortalIdem) Freeze(ctx context.Context, r engine.Reservation) error {
	if i.m.late() {
		return errDown
	}
	return i.Idem.Freeze(ctx, r)
}

func (i mortalIdem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	if i.m.late() {
		return errDown
	}
	return i.Idem.Finish(ctx, key, status, body, expires)
}

func (i mortalIdem) Release(ctx context.Context, held engine.Reservation) error {
	if i.m.late() {
		return errDown
	}
	return i.Idem.Release(ctx, held)
}

type mortalQueue struct {
	m *mortal
	engine.Queue
}

func (q mortalQueue) Enqueue(ctx context.Context, ms []engine.Message) error {
	if q.m.late() {
		return errDown
	}
	err := q.Queue.Enqueue(ctx, ms)
	q.m.late()
	return err
}

func (q mortalQueue) Receive(ctx context.Context, most int, visibility time.Duration) ([]engine.Delivery, error) {
	if q.m.late() {
		return nil, errDown
	}
	return q.Queue.Receive(ctx, most, visibility)
}

func (q mortalQueue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	if q.m.late() {
		return errDown
	}
	return q.Queue.Extend(ctx, receipts, visibility)
}

func (q mortalQueue) Ack(ctx context.Context, receipts []string) error {
	if q.m.late() {
		return errDown
	}
	err := q.Queue.Ack(ctx, receipts)
	q.m.late()
	return err
}

func (q mortalQueue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	if q.m.late() {
		return errDown
	}
	return q.Queue.Release(ctx, receipt, delay)
}
