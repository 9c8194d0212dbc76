package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/timer"
)

const spreadRow = "timer_shards"

var errCut = errors.New("no way to the server")

// cutMeta is one process's way to the table of names.
type cutMeta struct {
	engine.Meta
	cut atomic.Bool
}

func (m *cutMeta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	if m.cut.Load() {
		return nil, errCut
	}
	return m.Meta.GetMeta(ctx, name)
}

// deadLease is one process's way to the leases. A process that was killed gives none back.
type deadLease struct {
	engine.Lease
	dead atomic.Bool
}

func (l *deadLease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	if l.dead.Load() {
		return false, errCut
	}
	return l.Lease.Acquire(ctx, name, owner, ttl)
}

func (l *deadLease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	if l.dead.Load() {
		return false, errCut
	}
	return l.Lease.Renew(ctx, name, owner, ttl)
}

func (l *deadLease) Release(ctx context.Context, name, owner string) error {
	if l.dead.Load() {
		return errCut
	}
	return l.Lease.Release(ctx, name, owner)
}

// grown is a scheduled notification and what its client was told last.
type grown struct {
	turn      chan struct{} // holds a token while a goroutine uses the fields; waiting for a mutex would stop simulated time
	base      notify.Base
	fireAt    int64 // ms since 1970; what the last move that was answered says
	cancelled bool
	came      int
}

// growing is some processes over one store whose timer shards are raised.
type growing struct {
	t     *testing.T
	store *memory.Store
	lease engine.Lease
	beats engine.Heartbeats

	mu     sync.Mutex
	all    []*grown
	byBase map[notify.Base]*grown
	late   time.Duration

	refused atomic.Int64 // with spread_unknown
}

// proc is one of the processes.
type proc struct {
	*growing
	name      string
	meta      *cutMeta
	lease     *deadLease
	spread    *Spread
	timers    *timer.Engine
	schedules *schedule.Service
	ctx       context.Context // ends with the process
	stop      context.CancelFunc
	ended     sync.WaitGroup
}

func (g *growing) start(name string, shards int) *proc {
	p := &proc{growing: g, name: name, meta: &cutMeta{Meta: g.store.Meta()}, lease: &deadLease{Lease: g.lease}}
	ctx, stop := context.WithCancel(context.Background())
	p.ctx, p.stop = ctx, stop
	var err error
	if p.spread, err = OpenSpread(ctx, p.meta, spreadRow, shards, false); err != nil {
		g.t.Fatal(err)
	}
	p.timers = timer.New(timer.Config{
		Store: g.store.Timers(), Schedules: g.store.Schedules(), Cold: g.store.ColdTimers(), Queue: g.store.Queue("near", 1000),
		Lease: p.lease, Heartbeats: g.beats, Owner: name, Spread: p.spread.Now, Publish: p.publish,
		Cancelled: func(context.Context, []engine.Timer) error { return nil },
	})
	p.schedules = schedule.New(schedule.Config{
		Schedules: g.store.Schedules(), Timers: g.store.Timers(), Cold: g.store.ColdTimers(), Shards: p.spread.Now,
		Park: p.timers.Park, Store: p.timers.ParkScheduled, Forget: g.store.Schedules().ForgetTimers,
		Ended: func(context.Context, []engine.Timer) error { return nil },
	})
	p.ended.Go(func() {
		if err := p.timers.Run(ctx); err != nil {
			g.t.Error(err)
		}
	})
	p.ended.Go(func() {
		for notify.Sleep(ctx, time.Second) {
			_ = p.spread.Follow(ctx)
		}
	})
	return p
}

// kill ends the process as a crash does: its leases stay until they run out.
func (p *proc) kill() {
	p.lease.dead.Store(true)
	p.stop()
	p.ended.Wait()
}

func (p *proc) publish(_ context.Context, ts []engine.Timer) error {
	now := time.Now()
	for i := range ts {
		x := p.byBaseOf(ts[i].Head)
		x.turn <- struct{}{}
		x.came++
		if x.cancelled {
			p.t.Errorf("%s released %s, which was cancelled", p.name, x.base)
		}
		if now.UnixMilli() < x.fireAt {
			p.t.Errorf("%s released %s %d ms before its time", p.name, x.base, x.fireAt-now.UnixMilli())
		}
		if late := now.Sub(time.UnixMilli(x.fireAt)); x.came == 1 {
			p.mu.Lock()
			p.late = max(p.late, late)
			p.mu.Unlock()
		}
		<-x.turn
	}
	return nil
}

func (g *growing) byBaseOf(b notify.Base) *grown {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byBase[b]
}

// settle notes the answer of a call, and reports whether it was done.
func (g *growing) settle(err error, x *grown) bool {
	if err == nil {
		return true
	}
	var e *notify.Error
	switch {
	case errors.As(err, &e) && e.Code == "spread_unknown":
		g.refused.Add(1)
	case notify.KindOf(err) == notify.KindConflict: // it is due, or was cancelled
	default:
		g.t.Errorf("%s: %v", x.base, err)
	}
	return false
}

