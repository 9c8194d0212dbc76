package load

import (
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ValueAt is the least value that at least so many percent of a histogram's values
// do not exceed, 0 for an empty one. It counts as HdrHistogram's Java readers do;
// hdrhistogram-go rounds to the nearest value, which among few is another one.
func ValueAt(h *hdrhistogram.Histogram, percentile float64) int64 {
	n := h.TotalCount()
	if n == 0 || percentile <= 0 {
		return h.ValueAtPercentile(0)
	}
	// One step below, so that 99.9 of 1000 is 999 whatever the rounding of 0.999.
	p := min(math.Nextafter(percentile, 0), 100)
	rank := max(math.Ceil(p*float64(n)/100), 1)
	return h.ValueAtPercentile(100 * rank / float64(n))
}
