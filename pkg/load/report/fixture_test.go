package report

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// fixture returns the result of an invented run: a warm-up, a steady phase of two steps in which a
// provider hangs for 4 s, and a spike. It is the same every time.
func fixture(t testing.TB) *load.Result {
	t.Helper()
	built.Do(func() {
		raw, err := Encode(segmentOf(t, 1, 1, 1))
		if err != nil {
			t.Fatal(err)
		}
		encodedFixture = raw
	})
	r, err := Decode(bytes.NewReader(encodedFixture))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	built          sync.Once
	encodedFixture []byte
)

// segmentOf returns segment i of n of the fixture. slow makes answers slower by a factor.
func segmentOf(t testing.TB, i, n int, slow float64) *load.Result {
	t.Helper()
	start := time.Date(2026, 11, 20, 9, 30, 11, 250e6, time.UTC)
	b := &builder{t: t, i: i, n: n, slow: slow, rng: rand.New(rand.NewPCG(7, 9)), steps: map[string]*stepBuild{}}
	b.r = &load.Result{
		Schema:   load.SchemaVersion,
		Scenario: load.Source{Name: "steady-then-spike", About: "Pushes and scheduled SMS; APNs hangs for 4 s on the way.", Digest: fmt.Sprintf("%064x", 0xfeed), Seed: 42, YAML: "name: steady-then-spike\nphases:\n  - name: steady # <b>&\n"},
		Started:  start, Ended: start.Add(63 * time.Second), Segment: load.Segment{I: i, N: n},
		Environment: load.Environment{Version: "v0.5.0", Go: "go1.26.8", OS: "linux", Arch: "amd64", Kernel: "6.12.0", CPU: "AMD EPYC", CPUs: 2, MaxProcs: 2, Memory: 24 << 30, Load: 0.4, Server: "embedded", Labels: map[string]string{"commit": "81be25e"}},
		Sending:     60 * time.Second, DrainTime: 2600 * time.Millisecond,
		Verdict: load.Verdict{Code: load.Valid},
		Faults:  []load.FaultResult{{Name: "hang apns", Began: 25 * time.Second, Ended: 29 * time.Second, BacklogBefore: 12, BacklogPeak: 1240, Drained: 3100 * time.Millisecond}},
		Markers: []load.Marker{{At: 0, Kind: "phase", Text: "warm-up"}, {At: 5 * time.Second, Kind: "phase", Text: "steady"}, {At: 25 * time.Second, Kind: "fault", Text: "hang apns"}, {At: 29 * time.Second, Kind: "heal", Text: "hang apns"}, {At: 45 * time.Second, Kind: "phase", Text: "spike"}},
		Thresholds: []load.ThresholdState{
			{Expr: "response.p99 < 50ms", Value: 31.4e6, Known: true, OK: true},
			{Expr: "response.p99 < 20ms {step=push}", Value: 47.25e6, Known: true, Since: 26 * time.Second},
			{Expr: "lost == 0", Known: true, OK: true},
			{Expr: "rate >= 0.99", Value: 0.9987, Known: true, OK: true, Abort: true},
		},
		Errors: []load.ErrorCount{{Class: "throttled", Code: "over_capacity", Step: "push", Count: 37, Last: start.Add(48 * time.Second)}, {Class: "transport", Code: "timeout", Step: "push", Count: 4, Last: start.Add(28 * time.Second)}},
		Exit:   99,
	}
	for s := range 63 {
		b.second(s)
	}
	b.finish()
	return b.r
}

type stepBuild struct {
	snap                  load.StepSnapshot
	lag, service, resp    *hdrhistogram.Histogram
	e2e, late, early      *hdrhistogram.Histogram
	ilag, iservice, iresp *hdrhistogram.Histogram
}

type builder struct {
	t       testing.TB
	r       *load.Result
	i, n    int
	slow    float64
	rng     *rand.Rand
	steps   map[string]*stepBuild
	order   []string
	backlog int64
	seq     int
}

