package ruletest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"go.yaml.in/yaml/v3"
)

// step is the time between two samples and between two evaluations.
const step = time.Minute

// ruleGroups reads the rules as Prometheus does, including the check of their templates.
func ruleGroups(t *testing.T) (groups []rulefmt.RuleGroup) {
	t.Helper()
	names, err := filepath.Glob("../rules/*.yml")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files of rules, %v", len(names), err)
	}
	for _, name := range names {
		file, errs := rulefmt.ParseFile(name, false)
		for _, err := range errs {
			t.Error(err)
		}
		if len(errs) == 0 {
			groups = append(groups, file.Groups...)
		}
	}
	return groups
}

// bench evaluates the rules of one group over recorded series.
type bench struct {
	t       *testing.T
	storage *teststorage.TestStorage
	engine  *promql.Engine
}

func newBench(t *testing.T, series string) *bench {
	t.Helper()
	b := &bench{t: t, storage: promqltest.LoadedStorage(t, "load 1m\n"+indent(series)), engine: promqltest.NewTestEngine(t, false, 0, 10_000_000)}
	t.Cleanup(func() { _ = b.storage.Close() })
	return b
}

func indent(series string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(series), "\n", "\n  ") + "\n"
}

// query evaluates an expression every step from one time to another.
func (b *bench) query(expr string, from, to time.Duration) promql.Matrix {
	b.t.Helper()
	q, err := b.engine.NewRangeQuery(b.t.Context(), b.storage, nil, expr, time.Unix(0, 0).Add(from), time.Unix(0, 0).Add(to), step)
	if err != nil {
		b.t.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(b.t.Context())
	m, err := res.Matrix()
	if err != nil {
		b.t.Fatal(err)
	}
	out := make(promql.Matrix, len(m)) // copied, because the engine reuses m after Close
	for i := range m {
		out[i] = promql.Series{Metric: m[i].Metric.Copy(), Floats: slices.Clone(m[i].Floats)}
	}
	return out
}

// record evaluates a recording rule at each step up to a time, and returns what it
// records in the notation of newBench.
func (b *bench) record(r *rulefmt.Rule, to time.Duration) string {
	b.t.Helper()
	var out strings.Builder
	for _, s := range b.query(r.Expr, 0, to) {
		lb := labels.NewBuilder(s.Metric).Del(labels.MetricName)
		for name, value := range r.Labels {
			lb.Set(name, value)
		}
		values := make([]string, int(to/step)+1)
		for i := range values {
			values[i] = "_"
		}
		for _, p := range s.Floats {
			if !math.IsNaN(p.F) {
				values[time.Duration(p.T)*time.Millisecond/step] = strconv.FormatFloat(p.F, 'f', -1, 64)
			}
		}
		fmt.Fprintf(&out, "%s%s %s\n", r.Record, lb.Labels(), strings.Join(values, " "))
	}
	return out.String()
}

// fires reports whether an alert fires at a time over recorded series: its
// expression has had a result with the same labels at each evaluation of its
// "for". It sees what the rules of its group record.
func fires(t *testing.T, series string, g *rulefmt.RuleGroup, alert *rulefmt.Rule, at time.Duration) bool {
	t.Helper()
	b, recorded := newBench(t, series), ""
	for i := range g.Rules {
		if g.Rules[i].Record != "" {
			recorded += b.record(&g.Rules[i], at)
		}
	}
	if recorded != "" { // a new storage, because a storage refuses samples older than its own
		b = newBench(t, recorded)
	}
	from := at - time.Duration(alert.For)
	if from < 0 {
		t.Fatalf("%s: %s is shorter than its for", alert.Alert, at)
	}
	steps := int((at-from)/step) + 1
	return slices.ContainsFunc(b.query(alert.Expr, from, at), func(s promql.Series) bool { return len(s.Floats) == steps })
}

// TestAlerts: each alert fires in its bad series and not in its good ones.
func TestAlerts(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("cases.yml")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		At   model.Duration
		Bad  []string
		Good []string
	}
	if err := yaml.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, g := range ruleGroups(t) {
		for i := range g.Rules {
			r := &g.Rules[i]
			if r.Alert == "" || r.Labels["slo"] != "" {
				continue
			}
			c, ok := cases[r.Alert]
			if !ok || len(c.Bad) == 0 || len(c.Good) == 0 {
				t.Errorf("%s needs a bad and a good series in cases.yml", r.Alert)
				continue
			}
			delete(cases, r.Alert)
			for want, list := range map[bool][]string{true: c.Bad, false: c.Good} {
				for n, series := range list {
					t.Run(fmt.Sprintf("%s/%v/%d", r.Alert, want, n+1), func(t *testing.T) {
						if got := fires(t, series, &g, r, time.Duration(c.At)); got != want {
							t.Errorf("fires: %v, want %v, with\n%s", got, want, series)
						}
					})
				}
			}
		}
	}
	for name := range cases {
		t.Errorf("cases.yml has %s, but the rules have no such alert", name)
	}
}

