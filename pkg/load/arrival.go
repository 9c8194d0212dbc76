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

// Arrival says when messages are due. Every shape is a pure function of time (and
// of the seed, with poisson): the time of message i does not depend on the server,
// nor on when the generator got round to it.
type Arrival struct {
	Shape   string   `yaml:"shape,omitempty" doc:"how the rate changes" enum:"constant|poisson|ramp|steps|spike|sine|trace"`
	Poisson bool     `yaml:"poisson,omitempty" doc:"with any shape: at random moments, at that rate on average"`
	Rate    Number   `yaml:"rate,omitempty" doc:"constant, poisson, spike, sine: messages a second; default the step's"`
	From    Number   `yaml:"from,omitempty" doc:"ramp: messages a second at the beginning"`
	To      Number   `yaml:"to,omitempty" doc:"ramp: at the end of over; it stays so"`
	Over    Duration `yaml:"over,omitempty" doc:"ramp: how long it rises or falls; default the phase"`
	Levels  []Level  `yaml:"levels,omitempty" doc:"steps: one after the other; the last one stays"`
	Peak    Number   `yaml:"peak,omitempty" doc:"spike, sine: messages a second at the highest"`
	At      Duration `yaml:"at,omitempty" doc:"spike: when it begins"`
	For     Duration `yaml:"for,omitempty" doc:"spike: how long it lasts; default 1s"`
	Period  Duration `yaml:"period,omitempty" doc:"sine: of one wave; default the phase"`
	File    string   `yaml:"file,omitempty" doc:"trace: a line has seconds since the beginning, not falling; behind them, if there are several requests, how many; and behind that, if not the step's size, how many messages each has, at most that size"`
	Slot    Duration `yaml:"slot,omitempty" doc:"trace: requests of lines with a count come evenly over this time; default 100ms"`
	Factor  float64  `yaml:"factor,omitempty" doc:"trace: how many requests there are for each of the file, e.g. 0.1 or 2; default 1"`
}

