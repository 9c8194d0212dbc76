package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// uneven returns a response time between 1 and 97 ms that depends only on the message's number.
func uneven(seq uint64) (time.Duration, error) {
	return time.Duration(seq*7919%97+1) * time.Millisecond, nil
}

// TestMerged checks that three agents together have the same counts and the same histograms as one
// generator, and that the ledger finds all their messages.
func TestMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		for _, f := range w.agents {
			f.answer = uneven
		}
		s := scenario(300, 5*time.Second, "lost == 0", "duplicates == 0")
		got := w.run(t.Context(), s, nil)

		alone := newWorld(t, "alone").agents["alone"]
		alone.answer = uneven
		one, err := load.New(s, load.Config{Target: alone, Ledger: alone.seen})
		if err != nil {
			t.Fatal(err)
		}
		want, err := one.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if g, w := got.Totals, want.Totals; g != w || g.Sent != 1500 || g.Delivered != 1500 {
			t.Errorf("totals\n%+v, of one generator\n%+v", g, w)
		}
		g, o := &got.Steps[0], &want.Steps[0]
		if g.Histograms.Response != o.Histograms.Response || g.Histograms.Service != o.Histograms.Service || g.Response != o.Response {
			t.Errorf("response %+v, of one generator %+v", g.Response, o.Response)
		}
		if g.EndToEnd != o.EndToEnd || g.EndToEnd.Count != 1500 {
			t.Errorf("end to end %+v, of one generator %+v", g.EndToEnd, o.EndToEnd)
		}
		if got.Verdict.Code != load.Valid || got.Exit != 0 || got.Ledger.Lost+got.Ledger.Unexpected+got.Ledger.Pending != 0 {
			t.Errorf("%+v, exit %d, %+v", got.Verdict, got.Exit, got.Ledger)
		}
		for _, a := range got.Agents {
			if a.State != load.AgentDone || a.Sent != 500 || a.Offset.Abs() > time.Millisecond {
				t.Errorf("%+v", a)
			}
		}
		// The figures of every second contain one frame of each agent.
		for i := range 5 {
			if row := &got.Seconds[i]; row.Sent < 280 || row.Sent > 340 || row.Intended < 290 || row.Intended > 340 {
				t.Errorf("second %d: %d intended, %d sent", i, row.Intended, row.Sent)
			}
		}
		if got.Sending < 5*time.Second || got.Sending > 5200*time.Millisecond {
			t.Errorf("sending took %v", got.Sending)
		}
	})
}

// TestThresholdsOfAll checks that thresholds are judged on the sum of all agents. The run misses the
// first threshold, which each agent alone would meet. It meets the second threshold, which agent c
// alone would miss.
func TestThresholdsOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		for _, f := range w.agents {
			f.answer = func(seq uint64) (time.Duration, error) {
				if seq%100 < 3 { // about 5 of the 166 messages of each agent
					return time.Millisecond, errors.New("refused")
				}
				if f.name == "c" && seq%50 == 11 { // 2.4% of the messages of agent c, 0.8% of all messages
					return 100 * time.Millisecond, nil
				}
				return time.Millisecond, nil
			}
		}
		res := w.run(t.Context(), scenario(100, 5*time.Second, "failed < 10", "response.p99 < 50ms"), nil)
		if th := res.Thresholds; th[0].OK || th[0].Value != 15 || !th[1].OK || !th[1].Known {
			t.Errorf("%+v", th)
		}
	})
}

// TestThresholdAborts checks that a missed threshold with Abort stops the agents, within about a
// second of the first failures. The figures include the requests that were under way.
func TestThresholdAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		began := time.Now()
		for _, f := range w.agents {
			f.answer = func(seq uint64) (time.Duration, error) {
				if seq >= 330 { // due after 3.3 s
					return 10 * time.Millisecond, errors.New("refused")
				}
				return 10 * time.Millisecond, nil
			}
		}
		s := scenario(100, time.Minute, "failed < 10")
		s.Thresholds[0].Abort = true
		res := w.run(t.Context(), s, nil)
		if res.Sending < 3300*time.Millisecond || res.Sending > 5*time.Second || time.Since(began) > 20*time.Second || !res.Partial || res.Thresholds[0].OK {
			t.Errorf("it stopped after %v, %q, %+v", res.Sending, res.Stopped, res.Thresholds)
		}
		sent := 0
		for _, f := range w.agents {
			sent += len(f.sent())
		}
		for _, a := range res.Agents { // the controller has stopped the agents, so none of them is lost
			if a.State != load.AgentDone {
				t.Errorf("%+v", a)
			}
		}
		if int64(sent) != res.Totals.Sent || res.Ledger.Delivered != 330 || res.Ledger.Unexpected != 0 {
			t.Errorf("%d were sent: %+v, %+v", sent, res.Totals, res.Ledger)
		}
	})
}

