package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

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
