package load

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recordArrival records the end-to-end time, or the lateness, of n promised messages that arrived.
func (c *coordinator) recordArrival(d *dueMoment, at time.Time, n int64) {
	c.endToEndMu.Lock()
	defer c.endToEndMu.Unlock()
	e := c.endToEnd[d.step]
	if e == nil {
		e = &endTimes{endToEnd: NewHistogram(), late: NewHistogram(), early: NewHistogram()}
		c.endToEnd[d.step] = e
	}
	if d.scheduledAt == 0 {
		recordValue(e.endToEnd, c.run.since(at)-d.intended, n)
		recordValue(e.partOf(d.intended, c.run.s.Length()), c.run.since(at)-d.intended, n)
		return
	}
	late := time.Duration(at.UnixNano() - d.scheduledAt)
	if late < 0 {
		recordValue(e.early, -late, n)
		return
	}
	recordValue(e.late, late, n)
	if late > LateAfter {
		e.afterLimit += n
	}
}

// endTimes holds the times of one step that are computed from the arrivals in the ledger.
type endTimes struct {
	endToEnd, late, early *hdrhistogram.Histogram
	afterLimit            int64 // messages that were late by more than LateAfter
	// parts[i] holds the end-to-end times of messages that were due in part i of the run, see
	// StepResult.EndToEndParts. nil: there is no such message.
	parts []*hdrhistogram.Histogram
}

const maxParts = 300

// partOf returns the histogram for messages that were due at the given run time. There is one
// histogram for each part of the run. The parameter length is the length of the whole run.
func (e *endTimes) partOf(intended, length time.Duration) *hdrhistogram.Histogram {
	i := min(max(int(intended/max(length/maxParts, time.Second)), 0), maxParts-1)
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

// intervalLength is the length of an Interval.
const intervalLength = 10 * time.Second

func (c *coordinator) keepInterval(s *stepRun, d *window) {
	w := c.intervalCounts[s]
	if w == nil {
		w = newWindow()
		c.intervalCounts[s] = w
	}
	w.merge(d)
	if c.run.since(time.Now())-c.intervalStart >= intervalLength {
		c.endIntervals()
	}
}

func (c *coordinator) endIntervals() {
	now := c.run.since(time.Now())
	for _, s := range c.run.steps {
		w := c.intervalCounts[s]
		if w == nil || w.requests == 0 {
			continue
		}
		for _, k := range []struct {
			kind string
			h    *hdrhistogram.Histogram
		}{{"lag", w.lag}, {"service", w.service}, {"response", w.response}} {
			text, err := EncodeHistogram(k.h)
			if err != nil {
				continue // the encoding cannot hold such counts; the totals still hold them
			}
			c.intervals = append(c.intervals, Interval{
				Start: c.intervalStart, Length: now - c.intervalStart, Step: s.Name, Phase: s.phase.Name, Kind: k.kind, Max: k.h.Max(), Histogram: text,
			})
		}
		w.reset()
	}
	c.intervalStart = now
}

// backlogSlope returns the growth of the backlog as a share of the acknowledged rate. It fits a
// line to the backlogs of the last seconds of sending. The parameter d says how long these
// seconds are together. The messages in flight vary, so even a backlog that does not grow has a
// small slope. To ignore this, backlogSlope moves the slope towards 0 by two standard errors. It
// returns false if there are fewer than three seconds.
func (c *coordinator) backlogSlope(d time.Duration) (float64, bool) {
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
	v, off := fitLine(at, backlog)
	v = math.Copysign(max(math.Abs(v)-2*off, 0), v) * length.Seconds() / float64(acked)
	if math.IsNaN(v) {
		return 0, false
	}
	return v, true
}

// fitLine returns the slope of the least-squares line through points, and its standard error.
func fitLine(x, y []float64) (slope, off float64) {
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

// defaultSlopeWindow returns the time over which backlogSlope measures if the metric has no window.
func (c *coordinator) defaultSlopeWindow() time.Duration {
	sending := time.Duration(0)
	for i := range c.seconds {
		if !c.seconds[i].Draining {
			sending += c.seconds[i].Length
		}
	}
	return max(sending/3, 5*time.Second)
}