// TestAgentDies checks that the other agents continue if one agent dies. The verdict names the dead
// agent, the time, and the share of the load that was not sent. Messages that the dead agent sent
// after its last frame do not count as unexpected.
func TestAgentDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		res := w.run(t.Context(), scenario(300, 10*time.Second), func(*load.Run) {
			time.AfterFunc(4700*time.Millisecond, w.agents["b"].die)
		})
		tot := &res.Totals
		if tot.Intended != 3000 || tot.Sent < 2300 || tot.Sent > 2450 {
			t.Errorf("%d intended, %d sent", tot.Intended, tot.Sent)
		}
		b := &res.Agents[1]
		if b.State != load.AgentLost || b.LostAt < 4*time.Second || b.LostAt > 5*time.Second || b.NotSent != 1000-b.Sent || b.Sent < 300 || b.Sent > 480 {
			t.Errorf("%+v", b)
		}
		if v := &res.Verdict; v.Code != load.Inconclusive || !strings.Contains(v.Reasons[0], "agent 127.0.0.1:2 was lost at 4.") || !strings.Contains(v.Reasons[0], "1/3 of the load") {
			t.Errorf("%+v", v)
		}
		if l := &res.Ledger; l.Unexpected != 0 || l.Lost != 0 || l.Expected != tot.Sent {
			t.Errorf("%+v", l)
		}
		if n := len(w.agents["b"].sent()); int64(n) <= b.Sent {
			t.Errorf("the agent sent %d and reported %d: nothing was left to be told", n, b.Sent)
		}
		if n := len(w.agents["a"].sent()); n != 1000 {
			t.Errorf("a sent %d", n)
		}
	})
}

// TestAgentIsStopped checks that the verdict also names an agent that a user stopped. The controller
// gets the figures of all messages that this agent sent.
func TestAgentIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		res := w.run(t.Context(), scenario(100, 6*time.Second), func(*load.Run) {
			time.AfterFunc(3300*time.Millisecond, w.agents["b"].stop)
		})
		b := &res.Agents[1]
		if b.State != load.AgentLost || b.LostBecause != "the agent was stopped: by hand" || b.Sent != int64(len(w.agents["b"].sent())) || b.Sent+b.NotSent != 300 {
			t.Errorf("%+v", b)
		}
		if v := &res.Verdict; v.Code != load.Inconclusive || !strings.Contains(v.Reasons[0], "agent 127.0.0.1:2 was lost at 3.") {
			t.Errorf("%+v", v)
		}
	})
}

// TestAgentIsSilent checks that an agent is lost if it sends nothing for 3 s, although its connection
// is open.
func TestAgentIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		res := w.run(t.Context(), scenario(100, 12*time.Second), func(*load.Run) {
			time.AfterFunc(4700*time.Millisecond, func() { w.agents["b"].frozen.Store(true) })
		})
		b := &res.Agents[1]
		if b.State != load.AgentLost || b.LostAt < 7*time.Second || b.LostAt > 8*time.Second || b.LostBecause != "it was silent for 3s" || b.NotSent == 0 || res.Totals.Sent != 1200-b.NotSent {
			t.Errorf("%+v, %+v", b, res.Totals)
		}
		// After the silent agent was lost, the figures of the other agent are complete again.
		for i, row := range res.Seconds[:11] {
			if row.Second != i || i > 8 && (row.Sent < 45 || row.Sent > 55) {
				t.Errorf("%+v", row)
			}
		}
	})
}

// TestAllAgentsDie checks that the run ends when all agents have died, and returns its figures.
func TestAllAgentsDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		began := time.Now()
		res := w.run(t.Context(), scenario(100, time.Minute), func(*load.Run) {
			time.AfterFunc(3500*time.Millisecond, func() { w.agents["a"].die(); w.agents["b"].die() })
		})
		if res.Stopped != load.ErrNoAgents.Error() || res.Exit != 1 || !res.Partial || res.Totals.Sent < 200 || time.Since(began) > 20*time.Second {
			t.Errorf("%q after %v, %+v", res.Stopped, time.Since(began), res.Totals)
		}
	})
}

