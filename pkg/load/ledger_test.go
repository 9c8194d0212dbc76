package load

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

// providers replaces the control listener of simulators. Its ledger is empty until the time full. After
// that it has the first n - lose messages.
type providers struct {
	full time.Time // zero: the ledger stays empty
	n    int
	lose int // number of the last messages that never arrive
	// foreign is how many messages of other senders arrived since the run began.
	foreign int
	// If growing is set, one message arrives every second after this time, up to n messages.
	growing time.Time
	// reading is how long it takes to read the last arrivals.
	reading time.Duration
	read    []string // queries of the requests for arrivals
	asked   atomic.Bool
	of      *target // gets the messages of the run

	mu    sync.Mutex
	rules []string
}

func (p *providers) RoundTrip(r *http.Request) (*http.Response, error) {
	got := 0
	if !p.full.IsZero() && !time.Now().Before(p.full) {
		got = p.n - p.lose
	}
	if !p.growing.IsZero() {
		got = min(int(time.Since(p.growing)/time.Second), p.n)
	}
	const before = 1000 // arrivals before the run
	body, status, head := "", http.StatusOK, http.Header{}
	switch r.URL.Path {
	case "/ledger/totals":
		if p.asked.Swap(true) { // the first request asks for the counts before the run
			got += p.foreign
		}
		body = fmt.Sprintf(`{"ids":%d}`, got)
	case "/ledger/arrivals":
		p.mu.Lock()
		p.read = append(p.read, r.URL.RawQuery)
		p.mu.Unlock()
		if end, ok := r.Context().Deadline(); ok && time.Until(end) > 10*time.Second && time.Until(end) <= time.Minute {
			time.Sleep(p.reading) // simulated time of the bubble
		}
		since := before
		if text := r.FormValue("since"); text != "end" {
			var err error
			if since, err = strconv.Atoi(text); err != nil || since < before {
				return nil, fmt.Errorf("since=%s, and the run began at %d", text, before)
			}
		}
		ids := p.of.acked()
		ids = ids[:min(got, len(ids))]
		for ; since-before < len(ids) && r.FormValue("since") != "end"; since++ {
			id, err := notify.ParseID(ids[since-before])
			if err != nil {
				return nil, err
			}
			body += string(row(id.Base, time.Now(), 1))
		}
		head.Set(simulator.CursorHeader, strconv.Itoa(since))
	case "/control/rules":
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.rules = append(p.rules, fmt.Sprintf("%s %s", r.Method, b))
		p.mu.Unlock()
		body, status = `{"number":7}`, http.StatusCreated
	case "/control/rules/7":
		p.mu.Lock()
		p.rules = append(p.rules, r.Method)
		p.mu.Unlock()
		status = http.StatusNoContent
	case "/credentials.json":
		body = `{"twilio":[{"sid":"AC1"},{"sid":"AC2"}]}`
	default:
		status = http.StatusNotFound
	}
	return &http.Response{StatusCode: status, Header: head, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// target returns a Target that delivers to the providers.
func (p *providers) target() *target {
	p.of = &target{}
	return p.of
}

// row returns an arrival in its wire format.
func row(b notify.Base, at time.Time, n uint32) []byte {
	out := binary.LittleEndian.AppendUint64(b[:], uint64(at.UnixNano()))
	return binary.LittleEndian.AppendUint32(out, n)
}

// TestDrain checks two cases of missing messages. If messages wait for a provider that is down, the
// drain waits for them and they count as pending. If the server does not know the messages, they count
// as lost, and the drain ends early.
func TestDrain(t *testing.T) {
	t.Parallel()
	const n, limit = 1500, time.Minute // n is more than maxStatesAsked
	says := func(s notify.State) StateOf {
		return func(context.Context, string) (notify.State, error) { return s, nil }
	}
	f := func(name string, comesAfter time.Duration, state StateOf, want LedgerResult, exit int, least, most time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := &providers{n: n}
				if comesAfter > 0 {
					p.full = began.Add(comesAfter)
				}
				s := SingleStep("t", 0, Step{Rate: 1e6, Count: n})
				s.Drain = Duration(limit)
				res := drive(t, s, Config{Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}}), State: state})
				want.Checked, want.Expected = true, n
				got := res.Ledger
				if want.Delivered < n && len(got.Examples) != 10 {
					t.Errorf("%d examples", len(got.Examples))
				}
				got.Examples = nil
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%+v, want %+v", got, want)
				}
				if res.Exit != exit {
					t.Errorf("exit %d, want %d", res.Exit, exit)
				}
				if took := time.Since(began); took < least || took > most {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
	f("comes late", 50*time.Second, says(notify.Deferred), LedgerResult{Delivered: n}, 0, 50*time.Second, limit)
	f("waits", 0, says(notify.Deferred), LedgerResult{Pending: n}, term.ExitPending, limit, limit+time.Second)
	f("is lost", 0, says(notify.None), LedgerResult{Lost: n}, term.ExitPartial, limit/2, limit/2+time.Second)
	f("is lost, and nobody asked", 0, nil, LedgerResult{Lost: n}, term.ExitPartial, limit/2, limit/2+time.Second)
	f("is said to be delivered", 0, says(notify.Delivered), LedgerResult{Lost: n}, term.ExitPartial, limit/2, limit/2+time.Second)
	f("failed", 0, says(notify.Failed), LedgerResult{Ended: n, Unexpected: n}, term.ExitPartial, limit/2, limit/2+time.Second)
}

