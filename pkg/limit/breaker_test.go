package limit

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func mustBreaker(t testing.TB, cfg BreakerConfig) *Breaker {
	t.Helper()
	b, err := NewBreaker(start, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// at checks what the breaker says at a time.
func at(t *testing.T, b *Breaker, d time.Duration, want BreakerState, why Reason) {
	t.Helper()
	if s := b.State(after(d)); s.State != want || s.Reason != why {
		t.Fatalf("after %v: %v (%v), want %v (%v)", d, s.State, s.Reason, want, why)
	}
}

func allowed(t *testing.T, b *Breaker, d time.Duration, want bool, wantRetry time.Duration) {
	t.Helper()
	ok, retry := b.Allow(after(d))
	if ok != want || (!ok && !retry.Equal(after(wantRetry))) {
		t.Fatalf("Allow after %v = %v, %v; want %v, %v", d, ok, retry.Sub(start), want, wantRetry)
	}
}

const sec = time.Second

func TestBreakerOpensOnRatioAndClosesByProbes(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{MinVolume: 10})
	b.ReportN(after(0), Healthy, 6)
	b.ReportN(after(0), Unhealthy, 3)
	at(t, b, 0, Closed, ReasonNone) // 3 of 9
	b.ReportN(after(1), Unhealthy, 2)
	at(t, b, 1, Closed, ReasonNone) // 5 of 11
	b.Report(after(2), Unhealthy)
	at(t, b, 2, Open, ReasonErrors) // 6 of 12
	allowed(t, b, 2+4*sec, false, 2+5*sec)
	b.ReportN(after(2+4*sec), Healthy, 100) // from before it opened
	at(t, b, 2+4*sec, Open, ReasonErrors)

	d := 2 + 5*sec
	at(t, b, d, HalfOpen, ReasonErrors)
	allowed(t, b, d, true, 0)
	allowed(t, b, d, true, 0)
	allowed(t, b, d, true, 0)
	allowed(t, b, d, false, d+probeRecheck)
	b.Report(after(d+sec), Healthy)
	b.ReportN(after(d+sec), Healthy, 50) // one call, whatever it carried
	at(t, b, d+sec, HalfOpen, ReasonErrors)
	b.Report(after(d+sec), Healthy)
	at(t, b, d+sec, Closed, ReasonNone)
	allowed(t, b, d+sec, true, 0)
	b.ReportN(after(d+sec), Healthy, 4)
	b.ReportN(after(d+sec), Unhealthy, 4)
	at(t, b, d+sec, Closed, ReasonNone) // 8 calls: those of before are forgotten
}

func TestBreakerProbesLessAndLessOften(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	b.ReportN(after(0), Unhealthy, 3)
	d := time.Duration(0)
	for _, wait := range []time.Duration{5 * sec, 10 * sec, 20 * sec, 30 * sec, 30 * sec} {
		allowed(t, b, d+wait-1, false, d+wait)
		d += wait
		allowed(t, b, d, true, 0)
		b.Report(after(d), Unhealthy)
		at(t, b, d, Open, ReasonErrors)
	}
}

func TestBreakerSingleMessageOpensItBeforeItsAttemptsAreUsedUp(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	for _, d := range []time.Duration{0, sec, 3 * sec} {
		at(t, b, d, Closed, ReasonNone)
		b.Report(after(d), Unhealthy)
	}
	at(t, b, 3*sec, Open, ReasonErrors)
}

// A process has just started: a few unlucky calls among good ones must not open
// it, and a provider that answers nothing but errors must, before a single
// message has used up its attempts.
func TestBreakerOfFewCalls(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	b.Report(after(0), Healthy)
	b.ReportN(after(0), Unhealthy, 10)
	at(t, b, 0, Closed, ReasonNone) // 10 of 11
	b.ReportN(after(0), Unhealthy, 9)
	at(t, b, 0, Open, ReasonErrors) // 19 of 20
	b = mustBreaker(t, BreakerConfig{})
	b.ReportN(after(0), Unhealthy, 2)
	at(t, b, 0, Closed, ReasonNone)
	b.Report(after(sec), Unhealthy)
	at(t, b, sec, Open, ReasonErrors)
}

func TestBreakerWindowSlides(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{MinVolume: 4, AllBad: 4})
	b.ReportN(after(0), Unhealthy, 3)
	b.Report(after(31*sec), Unhealthy)
	at(t, b, 31*sec, Closed, ReasonNone)
	b.ReportN(after(45*sec), Unhealthy, 2)
	at(t, b, 45*sec, Closed, ReasonNone)
	b.Report(after(50*sec), Unhealthy)
	at(t, b, 50*sec, Open, ReasonErrors)
}

