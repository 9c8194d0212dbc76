package report

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

// Nanos formats a latency with three digits: 843ns, 12.3us, 4.56ms, 1.23s, 127s.
func Nanos(ns int64) string {
	v, unit := float64(ns), "ns"
	a := math.Abs(v)
	switch {
	case a >= 999.5e6:
		v, unit = v/1e9, "s"
	case a >= 999.5e3:
		v, unit = v/1e6, "ms"
	case a >= 999.5:
		v, unit = v/1e3, "us"
	default:
		return strconv.FormatInt(ns, 10) + unit
	}
	return digits3(v) + unit
}

// digits3 formats a number with three digits. A number with more than three digits before the point
// keeps all of them.
func digits3(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// FormatCount formats a count or rate in at most six characters: 950, 12.3K, 5.00M.
func FormatCount(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 999.5e6:
		return digits3(v/1e9) + "G"
	case a >= 999.5e3:
		return digits3(v/1e6) + "M"
	case a >= 9995:
		return digits3(v/1e3) + "K"
	case a >= 99.5 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return digits3(v)
}

// FormatBytes formats a size with a unit: 512 B, 1.50 MiB.
func FormatBytes(n int64) string {
	v := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if v < 1024 {
			if unit == "B" {
				return strconv.FormatInt(n, 10) + " B"
			}
			return digits3(v) + " " + unit
		}
		v /= 1024
	}
	return digits3(v) + " GiB"
}

// FormatClock formats a time since the start of a run, such as 1:05 or 1:02:03.
func FormatClock(d time.Duration) string {
	s := int64(d / time.Second)
	sign := ""
	if s < 0 {
		s, sign = -s, "-"
	}
	if s >= 3600 {
		return fmt.Sprintf("%s%d:%02d:%02d", sign, s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%s%d:%02d", sign, s/60, s%60)
}

// FormatSeconds formats a length of time, such as 60.0s.
func FormatSeconds(d time.Duration) string {
	if d < 10*time.Minute {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	}
	return term.FormatDuration(d)
}

func percent(part, of float64) string {
	if of == 0 {
		return "-"
	}
	p := 100 * part / of
	if p != 100 && p > 99.9 && p < 100.1 { // with one decimal this would be 100.0%, which would hide the difference
		return strconv.FormatFloat(p, 'f', 3, 64) + "%"
	}
	return strconv.FormatFloat(p, 'f', 1, 64) + "%"
}

// timeThreshold matches the expression of a threshold that compares with a time. The value of such
// a threshold is in nanoseconds.
var timeThreshold = regexp.MustCompile(`[0-9](ns|us|µs|ms|s|m|h)\b`)

// ThresholdValue formats the value of a threshold's metric.
func ThresholdValue(t load.ThresholdState) string {
	switch {
	case !t.Known:
		return "nothing yet"
	case timeThreshold.MatchString(t.Expr):
		return Nanos(int64(t.Value))
	case t.Value == math.Trunc(t.Value) && math.Abs(t.Value) < 1e15:
		return term.Count(int64(t.Value))
	}
	return strconv.FormatFloat(t.Value, 'g', 4, 64)
}

// kind is a kind of histogram of a step. The constants have the order in which reports show them.
type kind int

const (
	response kind = iota
	service
	lag
	endToEnd
	late
	kinds // number of kinds that reports show; early is shown with late
	early = kinds
)

var kindNames = [kinds]string{"response", "service", "lag", "end to end", "lateness"}

func quantiles(s *load.StepSnapshot, k kind) load.Quantiles {
	return [kinds]load.Quantiles{s.Response, s.Service, s.Lag, s.EndToEnd, s.Lateness}[k]
}

func encodedHistogram(h *load.Histograms, k kind) string {
	return [kinds + 1]string{h.Response, h.Service, h.Lag, h.EndToEnd, h.Late, h.Early}[k]
}

// measuredSteps returns the steps whose figures count: all steps except warm-ups. If all steps are
// warm-ups, it returns all steps.
func measuredSteps(r *load.Result) []*load.StepResult {
	var list, all []*load.StepResult
	for i := range r.Steps {
		all = append(all, &r.Steps[i])
		if !r.Steps[i].Warmup {
			list = append(list, &r.Steps[i])
		}
	}
	if len(list) == 0 {
		return all
	}
	return list
}

// mergedHistogram adds the histograms of kind k of all steps. It returns an error of
// notify.KindInvalid if a histogram is damaged.
func mergedHistogram(steps []*load.StepResult, k kind) (*hdrhistogram.Histogram, error) {
	var texts []string
	for _, s := range steps {
		texts = append(texts, encodedHistogram(&s.Histograms, k))
	}
	return mergeEncoded(texts)
}

// mergedQuantiles returns the quantiles of the merged histograms of kind k. They are zero if a
// histogram is damaged.
func mergedQuantiles(steps []*load.StepResult, k kind) load.Quantiles {
	sum, err := mergedHistogram(steps, k)
	switch {
	case err != nil:
		return load.Quantiles{}
	case k != late:
		return load.QuantilesOf(sum)
	}
	before, err := mergedHistogram(steps, early)
	if err != nil {
		before = nil
	}
	return load.SignedQuantiles(sum, before)
}

// overallQuantiles returns the quantiles of all steps together. For a single step it returns the
// quantiles stored in the step, and decodes no histogram.
func overallQuantiles(steps []*load.StepResult, k kind) load.Quantiles {
	if len(steps) == 1 {
		return quantiles(&steps[0].StepSnapshot, k)
	}
	return mergedQuantiles(steps, k)
}
