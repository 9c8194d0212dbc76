package load

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// took records when something promised came.
func (c *coordinator) took(d *due, at time.Time, n int64) {
	c.timing.Lock()
	defer c.timing.Unlock()
	e := c.endToEnd[d.step]
	if e == nil {
		e = &endTimes{endToEnd: NewHistogram(), late: NewHistogram(), early: NewHistogram()}
		c.endToEnd[d.step] = e
	}
	if d.at == 0 {
		put(e.endToEnd, c.run.since(at)-d.intended, n)
		put(e.part(d.intended, c.run.s.Length()), c.run.since(at)-d.intended, n)
		return
	}
	late := time.Duration(at.UnixNano() - d.at)
	if late < 0 {
		put(e.early, -late, n)
		return
	}
	put(e.late, late, n)
	if late > LateAfter {
		e.after += n
	}
}

// endTimes are what the ledger says of one step.
type endTimes struct {
	endToEnd, late, early *hdrhistogram.Histogram
	after                 int64                     // late by more than LateAfter
	parts                 []*hdrhistogram.Histogram // of endToEnd, see StepResult.EndToEndParts; nil: empty
}

const mostParts = 300

// part returns the histogram of the messages due at the time of one that is.
func (e *endTimes) part(due, length time.Duration) *hdrhistogram.Histogram {
	i := min(max(int(due/max(length/mostParts, time.Second)), 0), mostParts-1)
	for len(e.parts) <= i {
		e.parts = append(e.parts, nil)
	}
	if e.parts[i] == nil {
		e.parts[i] = hdrhistogram.New(shortest, longest, 2) // 26 KB each
	}
	return e.parts[i]
}

func (e *endTimes) briefs() (list []Brief) {
	for _, h := range e.parts {
		b := Brief{}
		if h != nil {
			b = brief(h)
		}
		list = append(list, b)
	}
	return list
}

// intervalLength is how much of a run an Interval holds.
const intervalLength = 10 * time.Second

func (c *coordinator) keepInterval(s *stepRun, d *window) {
	w := c.inter[s]
	if w == nil {
		w = newWindow()
		c.inter[s] = w
	}
	w.merge(d)
	if c.run.since(time.Now())-c.interFrom >= intervalLength {
		c.endIntervals()
	}
}

func (c *coordinator) endIntervals() {
	now := c.run.since(time.Now())
	for _, s := range c.run.steps {
		w := c.inter[s]
		if w == nil || w.requests == 0 {
			continue
		}
		for _, k := range []struct {
			kind string
			h    *hdrhistogram.Histogram
		}{{"lag", w.lag}, {"service", w.service}, {"response", w.response}} {
			text, err := EncodeHistogram(k.h)
			if err != nil {
				continue // it has no room for the count: the totals say it
			}
			c.intervals = append(c.intervals, Interval{
				Start: c.interFrom, Length: now - c.interFrom, Step: s.Name, Phase: s.phase.Name, Kind: k.kind, Max: k.h.Max(), Histogram: text,
			})
		}
		w.reset()
	}
	c.interFrom = now
}

// slope is the share of the rate acked by which the backlog grew over the last d of
// sending, at least: that of the line through the ends of its seconds, without what
// two standard errors may make of it. What goes up and down with what is in flight
// does not grow. It takes three seconds to know.
func (c *coordinator) slope(d time.Duration) (float64, bool) {
	var at, backlog []float64 // seconds, messages; the latest first
	acked, length := int64(0), time.Duration(0)
	for i := len(c.seconds) - 1; i >= 0 && length < d; i-- {
		s := &c.seconds[i]
		if s.Draining || s.Sent == 0 && len(at) == 0 {
			continue
		}
		at, backlog = append(at, -length.Seconds()), append(backlog, float64(s.Backlog))
		acked += s.Acked
		length += s.Length
	}
	if len(at) < 3 || acked == 0 {
		return 0, false
	}
	v, off := line(at, backlog)
	v = math.Copysign(max(math.Abs(v)-2*off, 0), v) * length.Seconds() / float64(acked)
	if math.IsNaN(v) {
		return 0, false
	}
	return v, true
}

// line is the slope of the least squares' line through points, and its standard
// error.
func line(x, y []float64) (slope, off float64) {
	n := float64(len(x))
	var mx, my, sxx, sxy, syy float64
	for i := range x {
		mx += x[i] / n
		my += y[i] / n
	}
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
		syy += (y[i] - my) * (y[i] - my)
	}
	slope = sxy / sxx
	return slope, math.Sqrt(max(syy-slope*sxy, 0) / (n - 2) / sxx)
}

// slopeOver is how much of the sending the slope is of, unless somebody says.
func (c *coordinator) slopeOver() time.Duration {
	sending := time.Duration(0)
	for i := range c.seconds {
		if !c.seconds[i].Draining {
			sending += c.seconds[i].Length
		}
	}
	return max(sending/3, 5*time.Second)
}
