package worker

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

// mortal is a process of several workers, each with a partition. Some receivers end
// the whole process in their call.
type mortal struct {
	t     *testing.T
	rigs  []*rig
	kills map[string]bool // users

	mu      sync.Mutex
	latency time.Duration
	calls   int      // under way
	dead    bool     // a receiver ended this life
	beside  []int    // per death: calls that were under way, the killing one included
	called  []string // users, in the order of their calls
	runs    int      // calls of the provider in this life
}

// mortalProvider is the provider of one worker of a mortal.
type mortalProvider struct {
	m *mortal
}

// ratedProvider gives permits for one receiver each. The channel slots limits how many of them are
// in use at a time.
type ratedProvider struct {
	mortalProvider
	slots chan struct{}
}

type slotPermit struct {
	once  *sync.Once
	slots chan struct{}
}

func (slotPermit) Messages() int { return 1 }
func (p slotPermit) Release()    { p.once.Do(func() { <-p.slots }) }

func (p ratedProvider) Admit(ctx context.Context, _ notify.Category, _ int) (notify.Permit, error) {
	select {
	case p.slots <- struct{}{}:
		return slotPermit{new(sync.Once), p.slots}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p mortalProvider) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	m := p.m
	m.mu.Lock()
	m.calls++
	m.runs++
	kills := false
	for i := range call.Items {
		user := string(call.Items[i].User)
		m.called = append(m.called, user)
		kills = kills || m.kills[user]
	}
	latency := m.latency
	if kills && !m.dead {
		m.dead = true
		m.beside = append(m.beside, m.calls)
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.calls--
		m.mu.Unlock()
	}()
	if kills {
		for _, r := range m.rigs {
			r.stop() // the process dies before the provider answers
		}
		<-ctx.Done()
		return
	}
	select {
	case <-time.After(latency):
	case <-ctx.Done():
		return
	}
	for i := range call.Items {
		report.One(i, accepted)
	}
}

// add adds a worker to the process. The parameter rate is the number of calls that its provider
// accepts at a time; 0: the provider is not Rated.
func (m *mortal) add(lane notify.Lane, role Role, rate int, change ...func(*Config)) *rig {
	prov := mortalProvider{m: m}
	change = append(change, func(c *Config) {
		c.Role = role
		c.Provider = prov
		if rate > 0 {
			c.Provider = ratedProvider{prov, make(chan struct{}, rate)}
		}
		c.Solo = NewSolo()
		if len(m.rigs) > 0 {
			c.Solo = m.rigs[0].cfg.Solo
		}
	})
	r := newRig(m.t, lane, change...)
	m.rigs = append(m.rigs, r)
	return r
}

