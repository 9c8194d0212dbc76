package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// took records when something promised came.
func (c *coordinator) took(d *due, at time.Time, n int64) {
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