// TestStillMoving checks that missing messages are pending, not lost, if other messages still arrive
// when the drain ends. Here the run has no Config.State, so it cannot ask the server for the state of the
// missing messages.
func TestStillMoving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, limit = 200, time.Minute
		s := SingleStep("t", 0, Step{Rate: 1e6, Count: n})
		s.Drain = Duration(limit)
		p := &providers{n: n, growing: time.Now()}
		res := drive(t, s, Config{Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}})})
		l := res.Ledger
		if l.Lost != 0 || l.Unverified != 0 || l.Pending != n-l.Delivered || l.Delivered < 55 || l.Delivered > 65 || res.Exit != term.ExitPending {
			t.Errorf("%+v, exit %d", l, res.Exit)
		}
	})
}

// TestEndCostsTheRunAlone checks that a run reads only arrivals since its start. While it reads them at
// the end, its state is StateReading. The times of thresholds and markers do not include the time for
// reading.
func TestEndCostsTheRunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour) // an hour in which other runs could use the simulators
		began := time.Now()
		const n = 300
		s := SingleStep("t", 3*time.Second, Step{Rate: 100})
		s.Thresholds = []Threshold{{Expr: "end_to_end.p99 < 1s"}}
		p := &providers{n: n, full: began.Add(time.Second), reading: time.Minute / 2}
		var states []State
		res := drive(t, s, Config{
			Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}}),
			Every: time.Second, Observe: func(s *Snapshot) { states = append(states, s.State) },
		})
		if res.Steps[0].EndToEnd.Count != n || p.read[0] != "since=end" {
			t.Errorf("%d times, and it asked for %q", res.Steps[0].EndToEnd.Count, p.read)
		}
		if i := slices.Index(states, StateReading); i < 0 || i != len(states)-2 || states[i+1] != StateDone {
			t.Errorf("it said %v", states)
		}
		if at := res.Thresholds[0].Since; at > 10*time.Second {
			t.Errorf("the threshold is of %v", at)
		}
		for _, m := range res.Markers {
			if m.At > 10*time.Second {
				t.Errorf("a mark at %v: %s", m.At, m.Text)
			}
		}
	})
}

// TestRunClosesItsFiles checks that a run whose promises did not fit into memory leaves no file open.
func TestRunClosesItsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, lost = 300, 10 // the lost messages are the promises that remain
		p := &providers{n: n, lose: lost, full: time.Now().Add(time.Second)}
		var r *Run
		var files []*os.File
		r, err := New(SingleStep("t", 3*time.Second, Step{Rate: 100}), Config{
			Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}}), Memory: 1,
			Observe: func(*Snapshot) {
				r.promised.joining.Lock()
				defer r.promised.joining.Unlock()
				if r.promised.files == nil {
					return
				}
				for i := range r.promised.files.parts {
					if f := r.promised.files.parts[i].f; f != nil {
						files = append(files, f)
					}
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := r.Run(t.Context()); err != nil || res.Ledger.Delivered != n-lost || len(files) == 0 {
			t.Fatalf("%v, %d files", err, len(files))
		}
		for _, f := range files {
			if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
				t.Fatalf("a file is open after the run: %v", err)
			}
		}
	})
}

// TestEndToEndParts checks that end-to-end times are also kept by the due time of the message.
func TestEndToEndParts(t *testing.T) {
	t.Parallel()
	r := &Run{began: time.Now()}
	r.s.Phases = []PhaseSpec{{Duration: Duration(10 * time.Minute)}}
	c := &coordinator{run: r, endToEnd: map[*stepRun]*endTimes{}}
	st := &stepRun{}
	for _, when := range []time.Duration{0, time.Second, 2 * time.Second, 9*time.Minute + 59*time.Second, time.Hour} {
		d := &dueMoment{intended: when, step: st}
		c.recordArrival(d, r.began.Add(when+30*time.Millisecond), 2)
	}
	parts := c.endToEnd[st].briefs()
	if len(parts) != 300 || parts[0].Count != 4 || parts[1].Count != 2 || parts[2].Count != 0 || parts[299].Count != 4 {
		t.Errorf("%d parts, %+v ... %+v", len(parts), parts[:3], parts[len(parts)-1])
	}
	if b := parts[0]; b.P50 < 29e6 || b.P50 > 31e6 {
		t.Errorf("%+v", b)
	}
}