func (b *builder) step(phase, name, channel, arrival string) *stepBuild {
	k := phase + "/" + name
	s := b.steps[k]
	if s == nil {
		s = &stepBuild{snap: load.StepSnapshot{Name: name, Phase: phase, Warmup: phase == "warm-up", Target: "http-single", Channel: channel, Category: "transactional", Arrival: arrival}}
		for _, h := range []**hdrhistogram.Histogram{&s.lag, &s.service, &s.resp, &s.e2e, &s.late, &s.early, &s.ilag, &s.iservice, &s.iresp} {
			*h = load.NewHistogram()
		}
		b.steps[k] = s
		b.order = append(b.order, k)
	}
	return s
}

func brief(h *hdrhistogram.Histogram) load.Brief {
	return load.Brief{Count: h.TotalCount(), P50: load.ValueAt(h, 50), P99: load.ValueAt(h, 99), Max: h.Max()}
}

func (b *builder) second(sec int) {
	row := load.SecondRow{Second: sec, Length: time.Second, Draining: sec >= 60}
	heat := load.HeatColumn{Second: sec}
	type part struct {
		phase, name, channel, arrival string
		rate                          int
	}
	var parts []part
	switch {
	case sec < 5:
		parts = []part{{"warm-up", "push", "push", "constant 40/s", 40}}
	case sec < 45:
		parts = []part{{"steady", "push", "push", "constant 200/s", 200}, {"steady", "later", "sms", "poisson 60/s", 60}}
	case sec < 60:
		parts = []part{{"spike", "push", "push", "spike 200/s to 700/s", 200 + 500*max(0, 6-abs(sec-52))/6}}
	}
	row.Phase = "spike"
	lags, services, responses := load.NewHistogram(), load.NewHistogram(), load.NewHistogram()
	hang := sec >= 25 && sec < 29
	for _, p := range parts {
		row.Phase = p.phase
		s := b.step(p.phase, p.name, p.channel, p.arrival)
		one := load.NewHistogram()
		sent := load.SecondStep{Name: p.name}
		for k := range p.rate {
			// Every segment draws the values of all segments and keeps only its own values. So a value
			// depends only on its sequence number.
			lag := b.skewed(50 * time.Microsecond)
			service := time.Duration(float64(b.skewed(2500*time.Microsecond)) * b.slow)
			if hang && p.name == "push" && k%7 == 0 {
				service += time.Duration(k%40) * 9 * time.Millisecond
			}
			e2e := service + b.skewed(6*time.Millisecond)
			lateness := b.skewed(9*time.Millisecond) - 4*time.Millisecond
			b.seq++
			if b.seq%b.n != b.i-1 {
				continue
			}
			put := func(v time.Duration, hs ...*hdrhistogram.Histogram) {
				for _, h := range hs {
					if err := h.RecordValue(int64(v)); err != nil {
						b.t.Fatal(err)
					}
				}
			}
			put(lag, lags, s.lag, s.ilag)
			put(service, services, s.service, s.iservice)
			put(service+lag, responses, s.resp, s.iresp, one)
			put(e2e, s.e2e)
			if p.name == "later" {
				if lateness >= 0 {
					put(lateness, s.late)
				} else {
					put(-lateness, s.early)
				}
			}
			bucket := 0
			for bucket < load.HeatBuckets-1 && service+lag > load.HeatBound(bucket) {
				bucket++
			}
			heat.Counts[bucket]++
			sent.Sent++
			if p.name == "push" && sec == 28 && k == 35 {
				sent.Failed++
				s.snap.Totals.Failed++
			} else {
				sent.Acked++
			}
		}
		sent.Response = brief(one)
		row.Steps = append(row.Steps, sent)
		row.Intended += sent.Sent
		row.Sent += sent.Sent
		row.Acked += sent.Acked
		row.Failed += sent.Failed
		s.snap.Totals.Intended += sent.Sent
		s.snap.Totals.Sent += sent.Sent
		s.snap.Totals.Acked += sent.Acked
		s.snap.Totals.Delivered += sent.Acked
	}
	room := int64(420 / b.n)
	if hang {
		room = 20
	}
	row.Delivered = min(b.backlog+row.Acked, room)
	if sec == 62 {
		row.Delivered = b.backlog
	}
	b.backlog += row.Acked - row.Delivered
	row.Backlog = b.backlog
	row.Response, row.Lag, row.Service = brief(responses), brief(lags), brief(services)
	row.Health = load.Health{CPU: 0.3 + float64(row.Sent)/1500, CPUs: 2, MachineCPU: 0.5 + float64(row.Sent)/1300, RSS: 90 << 20, LagP99: time.Duration(row.Lag.P99), Goroutines: 61, Sockets: 12, Steal: 0.01, CalibratedRate: 2.1e6, GeneratorShare: 0.0003}
	b.r.Seconds = append(b.r.Seconds, row)
	if row.Sent > 0 {
		b.r.Heat = append(b.r.Heat, heat)
	}
	t := &b.r.Totals
	t.Intended += row.Intended
	t.Sent += row.Sent
	t.Acked += row.Acked
	t.Failed += row.Failed
	t.Delivered += row.Delivered
	if (sec+1)%5 == 0 {
		b.intervals(sec + 1)
	}
}