// Level is one rate of an arrival of steps.
type Level struct {
	Rate Number   `yaml:"rate" doc:"messages a second"`
	For  Duration `yaml:"for" doc:"how long"`
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

// String says what it is in a few words.
func (a Arrival) String() string {
	r := func(n Number) string { return compact(float64(n)) + "/s" }
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

// compact writes 5M for 5000000.
func compact(v float64) string {
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

// schedule says when request i is due, from the beginning of its step. at is
// monotone; by returns how many are due at t or before.
type schedule interface {
	at(i int64) time.Duration
	by(t time.Duration) int64
}

// newSchedule compiles an arrival of messages into one of requests of size
// messages each, over a phase of length (0: without end).
func newSchedule(a *Arrival, size int, length time.Duration, seed uint64) (schedule, error) {
	per := float64(size)
	var base schedule
	switch a.Shape {
	case "constant", "poisson":
		base = newFlat(float64(a.Rate) / per)
	case "ramp":
		over := cmp.Or(a.Over.of(), length)
		base = newPieces([]piece{{length: over.Seconds(), from: float64(a.From) / per, to: float64(a.To) / per}})
	case "steps":
		var ps []piece
		for _, l := range a.Levels {
			ps = append(ps, piece{length: l.For.of().Seconds(), from: float64(l.Rate) / per, to: float64(l.Rate) / per})
		}
		base = newPieces(ps)
	case "spike":
		lo, hi := float64(a.Rate)/per, float64(a.Peak)/per
		base = newPieces([]piece{{length: a.At.of().Seconds(), from: lo, to: lo}, {length: a.For.of().Seconds(), from: hi, to: hi}, {length: 1, from: lo, to: lo}})
	case "sine":
		period := cmp.Or(a.Period.of(), length)
		mean := (float64(a.Rate) + float64(a.Peak)) / 2 / per
		base = &wave{mean: mean, swing: float64(a.Peak)/per - mean, period: period.Seconds()}
	case "trace":
		return readTrace(a.File, a.Slot.of(), a.Factor)
	default:
		return nil, fmt.Errorf("no arrival is called %q", a.Shape)
	}
	if a.Poisson || a.Shape == "poisson" {
		return &poisson{rate: base.(intensity), seed: seed, marks: []float64{0}}, nil
	}
	return base, nil
}

// intensity is a schedule by its rate: n(t) requests are due by t seconds, and
// t(n) is its inverse.
type intensity interface {
	n(t float64) float64
	t(n float64) float64
}

func seconds(t float64) time.Duration { return time.Duration(math.Round(t * 1e9)) }

// dueBy counts the i with at(i) <= t: it begins at a guess and corrects it.
func dueBy(s interface{ at(int64) time.Duration }, t time.Duration, guess float64) int64 {
	if t < 0 {
		return 0
	}
	n := max(int64(guess), 0)
	for n > 0 && s.at(n-1) > t {
		n--
	}
	for s.at(n) <= t {
		n++
	}
	return n
}

// flat is a constant rate.
type flat struct{ rate, period float64 } // a second, ns

func newFlat(rate float64) flat { return flat{rate, 1e9 / rate} }

func (f flat) n(t float64) float64 { return t * f.rate }
func (f flat) t(n float64) float64 { return n / f.rate }

// at multiplies once and rounds once: an interval rounded to whole nanoseconds
// would be a rate of its own.
func (f flat) at(i int64) time.Duration { return time.Duration(float64(i)*f.period + 0.5) }
func (f flat) by(t time.Duration) int64 { return dueBy(f, t, f.n(t.Seconds())+1) }

// piece is a stretch over which the rate changes evenly.
type piece struct {
	length, from, to float64 // seconds, requests a second
	begin, before    float64 // computed: seconds and requests before it
}

// pieces are one after the other; the last one goes on at its last rate.
type pieces []piece

func newPieces(ps []piece) pieces {
	var out pieces
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
	return append(out, piece{length: math.Inf(1), from: last, to: last, begin: begin, before: before})
}

func (ps pieces) n(t float64) float64 {
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

func (ps pieces) t(n float64) float64 {
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
			return math.Inf(1) // a rate of 0 to the end: never
		case math.Abs(a) < 1e-12:
			return p.begin + rest/p.from
		}
		// from*d + a/2*d*d = rest, solved so that it is exact for small a as well.
		return p.begin + 2*rest/(p.from+math.Sqrt(max(p.from*p.from+2*a*rest, 0)))
	}
	return math.Inf(1)
}

// never is the time of what is never due.
const never = time.Duration(math.MaxInt64)

func (ps pieces) at(i int64) time.Duration {
	t := ps.t(float64(i))
	if t > 1e9 { // 30 years
		return never
	}
	return seconds(t)
}
func (ps pieces) by(t time.Duration) int64 { return dueBy(ps, t, ps.n(t.Seconds())+1) }

// wave swings about a mean, from its lowest.
type wave struct{ mean, swing, period float64 }

func (w *wave) n(t float64) float64 {
	return w.mean*t - w.swing*w.period/(2*math.Pi)*math.Sin(2*math.Pi*t/w.period)
}

func (w *wave) t(n float64) float64 {
	// n(t) rises and stays within swing*period/2pi of mean*t.
	slack := math.Abs(w.swing)*w.period/(2*math.Pi)/w.mean + 1e-9
	lo, hi := max(n/w.mean-slack, 0), n/w.mean+slack
	for range 60 {
		mid := (lo + hi) / 2
		if w.n(mid) < n {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

func (w *wave) at(i int64) time.Duration { return seconds(w.t(float64(i))) }
func (w *wave) by(t time.Duration) int64 { return dueBy(w, t, w.n(t.Seconds())+1) }

// poisson puts requests at random moments of an intensity: request i is where
// the sum of i+1 exponential gaps, each a pure function of seed and number, lies.
// Sums are remembered every markEvery requests, so that any i is found with few
// additions.
type poisson struct {
	rate intensity
	seed uint64

	mu    sync.Mutex
	marks []float64 // sum of the gaps before request k*markEvery
	next  int64     // the request whose sum was asked last, plus 1
	sum   float64   // of the gaps up to it
}

const markEvery = 1024

func (p *poisson) gap(i int64) float64 {
	u := float64(notify.Mix(p.seed^notify.Mix(uint64(i)))>>11) / (1 << 53) // [0, 1)
	return -math.Log1p(-u)
}

func (p *poisson) at(i int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := i / markEvery; int64(len(p.marks)) <= k; {
		from := int64(len(p.marks)-1) * markEvery
		sum := p.marks[len(p.marks)-1]
		for j := from; j < from+markEvery; j++ {
			sum += p.gap(j)
		}
		p.marks = append(p.marks, sum)
	}
	// Whoever asks in order pays one gap a request.
	if i < p.next || i-p.next >= markEvery || p.next == 0 {
		p.next, p.sum = i/markEvery*markEvery, p.marks[i/markEvery]
	}
	for ; p.next <= i; p.next++ {
		p.sum += p.gap(p.next)
		if p.next%markEvery == markEvery-1 { // the same sum, whichever way it was reached
			if k := p.next/markEvery + 1; k < int64(len(p.marks)) {
				p.sum = p.marks[k]
			}
		}
	}
	t := p.rate.t(p.sum)
	if t > 1e9 {
		return never
	}
	return seconds(t)
}

func (p *poisson) by(t time.Duration) int64 { return dueBy(p, t, p.rate.n(t.Seconds())) }