// TestBrokenWorkerLoses runs a worker that drops some accepted messages. It answers all of them, so
// only the ledger shows the loss.
func TestBrokenWorkerLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := SingleStep("t", 2*time.Second, Step{Rate: 100})
		s.Drain = Duration(30 * time.Second)
		s.Thresholds = []Threshold{{Expr: "lost == 0"}, {Expr: "failed == 0"}}
		p := &providers{full: time.Now(), n: 200, lose: 3}
		res := drive(t, s, Config{Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}})})
		if res.Ledger.Lost != 3 || res.Totals.Lost != 3 || res.Totals.Failed != 0 || res.Exit != term.ExitSLO || res.Thresholds[0].OK || !res.Thresholds[1].OK {
			t.Errorf("%+v exit %d %+v", res.Ledger, res.Exit, res.Thresholds)
		}
	})
}

// TestFaults checks that a fault adds a rule to the simulators, and removes the rule when the fault ends
// or the run is stopped. Both moments have a marker.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &providers{full: time.Now(), n: 1 << 30}
		sims := NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}})
		s := Scenario{Name: "t", Phases: []PhaseSpec{{
			Name: "one", Duration: Duration(10 * time.Second), Steps: []Step{{Rate: 10}},
			Faults: []FaultSpec{
				{At: Duration(2 * time.Second), For: Duration(3 * time.Second), Provider: "twilio", Account: "2", Do: "throttle", RetryAfter: Duration(5 * time.Second), Share: 0.5},
				{Name: "slow", At: Duration(6 * time.Second), Do: "latency", Latency: LatencySpec{Median: Duration(time.Second), P99: Duration(2 * time.Second)}},
			},
		}}}
		res := drive(t, s, Config{Target: &target{}, Faults: sims})
		post := func(r simulator.Rule) string {
			b, err := json.Marshal(r)
			if err != nil {
				t.Error(err)
			}
			return "POST " + string(b)
		}
		second := simulator.Duration(time.Second)
		want := []string{
			post(simulator.Rule{Provider: simulator.Twilio, Account: "AC2", Rate: 0.5, Do: simulator.Throttle, RetryAfter: 5 * second}), "DELETE",
			post(simulator.Rule{Do: simulator.Delay, Latency: simulator.Latency{Median: second, P99: 2 * second}}), "DELETE",
		}
		if fmt.Sprint(p.rules) != fmt.Sprint(want) {
			t.Errorf("%q\nwant %q", p.rules, want)
		}
		if len(res.Faults) != 2 || res.Faults[0].Began != 2*time.Second || res.Faults[0].Ended != 5*time.Second || res.Faults[1].Ended != 10*time.Second {
			t.Errorf("%+v", res.Faults)
		}
		kinds := ""
		for _, m := range res.Markers {
			kinds += m.Kind + " "
		}
		if kinds != "phase fault heal fault heal " {
			t.Error(kinds)
		}
	})
}

// call returns one window of the receivers of an envelope, as a provider gets it.
func call(base notify.Base, from, to uint32) *notify.Call {
	c := &notify.Call{}
	key := &notify.RowKey{Chunk: notify.Chunk{Base: base}}
	for i := from; i < to; i++ {
		c.Items = append(c.Items, notify.Item{Key: key, Index: i, FanOut: true})
	}
	return c
}

// slowProcess needs three seconds to undo a fault.
type slowProcess struct {
	busy bool
	log  []string
}

func (p *slowProcess) Fault(_ context.Context, f *FaultSpec) (func(context.Context) error, error) {
	if p.busy {
		return nil, errors.New("two faults at once")
	}
	p.busy = true
	p.log = append(p.log, f.Process)
	return func(context.Context) error {
		<-time.After(3 * time.Second) // simulated time of the bubble
		p.busy = false
		return nil
	}, nil
}

