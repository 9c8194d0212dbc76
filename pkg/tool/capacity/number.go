package capacity

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/pkg/term"
)

// ParseNumber parses 5M, 200K, 1.5G, 70% and plain numbers.
func ParseNumber(text string) (float64, error) {
	text = strings.TrimSpace(text)
	scale, parts := 1.0, 1.0
	if rest, ok := strings.CutSuffix(text, "%"); ok {
		text, parts = rest, 100 // a divisor, so that 70% is exactly 0.7
	} else {
		for suffix, by := range map[string]float64{"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9} {
			if rest, ok := strings.CutSuffix(text, suffix); ok {
				text, scale = rest, by
				break
			}
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, err
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errors.New("not a finite number")
	}
	return v * scale / parts, nil
}

// Number returns a number with at most four significant digits: 3.5M, 8,333, 0.7.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return strconv.FormatFloat(v, 'g', -1, 64)
	case a >= 1e9:
		return short(v/1e9) + "G"
	case a >= 1e6:
		return short(v/1e6) + "M"
	case a >= 1e5:
		return short(v/1e3) + "K"
	case a >= 1000:
		return term.Count(int64(math.Round(v)))
	}
	return short(v)
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// maxCount is the highest count of a sheet: a round number that an int64 can hold.
const maxCount = 9e18

// ceil rounds up, but ignores floating-point rounding errors. A positive v gives at least 1. The
// result is at most maxCount.
func ceil(v float64) int64 {
	if v <= 0 {
		return 0
	}
	return int64(math.Min(math.Max(1, math.Ceil(v*(1-1e-9))), maxCount))
}

// times returns the product of n and each, or maxCount if the product is greater. The parameter
// each must be a whole number.
func times(n int64, each float64) int64 {
	if float64(n)*each > maxCount {
		return maxCount
	}
	return n * int64(each)
}