// promises has the series of each objective. GOOD, BAD and ALL stand for the counters of its
// events.
var promises = map[string]string{
	"acceptance": `notifyd_http_requests_total{method="POST",route="/v1/notifications",status="201"} GOOD
notifyd_http_requests_total{method="POST",route="/v1/triggers:batch",status="503"} BAD
notifyd_http_requests_total{method="GET",route="/v1/notifications/{id}",status="500"} ALL`,
	"urgent_call": `notifyd_acceptance_to_call_seconds_bucket{lane="sms",category="otp",le="WHOLE1"} GOOD
notifyd_acceptance_to_call_seconds_count{lane="sms",category="otp"} ALL
notifyd_acceptance_to_call_seconds_bucket{lane="push-bulk",category="marketing",le="WHOLE1"} 0x5000
notifyd_acceptance_to_call_seconds_count{lane="push-bulk",category="marketing"} ALL`,
	"push_call": `notifyd_acceptance_to_call_seconds_bucket{lane="push",category="transactional",le="WHOLE5"} GOOD
notifyd_acceptance_to_call_seconds_count{lane="push",category="transactional"} ALL`,
	"sms_call": `notifyd_acceptance_to_call_seconds_bucket{lane="sms",category="transactional",le="WHOLE5"} GOOD
notifyd_acceptance_to_call_seconds_count{lane="sms",category="transactional"} ALL`,
	"email_call": `notifyd_acceptance_to_call_seconds_bucket{lane="email",category="transactional",le="WHOLE120"} GOOD
notifyd_acceptance_to_call_seconds_count{lane="email",category="transactional"} ALL`,
	"timer_late": `notifyd_timer_late_seconds_bucket{le="0.05"} GOOD
notifyd_timer_late_seconds_count ALL`,
	"trigger_late": `notifyd_trigger_late_seconds_bucket{le="WHOLE1"} GOOD
notifyd_trigger_late_seconds_count ALL`,
}

var whole = regexp.MustCompile(`WHOLE(\d+)`)

// phase is a number of minutes with a rate of events and a share of bad ones. The share is a
// multiple of the budget.
type phase struct {
	minutes int
	budgets float64
	aMinute float64
}

// seriesOf writes the counters of phases, for Prometheus 2 or 3.
func seriesOf(template string, budget float64, version int, phases ...phase) string {
	var good, bad, all []string
	var at [3]float64
	for _, p := range phases {
		b := min(p.aMinute*p.budgets*budget, p.aMinute)
		for range p.minutes {
			at[0], at[1], at[2] = at[0]+p.aMinute-b, at[1]+b, at[2]+p.aMinute
			for i, list := range []*[]string{&good, &bad, &all} {
				*list = append(*list, strconv.FormatFloat(at[i], 'f', 3, 64))
			}
		}
	}
	text := strings.NewReplacer("GOOD", strings.Join(good, " "), "BAD", strings.Join(bad, " "), "ALL", strings.Join(all, " ")).Replace(template)
	if version == 2 {
		return whole.ReplaceAllString(text, "$1")
	}
	return whole.ReplaceAllString(text, "$1.0")
}

// TestObjectives checks that a budget that burns fast pages and one that burns slowly opens a
// ticket. Nothing fires if the burn is over, is within the budget, or has few events.
func TestObjectives(t *testing.T) {
	t.Parallel()
	const much, page, ticket = 1000, "page", "ticket"
	checks := []struct {
		name, severity string
		fires          bool
		phases         []phase
	}{
		{"20 times, an hour", page, true, []phase{{minutes: 75, budgets: 20, aMinute: much}}},
		{"8 times, six hours", page, true, []phase{{minutes: 370, budgets: 8, aMinute: much}}},
		{"4 times, six hours", page, false, []phase{{minutes: 370, budgets: 4, aMinute: much}}},
		{"20 times, but over for 40 minutes", page, false, []phase{{minutes: 60, budgets: 20, aMinute: much}, {minutes: 40, aMinute: much}}},
		{"20 times for 3 minutes in 6 hours", page, false, []phase{{minutes: 360, aMinute: much}, {minutes: 3, budgets: 20, aMinute: much}}},
		{"all, of 12 an hour", page, false, []phase{{minutes: 120, budgets: 1e6, aMinute: 0.2}}},
		{"4 times, a day", ticket, true, []phase{{minutes: 1500, budgets: 4, aMinute: much}}},
		{"1.5 times, three days", ticket, true, []phase{{minutes: 4400, budgets: 1.5, aMinute: much}}},
		{"half, a day", ticket, false, []phase{{minutes: 1500, budgets: 0.5, aMinute: much}}},
		{"4 times, but over for 7 hours", ticket, false, []phase{{minutes: 1000, budgets: 4, aMinute: much}, {minutes: 420, aMinute: much}}},
		{"nothing at all", ticket, false, []phase{{minutes: 100, aMinute: 0}}},
	}
	budget := regexp.MustCompile(`vector\(([0-9.]+)\)`)
	seen := map[string]bool{}
	for _, g := range ruleGroups(t) {
		for i := range g.Rules {
			r := &g.Rules[i]
			slo := r.Labels["slo"]
			if r.Alert == "" || slo == "" {
				continue
			}
			template, ok := promises[slo]
			if !ok {
				t.Errorf("%s has no series in promises", slo)
				continue
			}
			seen[slo] = true
			m := budget.FindStringSubmatch(g.Rules[0].Expr)
			if m == nil {
				t.Fatalf("%s: the first rule is not the budget: %s", slo, g.Rules[0].Expr)
			}
			share, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			for n, c := range checks {
				if c.severity != r.Labels["severity"] {
					continue
				}
				t.Run(slo+"/"+c.severity+"/"+c.name, func(t *testing.T) {
					minutes := 0
					for _, p := range c.phases {
						minutes += p.minutes
					}
					series := seriesOf(template, share, 2+n%2, c.phases...)
					if got := fires(t, series, &g, r, time.Duration(minutes-1)*step); got != c.fires {
						t.Errorf("%s fires: %v, want %v", r.Alert, got, c.fires)
					}
				})
			}
		}
	}
	if len(seen) != len(promises) {
		t.Errorf("objectives with alerts: %v, with series: %d", slices.Sorted(maps.Keys(seen)), len(promises))
	}
}