func TestBreakerConfigErrorOpensAtOnceAndProbesSlowly(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	b.ReportN(after(0), Healthy, 1000)
	b.Report(after(0), Misconfigured)
	at(t, b, 0, Open, ReasonConfig)
	allowed(t, b, 5*time.Minute-1, false, 5*time.Minute)
	allowed(t, b, 5*time.Minute, true, 0)
	b.Report(after(5*time.Minute), Misconfigured)
	allowed(t, b, 10*time.Minute-1, false, 10*time.Minute)
	for range 3 {
		allowed(t, b, 10*time.Minute, true, 0)
		b.Report(after(10*time.Minute), Healthy)
	}
	at(t, b, 10*time.Minute, Closed, ReasonNone)
}

func TestBreakerConfigErrorAmongErrors(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	b.ReportN(after(0), Unhealthy, 3)
	b.Report(after(sec), Misconfigured) // was on its way when it opened
	at(t, b, sec, Open, ReasonConfig)
	allowed(t, b, 6*sec, false, sec+5*time.Minute)
}

func TestBreakerLostProbesAreGivenUp(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{Probes: 1})
	b.ReportN(after(0), Unhealthy, 3)
	allowed(t, b, 5*sec, true, 0)
	allowed(t, b, 35*sec-1, false, 35*sec)
	allowed(t, b, 35*sec, true, 0)
	b.Report(after(36*sec), Healthy)
	at(t, b, 36*sec, Closed, ReasonNone)
}

// At low traffic a round ends with its probes outstanding. Its healthy answers
// count on, lost ones do not, and an unhealthy answer forgets them.
func TestBreakerClosesAtLowTraffic(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{})
	b.ReportN(after(0), Unhealthy, 3)
	probe := func(d time.Duration, o Outcome) {
		t.Helper()
		allowed(t, b, d, true, 0)
		b.Report(after(d), o)
	}
	d := 5 * sec
	probe(d, Healthy)
	probe(d+time.Minute, Healthy)
	at(t, b, d+time.Minute, HalfOpen, ReasonErrors)
	probe(d+2*time.Minute, Unhealthy)
	d += 2*time.Minute + 10*sec
	probe(d, Healthy)
	at(t, b, d, HalfOpen, ReasonErrors) // what was healthy before the error is forgotten
	for range 4 {                       // two probes of each round are lost
		d += 30 * sec
		allowed(t, b, d, true, 0)
		allowed(t, b, d+sec, true, 0)
		allowed(t, b, d+2*sec, false, d+2*sec+probeRecheck)
		at(t, b, d+2*sec, HalfOpen, ReasonErrors)
	}
	probe(d+time.Minute, Healthy)
	at(t, b, d+time.Minute, HalfOpen, ReasonErrors)
	probe(d+time.Hour, Healthy)
	at(t, b, d+time.Hour, Closed, ReasonNone)
}

// A probe that says nothing makes room for another one.
func TestBreakerNeutralProbe(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{Probes: 1})
	b.ReportN(after(0), Unhealthy, 3)
	at := after(5 * sec)
	if ok, _ := b.Allow(at); !ok {
		t.Fatal("no probe")
	}
	if ok, _ := b.Allow(at); ok {
		t.Fatal("two probes at a time")
	}
	b.Report(at, Neutral)
	if ok, _ := b.Allow(at); !ok {
		t.Fatal("no probe after one that said nothing")
	}
	b.Report(at, Healthy)
	if s := b.State(at).State; s != Closed {
		t.Fatal(s)
	}
}

func TestBreakerIgnoresNeutral(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{MinVolume: 4, AllBad: 4})
	b.ReportN(after(0), Neutral, 100)
	b.ReportN(after(0), Unhealthy, 3)
	at(t, b, 0, Closed, ReasonNone)
	b.ReportN(after(0), Unhealthy, 1)
	at(t, b, 0, Open, ReasonErrors) // 100 neutral ones are no successes either
}

func TestBreakerConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []BreakerConfig{
		{Window: -1}, {OpenFor: -1}, {MaxOpenFor: -1}, {ConfigOpenFor: -1}, {ProbeTimeout: -1}, {MinVolume: -1}, {AllBad: -1}, {Probes: -1}, {Ratio: -0.1}, {Ratio: 1.1},
	} {
		if _, err := NewBreaker(start, cfg); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%+v: %v, want invalid", cfg, err)
		}
	}
}

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	f := func(c notify.Class, want Outcome) {
		t.Helper()
		if got := OutcomeOf(c); got != want {
			t.Errorf("OutcomeOf(%v) = %v, want %v", c, got, want)
		}
	}
	f(notify.ClassAccepted, Healthy)
	f(notify.ClassRetry, Healthy)
	f(notify.ClassPermanent, Healthy)
	f(notify.ClassDeadAddress, Healthy)
	f(notify.ClassOptedOut, Healthy)
	f(notify.ClassUnavailable, Unhealthy)
	f(notify.ClassAmbiguous, Unhealthy)
	f(notify.ClassThrottled, Neutral)
	f(notify.ClassConfig, Misconfigured)
}

// modelBreaker keeps every outcome and writes the rules down once more.
type modelBreaker struct {
	cfg     BreakerConfig
	state   BreakerState
	reason  Reason
	until   time.Time
	openFor time.Duration
	events  []event // while closed
	probes  int
	healthy int
}

