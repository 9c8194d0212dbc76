package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target answers like the API. It stores the bodies of the requests and the times of their arrival.
type target struct {
	mu      sync.Mutex
	bodies  []string
	at      []time.Time
	seqs    []uint64
	ids     []string // acknowledged
	latency time.Duration
	fail    func(n int) error
	stall   func(at time.Time) time.Duration // extra time of an answer, in addition to latency
}

func (t *target) Send(_ context.Context, r *Request) (Ack, error) {
	t.mu.Lock()
	t.bodies = append(t.bodies, string(r.Body))
	t.at = append(t.at, time.Now())
	t.seqs = append(t.seqs, r.Seq)
	n := len(t.bodies)
	t.mu.Unlock()
	d := t.latency
	if t.stall != nil {
		d += t.stall(time.Now())
	}
	time.Sleep(d) // simulated time of the bubble
	if t.fail != nil {
		if err := t.fail(n); err != nil {
			return Ack{}, err
		}
	}
	a := Ack{Accepted: r.Size}
	if r.WantIDs {
		items := notify.NewBase(time.Now()).Items()
		for i := range r.Size {
			a.IDs = append(a.IDs, notify.ID{Base: items.Item(i)}.String())
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.ids = append(t.ids, a.IDs...)
	}
	return a, nil
}

func (t *target) acked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ids)
}

// still is the health of a generator without problems.
func still() Health { return Health{CPU: 0.1, CPUs: 8} }

func drive(t *testing.T, s Scenario, cfg Config) *Result {
	t.Helper()
	if cfg.health == nil {
		cfg.health = still
	}
	r, err := New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestOpenLoop checks that a slow server does not slow the schedule down: latency counts from the due
// time.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{latency: 100 * time.Millisecond}
		res := drive(t, SingleStep("t", time.Second, Step{Rate: 100, Workers: 5}), Config{Target: tg})
		if res.Totals.Sent != 100 || res.Totals.Acked != 100 || res.Totals.Intended != 100 {
			t.Fatalf("%+v", res.Totals)
		}
		// Five workers handle 50 of 100 messages a second. So the last message is due after 1 s and done
		// after 2 s.
		s := &res.Steps[0]
		if got := time.Duration(s.Response.Max); got < 950*time.Millisecond {
			t.Errorf("response max %v hides the wait", got)
		}
		if got := time.Duration(s.Service.Max); got > 110*time.Millisecond {
			t.Errorf("service max %v", got)
		}
		if got := time.Duration(s.Lag.Max); got < 850*time.Millisecond {
			t.Errorf("lag max %v", got)
		}
	})
}

// TestBulkSleeps checks that a bulk worker sleeps, and then reserves all messages of a slot at once. This
// also holds if the next message is due before the worker has made the previous message. Then the median
// lag is half a slot. The test runs in real time, because in a bubble no time passes while the worker
// works.
func TestBulkSleeps(t *testing.T) {
	res := drive(t, SingleStep("t", 200*time.Millisecond, Step{Target: Null, Rate: 5e6, Workers: 1}), Config{})
	if s := &res.Steps[0]; s.Lag.P50 < int64(bulkSlot)/4 || res.Totals.Sent != 1_000_000 {
		t.Errorf("sent %d, the middle one %v after it was due", res.Totals.Sent, time.Duration(s.Lag.P50))
	} else if s.Response.P50 < s.Lag.P50 {
		t.Errorf("a response of %v from when a message was due, sent %v after that", time.Duration(s.Response.P50), time.Duration(s.Lag.P50))
	}
}

// TestBulkWorkersShare checks that exactly one worker sends each message, with any number of workers.
func TestBulkWorkersShare(t *testing.T) {
	for _, rate := range []Number{5e6, 1e9} {
		res := drive(t, SingleStep("t", 300*time.Millisecond, Step{Target: Null, Rate: rate, Workers: 16, Count: 1_000_000}), Config{})
		if s := &res.Totals; s.Sent != 1_000_000 || s.Delivered != 1_000_000 || s.Duplicates != 0 || s.Lost != 0 {
			t.Errorf("at %v: sent %d, delivered %d, duplicates %d, lost %d", rate, s.Sent, s.Delivered, s.Duplicates, s.Lost)
		}
	}
}

