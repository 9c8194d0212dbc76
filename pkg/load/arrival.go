package load

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Arrival gives the rate of a step as a function of time. So it decides when each message is due.
// The due times do not depend on the server or on the speed of the generator. Random due times
// (poisson) depend only on the seed of the scenario.
type Arrival struct {
	Shape   string   `yaml:"shape,omitempty" doc:"how the rate changes" enum:"constant|poisson|ramp|steps|spike|sine|trace"`
	Poisson bool     `yaml:"poisson,omitempty" doc:"messages come at random moments, with the rate of the shape on average"`
	Rate    Number   `yaml:"rate,omitempty" doc:"constant, poisson: messages a second; spike: messages a second outside the spike; sine: messages a second at the lowest point; default: the rate of the step"`
	From    Number   `yaml:"from,omitempty" doc:"ramp: messages a second at the beginning"`
	To      Number   `yaml:"to,omitempty" doc:"ramp: messages a second after the time over, until the end"`
	Over    Duration `yaml:"over,omitempty" doc:"ramp: how long the rate rises or falls; default: the length of the phase"`
	Levels  []Level  `yaml:"levels,omitempty" doc:"steps: the rates, one after the other; the last rate stays until the end"`
	Peak    Number   `yaml:"peak,omitempty" doc:"spike, sine: messages a second at the highest point"`
	At      Duration `yaml:"at,omitempty" doc:"spike: how long after the start of the step the spike begins"`
	For     Duration `yaml:"for,omitempty" doc:"spike: how long the spike lasts; default 1s"`
	Period  Duration `yaml:"period,omitempty" doc:"sine: length of one wave; default: the length of the phase"`
	File    string   `yaml:"file,omitempty" doc:"trace: file with one to three numbers per line: seconds since the start (not less than in the line before), number of requests (default 1), and messages in each request (default and maximum: the size of the step)"`
	Slot    Duration `yaml:"slot,omitempty" doc:"trace: the requests of a line with a number of requests are spread evenly over this time; default 100ms"`
	Factor  float64  `yaml:"factor,omitempty" doc:"trace: multiplies the number of requests of the file, e.g. 0.1 or 2; default 1"`
}

// Level is one rate of an arrival of shape steps.
type Level struct {
	Rate Number   `yaml:"rate" doc:"messages a second"`
	For  Duration `yaml:"for" doc:"how long this rate lasts"`
}

func (a Arrival) withDefaults(rate float64) Arrival {
	a.Rate = cmp.Or(a.Rate, Number(rate))
	if a.Shape == "" && a.Rate > 0 {
		a.Shape = "constant"
	}
	if a.Shape == "spike" && a.For == 0 {
		a.For = Duration(time.Second)
	}
	if a.Shape == "trace" {
		a.Slot = cmp.Or(a.Slot, Duration(100*time.Millisecond))
		a.Factor = cmp.Or(a.Factor, 1)
	}
	return a
}

// String describes the arrival in a few words.
func (a Arrival) String() string {
	r := func(n Number) string { return compactNumber(float64(n)) + "/s" }
	s := a.Shape
	switch a.Shape {
	case "":
		return "closed loop"
	case "constant", "poisson":
		s += " " + r(a.Rate)
	case "ramp":
		s += " " + r(a.From) + " to " + r(a.To)
	case "steps":
		for i, l := range a.Levels {
			if s += ", "; i == 0 {
				s = "steps "
			}
			s += r(l.Rate)
		}
	case "spike", "sine":
		s += " " + r(a.Rate) + " to " + r(a.Peak)
	case "trace":
		s += " " + a.File
	}
	if a.Poisson && a.Shape != "poisson" {
		s += ", poisson"
	}
	return s
}

