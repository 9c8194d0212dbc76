package load

import (
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ValueAt is the least value that at least so many percent of a histogram's values
// do not exceed, 0 for an empty one. It counts as HdrHistogram's Java readers do;
// hdrhistogram-go rounds to the nearest value, which among few is another one.
func ValueAt(h *hdrhistogram.Histogram, percentile float64) int64 {
	return ValuesAt(h, percentile)[0]
}

// ValuesAt is ValueAt for several percentiles; ascending ones are read in one pass.
func ValuesAt(h *hdrhistogram.Histogram, percentiles ...float64) []int64 {
	n := float64(h.TotalCount())
	at := make([]float64, len(percentiles))
	for i, p := range percentiles {
		if n == 0 || p <= 0 {
			continue
		}
		// One step below, so that 99.9 of 1000 is 999 whatever the rounding of 0.999.
		p = min(math.Nextafter(p, 0), 100)
		at[i] = 100 * max(math.Ceil(p*n/100), 1) / n
	}
	return h.ValueAtPercentilesSlice(at)
}