// live gives every worker its envelopes and lets the process live for the time d. It returns true
// if a receiver killed the process.
func (m *mortal) live(d time.Duration, envs map[*rig][]notify.Envelope) bool {
	m.mu.Lock()
	m.dead, m.runs = false, 0
	m.mu.Unlock()
	for _, r := range m.rigs {
		r.feed(envs[r]...)
	}
	time.Sleep(d) // of the bubble
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// restart ends the life, if a receiver has not done so, and begins the next one.
func (m *mortal) restart() {
	for _, r := range m.rigs {
		r.stop()
	}
	solo := NewSolo()
	for _, r := range m.rigs {
		r.crash()
		r.cfg.Solo = solo
		if p, ok := r.cfg.Provider.(ratedProvider); ok {
			p.slots = make(chan struct{}, cap(p.slots))
			r.cfg.Provider = p
		}
		r.start()
	}
}

// The worker gives up only the receiver that kills the process. It keeps receivers of
// other partitions, lanes and roles, although their calls are under way at each death.
func TestGivesUpNobodyBesideTheReceiverThatKills(t *testing.T) {
	in(t, func(t *testing.T) {
		m := &mortal{t: t, kills: map[string]bool{"killer": true}, latency: 50 * time.Millisecond}
		envs := map[*rig][]notify.Envelope{}
		for i, r := range []*rig{
			m.add(pushLane, First, 0), m.add(pushLane, First, 0), m.add(smsLane, First, 0), m.add(emailLane, First, 1), m.add(pushLane, Retries, 0),
		} {
			user := "killer"
			if i > 0 {
				user = fmt.Sprintf("innocent%d", i)
			}
			e := r.envelope(notify.OTP, user)
			if r.cfg.Role == Retries {
				e.Attempt = 1
			}
			envs[r] = []notify.Envelope{e}
		}
		lives := 1
		for ; m.live(time.Minute, envs); lives++ {
			if lives > 10 { // three deaths, four in groups after an innocent receiver that is delivered, three alone
				t.Fatal("the receiver is never given up")
			}
			m.restart()
		}
		for i, r := range m.rigs {
			want, code := notify.Delivered, ""
			if i == 0 {
				want, code = notify.Failed, "killed_worker"
			}
			if got := r.state(&envs[r][0], 0); got.State != want || got.Code != code {
				t.Errorf("worker %d: %+v", i, got)
			}
		}
		// The receiver that kills may be in the second group of a life, which has two receivers.
		for i, n := range m.beside {
			if i >= 3 && n > 2 || i >= len(m.beside)-3 && n != 1 {
				t.Errorf("calls under way at each death: %v; want at most 2 after the third, and 1 at the last three", m.beside)
				break
			}
		}
		if lives < 7 {
			t.Errorf("found in life %d, want 7 or later: three deaths beside others, and three alone", lives)
		}
	})
}

// If the provider may have processed an earlier attempt, a receiver that is given up becomes
// UNKNOWN, not FAILED.
func TestGivesUpAsUnknownWhatMayHaveBeenTaken(t *testing.T) {
	in(t, func(t *testing.T) {
		m := &mortal{t: t, kills: map[string]bool{"killer": true}}
		r := m.add(pushLane, Retries, 0)
		e := r.envelope(notify.OTP, "killer")
		e.Attempt, e.Cause = 1, causeMaybe+"timeout"
		for lives := 0; m.live(time.Minute, map[*rig][]notify.Envelope{r: {e}}); lives++ {
			if lives > 10 {
				t.Fatal("the receiver is never given up")
			}
			m.restart()
		}
		if got := r.state(&e, 0); got.State != notify.Unknown || got.Code != "killed_worker" {
			t.Errorf("%+v", got)
		}
	})
}

// While receivers are called one by one, the row still says that later receivers were started
// before. So after the next death a cancel does not say that they were never called. They are not
// counted as sent again a second time.
func TestOneByOneKeepsWhatWasStarted(t *testing.T) {
	in(t, func(t *testing.T) {
		m := &mortal{t: t, kills: map[string]bool{name(2): true}}
		r := m.add(pushLane, First, 0)
		e := r.envelope(notify.Transactional, userIDs(10)...)
		envs := map[*rig][]notify.Envelope{r: {e}}
		for life := range 4 { // the last one dies in its second solo run, of two receivers
			if !m.live(time.Minute, envs) {
				t.Fatalf("nothing killed life %d", life)
			}
			if life < 3 {
				m.restart()
			}
		}
		rows, err := r.status.Chunk(t.Context(), e.Chunk)
		if err != nil {
			t.Fatal(err)
		}
		if row := rows[0]; row.DoneUpTo != 1 || row.StartedUpTo != 10 || row.Resent != 30 {
			t.Errorf("done up to %d, started up to %d, %d sent again; want 1, 10, 30", row.DoneUpTo, row.StartedUpTo, row.Resent)
		}
		r.cancel.age(false, true)
		m.kills = nil
		m.restart()
		m.live(time.Minute, envs)
		for i := range uint32(10) {
			want := notify.Unknown
			if i < 1 {
				want = notify.Delivered
			}
			if got := r.state(&e, i); got.State != want {
				t.Errorf("receiver %d: %+v, want %v", i, got, want)
			}
		}
	})
}

// Solo runs of many envelopes run in groups. 500 envelopes with one receiver each, left by three
// deaths, take the time of ten calls and not of 500.
func TestSoloRunsOfManyEnvelopes(t *testing.T) {
	in(t, func(t *testing.T) {
		m := &mortal{t: t, latency: time.Minute}
		r := m.add(pushLane, First, 0)
		var es []notify.Envelope
		for i := range 500 {
			es = append(es, r.envelope(notify.Transactional, name(i)))
		}
		envs := map[*rig][]notify.Envelope{r: es}
		for range 3 {
			m.live(time.Second, envs)
			m.restart()
		}
		m.latency = 100 * time.Millisecond
		m.live(3*time.Second, envs)
		for i := range es {
			if got := r.state(&es[i], 0); got.State != notify.Delivered {
				t.Fatalf("envelope %d of %d: %+v", i, len(es), got)
			}
		}
	})
}

// Solo runs grow, so that the 1,000 receivers that a job resumes do not need 1,000 runs. The
// receiver that kills the process is still found, alone and within a few restarts.
func TestSoloRunsGrow(t *testing.T) {
	in(t, func(t *testing.T) {
		m := &mortal{t: t, kills: map[string]bool{name(700): true}}
		r := m.add(pushLane, First, 0)
		e := r.envelope(notify.Transactional, userIDs(1000)...)
		envs := map[*rig][]notify.Envelope{r: {e}}
		lives, runs := 0, 0
		for m.live(time.Hour, envs) {
			if lives++; lives > 15 {
				t.Fatal("the receiver is not given up in 15 lives")
			}
			if lives > 3 {
				runs += m.runs
			}
			m.restart()
		}
		runs += m.runs
		for i := range uint32(1000) {
			want := notify.Delivered
			if i == 700 {
				want = notify.Failed
			}
			if got := r.state(&e, i); got.State != want {
				t.Errorf("receiver %d: %+v, want %v", i, got, want)
			}
		}
		if runs > 60 {
			t.Errorf("%d solo runs for 1,000 receivers", runs)
		}
	})
}

// Whatever lanes, windows, rates and stops there are, every receiver has its outcome
// in the end, and only receivers that kill are given up.
func TestSoloModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var thrown any // see TestModel
		synctest.Test(t, func(t *testing.T) {
			defer func() { thrown = recover() }()
			soloModel(t, rt)
		})
		if thrown != nil {
			panic(thrown)
		}
	})
}