// client schedules, moves and cancels through a process until ctx ends. It touches what
// any process has stored.
func (p *proc) client(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	for notify.Sleep(ctx, time.Duration(20+rng.IntN(60))*time.Millisecond) && p.ctx.Err() == nil {
		fireAt := func() int64 { return time.Now().UnixMilli() + 6000 + rng.Int64N(100_000) }
		p.mu.Lock()
		var x *grown
		if what := rng.IntN(3); what > 0 && len(p.all) > 100 {
			x = p.all[len(p.all)-1-rng.IntN(100)]
		}
		p.mu.Unlock()
		if x == nil {
			x = &grown{turn: make(chan struct{}, 1), base: notify.NewBase(time.Now()), fireAt: fireAt()}
			p.mu.Lock()
			p.byBase[x.base] = x
			p.mu.Unlock()
			c := notify.Chunk{Base: x.base}
			e := notify.Envelope{Chunk: c, Channel: notify.SMS, Category: notify.Alert, NotBefore: x.fireAt, Count: 1}
			var w notify.ReceiverWriter
			w.Append(notify.Receiver{User: []byte("ann")})
			e.Receivers = w.Bytes()
			err := p.schedules.Put(ctx, []engine.Schedule{{Base: x.base, Channel: notify.SMS, Category: notify.Alert, FireAt: x.fireAt, Receivers: 1, Accepted: 1}},
				[]engine.Timer{{FireAt: x.fireAt, ID: c.TimerID(0), Kind: timer.KindEnvelope, Target: e.Lane().Topic(), Payload: notify.AppendEnvelope(nil, &e), Head: x.base, Weight: 1}})
			if p.settle(err, x) {
				p.mu.Lock()
				p.all = append(p.all, x)
				p.mu.Unlock()
			}
			continue
		}
		x.turn <- struct{}{}
		if rng.IntN(2) == 0 {
			if _, err := p.schedules.Cancel(ctx, x.base); p.settle(err, x) {
				x.cancelled = true
			}
		} else if at := fireAt(); x.came == 0 {
			if _, err := p.schedules.Move(ctx, x.base, at, "shop"); p.settle(err, x) {
				x.fireAt = at
			}
		}
		<-x.turn
	}
}

// TestTimerShardsGrow raises the timer shards from 4 to 32 while three processes schedule,
// move and cancel. One of them is killed in the middle, a fourth one starts late, and a
// fifth one cannot read the number of shards for a while.
func TestTimerShardsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		g := &growing{t: t, store: memory.New(), lease: memory.NewLease(), beats: memory.NewHeartbeats(), byBase: map[notify.Base]*grown{}}
		a, b, cut := g.start("a", 4), g.start("b", 4), g.start("cut", 4)
		load, stop := context.WithCancel(ctx)
		var clients sync.WaitGroup
		for i, p := range []*proc{a, b, cut} {
			for k := range 4 {
				clients.Go(func() { p.client(load, uint64(10*i+k)) })
			}
		}
		time.Sleep(30 * time.Second)
		cut.meta.cut.Store(true)
		time.Sleep(time.Second)
		raised, err := RaiseSpread(ctx, g.store.Meta(), spreadRow, 32, time.Now())
		if err != nil || raised.Most() != 32 || raised.PartsOf(nil) != 4 {
			t.Fatalf("raised to %s, %v", raised, err)
		}
		if again, err := RaiseSpread(ctx, g.store.Meta(), spreadRow, 32, time.Now().Add(time.Hour)); err != nil || again.String() != raised.String() {
			t.Errorf("raised again to %s, %v", again, err)
		}
		time.Sleep(27 * time.Second)
		if n := g.refused.Load(); n > 0 {
			t.Errorf("%d calls were refused before the number could have changed", n)
		}
		time.Sleep(40 * time.Second) // it counts now
		if g.refused.Load() == 0 {
			t.Error("the process that cannot read the number of shards goes on")
		}
		late := g.start("late", 4)
		for k := range 4 {
			clients.Go(func() { late.client(load, uint64(100+k)) })
		}
		b.kill()
		time.Sleep(10 * time.Second)
		cut.meta.cut.Store(false)
		time.Sleep(2 * time.Second)
		before := g.refused.Load()
		time.Sleep(30 * time.Second)
		if n := g.refused.Load(); n != before {
			t.Errorf("%d calls were refused although the number of shards could be read", n-before)
		}
		stop()
		clients.Wait()
		time.Sleep(3 * time.Minute)
		owned, high := map[uint16]bool{}, 0
		for _, p := range []*proc{a, cut, late} {
			for _, s := range p.timers.Stats().Shards {
				owned[s.Shard] = true
			}
			p.stop()
			p.ended.Wait()
		}
		if len(owned) != 32 {
			t.Errorf("%d shards have owners, not 32", len(owned))
		}
		lost := 0
		for _, x := range g.all {
			if !x.cancelled && x.came == 0 {
				lost++
			}
			if engine.ShardOf(notify.Chunk{Base: x.base}.TimerID(0), raised) >= 4 {
				high++
			}
		}
		t.Logf("%d scheduled, %d of them in new shards; latest by %s; %d refused", len(g.all), high, g.late, g.refused.Load())
		if lost > 0 || high < len(g.all)/4 {
			t.Errorf("%d of %d were never released; %d were in new shards", lost, len(g.all), high)
		}
		if g.late > 8*time.Second { // a shard of the process that was killed
			t.Errorf("one was released %s late", g.late)
		}
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_790_000_000_000)
	s, err := notify.SpreadOver(16).Raised(256, at)
	if err != nil || s.String() != "16,256@1790000000000" || s.Most() != 256 || !s.HadParts(16) || s.HadParts(64) || !s.Since().Equal(at) {
		t.Fatalf("%s, %v", s, err)
	}
	for _, c := range []struct {
		made time.Time
		want int
	}{{time.UnixMilli(0), 16}, {at.Add(-time.Millisecond), 16}, {at, 256}, {at.Add(time.Hour), 256}} {
		b := notify.NewBase(c.made)
		if n := s.PartsOf(b[:]); n != c.want || s.PartsAt(c.made) != c.want {
			t.Errorf("made at %s: over %d, at that time %d", c.made, n, s.PartsAt(c.made))
		}
	}
	if s, err = s.Raised(512, at.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[int]int{0: 0, 15: 0, 16: 16, 255: 16, 256: 256, 511: 256, 512: 0} {
		before, from := s.Raise(part)
		if before != want || want == 16 && !from.Equal(at) || want == 256 && !from.Equal(at.Add(time.Hour)) {
			t.Errorf("part %d: raised from %d at %s", part, before, from)
		}
	}
	s = notify.SpreadOver(16)
	if s, err = s.Raised(256, at); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Raised(256, at.Add(time.Hour)); err == nil {
		t.Error("raised to the same number")
	}
	if _, err := s.Raised(512, at); err == nil {
		t.Error("raised twice from the same moment")
	}
	for _, bad := range []string{"", "0", "16@5", "16,8@9", "16,256", "16,32@9,64@9", "x"} {
		if s, err := notify.ParseSpread(bad); err == nil {
			t.Errorf("%q was read as %s", bad, s)
		}
	}
}