// TestAgentIsBound checks that the verdict names the agent that limits the rate.
func TestAgentIsBound(t *testing.T) {
	t.Parallel()
	e := load.Evidence{Intended: 1000, Sent: 1000, Messages: 1000, Sending: time.Minute, Seconds: 60, Waiting: 1}
	bound := e
	bound.Late = 30
	e.Agents = []load.AgentEvidence{{Name: "a", Own: e}, {Name: "b", Own: bound}}
	if v := load.Judge(&e); v.Code != load.GeneratorBound || len(v.Reasons) != 1 || !strings.HasPrefix(v.Reasons[0], "agent b: it woke late") {
		t.Errorf("%+v", v)
	}
}

// TestSteer checks that a pause and a change of the pace at the controller reach every agent, and that
// the result lists them.
func TestSteer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		began := time.Time{}
		res := w.run(t.Context(), scenario(100, 10*time.Second), func(r *load.Run) {
			began = time.Now()
			time.AfterFunc(3*time.Second, func() { r.Pause(true) })
			time.AfterFunc(6*time.Second, func() { r.Pause(false); r.Pace(2) })
		})
		per := map[int]int{}
		for _, f := range w.agents {
			for _, at := range f.sent() {
				per[int(at.Sub(began).Seconds())]++
			}
		}
		for sec, want := range map[int]int{1: 100, 2: 100, 4: 0, 5: 0, 7: 200, 8: 200} {
			if per[sec] < want-2 || per[sec] > want+2 {
				t.Errorf("%d sent in second %d, not %d", per[sec], sec, want)
			}
		}
		if res.Verdict.Code != load.Inconclusive || len(res.Steered) != 3 && len(res.Steered) != 2 {
			t.Errorf("%+v, %+v", res.Verdict, res.Steered)
		}
		if d := res.Totals.Intended - res.Totals.Sent; d < -5 || d > 5 {
			t.Errorf("%+v", res.Totals)
		}
	})
}

// TestPhases checks that a phase begins on all agents at the same time, after all agents have sent the
// previous phase.
func TestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.agents["b"].answer = func(uint64) (time.Duration, error) { return 500 * time.Millisecond, nil }
		step := load.Step{Name: "one", Rate: 100, Count: 200, Workers: 10}
		s := load.Scenario{Name: "s", Phases: []load.PhaseSpec{{Name: "first", Steps: []load.Step{step}}, {Name: "second", Steps: []load.Step{step}}}}.WithDefaults()
		res := w.run(t.Context(), s, nil)
		if res.Totals.Sent != 400 || res.Totals.Intended != 400 || res.Ledger.Delivered != 400 {
			t.Errorf("%+v", res.Totals)
		}
		a, b := w.agents["a"].sent(), w.agents["b"].sent()
		if len(a) != 200 || len(b) != 200 || a[100].Before(b[99]) || a[100].Sub(b[100]).Abs() > 20*time.Millisecond {
			t.Errorf("a went on at %v, b ended at %v and went on at %v", a[100], b[99], b[100])
		}
	})
}

// TestClocks checks that an agent with a clock that is 700 ms wrong begins at the same moment as the
// other agent. Dial refuses an agent whose clock differs too much or is not known exactly enough.
func TestClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.agents["b"].Now = func() time.Time { return time.Now().Add(-700 * time.Millisecond) }
		res := w.run(t.Context(), scenario(100, 2*time.Second), nil)
		if got := res.Agents[1].Offset; got < -701*time.Millisecond || got > -699*time.Millisecond {
			t.Errorf("the clock is off by %v", got)
		}
		if a, b := w.agents["a"].sent()[0], w.agents["b"].sent()[0]; a.Sub(b).Abs() > 20*time.Millisecond {
			t.Errorf("a began at %v, b at %v", a, b)
		}
		for why, now := range map[string]func() time.Time{
			"clock: differs from this machine's clock by -2s":                                               func() time.Time { return time.Now().Add(-2 * time.Second) },
			"clock: cannot be compared with this machine's clock: the shortest of 8 round trips took 300ms": func() time.Time { time.Sleep(300 * time.Millisecond); return time.Now() },
		} {
			w.agents["b"].Now = now
			s := scenario(1, time.Second)
			if _, err := Dial(t.Context(), w.options(&s)); err == nil || !strings.Contains(err.Error(), "agent 127.0.0.1:2: "+why) || notify.KindOf(err) != notify.KindInvalid {
				t.Errorf("%v, not %q", err, why)
			}
		}
	})
}
