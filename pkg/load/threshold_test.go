package load

import (
	"strings"
	"testing"
	"time"
)

// fixed is a metricSource with one value per metric name.
type fixed map[string]float64

func (f fixed) value(m *metric, final bool) (float64, bool) {
	key := m.name
	if p := m.tags["phase"]; p != "" {
		key += "/" + p
	}
	v, ok := f[key]
	return v, ok && (final || !m.knownAtEnd())
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	ms := float64(time.Millisecond)
	have := fixed{"response": 40 * ms, "lost": 0, "error_rate": 0.002, "rate": 4.9e6, "response/base": 40 * ms, "response/fault": 45 * ms}
	for expr, want := range map[string]bool{
		"response.p99 < 50ms":             true,
		"response.p99<40ms":               false,
		"response{step=otp}.p99 <= 0.04s": true,
		"lost == 0":                       true,
		"lost > 0":                        false,
		"lost != 0":                       false,
		"error_rate < 0.1%":               false,
		"error_rate < 1%":                 true,
		"rate >= 4.9M":                    true,
		"rate >= 5M/s":                    false,
		"duplicates == 0":                 false, // the metric has no value
		"response{phase=fault}.p99 <= 1.2 * response{phase=base}.p99": true,
		"response{phase=fault}.p99 <= 1.1 * response{phase=base}.p99": false,
	} {
		c, err := ParseThreshold(expr)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, _, ok := c.judge(have, true); ok != want {
			t.Errorf("%s: %v", expr, ok)
		}
	}
	// A metric that is known only at the end is not judged during the run.
	c, _ := ParseThreshold("lost == 1")
	if _, known, ok := c.judge(have, false); known || !ok {
		t.Error("lost was judged before the end")
	}
}

func TestThresholdsRefused(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		"response < 50ms":                   "must end with one of .p50",
		"respnse.p99 < 50ms":                `did you mean "response"?`,
		"response.p98 < 50ms":               "must end with one of",
		"response.p99 < 50":                 "no unit",
		"response{stp=x}.p99 < 5ms":         "is not a tag",
		"lost{step=x} == 0":                 "no tags",
		"lost.p99 == 0":                     "it has no",
		"lost":                              "not a condition",
		"lost[10s] == 0":                    "cannot have a window",
		"response[1ms].p99 < 5ms":           "not a window",
		"lost == few":                       "no metric is called",
		"lost < 5ms":                        "is a time",
		"rate > 5m":                         "is a number",
		"response.p99 < 2 * lost":           "the other is a number",
		"response{step=a,step=b}.p99 < 5ms": "twice",
	} {
		if _, err := ParseThreshold(expr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", expr, err, want)
		}
	}
}

// TestWindows checks that a threshold with a window stays missed once it was missed, while a
// threshold over the whole run may hold again.
func TestWindows(t *testing.T) {
	t.Parallel()
	ws, err := newWatched([]Threshold{{Expr: "response[5s].p99 < 50ms"}, {Expr: "response.p99 < 50ms"}, {Expr: "error_rate < 1%", After: Duration(8 * time.Second)}})
	if err != nil {
		t.Fatal(err)
	}
	have := fixed{"response": 1e6, "error_rate": 0.5}
	for s := range 20 {
		have["response"] = 1e6
		if s == 10 || s == 11 {
			have["response"] = 1e8
		}
		if s > 7 {
			have["error_rate"] = 0
		}
		for _, w := range ws {
			w.update(have, time.Duration(s)*time.Second, false)
		}
	}
	for _, w := range ws {
		w.update(have, 20*time.Second, true)
	}
	if st := ws[0].state; st.OK || st.Since != 10*time.Second || st.Value != 1e8 {
		t.Errorf("window: %+v", st)
	}
	if st := ws[1].state; !st.OK || st.Since != 12*time.Second {
		t.Errorf("whole run: %+v", st)
	}
	if st := ws[2].state; !st.OK || st.Since != 0 {
		t.Errorf("after: %+v", st)
	}
}