// racedMeta loses the first swap to another process that raises the number to 64.
type racedMeta struct {
	engine.Meta
	raced bool
}

func (m *racedMeta) SwapMeta(ctx context.Context, name string, old, new []byte) (bool, error) {
	if !m.raced {
		m.raced = true
		if _, err := RaiseSpread(ctx, m.Meta, name, 64, time.Now()); err != nil {
			return false, err
		}
	}
	return m.Meta.SwapMeta(ctx, name, old, new)
}

// TestTwoRaiseASpread: of two that raise at the same time the second goes by what the first
// has stored.
func TestTwoRaiseASpread(t *testing.T) {
	t.Parallel()
	for to, want := range map[int]int{32: 64, 64: 64} {
		m := &racedMeta{Meta: memory.New().Meta()}
		if s, err := RaiseSpread(t.Context(), m, spreadRow, to, time.Now()); err != nil || s.Most() != want {
			t.Errorf("raised to %d: %s, %v", to, s, err)
		}
	}
	m := &racedMeta{Meta: memory.New().Meta()}
	s, err := RaiseSpread(t.Context(), m, spreadRow, 128, time.Now())
	stored, read := ReadSpread(t.Context(), m, spreadRow)
	if err != nil || read != nil || stored.Most() != 128 || s.String() != stored.String() {
		t.Errorf("raised to %s, %v; stored is %s, %v", s, err, stored, read)
	}
}

// TestSpreadGoesOnWhileNoneAreMade: a process that cannot read the row trusts what it knows
// for as long as there are no more parts than that.
func TestSpreadGoesOnWhileNoneAreMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, meta := t.Context(), &cutMeta{Meta: memory.New().Meta()}
		s, err := OpenSpread(ctx, meta, "partitions", 6, false)
		if err != nil {
			t.Fatal(err)
		}
		made := 6
		var unreachable error
		s.MadeBefore(func(context.Context) (int, error) { return made, unreachable })
		meta.cut.Store(true)
		follow := func(good bool) {
			t.Helper()
			for range 10 {
				time.Sleep(spreadTrust / 5)
				if err := s.Follow(ctx); (err == nil) != good {
					t.Fatalf("follow: %v", err)
				}
			}
			now, err := s.Now()
			if (err == nil) != good || good && now.Most() != 6 || s.Last().Most() != 6 {
				t.Fatalf("%s, %v; last %s", now, err, s.Last())
			}
		}
		follow(true)
		unreachable = errCut
		follow(false)
		unreachable = nil
		follow(true)
		made = 12
		follow(false)
		meta.cut.Store(false)
		follow(true)
	})
}
