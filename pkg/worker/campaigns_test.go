package worker

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// paced is a rig whose timers fire when they are due.
type paced struct {
	*rig
	camp  *Campaigns
	mu    sync.Mutex
	calls []time.Duration // times of the calls, since the beginning
	began time.Time
	wait  []engine.Timer
}

func newPaced(t *testing.T, change ...func(*Config)) *paced {
	p := &paced{camp: &Campaigns{}, began: time.Now()}
	p.rig = newRig(t, pushLane, append(change, func(c *Config) { c.Campaigns = p.camp })...)
	p.prov.before = func(call *notify.Call) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for range call.Items {
			p.calls = append(p.calls, time.Since(p.began))
		}
	}
	return p
}

func (p *paced) called() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// run lets time pass and gives the envelopes that are due back to the worker.
func (p *paced) run(d time.Duration) {
	for end := time.Now().Add(d); ; {
		synctest.Wait()
		p.wait = append(p.wait, p.parked.take()...)
		var due []notify.Envelope
		next := end
		p.wait = slices.DeleteFunc(p.wait, func(t engine.Timer) bool {
			at := time.UnixMilli(t.FireAt)
			if at.After(time.Now()) {
				if at.Before(next) {
					next = at
				}
				return false
			}
			due = append(due, decode(p.t, t.Payload))
			return true
		})
		if len(due) > 0 {
			p.feed(due...)
			continue
		}
		if !time.Now().Before(end) {
			return
		}
		time.Sleep(time.Until(next)) // of the bubble
	}
}

func (p *paced) campaign(n int) notify.Envelope {
	e := p.envelope(notify.Transactional, userIDs(n)...)
	e.Campaign = "cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C"
	return e
}

// The receivers of a paused campaign are not called and use no attempt. They are called after the
// campaign is resumed.
func TestPausedCampaign(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPaced(t)
		e := p.campaign(2500)
		p.camp.Set(map[string]CampaignHold{e.Campaign: {Paused: true}})
		p.feed(e)
		other := p.envelope(notify.Transactional, "other")
		p.feed(other)
		p.run(3 * time.Hour)
		if got := len(p.called()); got != 1 {
			t.Errorf("%d receivers were called, want that of no campaign alone", got)
		}
		if s := p.state(&e, 7); s.State != notify.Deferred || s.Code != codeCampaignPaused || s.Attempt != 0 {
			t.Errorf("while it is paused: %+v", s)
		}
		p.camp.Set(nil)
		p.run(pausedMost + time.Second)
		if got := len(p.called()); got != 2501 {
			t.Errorf("%d receivers were called after resume, want 2501", got)
		}
		if s := p.state(&e, 7); s.State != notify.Delivered {
			t.Errorf("at last: %+v", s)
		}
	})
}

// A receiver whose deadline passes while its campaign is paused expires at the deadline. If the
// campaign is resumed before that, the receiver is called.
func TestPausedCampaignExpires(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPaced(t)
		e := p.campaign(10)
		e.Expires = time.Now().Add(10 * time.Second).UnixMilli()
		p.camp.Set(map[string]CampaignHold{e.Campaign: {Paused: true}})
		p.feed(e)
		p.run(9 * time.Second)
		if s := p.state(&e, 0); s.State != notify.Deferred {
			t.Errorf("before: %+v", s)
		}
		p.run(2 * time.Second)
		if s := p.state(&e, 0); s.State != notify.Expired {
			t.Errorf("after: %+v", s)
		}
	})
}

// The receivers of a campaign with a rate are called evenly at that rate until all were called. A
// new rate takes effect within paceAhead.
func TestCampaignRate(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPaced(t)
		e := p.campaign(3000)
		p.camp.Set(map[string]CampaignHold{e.Campaign: {Rate: 10, Since: time.Now()}})
		p.feed(e)
		p.run(2 * time.Minute)
		slow := p.called()
		if n := len(slow); n < 1190 || n > 1220 {
			t.Errorf("%d calls in 2 minutes at 10/s", n)
		}
		for i := range slow {
			if i >= 30 && slow[i]-slow[i-30] < time.Second {
				t.Fatalf("30 calls within %v of %v", slow[i]-slow[i-30], slow[i])
			}
		}
		p.camp.Set(map[string]CampaignHold{e.Campaign: {Rate: 100, Since: time.Now()}})
		p.run(paceAhead + 15*time.Second)
		if n := len(p.called()); n < 2900 {
			t.Errorf("%d calls %v after the rate became 100/s", n, paceAhead+15*time.Second)
		}
		p.run(time.Minute)
		if n := len(p.called()); n != 3000 {
			t.Errorf("%d calls at last, want 3000", n)
		}
	})
}

// A campaign's rate applies to all processes together, even when the partitions of a process
// that died or stopped go to another. Then the campaign continues after at most a minute.
func TestCampaignRateOverProcesses(t *testing.T) {
	in(t, func(t *testing.T) {
		const perSecond = 30
		var parts []*paced // each a partition, with the process that owns it
		for range 3 {
			parts = append(parts, newPaced(t, func(c *Config) { c.Spread = func() notify.Spread { return notify.SpreadOver(3) } }))
		}
		set := time.Now()
		feed := func(p *paced, n int) {
			e := p.campaign(n)
			p.camp.Set(map[string]CampaignHold{e.Campaign: {Rate: perSecond, Since: set}})
			p.feed(e)
		}
		run := func(seconds int) {
			for range seconds {
				parts[0].run(time.Second)
				parts[1].run(0)
				parts[2].run(0)
			}
		}
		calls := func() (all []time.Duration) {
			for _, p := range parts {
				all = append(all, p.called()...)
			}
			slices.Sort(all)
			return all
		}
		for _, p := range parts {
			feed(p, 3000)
		}
		run(30)
		for _, p := range parts[1:] { // other processes get two of the partitions
			p.crash()
			p.start()
			feed(p, 3000)
		}
		run(200)
		all := calls()
		for i := range all {
			// One second may have the slots of two seconds, because slots are rounded to paceStep,
			// some up and some down.
			if k := i - 3*perSecond; k >= 0 && all[i]-all[k] < time.Second {
				t.Fatalf("%d calls within %v of %v at %d a second", 3*perSecond, all[i]-all[k], all[i], perSecond)
			}
			if k := i - 11*perSecond; k >= 0 && all[i]-all[k] < 9*time.Second {
				t.Fatalf("%d calls within %v of %v at %d a second", 11*perSecond, all[i]-all[k], all[i], perSecond)
			}
		}
		if n := len(all); n > perSecond*231 || n < perSecond*(230-40) {
			t.Errorf("%d calls in 230 s at %d a second", n, perSecond)
		}
		before := len(all)
		run(60)
		if n := len(calls()) - before; n < perSecond*59 || n > perSecond*61 {
			t.Errorf("%d calls in a minute at %d a second", n, perSecond)
		}
	})
}