type event struct {
	part int64
	bad  bool
}

func (m *modelBreaker) allow(now time.Time) bool {
	switch {
	case m.state == Closed:
		return true
	case !now.Before(m.until):
		if m.state == Open {
			m.healthy = 0
		}
		m.state, m.probes, m.until = HalfOpen, m.healthy+1, now.Add(m.cfg.ProbeTimeout)
		return true
	case m.state == HalfOpen && m.probes < m.cfg.Probes:
		m.probes++
		return true
	}
	return false
}

func (m *modelBreaker) report(now time.Time, o Outcome) {
	if o == Misconfigured {
		until := now.Add(m.cfg.ConfigOpenFor)
		if m.state == Open && m.until.After(until) {
			until = m.until
		}
		if m.state == Closed {
			m.openFor = m.cfg.OpenFor
		}
		m.state, m.reason, m.until, m.events = Open, ReasonConfig, until, nil
		return
	}
	if o == Neutral && m.state == HalfOpen {
		m.probes = max(m.probes-1, m.healthy)
	}
	if o == Neutral || m.state == Open {
		return
	}
	if m.state == HalfOpen {
		if o == Unhealthy {
			m.openFor = min(2*m.openFor, m.cfg.MaxOpenFor)
			m.state, m.reason, m.until = Open, ReasonErrors, now.Add(m.openFor)
		} else if m.healthy++; m.healthy == m.cfg.Probes {
			m.state, m.reason, m.events = Closed, ReasonNone, nil
		}
		return
	}
	part := now.UnixNano() / int64(m.cfg.Window/10)
	m.events = append(m.events, event{part, o == Unhealthy})
	all, bad := 0, 0
	for _, e := range m.events {
		if e.part > part-10 {
			all++
			if e.bad {
				bad++
			}
		}
	}
	if o == Unhealthy && (all >= m.cfg.MinVolume && float64(bad)/float64(all) >= m.cfg.Ratio || bad == all && bad >= m.cfg.AllBad) {
		m.openFor = m.cfg.OpenFor
		m.state, m.reason, m.until, m.events = Open, ReasonErrors, now.Add(m.openFor), nil
	}
}

func TestBreakerAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cfg := BreakerConfig{
			Window:        time.Duration(rapid.IntRange(1, 60).Draw(t, "window")) * sec,
			MinVolume:     rapid.IntRange(1, 8).Draw(t, "volume"),
			AllBad:        rapid.IntRange(1, 8).Draw(t, "all bad"),
			Ratio:         rapid.SampledFrom([]float64{0.25, 0.5, 0.75, 1}).Draw(t, "ratio"),
			OpenFor:       time.Duration(rapid.IntRange(1, 10).Draw(t, "open for")) * sec,
			ConfigOpenFor: time.Duration(rapid.IntRange(1, 300).Draw(t, "config open for")) * sec,
			Probes:        rapid.IntRange(1, 4).Draw(t, "probes"),
			ProbeTimeout:  time.Duration(rapid.IntRange(1, 30).Draw(t, "probe timeout")) * sec,
		}
		b, err := NewBreaker(start, cfg)
		if err != nil {
			t.Fatal(err)
		}
		m := &modelBreaker{cfg: cfg.withDefaults()}
		now := start
		outcomes := rapid.SampledFrom([]Outcome{Healthy, Healthy, Unhealthy, Unhealthy, Neutral, Misconfigured})
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 1, 100 * time.Millisecond, sec, 3 * sec, 10 * sec, 40 * sec}).Draw(t, "pause"))
			if rapid.IntRange(0, 2).Draw(t, "op") == 0 {
				ok, retry := b.Allow(now)
				if want := m.allow(now); ok != want {
					t.Fatalf("Allow = %v, want %v", ok, want)
				}
				if !ok && (!retry.After(now) || retry.After(m.until)) {
					t.Fatalf("retry at %v, now %v, allowed at %v", retry, now, m.until)
				}
			} else {
				o := outcomes.Draw(t, "outcome")
				b.Report(now, o)
				m.report(now, o)
			}
			want := m.state
			if want == Open && !now.Before(m.until) {
				want = HalfOpen
			}
			if s := b.State(now); s.State != want || s.Reason != m.reason {
				t.Fatalf("%v (%v), want %v (%v)", s.State, s.Reason, want, m.reason)
			}
		}
	})
}

func TestBreakerConcurrently(t *testing.T) {
	t.Parallel()
	b := mustBreaker(t, BreakerConfig{Probes: 5})
	b.ReportN(start, Unhealthy, 3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	probes := 0
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if ok, _ := b.Allow(after(5 * sec)); ok {
					mu.Lock()
					probes++
					mu.Unlock()
				}
				b.State(after(5 * sec))
			}
		})
	}
	wg.Wait()
	if probes != 5 {
		t.Fatalf("%d probes let through, want 5", probes)
	}
}
