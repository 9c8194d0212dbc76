package load

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	good := Evidence{Intended: 10_000, Sent: 10_000, Messages: 10_000, Sending: 10 * time.Second, Waiting: 0.5, Seconds: 10, ResponseP99: 50 * time.Millisecond, Share: 0.01}
	f := func(want, reason string, change func(*Evidence)) {
		t.Helper()
		e := good
		change(&e)
		v := Judge(&e)
		if v.Code != want || !strings.Contains(strings.Join(v.Reasons, "; "), reason) {
			t.Errorf("%+v, want %s: %s", v, want, reason)
		}
	}
	f(Valid, "", func(*Evidence) {})
	f(GeneratorBound, "times the rate that this machine generates", func(e *Evidence) { e.Share = 1.5 })
	f(GeneratorBound, "90% of the rate that this machine generates", func(e *Evidence) { e.Share = 0.9 })
	f(Valid, "", func(e *Evidence) { e.Share, e.Closed = 0.9, true })
	f(GeneratorBound, "the workers took 80% of their time to make", func(e *Evidence) { e.Sent, e.Waiting = 9000, 0.2 })
	f(ConcurrencyBound, "90.0% of the due messages were sent: every worker waited for an answer (97%", func(e *Evidence) { e.Sent, e.Waiting = 9000, 0.97 })
	f(ConcurrencyBound, "late in 2 of 10 seconds: every worker", func(e *Evidence) { e.Queued, e.Waiting = 2, 0.97 })
	f(Valid, "", func(e *Evidence) { e.Queued, e.Waiting = 1, 0.97 })
	f(Valid, "", func(e *Evidence) { e.Queued, e.Waiting = 2, 0.5 })
	// If the workers waited for answers, the generator never reached the intended rate. So the verdict
	// ignores that this rate is above the calibrated rate.
	f(ConcurrencyBound, "every worker", func(e *Evidence) { e.Sent, e.Waiting, e.Share = 9000, 0.97, 1.5 })
	// A used-up CPU and late wake-ups also make the workers wait longer.
	f(GeneratorBound, "all its CPUs busy", func(e *Evidence) { e.Sent, e.Waiting, e.Starved = 9000, 0.97, 6 })
	f(GeneratorBound, "woke late", func(e *Evidence) { e.Sent, e.Waiting, e.Late = 9000, 0.97, 2 })
	f(SinkBound, "5.0% of the sent messages failed or were rejected; 90.0% of the due messages", func(e *Evidence) { e.Sent, e.Waiting, e.Failed = 9000, 0.97, 450 })
	f(GeneratorBound, "woke late in 2 of 10", func(e *Evidence) { e.Late = 2 })
	f(Valid, "", func(e *Evidence) { e.Late = 1 })
	f(GeneratorBound, "all its CPUs busy", func(e *Evidence) { e.Starved = 6 })
	f(Valid, "", func(e *Evidence) { e.Starved, e.Embedded = 6, true })
	f(SinkBound, "backlog grew by 20%", func(e *Evidence) { e.BacklogSlope = 0.2 })
	f(SinkBound, "5.0% of the sent messages failed", func(e *Evidence) { e.Failed = 500 })
	f(Inconclusive, "too few", func(e *Evidence) { e.Messages = 50 })
	f(Inconclusive, "a verdict needs at least 1s", func(e *Evidence) { e.Sending = time.Second / 2 })
	f(Inconclusive, "the hypervisor gave 30%", func(e *Evidence) { e.Steal = 0.3 })
	f(Inconclusive, "stopped early", func(e *Evidence) { e.Partial = true })
	// If the generator is the limit, the figures say nothing about the server.
	f(GeneratorBound, "times", func(e *Evidence) { e.Share, e.BacklogSlope, e.Partial = 2, 1, true })
}

// TestLate checks that a wake-up is late if it is later than 20 ms and later than a tenth of the response
// time.
func TestLate(t *testing.T) {
	t.Parallel()
	f := func(wake, response time.Duration, want bool) {
		t.Helper()
		if isLateWake(wake, response) != want {
			t.Errorf("%v of %v: late is %t", wake, response, !want)
		}
	}
	f(20*time.Millisecond, 0, false)
	f(21*time.Millisecond, 0, true)
	f(21*time.Millisecond, 200*time.Millisecond, true)
	f(21*time.Millisecond, 210*time.Millisecond, false)
	f(time.Second, 9*time.Second, true)
	f(time.Second, 10*time.Second, false)
}

