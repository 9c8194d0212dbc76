package load

import (
	"math"
	"time"
)

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