// TestStallShowsInResponse stalls the target for two seconds. The messages that become due during the
// stall must wait, so their response times are long. Service times are measured from the moment of
// sending, so only the few requests under way show the stall there.
func TestStallShowsInResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		tg := &target{latency: time.Millisecond, stall: func(at time.Time) time.Duration {
			if d := at.Sub(began); d >= 3*time.Second && d < 5*time.Second {
				return 5*time.Second - d
			}
			return 0
		}}
		res := drive(t, SingleStep("t", 10*time.Second, Step{Rate: 1000, Workers: 8}), Config{Target: tg})
		s := &res.Steps[0]
		if s.Response.Count != 10_000 {
			t.Fatalf("%d messages", s.Response.Count)
		}
		// A fifth of the messages were due during the stall, so the slowest tenth
		// waited for more than a second of it.
		if got := time.Duration(s.Response.P90); got < 900*time.Millisecond {
			t.Errorf("response p90 %v does not show the stall", got)
		}
		if got := time.Duration(s.Service.P99); got > 5*time.Millisecond {
			t.Errorf("service p99 %v: only eight were under way", got)
		}
		if got := res.Seconds[4].Response.P50; got != 0 && time.Duration(got) < 100*time.Millisecond {
			t.Errorf("second 4: response p50 %v", time.Duration(got))
		}
	})
}

func TestPhasesFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{}
		began := time.Now()
		st := Step{Name: "a", Rate: 10}
		res := drive(t, Scenario{Name: "t", Phases: []PhaseSpec{
			{Name: "one", Warmup: true, Duration: Duration(time.Second), Steps: []Step{st}},
			{Name: "two", Duration: Duration(2 * time.Second), Steps: []Step{st, {Name: "b", Rate: 5, Start: Duration(time.Second)}}},
		}, Thresholds: []Threshold{{Expr: "response.count == 25"}, {Expr: "response{phase=one}.count == 10"}}}, Config{Target: tg})
		if res.Totals.Sent != 35 || len(res.Steps) != 3 || res.Exit != 0 {
			t.Fatalf("%+v %+v", res.Totals, res.Thresholds)
		}
		for i, at := range tg.at[:10] {
			if want := time.Duration(i) * 100 * time.Millisecond; at.Sub(began) != want {
				t.Errorf("request %d came at %v, want %v", i, at.Sub(began), want)
			}
		}
		// The second phase continues the numbers of the first phase, so no message is sent twice.
		seen := map[string]bool{}
		for _, b := range tg.bodies {
			if seen[b] {
				t.Errorf("sent twice: %s", b)
			}
			seen[b] = true
		}
		if res.Sending != 3*time.Second {
			t.Errorf("sending took %v", res.Sending)
		}
	})
}

// TestRepeatsUnderItsKey checks that a failed request is repeated with its key until it has an answer, if
// Config.Keys is set.
func TestRepeatsUnderItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{fail: func(n int) error {
			if n <= 3 {
				return notify.Unavailable("log", time.Second, nil)
			}
			return nil
		}}
		res := drive(t, SingleStep("t", 0, Step{Rate: 10, Count: 1, Workers: 1}), Config{Target: tg, Keys: func(n int64) string { return fmt.Sprint(n) }})
		if res.Totals.Acked != 1 || len(tg.bodies) != 4 {
			t.Fatalf("%+v, %d requests", res.Totals, len(tg.bodies))
		}
	})
}

