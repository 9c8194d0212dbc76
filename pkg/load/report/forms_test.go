package report

import (
	"bytes"
	"html"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

func page2(t testing.TB, r *load.Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteHTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHTMLStandsAlone checks that the page is complete, loads nothing and runs no script.
func TestHTMLStandsAlone(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*load.Result{"fixture": fixture(t), "nasty": nasty(t), "empty": {}} {
		out := page2(t, r)
		// These strings may occur in texts, but not in tags and attributes.
		for _, bad := range []string{`<script`, `<link`, `<img`, `<iframe`, `<object`, `@import`, `url(`, `<a `, "ZgotmplZ"} {
			if strings.Contains(strings.ToLower(out), bad) {
				t.Errorf("%s: the page has %s", name, bad)
			}
		}
		if m := regexp.MustCompile(`<[a-z][^>]*\s(on[a-z]+|src|href|srcset|action|data)=`).FindString(out); m != "" {
			t.Errorf("%s: the page has a handler: %s", name, m)
		}
		if !strings.Contains(out, `default-src &#39;none&#39;`) && !strings.Contains(out, `default-src 'none'`) {
			t.Errorf("%s: no policy", name)
		}
		if opened, closed := len(regexp.MustCompile(`<svg|<section|<table|<div`).FindAllString(out, -1)), len(regexp.MustCompile(`</svg|</section|</table|</div`).FindAllString(out, -1)); opened != closed {
			t.Errorf("%s: %d opened, %d closed", name, opened, closed)
		}
		if notify.HasControl(strings.ReplaceAll(out, "\n", "")) || !utf8.ValidString(out) {
			t.Errorf("%s: who prints the page is steered by it", name)
		}
		if strings.Contains(out, "NaN") || strings.Contains(out, "+Inf") {
			t.Errorf("%s: the page draws what is no number", name)
		}
	}
	with := fixture(t)
	with.Agents = agents()
	out := html.UnescapeString(page2(t, with))
	for _, want := range []string{
		"Rates", "Latency over time", "Heat map", "Backlog", "Percentiles", "Response of each step", "Thresholds", "Ledger", "Errors", "Faults", "Agents", "at 0:27: it was silent for 3s; 11,000 of its messages not sent",
		"Generator", "Environment", "hang apns", "over_capacity", "AMD EPYC", "99.999", "response.p99 < 20ms {step=push}", "MISSED", "81be25e", "# <b>&",
		"prefers-color-scheme:dark", "width=device-width",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestHTMLOfLongRun checks that the page of a run of one day draws its seconds in groups.
func TestHTMLOfLongRun(t *testing.T) {
	t.Parallel()
	r := fixture(t)
	r.Seconds, r.Heat = nil, nil
	for s := range 86_400 {
		r.Seconds = append(r.Seconds, load.SecondRow{Second: s, Phase: "soak", Sent: 100, Length: time.Second, Response: load.Brief{Count: 100, P50: 1e6, P99: 2e6, Max: 3e6}})
		h := load.HeatColumn{Second: s}
		h.Counts[5], h.Counts[6] = 60, 40
		r.Heat = append(r.Heat, h)
	}
	if n := len(page2(t, r)); n > 1<<20 {
		t.Errorf("the page of a day has %d bytes", n)
	}
}

// TestHLogReadsBack checks that the Go reader of HdrHistogram finds the percentiles of each step and kind
// in the log.
func TestHLogReadsBack(t *testing.T) {
	t.Parallel()
	r := fixture(t)
	var b bytes.Buffer
	if err := WriteHLog(&b, r); err != nil {
		t.Fatal(err)
	}
	if out := os.Getenv("NOTIFY_HLOG_OUT"); out != "" { // for scripts/hlog-java.sh
		if err := writeForJava(out, b.Bytes(), r); err != nil {
			t.Fatal(err)
		}
	}
	sums := map[string]*hdrhistogram.Histogram{}
	read := hdrhistogram.NewHistogramLogReader(bytes.NewReader(b.Bytes()))
	last := int64(math.MinInt64)
	for {
		h, err := read.NextIntervalHistogram()
		if err != nil {
			t.Fatal(err)
		}
		if h == nil {
			break
		}
		if h.StartTimeMs() < last {
			t.Errorf("%s: %d comes after %d", h.Tag(), h.StartTimeMs(), last)
		}
		last = h.StartTimeMs()
		if at := time.UnixMilli(h.StartTimeMs()).Sub(r.Started); at < -time.Second || at > r.Sending {
			t.Errorf("%s: begins %s after the run", h.Tag(), at)
		}
		if sums[h.Tag()] == nil {
			sums[h.Tag()] = load.NewHistogram()
		}
		if d := sums[h.Tag()].Merge(h); d > 0 {
			t.Errorf("%s: %d dropped", h.Tag(), d)
		}
	}
	checked := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		for kind, q := range map[string]load.Quantiles{"response": s.Response, "service": s.Service, "lag": s.Lag, "end_to_end": s.EndToEnd} {
			name := tag(s.Phase, s.Name, kind)
			if sums[name] == nil {
				t.Errorf("no %s", name)
				continue
			}
			if got := load.QuantilesOf(sums[name]); got != q {
				t.Errorf("%s: %+v, want %+v", name, got, q)
			}
			checked++
		}
	}
	if want := 4 * len(r.Steps); checked != want || sums["steady/later/late"] == nil || sums["steady/later/early"] == nil {
		t.Errorf("%d checked, want %d", checked, want)
	}
}

// writeForJava writes a log and its percentiles to files, for a reader in Java.
func writeForJava(out string, log []byte, r *load.Result) error {
	var want bytes.Buffer
	for i := range r.Steps {
		s := &r.Steps[i]
		for k, kind := range map[kind]string{response: "response", service: "service", lag: "lag", endToEnd: "end_to_end"} {
			h, err := load.DecodeHistogram(encodedHistogram(&s.Histograms, k))
			if err != nil {
				return err
			}
			want.WriteString(strings.Join(append([]string{tag(s.Phase, s.Name, kind)}, percentilesOf(h)...), " ") + "\n")
		}
	}
	if err := os.WriteFile(out+".want", want.Bytes(), 0o600); err != nil {
		return err
	}
	return os.WriteFile(out, log, 0o600)
}

// TestHLogHostileNames checks that no name of a step can break a line or a tag of the log.
func TestHLogHostileNames(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteHLog(&b, nasty(t)); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^(#.*|"StartTimestamp".*|Tag=[A-Za-z0-9._/-]+,[0-9.]+,[0-9.]+,[0-9.]+,HISTF[A-Za-z0-9+/=]+)$`)
	for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if !line.MatchString(l) {
			t.Errorf("line %.120q", l)
		}
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	s := DefaultStore(func(k string) string { return map[string]string{"XDG_DATA_HOME": t.TempDir()}[k] })
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Fatalf("an empty store: %v, %v", list, err)
	}
	r := fixture(t)
	first, err := s.Save(r)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Save(r)
	if err != nil {
		t.Fatal(err)
	}
	if first != "20261120-093011-steady-then-spike" || second != first+"-2" {
		t.Errorf("saved as %s and %s", first, second)
	}
	r2 := fixture(t)
	r2.Started = r2.Started.Add(time.Hour)
	r2.Scenario.Name = "../../etc/passwd\x00 \n"
	third, err := s.Save(r2)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(third, "/\x00 \n") || filepath.Base(third) != third || strings.HasPrefix(third, ".") {
		t.Errorf("saved as %q", third)
	}
	for _, name := range []string{FileResult, FileSummary, FilePage, FileHLog} {
		if st, err := os.Stat(filepath.Join(s.Dir, first, name)); err != nil || st.Size() == 0 || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	// Add the folder that an interrupted Save leaves, and a damaged run.
	if err := os.Mkdir(filepath.Join(s.Dir, ".new-123"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.Dir, "20250101-000000-damaged"), 0o700); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 4 || list[0].ID != third || list[1].ID != second || list[2].ID != first || list[3].Damaged == "" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	if list[1].P99 != overallQuantiles(measuredSteps(r), response).P99 || list[1].Verdict != load.Valid || list[1].Accepted != r.Totals.Acked {
		t.Errorf("entry: %+v", list[1])
	}
	f := func(id, want, wantErr string) {
		t.Helper()
		dir, err := s.Folder(id)
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) {
				t.Errorf("%q: %v, want %q", id, err, wantErr)
			}
			return
		}
		if err != nil || filepath.Base(dir) != want {
			t.Errorf("%q: %s, %v, want %s", id, dir, err, want)
		}
	}
	f("last", third, "")
	f("last~1", second, "")
	f("last~2", first, "")
	f("last~9", "", "stored runs matches")
	f("last~x", "", "must be the ID")
	f(first, first, "")
	f("spike-2", second, "")
	f("spike", "", "several")
	f("nothing", "", "stored runs matches")
	f("", "", "stored runs matches")
	f("..", "", "stored runs matches")
	for _, name := range []string{second, filepath.Join(s.Dir, first), filepath.Join(s.Dir, first, FileResult)} {
		if back, err := s.Open(name); err != nil || back.Totals != r.Totals {
			t.Errorf("open %s: %v", name, err)
		}
	}
}

// TestSaveIsWhole checks that a Save that fails leaves no run in the store.
func TestSaveIsWhole(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir()}
	r := fixture(t)
	r.Steps[0].Histograms.EndToEnd = "no histogram"
	if id, err := s.Save(r); err == nil {
		t.Fatalf("saved as %s", id)
	}
	left, err := os.ReadDir(s.Dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func percentilesOf(h *hdrhistogram.Histogram) (list []string) {
	for _, q := range []float64{0, 50, 90, 99, 99.9, 99.99, 100} {
		list = append(list, strconv.FormatInt(load.ValueAt(h, q), 10))
	}
	return append(list, strconv.FormatInt(h.TotalCount(), 10))
}
