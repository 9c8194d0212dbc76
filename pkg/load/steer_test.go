package load

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// TestSteerClock checks that due times and the number of due requests agree after any changes.
func TestSteerClock(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s, at := newSteer(), time.Duration(0)
		for range rng.IntN(6) {
			at += time.Duration(rng.IntN(5000)) * time.Millisecond
			s.setPace(at, rng.IntN(3) == 0, 0.1+3*rng.Float64())
		}
		begin := time.Duration(rng.IntN(5000)) * time.Millisecond
		for range 50 {
			c := time.Duration(rng.Int64N(int64(20 * time.Second)))
			due, _ := s.runTimeOf(begin, c)
			if due == never {
				if s.clockBetween(begin, time.Hour) > c {
					t.Fatalf("seed %d: %v is never due, and the clock passes it", seed, c)
				}
				continue
			}
			// Due times are rounded to nanoseconds, and the pace is 0.1 or more.
			if got := s.clockBetween(begin, due); got < c-10 || got > c+10 {
				t.Fatalf("seed %d: %v is due at %v, when it is %v: %+v", seed, c, due, got, s.paceChanges)
			}
		}
	}
}

// TestSteered checks that nothing becomes due while a run is paused, and twice as much at twice the
// pace. The run measured no planned rate, and its result says so.
func TestSteered(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{4, 64} {
		synctest.Test(t, func(t *testing.T) {
			tg := &target{latency: time.Millisecond}
			step := Step{Name: "one", Rate: 100, Workers: workers}
			s := Scenario{
				Name: "s", Phases: []PhaseSpec{{Name: "a", Duration: Duration(10 * time.Second), Steps: []Step{step}}, {Name: "b", Duration: Duration(time.Second), Steps: []Step{step}}},
				Thresholds: []Threshold{{Expr: "response.p99 < 1s"}, {Expr: "duplicates == 0"}},
			}
			r, err := New(s, Config{Target: tg, Steerable: true, health: still})
			if err != nil {
				t.Fatal(err)
			}
			ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
			time.AfterFunc(ms(2005), func() { r.Pause(true); r.Pause(true) })
			time.AfterFunc(ms(5005), func() { r.Pause(false) })
			time.AfterFunc(ms(7005), func() { r.Pace(2) })
			time.AfterFunc(ms(9995), func() { r.Pace(0.5) })
			began := time.Now()
			res, err := r.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// The run sends for 2 s, pauses for 3 s, sends for 2 s, and sends at twice the rate for 3 s. Then
			// phase b follows.
			per := map[int]int{}
			for _, at := range tg.at {
				per[int(at.Sub(began).Seconds())]++
			}
			for sec, want := range []int{100, 100, 1, 0, 0, 99, 100, 200, 200, 200, 100} {
				if got := per[sec]; got < want-2 || got > want+2 {
					t.Errorf("%d workers: %d in second %d, not %d", workers, got, sec, want)
				}
			}
			slices.Sort(tg.seqs)
			if n := len(slices.Compact(slices.Clone(tg.seqs))); n != len(tg.seqs) {
				t.Errorf("%d of %d numbers were sent twice", len(tg.seqs)-n, len(tg.seqs))
			}
			if res.Totals.Intended != res.Totals.Sent || res.Steps[0].Response.Max > int64(ms(20)) {
				t.Errorf("%+v, %+v", res.Totals, res.Steps[0].Response)
			}
			if res.Verdict.Code != Inconclusive || !strings.Contains(strings.Join(res.Verdict.Reasons, ";"), "by hand: paused for 3s and at another rate") {
				t.Errorf("%+v", res.Verdict)
			}
			if th := res.Thresholds[0]; th.Known || th.OK || res.Exit != term.ExitSLO {
				t.Errorf("%+v, exit %d", th, res.Exit)
			}
			var said []string
			for _, m := range res.Markers {
				if m.Kind == "steer" {
					said = append(said, m.Text)
				}
			}
			if got := strings.Join(said, ", "); got != "paused, rate 100%, rate 200%, rate 100%" || len(res.Steered) != 4 {
				t.Errorf("marked %s, %+v", got, res.Steered)
			}
		})
	}
}