// TestSegments checks that the segments of a run send the same messages at the same times as the
// whole run, and that their histograms add up to its histograms.
func TestSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3
		s := Scenario{Name: "t", Seed: 7, Phases: []PhaseSpec{
			{Name: "one", Duration: Duration(time.Second), Steps: []Step{
				{Name: "a", Target: Batch, Size: 7, Rate: 1000, Arrival: Arrival{Shape: "poisson"}},
				{Name: "b", Arrival: Arrival{Shape: "ramp", To: 100}, Users: Users{Pick: "zipf"}},
				{Name: "c", Target: Null, Rate: 5000},
			}},
			{Name: "two", Duration: Duration(time.Second), Steps: []Step{{Name: "a", Target: Batch, Size: 7, Rate: 500, Count: 100}}},
		}}
		latency := 3 * time.Millisecond
		whole := &target{latency: latency}
		want := drive(t, s, Config{Target: whole})
		var parts []*Result
		var tgs []*target
		start := time.Now().Add(time.Second)
		var wg sync.WaitGroup
		for i := range n {
			tg := &target{latency: latency}
			r, err := New(s, Config{Target: tg, Segment: Segment{i + 1, n}, StartAt: start, health: still})
			if err != nil {
				t.Fatal(err)
			}
			tgs = append(tgs, tg)
			parts = append(parts, nil)
			wg.Go(func() {
				res, err := r.Run(t.Context())
				if err != nil {
					t.Error(err)
				}
				parts[i] = res
			})
		}
		wg.Wait()
		bodies := map[string]int{}
		for _, b := range whole.bodies {
			bodies[b]++
		}
		var sum Totals
		for i, tg := range tgs {
			for _, b := range tg.bodies {
				bodies[b]--
			}
			p := &parts[i].Totals
			sum.Intended += p.Intended
			sum.Sent += p.Sent
			sum.Acked += p.Acked
			sum.Delivered += p.Delivered
			if p.Sent < want.Totals.Sent/n*8/10 {
				t.Errorf("segment %d sent %d of %d", i+1, p.Sent, want.Totals.Sent)
			}
		}
		for b, k := range bodies {
			if k != 0 {
				t.Fatalf("%+d times: %s", k, b)
			}
		}
		if sum != want.Totals {
			t.Errorf("parts %+v\nwhole %+v", sum, want.Totals)
		}
		for i := range want.Steps {
			h := NewHistogram()
			for _, p := range parts {
				one, err := DecodeHistogram(p.Steps[i].Histograms.Response)
				if err != nil {
					t.Fatal(err)
				}
				h.Merge(one)
			}
			all, err := DecodeHistogram(want.Steps[i].Histograms.Response)
			if err != nil {
				t.Fatal(err)
			}
			// The histograms of a null step depend on when its workers woke, so they are not compared.
			if want.Steps[i].Target != Null && !h.Equals(all) {
				t.Errorf("step %s of %s: %+v, want %+v", want.Steps[i].Name, want.Steps[i].Phase, QuantilesOf(h), QuantilesOf(all))
			}
			if h.TotalCount() != all.TotalCount() {
				t.Errorf("step %s: %d messages, want %d", want.Steps[i].Name, h.TotalCount(), all.TotalCount())
			}
		}
	})
}

// TestStopped checks that a stopped run returns its figures, marked as partial.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tg := &target{latency: time.Millisecond, stall: func(time.Time) time.Duration { return 0 }}
		r, err := New(SingleStep("t", time.Hour, Step{Rate: 100}), Config{Target: tg, health: still})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, cancel)
		began := time.Now()
		res, err := r.Run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 6*time.Second {
			t.Errorf("it went on for %v", d)
		}
		if !res.Partial || res.Exit != 130 || res.Totals.Acked < 490 || res.Totals.Acked > 510 || res.Verdict.Code != Inconclusive {
			t.Errorf("%v exit %d %+v %+v", res.Partial, res.Exit, res.Totals, res.Verdict)
		}
	})
}

