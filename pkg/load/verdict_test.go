package load

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	good := Evidence{Intended: 10_000, Sent: 10_000, Messages: 10_000, Sending: 10 * time.Second, Busy: 0.1, Seconds: 10, ResponseP99: 50 * time.Millisecond, Share: 0.01}
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
	f(GeneratorBound, "times what this machine generates", func(e *Evidence) { e.Share = 1.5 })
	f(GeneratorBound, "90% of what this machine can", func(e *Evidence) { e.Share = 0.9 })
	f(Valid, "", func(e *Evidence) { e.Share, e.Closed = 0.9, true })
	f(GeneratorBound, "workers were free 80%", func(e *Evidence) { e.Sent, e.Busy = 9000, 0.2 })
	f(SinkBound, "waited for answers 97%", func(e *Evidence) { e.Sent, e.Busy = 9000, 0.97 })
	f(GeneratorBound, "woke late in 2 of 10", func(e *Evidence) { e.Late = 2 })
	f(Valid, "", func(e *Evidence) { e.Late = 1 })
	f(GeneratorBound, "all its CPUs busy", func(e *Evidence) { e.Starved = 6 })
	f(Valid, "", func(e *Evidence) { e.Starved, e.Embedded = 6, true })
	f(SinkBound, "backlog grew by 20%", func(e *Evidence) { e.BacklogSlope = 0.2 })
	f(SinkBound, "5.0% failed", func(e *Evidence) { e.Failed = 500 })
	f(Inconclusive, "too few", func(e *Evidence) { e.Messages = 50 })
	f(Inconclusive, "too short", func(e *Evidence) { e.Sending = time.Second / 2 })
	f(Inconclusive, "others took 30%", func(e *Evidence) { e.Steal = 0.3 })
	f(Inconclusive, "stopped early", func(e *Evidence) { e.Partial = true })
	// A generator that is itself the limit says nothing of the server.
	f(GeneratorBound, "times", func(e *Evidence) { e.Share, e.BacklogSlope, e.Partial = 2, 1, true })
}

// TestLate: a wake-up is late beyond 20 ms, where that is more than a tenth of the
// response it is part of.
func TestLate(t *testing.T) {
	t.Parallel()
	f := func(wake, response time.Duration, want bool) {
		t.Helper()
		if late(wake, response) != want {
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

// TestStalledGenerator: a generator that gets the processor 50 ms after it asked for it
// is the limit itself, though it sends everything in the end.
func TestStalledGenerator(t *testing.T) {
	for stall, want := range map[time.Duration]string{0: Valid, 50 * time.Millisecond: GeneratorBound} {
		synctest.Test(t, func(t *testing.T) {
			res := drive(t, One("t", 10*time.Second, Step{Rate: 100, Workers: 64}), Config{Target: &target{latency: time.Millisecond}, woke: func() { time.Sleep(stall) }})
			if v := res.Verdict; v.Code != want || want == GeneratorBound && !strings.Contains(strings.Join(v.Reasons, "; "), "it woke late in ") {
				t.Errorf("stalled for %v: %+v", stall, v)
			}
			if res.Totals.Sent != 1000 {
				t.Errorf("%d were sent", res.Totals.Sent)
			}
		})
	}
}

// A generator given too little CPU for what it is asked: no machine makes 10
// billion messages a second. Its own null sink never makes anybody wait.
func TestGeneratorBound(t *testing.T) {
	t.Parallel()
	s := One("t", 300*time.Millisecond, Step{Target: Null, Rate: 1e10, Workers: 2})
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