func soloModel(t *testing.T, rt *rapid.T) {
	m := &mortal{t: t, kills: map[string]bool{}, latency: time.Duration(rapid.SampledFrom([]int{0, 1, 50, 5000}).Draw(rt, "latency")) * time.Millisecond}
	envs := map[*rig][]notify.Envelope{}
	var names []string
	for range rapid.IntRange(1, 4).Draw(rt, "workers") {
		lane := rapid.SampledFrom([]notify.Lane{pushLane, smsLane, emailLane}).Draw(rt, "lane")
		role := rapid.SampledFrom([]Role{First, First, Retries}).Draw(rt, "role")
		r := m.add(lane, role, rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(rt, "rate"), func(c *Config) {
			c.Window = rapid.SampledFrom([]int{1, 3, 20}).Draw(rt, "window")
			c.Ahead = rapid.SampledFrom([]int{1, 2, 16}).Draw(rt, "ahead")
			c.InFlight = rapid.SampledFrom([]int{1, 4, 1000}).Draw(rt, "in flight")
		})
		for range rapid.IntRange(1, 4).Draw(rt, "envelopes") {
			var us []string
			for u := range rapid.IntRange(1, 12).Draw(rt, "receivers") {
				us = append(us, fmt.Sprintf("w%d-u%02d", len(m.rigs), u))
			}
			e := r.envelope(rapid.SampledFrom([]notify.Category{notify.OTP, notify.Transactional}).Draw(rt, "category"), us...)
			if rapid.Bool().Draw(rt, "template") {
				e.Content.Template = "tpl"
			}
			if role == Retries {
				e.Attempt = 1
			}
			envs[r] = append(envs[r], e)
			names = append(names, us...)
		}
	}
	for range rapid.IntRange(0, 2).Draw(rt, "killers") {
		m.kills[rapid.SampledFrom(names).Draw(rt, "killer")] = true
	}
	var log []string
	for lives := 0; ; lives++ {
		if lives > 150 {
			rt.Fatalf("no end: %v", log)
		}
		life, drain := time.Hour, rapid.IntRange(0, 4).Draw(rt, "drain") == 0
		if drain {
			life = time.Duration(rapid.IntRange(1, 20_000).Draw(rt, "life")) * time.Millisecond
		}
		died := m.live(life, envs)
		log = append(log, fmt.Sprint(died, drain))
		if !died && !drain {
			break
		}
		if !died {
			// A drain calls the windows that are claimed: at most 16 of a partition, one after the other, at 5 s each.
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			var wg sync.WaitGroup
			for _, r := range m.rigs {
				wg.Go(func() { r.part.(*partition).Drain(ctx) })
			}
			wg.Wait()
			if ctx.Err() != nil && !m.dead {
				rt.Errorf("the drain did not end in two minutes")
			}
			stop()
		}
		m.restart()
	}
	for _, r := range m.rigs {
		for i := range envs[r] {
			e := &envs[r][i]
			rd := notify.ReadReceivers(e.Receivers)
			for rec := (notify.Receiver{}); rd.Next(&rec); {
				want := notify.Delivered
				if m.kills[string(rec.User)] {
					want = notify.Failed
				}
				if got := r.state(e, rec.Index); got.State != want {
					rt.Errorf("%s of %v: %+v, want %v", rec.User, r.cfg.Lane, got, want)
				}
			}
		}
		r.close()
	}
	if len(m.kills) > 0 && len(m.beside) == 0 {
		rt.Errorf("no receiver killed the process")
	}
}

// A solo run that stops waiting releases the calls that it held back, and keeps no lock,
// even if it gets the lock at the same moment.
func TestSoloWaitGivenUp(t *testing.T) {
	in(t, func(t *testing.T) {
		s := NewSolo()
		if err := s.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, giveUp := context.WithCancel(t.Context())
		var run, call error
		var wg sync.WaitGroup
		wg.Go(func() { _, run = s.lock(ctx, 1, false) })
		synctest.Wait()
		wg.Go(func() { call = s.enter(t.Context()) })
		synctest.Wait()
		giveUp()
		wg.Wait()
		if run == nil || call != nil {
			t.Fatalf("the run %v, the call %v", run, call)
		}
		s.leave()
		s.leave()
		for range 100 { // the lock is free and ctx has ended: lock may do either
			if _, err := s.lock(ctx, 1, false); err == nil {
				s.unlock()
			}
		}
		if _, err := s.lock(t.Context(), 1, false); err != nil {
			t.Error(err)
		}
	})
}