// TestFailuresAreCounted checks that equal errors are counted together, and that the verdict is SinkBound
// if a fifth of the messages fail.
func TestFailuresAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := &target{fail: func(n int) error {
			if n%10 == 0 {
				return notify.Unavailable("log", 0, nil)
			}
			if n%10 == 1 {
				return context.DeadlineExceeded
			}
			return nil
		}}
		res := drive(t, SingleStep("t", 2*time.Second, Step{Rate: 100}), Config{Target: tg})
		if res.Totals.Failed != 40 || res.Totals.Acked != 160 || len(res.Errors) != 2 {
			t.Fatalf("%+v %+v", res.Totals, res.Errors)
		}
		for _, e := range res.Errors {
			if e.Count != 20 || (e.Code != "log" && e.Code != "timeout") || e.Last.IsZero() {
				t.Errorf("%+v", e)
			}
		}
		if res.Verdict.Code != SinkBound {
			t.Errorf("%+v", res.Verdict)
		}
	})
}

// TestAbort checks that a threshold with abort ends the run.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		tg := &target{latency: time.Millisecond, stall: func(at time.Time) time.Duration {
			if at.Sub(began) > 3*time.Second {
				return 200 * time.Millisecond
			}
			return 0
		}}
		s := SingleStep("t", time.Minute, Step{Rate: 100})
		s.Thresholds = []Threshold{{Expr: "response[2s].p99 < 100ms", Abort: true}, {Expr: "failed == 0"}}
		res := drive(t, s, Config{Target: tg})
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("it went on for %v", d)
		}
		th := res.Thresholds
		if res.Exit != 99 || !res.Partial || th[0].OK || !th[1].OK || th[0].Since < 3*time.Second {
			t.Errorf("exit %d, %+v", res.Exit, th)
		}
		if !bytes.Contains([]byte(fmt.Sprint(res.Markers)), []byte("is missed")) {
			t.Errorf("no marker: %+v", res.Markers)
		}
	})
}

// TestResultRoundTrip checks that a result is the same after it was written and read.
func TestResultRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		res := drive(t, SingleStep("t", 3*time.Second, Step{Rate: 100}), Config{Target: &target{latency: time.Millisecond}})
		b, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		var back Result
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		h, err := DecodeHistogram(back.Steps[0].Histograms.Response)
		if err != nil || QuantilesOf(h) != res.Steps[0].Response || res.Steps[0].Response.Count != 300 {
			t.Fatalf("%v %+v %+v", err, QuantilesOf(h), res.Steps[0].Response)
		}
		if len(back.Seconds) < 3 || len(back.Intervals) != 3 || back.Scenario.Digest == "" {
			t.Errorf("%d seconds, %d intervals", len(back.Seconds), len(back.Intervals))
		}
		if s, err := ParseScenario([]byte(back.Scenario.YAML)); err != nil || s.Steps != nil || len(s.Phases) != 1 {
			t.Errorf("its scenario cannot be run again: %v", err)
		}
		if _, err := DecodeHistogram("x"); notify.KindOf(err) != notify.KindInvalid {
			t.Error(err)
		}
	})
}

// TestNewRefuses checks that a scenario that cannot run is refused before anything is sent.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func() (Scenario, Config){
		"no target": func() (Scenario, Config) { return SingleStep("t", time.Second, Step{Rate: 1}), Config{} },
		"no simulators": func() (Scenario, Config) {
			s := SingleStep("t", time.Second, Step{Rate: 1}).WithDefaults()
			s.Phases[0].Faults = []FaultSpec{{Do: "hang"}}
			return s, Config{Target: dryTarget{}}
		},
		"no callback": func() (Scenario, Config) {
			return SingleStep("t", time.Second, Step{Target: Trigger, Rate: 1}), Config{Target: dryTarget{}}
		},
		"segment": func() (Scenario, Config) {
			return SingleStep("t", time.Second, Step{Rate: 1}), Config{Target: dryTarget{}, Segment: Segment{3, 2}}
		},
	} {
		s, cfg := f()
		if _, err := New(s, cfg); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
		if e, ok := errors.AsType[*notify.Error](func() error { _, err := New(s, cfg); return err }()); !ok || e.Field == "" {
			t.Errorf("%s: the error names no field", name)
		}
	}
}
