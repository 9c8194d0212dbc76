package load

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Histograms hold nanoseconds from 1 us to 1 h with 3 digits, and need 180 KB each. Times below 1
// us have a resolution of 512 ns. Times above 1 h are stored as 1 h.
const (
	shortest = int64(time.Microsecond)
	longest  = int64(time.Hour)
	digits   = 3
)

// NewHistogram returns an empty histogram with the range and precision of all histograms of a
// Result, so that they can be merged.
func NewHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(shortest, longest, digits) }

// EncodeHistogram returns the V2 compressed encoding of a histogram in base64, which lines of .hlog
// files also contain. It returns "" for an empty histogram.
func EncodeHistogram(h *hdrhistogram.Histogram) (string, error) {
	if h == nil || h.TotalCount() == 0 {
		return "", nil
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(b), err
}

// DecodeHistogram is the inverse of EncodeHistogram. It returns an error of notify.KindInvalid if
// the text is not a histogram.
func DecodeHistogram(s string) (*hdrhistogram.Histogram, error) {
	if s == "" {
		return NewHistogram(), nil
	}
	h, err := hdrhistogram.Decode([]byte(s))
	if err != nil {
		return nil, notify.Invalid("bad_histogram", "histogram", fmt.Sprintf("is not a valid HdrHistogram: %v", err))
	}
	return h, nil
}

// decodeOwn decodes a histogram that another process of notifyd encoded. It refuses a histogram
// with another range or precision than NewHistogram gives. It checks this in the header before it
// allocates the counts, because a damaged header of 40 bytes may ask for gigabytes.
func decodeOwn(s string) (*hdrhistogram.Histogram, error) {
	if s != "" && !madeHere(s) {
		return nil, notify.Invalid("bad_histogram", "histogram", fmt.Sprintf("must hold values from %d to %d ns with %d digits", shortest, longest, digits))
	}
	return DecodeHistogram(s)
}

// madeHere reports whether an encoded histogram has the range and the digits of NewHistogram. The
// encoding (V2 of HdrHistogram) has 8 bytes and then data compressed with zlib. These data begin
// with a header: cookie, payload length, normalizing offset and digits (4 bytes each), lowest
// value, highest value and ratio (8 bytes each).
func madeHere(s string) bool {
	const head, most = 40, 4 << 20
	packed, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(packed) < 8 {
		return false
	}
	z, err := zlib.NewReader(bytes.NewReader(packed[8:]))
	if err != nil {
		return false
	}
	b, err := io.ReadAll(io.LimitReader(z, most+1))
	if err != nil || len(b) < head || len(b) > most {
		return false
	}
	number := binary.BigEndian
	return number.Uint32(b[12:]) == digits && number.Uint64(b[16:]) == uint64(shortest) && number.Uint64(b[24:]) == uint64(longest)
}

// QuantilesOf returns the quantiles of a histogram. They are zero if it is nil or empty.
func QuantilesOf(h *hdrhistogram.Histogram) Quantiles {
	if h == nil || h.TotalCount() == 0 {
		return Quantiles{}
	}
	v := ValuesAt(h, 50, 90, 99, 99.9, 99.99)
	return Quantiles{
		Count: h.TotalCount(), Min: h.Min(), Mean: int64(h.Mean()),
		P50: v[0], P90: v[1], P99: v[2], P999: v[3], P9999: v[4], Max: h.Max(),
	}
}

// SignedQuantiles returns the quantiles of lateness, which is negative for an early message. The
// histogram late holds the values of 0 and above. The histogram early holds how long before its
// time each early message came, without a sign.
func SignedQuantiles(late, early *hdrhistogram.Histogram) Quantiles {
	if early == nil || early.TotalCount() == 0 {
		return QuantilesOf(late)
	}
	if late == nil {
		late = NewHistogram()
	}
	e, l := early.TotalCount(), late.TotalCount()
	n := e + l
	at := func(q float64) int64 {
		rank := q / 100 * float64(n)
		if rank <= float64(e) { // the least lateness is the largest value of early
			return -early.ValueAtQuantile((float64(e) - rank) / float64(e) * 100)
		}
		return late.ValueAtQuantile((rank - float64(e)) / float64(l) * 100)
	}
	out := Quantiles{
		Count: n, Min: -early.Max(), Mean: int64((late.Mean()*float64(l) - early.Mean()*float64(e)) / float64(n)),
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99), Max: late.Max(),
	}
	if l == 0 {
		out.Max = -early.Min()
	}
	return out
}

// ValueAt returns the smallest value v for which at least percentile percent of all values are v or
// less. It returns 0 for an empty histogram. The Java readers of HdrHistogram return the same.
// Without this function hdrhistogram-go would round to the nearest rank, which differs if there are
// few values.
func ValueAt(h *hdrhistogram.Histogram, percentile float64) int64 {
	return ValuesAt(h, percentile)[0]
}

// ValuesAt returns the same as ValueAt, for several percentiles. It needs only one pass if the
// percentiles ascend.
func ValuesAt(h *hdrhistogram.Histogram, percentiles ...float64) []int64 {
	n := float64(h.TotalCount())
	at := make([]float64, len(percentiles))
	for i, p := range percentiles {
		if n == 0 || p <= 0 {
			continue
		}
		// Make p a little smaller, because a value such as 99.9 may be stored as a little more. So
		// 99.9% of 1000 values are 999 values.
		p = min(math.Nextafter(p, 0), 100)
		at[i] = 100 * max(math.Ceil(p*n/100), 1) / n
	}
	return h.ValueAtPercentilesSlice(at)
}
