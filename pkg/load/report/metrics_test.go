package report

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/notifyd/notifyd/pkg/load"
)

func scrape(t *testing.T, latest func() *load.Snapshot) string {
	t.Helper()
	w := httptest.NewRecorder()
	MetricsHandler(latest).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(w.Body.String())); err != nil {
		t.Fatalf("%v in\n%s", err, w.Body)
	}
	return w.Body.String()
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	if out := scrape(t, func() *load.Snapshot { return nil }); strings.Contains(out, "notifyctl_load") {
		t.Errorf("before the run:\n%s", out)
	}
	r := fixture(t)
	s := &load.Snapshot{
		State: load.StateRunning, Verdict: load.Valid, Elapsed: 42 * time.Second, Phase: load.Phase{Name: "steady"}, Rates: load.Rates{Acked: 260},
		Totals: load.Totals{Backlog: 7, Duplicates: 1}, Errors: r.Errors, Thresholds: r.Thresholds, Health: load.Health{LagP99: 3 * time.Millisecond},
	}
	for i := range r.Steps {
		s.Steps = append(s.Steps, r.Steps[i].StepSnapshot)
	}
	s.Steps[0].Name = "a \"step\"\n\\ of many\x1b"
	out := scrape(t, func() *load.Snapshot { return s })
	for _, want := range []string{
		`notifyctl_load_messages_total{outcome="accepted",phase="steady",step="push"} 7999`,
		`notifyctl_load_latency_seconds{kind="response",phase="steady",step="push",quantile="0.99"} 0.108`,
		`notifyctl_load_latency_seconds_count{kind="lateness",phase="steady",step="later"} 2400`,
		`notifyctl_load_ledger_total{state="duplicate"} 1`, "notifyctl_load_backlog 7", `notifyctl_load_rate{of="accepted"} 260`,
		`notifyctl_load_threshold_ok{expr="lost == 0"} 1`, `notifyctl_load_threshold_ok{expr="response.p99 < 20ms {step=push}"} 0`,
		`notifyctl_load_state{phase="steady",state="running"} 1`, "notifyctl_load_generator_lag_seconds 0.003", `step="a \"step\"\n\\ of many`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// TestMetricsAreDocumented checks that docs/metrics-load.md lists every metric, and no other metric.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../docs/metrics-load.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	for _, d := range allDescriptors {
		name := nameOf(d)
		if strings.Count(doc, "- `"+name+"`") != 1 {
			t.Errorf("docs/metrics-load.md does not list %s once", name)
		}
	}
	if n := strings.Count(doc, "- `notifyctl_load_"); n != len(allDescriptors) {
		t.Errorf("docs/metrics-load.md lists %d metrics of a load run, there are %d", n, len(allDescriptors))
	}
}

func nameOf(d *prometheus.Desc) string {
	_, after, _ := strings.Cut(d.String(), `fqName: "`)
	name, _, _ := strings.Cut(after, `"`)
	return name
}