// TestProcessFaultsFollowEachOther checks that a fault of the process waits until the process has
// started again after the previous fault.
func TestProcessFaultsFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Scenario{Name: "t", Server: ServerSpec{Mode: "process"}, Phases: []PhaseSpec{{
			Name: "one", Duration: Duration(10 * time.Second), Steps: []Step{{Rate: 10}},
			Faults: []FaultSpec{
				{At: Duration(time.Second), For: Duration(time.Second), Process: "kill"},
				{At: Duration(2 * time.Second), For: Duration(time.Second), Process: "pause"},
			},
		}}}
		p := &slowProcess{}
		res := drive(t, s, Config{Target: &target{}, Process: p})
		if fmt.Sprint(p.log) != "[kill pause]" || len(res.Faults) != 2 || res.Faults[1].Began < 5*time.Second || res.Faults[1].Error != "" {
			t.Errorf("%v, %+v", p.log, res.Faults)
		}
	})
}

// TestObserver checks that each receiver counts once, that duplicates are named, and that an arrival
// before the answer to its request is joined.
func TestObserver(t *testing.T) {
	t.Parallel()
	o := NewObserver()
	p := &promises{keepIDs: true}
	a, b := notify.NewBase(time.Now()), notify.NewBase(time.Now())
	o.Observe(call(a, 0, 100))
	o.Observe(call(a, 100, 1000))
	o.Observe(call(b, 0, 500))
	joined := int64(0)
	times := func() {
		if err := o.joinArrivals(t.Context(), p, func(_ *dueMoment, _ time.Time, n int64) { joined += n }); err != nil {
			t.Fatal(err)
		}
	}
	if times(); joined != 0 {
		t.Errorf("%d joined before anything was promised", joined)
	}
	d := dataOf(t, Step{Target: Fanout, Rate: 1, Size: 1000}, 0)
	st := &stepRun{Step: d.step, data: d}
	for _, base := range []notify.Base{a, b} {
		p.addAck(st, &Request{Size: 1000}, &Ack{Accepted: 1000, Base: base, Count: 1000})
	}
	if times(); joined != 1500 {
		t.Errorf("%d joined", joined)
	}
	delivered, ids, err := o.listMissing(t.Context(), p, 3)
	if err != nil || delivered != 1500 || len(ids) != 3 || ids[0] != (notify.ID{Base: b, Index: 500, FanOut: true}).String() {
		t.Errorf("%v %d %v", err, delivered, ids)
	}
	o.Observe(call(a, 999, 1000))
	got, _ := o.countArrivals(t.Context(), true)
	if got.ids != 1500 || got.duplicates != 1 || len(got.examples) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestLateness checks that lateness has a sign: it is below 0 for early messages.
func TestLateness(t *testing.T) {
	t.Parallel()
	r := &Run{began: time.Now()}
	c := &coordinator{run: r, endToEnd: map[*stepRun]*endTimes{}}
	st := &stepRun{}
	at := r.began.Add(time.Minute)
	d := &dueMoment{scheduledAt: at.UnixNano(), step: st}
	c.recordArrival(d, at.Add(-20*time.Millisecond), 1)
	c.recordArrival(d, at.Add(30*time.Millisecond), 8)
	c.recordArrival(d, at.Add(2*time.Second), 1)
	e := c.endToEnd[st]
	q := SignedQuantiles(e.late, e.early)
	near := func(got int64, want time.Duration) bool { return got > int64(want)*99/100 && got < int64(want)*101/100 }
	if e.early.TotalCount() != 1 || e.afterLimit != 1 || q.Count != 10 || !near(-q.Min, 20*time.Millisecond) || !near(q.P50, 30*time.Millisecond) || !near(q.Max, 2*time.Second) {
		t.Errorf("%+v, %d late", q, e.afterLimit)
	}
}

// TestSegmentsShareALedger checks that messages of other segments are neither unexpected nor a reason
// to stop waiting.
func TestSegmentsShareALedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const mine, wait = 100, 20 * time.Second
		s := SingleStep("t", 0, Step{Rate: 1e6, Count: 2 * mine})
		s.Drain = Duration(time.Minute)
		p := &providers{full: began.Add(wait), n: mine, foreign: mine}
		res := drive(t, s, Config{
			Target: p.target(), Ledger: NewShards(&Simulators{URL: "http://ledger", Client: &http.Client{Transport: p}}), Segment: Segment{1, 2},
			State: func(context.Context, string) (notify.State, error) { return notify.Deferred, nil },
		})
		want := LedgerResult{Checked: true, Expected: mine, Delivered: mine}
		if fmt.Sprint(res.Ledger) != fmt.Sprint(want) || res.Totals.Delivered != mine || res.Totals.Backlog != 0 || res.Exit != 0 {
			t.Errorf("%+v, %+v, exit %d", res.Ledger, res.Totals, res.Exit)
		}
		if took := time.Since(began); took < wait {
			t.Errorf("it ended after %v, before its own had come", took)
		}
	})
}
