package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// WriteHLog writes the histograms of a run as a log in HdrHistogram's format 1.3. The Java tools of
// HdrHistogram read this format (HistogramLogProcessor -tag). Values are nanoseconds. A tag is
// PHASE/STEP/KIND, and each of the three is one word. A kind of latency has one line per interval
// if the step has intervals of this kind. Otherwise it has one line for the whole run.
//
// WriteHLog formats the lines itself. The writer of hdrhistogram-go would cut the start of each
// line to whole seconds, and would decode and encode every histogram again. The tests read the log
// with the reader of hdrhistogram-go. scripts/hlog-java.sh reads it with the Java reader.
func WriteHLog(w io.Writer, r *load.Result) error {
	out := bufio.NewWriter(w)
	lib := hdrhistogram.NewHistogramLogWriter(out)
	start := float64(r.Started.UnixMilli()) / 1e3
	for _, comment := range []string{
		fmt.Sprintf("[notifyctl load, scenario %s, nanoseconds]", asciiWord(r.Scenario.Name)),
		fmt.Sprintf("[Histogram log format version %s]", hdrhistogram.HISTOGRAM_LOG_FORMAT_VERSION),
		fmt.Sprintf("[BaseTime: %.3f (seconds since epoch)]", start),
		fmt.Sprintf("[StartTime: %.3f (seconds since epoch), %s]", start, r.Started.UTC().Format(time.RFC3339)),
	} {
		if err := lib.OutputComment(comment); err != nil {
			return err
		}
	}
	if err := lib.OutputLegend(); err != nil {
		return err
	}
	list, err := hlogIntervals(r)
	if err != nil {
		return err
	}
	for i := range list {
		l := &list[i]
		if _, err := fmt.Fprintf(out, "Tag=%s,%.3f,%.3f,%.3f,%s\n", tag(l.Phase, l.Step, l.Kind),
			l.Start.Seconds(), l.Length.Seconds(), float64(l.Max)/hdrhistogram.MsToNsRatio, l.Histogram); err != nil {
			return err
		}
	}
	return out.Flush()
}

func tag(phase, step, kind string) string {
	return asciiWord(phase) + "/" + asciiWord(step) + "/" + asciiWord(kind)
}

// hlogIntervals returns the lines of the log, sorted by start, because the readers expect this
// order. It returns an error if a histogram is damaged.
func hlogIntervals(r *load.Result) ([]load.Interval, error) {
	type series struct{ phase, step, kind string }
	have := map[series]bool{}
	var list []load.Interval
	for _, l := range r.Intervals {
		if l.Histogram != "" {
			list = append(list, l)
			have[series{l.Phase, l.Step, l.Kind}] = true
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		h := &s.Histograms
		for _, one := range []struct{ kind, text string }{
			{"response", h.Response}, {"service", h.Service}, {"lag", h.Lag},
			{"end_to_end", h.EndToEnd}, {"late", h.Late}, {"early", h.Early},
		} {
			if one.text == "" || have[series{s.Phase, s.Name, one.kind}] {
				continue
			}
			dec, err := load.DecodeHistogram(one.text)
			if err != nil {
				return nil, fmt.Errorf("step %s, %s: %w", s.Name, one.kind, err)
			}
			list = append(list, load.Interval{
				Length: r.Sending + r.DrainTime, Phase: s.Phase, Step: s.Name, Kind: one.kind, Max: dec.Max(), Histogram: one.text,
			})
		}
	}
	slices.SortStableFunc(list, func(a, b load.Interval) int { return cmp.Compare(a.Start, b.Start) })
	return list, nil
}