// TestNotSteered checks that a steerable run without changes sends the same messages as a run that cannot
// be steered. It also checks that a segment cannot be steered.
func TestNotSteered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seqs [2][]uint64
		for i, steerable := range []bool{false, true} {
			tg := &target{}
			step := Step{Name: "one", Rate: 500, Arrival: Arrival{Shape: "poisson", Rate: 500}, Workers: 8}
			s := Scenario{Name: "s", Phases: []PhaseSpec{{Name: "a", Duration: Duration(2 * time.Second), Steps: []Step{step}}, {Name: "b", Duration: Duration(time.Second), Steps: []Step{step}}}}
			res := drive(t, s, Config{Target: tg, Steerable: steerable})
			slices.Sort(tg.seqs)
			if seqs[i] = tg.seqs; res.Verdict.Code != Valid || len(res.Steered) != 0 {
				t.Errorf("%+v", res.Verdict)
			}
		}
		if !slices.Equal(seqs[0], seqs[1]) {
			t.Errorf("%d and %d messages", len(seqs[0]), len(seqs[1]))
		}
		r, err := New(SingleStep("s", time.Second, Step{Rate: 1}), Config{Target: &target{}, Steerable: true, Segment: Segment{1, 2}})
		if err != nil || r.Steerable() {
			t.Errorf("a segment: %v", err)
		}
	})
}

// TestPausedOthers checks that closed loops and bulk messages stop while the run is paused.
func TestPausedOthers(t *testing.T) {
	t.Parallel()
	for _, step := range []Step{{Workers: 2}, {Target: Null, Workers: 2}, {Target: Null, Rate: 1000, Workers: 2}} {
		synctest.Test(t, func(t *testing.T) {
			r, err := New(SingleStep("s", 6*time.Second, step), Config{Target: &target{latency: 10 * time.Millisecond}, Steerable: true, health: still})
			if err != nil {
				t.Fatal(err)
			}
			if step.Target == Null && step.Rate == 0 {
				return // a closed loop to the null sink never waits, so no time would pass in the bubble
			}
			time.AfterFunc(1005*time.Millisecond, func() { r.Pause(true) })
			time.AfterFunc(4005*time.Millisecond, func() { r.Pause(false) })
			res, err := r.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range res.Seconds {
				if paused := i == 2 || i == 3; row.Sent > 0 == paused && i < 6 {
					t.Errorf("%s: %d sent in second %d", step.Target, row.Sent, i)
				}
			}
		})
	}
}

// TestSteerPausedAtTheBegin checks a phase that begins while the run is paused. It sends nothing until
// the pause ends, not even messages that are due at the start of the phase. In a phase that began before
// the pause, a message that is due at the moment of the pause becomes due at that moment.
func TestSteerPausedAtTheBegin(t *testing.T) {
	t.Parallel()
	s := newSteer()
	s.setPace(time.Second, true, 1)
	for _, begin := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if due, _ := s.runTimeOf(begin, 0); due != never {
			t.Errorf("paused since 1s, a phase from %v sends its first at %v", begin, due)
		}
	}
	s.setPace(3*time.Second, true, 2) // the pace changes during the pause
	s.setPace(5*time.Second, false, 2)
	for begin, want := range map[time.Duration]time.Duration{
		0: 0, time.Second: 4 * time.Second, 2 * time.Second: 3 * time.Second, 4 * time.Second: time.Second, 6 * time.Second: 0,
	} {
		if due, _ := s.runTimeOf(begin, 0); due != want {
			t.Errorf("it went on at 5s: a phase from %v sends its first at %v, want %v", begin, due, want)
		}
	}
	if due, _ := s.runTimeOf(0, time.Second); due != time.Second {
		t.Errorf("what was due when the pause began is due at %v", due)
	}
}

// TestSteeredSegments checks that the segments of a steered run never send a message number twice. This
// also holds in later phases, after each segment has sent a different number of messages.
func TestSteeredSegments(t *testing.T) {
	t.Parallel()
	step := Step{Name: "one", Rate: 100, Workers: 4}
	phase := func(name string) PhaseSpec {
		return PhaseSpec{Name: name, Duration: Duration(time.Second), Steps: []Step{step}}
	}
	s := Scenario{Name: "s", Phases: []PhaseSpec{phase("a"), phase("b"), phase("c")}}
	seen := map[uint64]int{}
	for i := range 3 {
		synctest.Test(t, func(t *testing.T) {
			tg := &target{latency: time.Millisecond}
			r, err := New(s, Config{Target: tg, Steerable: true, Segment: Segment{i + 1, 3}, Report: func(*Frame, error) {}, health: still})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(300*time.Millisecond, func() { r.Steer(SteerState{Pace: 1.5 + float64(i)/10}) })
			if _, err := r.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, seq := range tg.seqs {
				seen[seq]++
			}
		})
	}
	twice := 0
	for _, n := range seen {
		if n > 1 {
			twice++
		}
	}
	if twice > 0 || len(seen) < 400 {
		t.Errorf("%d of %d numbers were sent twice", twice, len(seen))
	}
}