// skewed draws values around a middle, a few of them much higher. It uses integers only, so that
// every machine draws the same values.
func (b *builder) skewed(mid time.Duration) time.Duration {
	at := [...]int64{250, 480, 600, 700, 780, 860, 930, 1000, 1080, 1170, 1280, 1430, 1650, 2000, 2600, 4200, 6500}
	u := b.rng.Int64N(16_000)
	i := u / 1000
	return mid * time.Duration(at[i]*1000+(at[i+1]-at[i])*(u%1000)) / 1_000_000
}

func abs(v int) int { return max(v, -v) }

func (b *builder) intervals(end int) {
	for _, k := range b.order {
		s := b.steps[k]
		for _, one := range []struct {
			kind string
			h    *hdrhistogram.Histogram
		}{{"lag", s.ilag}, {"service", s.iservice}, {"response", s.iresp}} {
			if one.h.TotalCount() == 0 {
				continue
			}
			b.r.Intervals = append(b.r.Intervals, load.Interval{
				Start: time.Duration(end-5) * time.Second, Length: 5 * time.Second, Step: s.snap.Name, Phase: s.snap.Phase, Kind: one.kind, Max: one.h.Max(), Histogram: b.encode(one.h),
			})
			one.h.Reset()
		}
	}
}

func (b *builder) encode(h *hdrhistogram.Histogram) string {
	text, err := load.EncodeHistogram(h)
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

func (b *builder) finish() {
	r := b.r
	for _, k := range b.order {
		s := b.steps[k]
		snap := s.snap
		snap.Lag, snap.Service, snap.Response, snap.EndToEnd = load.QuantilesOf(s.lag), load.QuantilesOf(s.service), load.QuantilesOf(s.resp), load.QuantilesOf(s.e2e)
		snap.Lateness = load.SignedQuantiles(s.late, s.early)
		r.Steps = append(r.Steps, load.StepResult{StepSnapshot: snap, Histograms: load.Histograms{
			Lag: b.encode(s.lag), Service: b.encode(s.service), Response: b.encode(s.resp), EndToEnd: b.encode(s.e2e), Late: b.encode(s.late), Early: b.encode(s.early),
		}})
		r.Totals.Early += s.early.TotalCount()
	}
	t := &r.Totals
	r.Ledger = load.LedgerResult{Checked: true, Expected: t.Acked, Delivered: t.Delivered, Early: t.Early}
	r.Rates = load.Rates{Intended: load.PerSecond(t.Intended, r.Sending), Sent: load.PerSecond(t.Sent, r.Sending), Acked: load.PerSecond(t.Acked, r.Sending), Delivered: load.PerSecond(t.Delivered, r.Sending+r.DrainTime), Failed: load.PerSecond(t.Failed, r.Sending)}
	r.Health = load.HealthSummary{Health: load.Health{CPU: 0.51, CPUs: 2, MachineCPU: 0.7, RSS: 96 << 20, LagP99: 310 * time.Microsecond, GCPause: 180 * time.Microsecond, Steal: 0.01, Goroutines: 61, Sockets: 12, CalibratedRate: 2.1e6, GeneratorShare: 0.0003, Embedded: true}, CPUSeconds: 30.6, NsPerMessage: 1800, WorstLagSecond: 26, CalibrationTook: 1}
}