// TestStalledGenerator checks that a generator that wakes 50 ms late is the limit, although it sends all
// messages in the end.
func TestStalledGenerator(t *testing.T) {
	for stall, want := range map[time.Duration]string{0: Valid, 50 * time.Millisecond: GeneratorBound} {
		synctest.Test(t, func(t *testing.T) {
			res := drive(t, SingleStep("t", 10*time.Second, Step{Rate: 100, Workers: 64}), Config{Target: &target{latency: time.Millisecond}, woke: func() { time.Sleep(stall) }})
			if v := res.Verdict; v.Code != want || want == GeneratorBound && !strings.Contains(strings.Join(v.Reasons, "; "), "it woke late in ") {
				t.Errorf("stalled for %v: %+v", stall, v)
			}
			if res.Totals.Sent != 1000 {
				t.Errorf("%d were sent", res.Totals.Sent)
			}
		})
	}
}

// TestSlowServer checks who causes late requests. If requests wait for a free worker while all workers
// wait for answers, the server is slow, and the verdict is ConcurrencyBound. The response times include
// the wait for a worker. If the generator has used up its CPU or wakes late, the generator is the limit.
// This also holds if no worker waits for a due time, so that no wake-up of a worker is measured.
func TestSlowServer(t *testing.T) {
	busy := func() Health { return Health{CPU: 7.9, CPUs: 8} }
	for name, c := range map[string]struct {
		rate          Number
		latency       time.Duration
		health        func() Health
		stall         time.Duration
		workers       int
		sent          int64
		least         time.Duration // lower bound of the longest response time
		want, because string
	}{
		"answers of 3 s":   {rate: 100, latency: 3 * time.Second, workers: 8, sent: 40, least: 14 * time.Second, want: ConcurrencyBound, because: "4.0% of the due messages were sent: every worker waited for an answer (100% "},
		"all sent, late":   {rate: 60, latency: 100 * time.Millisecond, workers: 5, sent: 600, least: 2 * time.Second, want: ConcurrencyBound, because: "requests started late in "},
		"CPU used up":      {rate: 60, latency: 100 * time.Millisecond, workers: 5, sent: 600, health: busy, want: GeneratorBound, because: "had all its CPUs busy"},
		"scheduling late":  {rate: 100, latency: 3 * time.Second, workers: 8, sent: 24, stall: 2 * time.Second, want: GeneratorBound, because: "it woke late in "},
		"making takes all": {rate: 100, latency: time.Millisecond, workers: 1, sent: 938, stall: 15 * time.Millisecond, want: GeneratorBound, because: "the workers took 94% of their time to make"},
		"server in time":   {rate: 60, latency: 100 * time.Millisecond, workers: 8, sent: 600, want: Valid},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{Target: &target{latency: c.latency}, health: c.health}
			if c.stall > 0 {
				cfg.woke = func() { time.Sleep(c.stall) }
			}
			res := drive(t, SingleStep("t", 10*time.Second, Step{Rate: c.rate, Workers: c.workers}), cfg)
			if v := res.Verdict; v.Code != c.want || !strings.Contains(strings.Join(v.Reasons, "; "), c.because) || v.OfServer() != (c.want != GeneratorBound) {
				t.Errorf("%s: %+v, want %s: %s", name, v, c.want, c.because)
			}
			if s := &res.Steps[0]; res.Totals.Sent != c.sent || time.Duration(s.Response.Max) < c.least {
				t.Errorf("%s: %d were sent, the longest response took %v", name, res.Totals.Sent, time.Duration(s.Response.Max))
			}
		})
	}
}

// TestGeneratorBound asks for 10 billion messages a second, which no machine can generate. The null sink
// causes no waits, so the generator is the limit.
func TestGeneratorBound(t *testing.T) {
	t.Parallel()
	s := SingleStep("t", 300*time.Millisecond, Step{Target: Null, Rate: 1e10, Workers: 2})
	r, err := New(s, Config{Calibrate: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if res.Verdict.Code != GeneratorBound {
		t.Errorf("%+v", res.Verdict)
	}
	if res.Totals.Sent == 0 || res.Totals.Sent > res.Totals.Intended/2 || res.Totals.Lost != 0 || res.Totals.Delivered != res.Totals.Sent {
		t.Errorf("%+v", res.Totals)
	}
	if h := res.Health; h.CalibratedRate <= 0 || h.GeneratorShare < 1 {
		t.Errorf("%+v", h)
	}
}
