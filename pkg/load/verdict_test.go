package load

import (
	"strings"
	"testing"
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