// compactNumber formats a number with one of the suffixes k, M and G, for example 5000000 as 5M.
func compactNumber(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.of {
			return strconv.FormatFloat(math.Round(v/u.of*1000)/1000, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

// schedule says when the requests of a step are due. All times count from the start of the step.
// dueTime returns the due time of request i. Due times never decrease from one request to the next.
// countDue returns how many requests are due at t or earlier.
type schedule interface {
	dueTime(i int64) time.Duration
	countDue(t time.Duration) int64
}

// newSchedule turns an arrival of messages into a schedule of requests. The parameter size is the
// number of messages in each request. The parameter length is the length of the phase; 0 means
// that the phase has no planned end. newSchedule returns an error if it cannot read a trace.
func newSchedule(a *Arrival, size int, length time.Duration, seed uint64) (schedule, error) {
	per := float64(size)
	var base schedule
	switch a.Shape {
	case "constant", "poisson":
		base = newFlat(float64(a.Rate) / per)
	case "ramp":
		over := cmp.Or(a.Over.of(), length)
		base = newPieces([]ratePiece{{length: over.Seconds(), from: float64(a.From) / per, to: float64(a.To) / per}})
	case "steps":
		var ps []ratePiece
		for _, l := range a.Levels {
			ps = append(ps, ratePiece{length: l.For.of().Seconds(), from: float64(l.Rate) / per, to: float64(l.Rate) / per})
		}
		base = newPieces(ps)
	case "spike":
		lo, hi := float64(a.Rate)/per, float64(a.Peak)/per
		base = newPieces([]ratePiece{{length: a.At.of().Seconds(), from: lo, to: lo}, {length: a.For.of().Seconds(), from: hi, to: hi}, {length: 1, from: lo, to: lo}})
	case "sine":
		period := cmp.Or(a.Period.of(), length)
		mean := (float64(a.Rate) + float64(a.Peak)) / 2 / per
		base = &sineWave{mean: mean, swing: float64(a.Peak)/per - mean, period: period.Seconds()}
	case "trace":
		return readTrace(a.File, a.Slot.of(), a.Factor)
	default:
		return nil, fmt.Errorf("the arrival shape %q is unknown", a.Shape)
	}
	if a.Poisson || a.Shape == "poisson" {
		return &poissonArrival{rate: base.(intensity), seed: seed, gapSums: []float64{0}}, nil
	}
	return base, nil
}

// intensity is a schedule with a known rate at each time. countAt(t) is the number of requests that
// are due in the first t seconds; this number may have a fraction. timeOf(n) is the inverse of
// countAt: the time in seconds at which n requests are due.
type intensity interface {
	countAt(t float64) float64
	timeOf(n float64) float64
}

func seconds(t float64) time.Duration { return time.Duration(math.Round(t * 1e9)) }

// dueBy returns the number of requests i with dueTime(i) <= t. It begins with the parameter guess
// and corrects it, so the guess should be near the result.
func dueBy(s interface{ dueTime(int64) time.Duration }, t time.Duration, guess float64) int64 {
	if t < 0 {
		return 0
	}
	n := max(int64(guess), 0)
	for n > 0 && s.dueTime(n-1) > t {
		n--
	}
	for s.dueTime(n) <= t {
		n++
	}
	return n
}

// constantRate is a schedule with one rate.
type constantRate struct{ rate, period float64 } // requests per second; ns between two requests

func newFlat(rate float64) constantRate { return constantRate{rate, 1e9 / rate} }

func (f constantRate) countAt(t float64) float64 { return t * f.rate }
func (f constantRate) timeOf(n float64) float64  { return n / f.rate }

// dueTime rounds only the result. If it added rounded intervals of whole nanoseconds, the sum of
// the errors would change the rate.
func (f constantRate) dueTime(i int64) time.Duration  { return time.Duration(float64(i)*f.period + 0.5) }
func (f constantRate) countDue(t time.Duration) int64 { return dueBy(f, t, f.countAt(t.Seconds())+1) }

// ratePiece is a part of a schedule. In this part the rate changes evenly from one value to
// another.
type ratePiece struct {
	length, from, to float64 // length in seconds; first and last rate in requests a second
	begin, before    float64 // computed by newPieces: seconds and requests before this piece
}

// ratePieces is a schedule of pieces, one after the other. After the last piece its last rate
// continues.
type ratePieces []ratePiece

func newPieces(ps []ratePiece) ratePieces {
	var out ratePieces
	begin, before, last := 0.0, 0.0, 0.0
	for _, p := range ps {
		last = p.to
		if p.length <= 0 {
			continue
		}
		p.begin, p.before = begin, before
		begin += p.length
		before += (p.from + p.to) / 2 * p.length
		out = append(out, p)
	}
	return append(out, ratePiece{length: math.Inf(1), from: last, to: last, begin: begin, before: before})
}

func (ps ratePieces) countAt(t float64) float64 {
	for i := len(ps) - 1; ; i-- {
		p := &ps[i]
		if t < p.begin && i > 0 {
			continue
		}
		d := t - p.begin
		if math.IsInf(p.length, 1) {
			return p.before + p.from*d
		}
		return p.before + p.from*d + (p.to-p.from)*d*d/(2*p.length)
	}
}

func (ps ratePieces) timeOf(n float64) float64 {
	for i := range ps {
		p := &ps[i]
		if i+1 < len(ps) && n >= ps[i+1].before {
			continue
		}
		rest := n - p.before
		a := 0.0
		if !math.IsInf(p.length, 1) {
			a = (p.to - p.from) / p.length
		}
		switch {
		case rest <= 0:
			return p.begin
		case math.Abs(a) < 1e-12 && p.from <= 0:
			return math.Inf(1) // the rate stays 0, so the request is never due
		case math.Abs(a) < 1e-12:
			return p.begin + rest/p.from
		}
		// Solve from*d + a/2*d*d = rest. This form of the solution is exact for small a, too.
		return p.begin + 2*rest/(p.from+math.Sqrt(max(p.from*p.from+2*a*rest, 0)))
	}
	return math.Inf(1)
}

// never is the due time of a request that is never due.
const never = time.Duration(math.MaxInt64)

func (ps ratePieces) dueTime(i int64) time.Duration {
	t := ps.timeOf(float64(i))
	if t > 1e9 { // 30 years
		return never
	}
	return seconds(t)
}
func (ps ratePieces) countDue(t time.Duration) int64 { return dueBy(ps, t, ps.countAt(t.Seconds())+1) }

// sineWave is a rate that swings around a mean. It starts at its lowest rate.
type sineWave struct{ mean, swing, period float64 }

func (w *sineWave) countAt(t float64) float64 {
	return w.mean*t - w.swing*w.period/(2*math.Pi)*math.Sin(2*math.Pi*t/w.period)
}

func (w *sineWave) timeOf(n float64) float64 {
	// countAt(t) never falls, and differs from mean*t by at most swing*period/2pi. So the time is
	// between lo and hi.
	slack := math.Abs(w.swing)*w.period/(2*math.Pi)/w.mean + 1e-9
	lo, hi := max(n/w.mean-slack, 0), n/w.mean+slack
	for range 60 {
		mid := (lo + hi) / 2
		if w.countAt(mid) < n {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

func (w *sineWave) dueTime(i int64) time.Duration  { return seconds(w.timeOf(float64(i))) }
func (w *sineWave) countDue(t time.Duration) int64 { return dueBy(w, t, w.countAt(t.Seconds())+1) }

// poissonArrival is a schedule with random moments, whose mean rate is the rate of an intensity.
// Its gaps are random numbers, exponential with the mean 1. Request i is due when countAt of the
// intensity reaches the sum of the first i+1 gaps.
//
// Each gap depends only on the seed and the number of the gap. gapSums stores the sum of the gaps
// before every request whose number is a multiple of gapSumEvery. So dueTime adds at most
// gapSumEvery gaps to a stored sum, for any request.
type poissonArrival struct {
	rate intensity
	seed uint64

	mu      sync.Mutex // guards the fields below; all workers of a step call dueTime
	gapSums []float64  // element k: sum of the gaps before request k*gapSumEvery
	next    int64      // 1 + i of the last call of dueTime
	sum     float64    // sum of the gaps before the request with the number next
}

const gapSumEvery = 1024

func (p *poissonArrival) gapAfter(i int64) float64 {
	u := float64(notify.Mix(p.seed^notify.Mix(uint64(i)))>>11) / (1 << 53) // [0, 1)
	return -math.Log1p(-u)
}

func (p *poissonArrival) dueTime(i int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := i / gapSumEvery; int64(len(p.gapSums)) <= k; {
		from := int64(len(p.gapSums)-1) * gapSumEvery
		sum := p.gapSums[len(p.gapSums)-1]
		for j := from; j < from+gapSumEvery; j++ {
			sum += p.gapAfter(j)
		}
		p.gapSums = append(p.gapSums, sum)
	}
	// Normally continue from the request of the last call; calls in ascending order then add one
	// gap each. Otherwise begin at the nearest stored sum.
	if i < p.next || i-p.next >= gapSumEvery || p.next == 0 {
		p.next, p.sum = i/gapSumEvery*gapSumEvery, p.gapSums[i/gapSumEvery]
	}
	for ; p.next <= i; p.next++ {
		p.sum += p.gapAfter(p.next)
		// Replace the sum by the stored sum, so that its rounding does not depend on the order of
		// calls.
		if p.next%gapSumEvery == gapSumEvery-1 {
			if k := p.next/gapSumEvery + 1; k < int64(len(p.gapSums)) {
				p.sum = p.gapSums[k]
			}
		}
	}
	t := p.rate.timeOf(p.sum)
	if t > 1e9 {
		return never
	}
	return seconds(t)
}

func (p *poissonArrival) countDue(t time.Duration) int64 {
	return dueBy(p, t, p.rate.countAt(t.Seconds()))
}
