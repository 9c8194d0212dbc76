package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

var errRevoked = &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_revoked", Msg: "the load grant was revoked"}

// TestLoadEndsWithItsGrant checks that a run sends nothing more than a second after its grant has
// ended. The run learns this from an answer to Consent or from an answer to a message. If the target
// does not answer Consent, the run stops after ten seconds.
func TestLoadEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	away := &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "no answer"}
	const at = 3010 * time.Millisecond
	for name, c := range map[string]struct {
		asked, sent func(since time.Duration) error
		last        time.Duration // latest time of the last request; 0: the run is not stopped
		why         string
		until       time.Duration // when the grant expires; 0: the grant does not expire
	}{
		"expired, and the question hangs": {asked: func(d time.Duration) error {
			if d > time.Second {
				time.Sleep(time.Minute)
			}
			return nil
		}, until: at, last: at + 10*time.Millisecond, why: "the load grant expired"},
		"holds":   {},
		"revoked": {asked: func(d time.Duration) error { return after(d, at, errRevoked) }, last: at + time.Second, why: "the load grant was revoked"},
		"refused": {sent: func(d time.Duration) error { return after(d, at, errRevoked) }, last: at + 100*time.Millisecond, why: "the load grant was revoked"},
		"worse providers": {
			asked: func(d time.Duration) error {
				return after(d, at, &notify.Error{Kind: notify.KindConflict, Code: "load_providers", Msg: "real ones"})
			}, last: at + time.Second, why: "real ones",
		},
		"rate used up": {sent: func(d time.Duration) error {
			return after(d, at, &notify.Error{Kind: notify.KindThrottled, Code: "load_rate", Msg: "used up"})
		}},
		"away for a while": {asked: func(d time.Duration) error {
			if d > at && d < at+8*time.Second {
				return away
			}
			return nil
		}},
		"away": {asked: func(d time.Duration) error { return after(d, at, away) }, last: at + 11*time.Second, why: "the target has not confirmed the load grant in the last 10s: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				tg := &target{latency: time.Millisecond}
				if c.sent != nil {
					tg.fail = func(int) error { return c.sent(time.Since(began)) }
				}
				var until time.Time
				if c.until > 0 {
					until = began.Add(c.until)
				}
				res := drive(t, Scenario{Name: "s", Duration: Duration(20 * time.Second), Steps: []Step{{Name: "one", Rate: 100, Workers: 4}}}, Config{
					Target: tg, health: still, ConsentUntil: until, Consent: func(context.Context) error {
						if c.asked == nil {
							return nil
						}
						return c.asked(time.Since(began))
					},
				})
				last := tg.at[len(tg.at)-1].Sub(began)
				if c.last == 0 {
					if len(tg.at) < 1990 || res.Partial {
						t.Errorf("%d requests, the last after %v: %s", len(tg.at), last, res.Stopped)
					}
					return
				}
				if last > c.last || last < at-20*time.Millisecond || !res.Partial || !strings.Contains(res.Stopped, c.why) || res.Exit != term.ExitInterrupt {
					t.Errorf("the last request went after %v; partial %v: %q, exit %d", last, res.Partial, res.Stopped, res.Exit)
				}
			})
		})
	}
}

func after(since, at time.Duration, err error) error {
	if since < at {
		return nil
	}
	return err
}

// TestCheckGrant checks that CheckGrant returns an error for a scenario that needs more than the grant
// allows.
func TestCheckGrant(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(trace, []byte("0\n0.5\n0.9\n1.45\n1.48\n1.49\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := api.LoadGrant{Rate: 1000, Targets: []string{"push", "trigger"}}
	for name, c := range map[string]struct {
		step  Step
		field string // field that the error names; empty: the grant allows the step
	}{
		"at the rate":          {Step{Rate: 1000}, ""},
		"above the rate":       {Step{Rate: 1010}, "rate"},
		"peak above the rate":  {Step{Arrival: Arrival{Shape: "spike", Rate: 10, Peak: 1100}}, "rate"},
		"ramp above the rate":  {Step{Arrival: Arrival{Shape: "ramp", From: 10, To: 1100}}, "rate"},
		"level above the rate": {Step{Arrival: Arrival{Shape: "steps", Levels: []Level{{Rate: 10, For: 1}, {Rate: 2000, For: 1}}}}, "rate"},
		"trace within":         {Step{Size: 200, Target: Batch, Arrival: Arrival{Shape: "trace", File: trace}}, ""},
		"trace above":          {Step{Size: 300, Target: Batch, Arrival: Arrival{Shape: "trace", File: trace}}, "rate"},
		"closed loop":          {Step{Count: 10}, "rate"},
		"another channel":      {Step{Rate: 10, Channel: "sms"}, "targets"},
		"null":                 {Step{Rate: 1e6, Target: Null, Channel: "sms"}, ""},
		"kafka":                {Step{Rate: 10, Target: Kafka}, "target"},
		"mix within":           {Step{Rate: 10, Mix: []Share{{Channel: "push", Weight: 1}}}, ""},
		"mix of another":       {Step{Rate: 10, Mix: []Share{{Channel: "push", Weight: 1}, {Channel: "sms", Weight: 1}}}, "targets"},
		"large requests":       {Step{Rate: 1000, Target: Fanout, Size: 10_001, Users: Users{Count: 20_000}}, "size"},
	} {
		c.step.Name = "one"
		err := CheckGrant(Scenario{Name: "s", Duration: Duration(10 * time.Second), Steps: []Step{c.step}}, &g)
		e, ok := errors.AsType[*notify.Error](err)
		if (c.field == "") != (err == nil) || ok && (e.Code != "load_grant_exceeded" || e.Field != c.field) {
			t.Errorf("%s: %v", name, err)
		}
	}
	replay := Scenario{Name: "s", Phases: []PhaseSpec{{Name: "p", Duration: Duration(time.Second), Steps: []Step{{Name: "a", Rate: 1}}, Faults: []FaultSpec{{Action: "replay"}}}}}
	if err := CheckGrant(replay, &g); err == nil {
		t.Error("a replay of all callers' dead letters is allowed")
	}
	two := Scenario{Name: "s", Duration: Duration(time.Second), Steps: []Step{{Name: "a", Rate: 600}, {Name: "b", Rate: 600}}}
	if err := CheckGrant(two, &g); err == nil {
		t.Error("two steps side by side, above the rate together, are allowed")
	}
}
