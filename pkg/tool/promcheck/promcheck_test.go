package promcheck

import (
	"fmt"
	"strings"
	"testing"
)

const table = "\n| name | type | labels | meaning | bad |\n|---|---|---|---|---|\n" +
	"| `n_sent_total` | counter | `lane` `state` | Sent. | |\n" +
	"| `n_open` | gauge | | Open. | 0: closed. |\n" +
	"| `n_lag` | gauge | `group` | Behind. | |\n" +
	"| `n_took_seconds` | histogram | `lane` | Took. | |\n"

func catalogue(t *testing.T) Catalogue {
	t.Helper()
	c, err := ParseTable(table)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// told checks one query and returns the complaints.
func told(c Catalogue, expr string) string {
	var out []string
	q := &query{metrics: c, recorded: map[string]set{"n:rate": setOf("lane")}, complain: func(format string, args ...any) {
		out = append(out, fmt.Sprintf(format, args...))
	}}
	q.check(expr)
	return strings.Join(out, "; ")
}

func TestQueries(t *testing.T) {
	t.Parallel()
	c := catalogue(t)
	m := c["n_took_seconds"]
	m.Bounds = []float64{.05, 1, 5}
	c["n_took_seconds"] = m
	f := func(expr, want string) {
		t.Helper()
		if got := told(c, expr); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s\n  told %q\n  want %q", expr, got, want)
		}
	}
	f(`n_open == 0`, "")
	f(`sum by (lane) (rate(n_sent_total{state="SENT",job="a"}[5m]))`, "")
	f(`histogram_quantile(0.99, sum by (le, lane) (rate(n_took_seconds_bucket[5m])))`, "")
	f(`n_took_seconds_bucket{le="0.05"}`, "")
	f(`n_took_seconds_bucket{le=~"1|1.0"}`, "")
	f(`n_took_seconds_bucket{le="+Inf"}`, "")
	f(`n:rate{lane="push"} > 1`, "")
	f(`up{job="n"} == 0`, "")
	f(`label_replace(n_open, "zone", "$1", "instance", "(.*)")`, "")
	f(`sum by (zone) (label_replace(n_open, "zone", "$1", "instance", "(.*)"))`, "")
	f(`sum by (group) (n_lag) * on (group) group_left (lane) sum by (group, lane) (n_lag * on (group) group_right () n_lag)`, "lane")
	f(`absent(n_open{job="n"})`, "")
	f(`predict_linear(n_open[1h], 3600)`, "")
	f(`max_over_time(n_open[10m:1m]) and on (instance) n_lag`, "")
	f(`topk(3, sum by (lane) (n_sent_total))`, "")
	f(`sum by (lane) (n_sent_total) / ignoring (lane) group_left () sum(n_sent_total)`, "")

	f(`n_opened == 0`, "there is no metric n_opened")
	f(`n_sent_tot{lane="a"}`, "there is no metric")
	f(`n_sent`, "did you mean n_sent_total?")
	f(`rate(n_took_seconds_total[5m])`, "did you mean n_took_seconds?")
	f(`{__name__="n_nothing"}`, "there is no metric n_nothing")
	f(`{job="a"}`, "without the name of a metric")
	f(`n_open{lane="push"}`, `has no label "lane"`)
	f(`n:rate{state="x"}`, `has no label "state"`)
	f(`sum by (state) (n_lag)`, `groups by "state"`)
	f(`sum by (state) (sum by (lane) (n_sent_total))`, `groups by "state"`)
	f(`sum without (zone) (n_lag)`, `groups by "zone"`)
	f(`n_lag * on (group) n_open`, `matches on "group"`)
	f(`sum(`, "does not parse")
	f(`rate(n_open)`, "does not parse")
	f(`rate(n_open[5m])`, "the function rate is used on n_open, which is a gauge")
	f(`deriv(n_sent_total[5m])`, "the function deriv is used on n_sent_total, which is a counter")
	f(`delta(n_took_seconds_count[5m])`, "the function delta is used on n_took_seconds_count")
	f(`n_took_seconds`, "is a histogram")
	f(`n_sent_total_bucket`, "there is no metric")
	f(`histogram_quantile(0.9, sum by (lane) (rate(n_took_seconds_bucket[5m])))`, "needs the label le")
	f(`n_took_seconds_bucket{le="0.06"}`, "has no bucket")
	f(`n_took_seconds_bucket{le="1"}`, "only one form of a whole number")
	f(`n_took_seconds_bucket{le="1.0"}`, "only one form of a whole number")
	f(`sum(n_open) by (instance) or sum by (lane) (n_lag)`, `groups by "lane"`)

	m.Bounds = nil // not known: whole bounds are still seen
	c["n_took_seconds"] = m
	f(`n_took_seconds_bucket{le="5"}`, "only one form of a whole number")
	f(`n_took_seconds_bucket{le="0.06"}`, "")
	c["n_pause_seconds"] = Metric{Name: "n_pause_seconds", Type: Summary}
	f(`n_pause_seconds{quantile="0.5"}`, "")
	f(`n_pause_seconds{quantile=~"1|1.0"}`, "")
	f(`n_pause_seconds{quantile="1"}`, "only one form of a whole number")
	f(`n_pause_seconds_sum{quantile="0.5"}`, `has no label "quantile"`)
}

func TestTable(t *testing.T) {
	t.Parallel()
	f := func(text, want string) {
		t.Helper()
		if _, err := ParseTable(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f("nothing", "no table")
	f(table+"| `n_open` | gauge | | Again. | |\n", "twice")
	f(table+"| `n_new` | number | | What? | |\n", "not a type")
	f(table+"| `n-new` | gauge | | What? | |\n", "5 rows, but only 4")
}

func TestExposition(t *testing.T) {
	t.Parallel()
	text := `# HELP n_open Open.
# TYPE n_open gauge
n_open 1
# TYPE n_took_seconds histogram
n_took_seconds_bucket{lane="push",le="1"} 1
n_took_seconds_bucket{lane="push",le="+Inf"} 1
n_took_seconds_sum{lane="push"} 0.5
n_took_seconds_count{lane="push"} 1
`
	c, err := ParseExposition(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(c["n_open"], c["n_took_seconds"]), "{n_open gauge [] Open. []} {n_took_seconds histogram [lane]  [1]}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, bad := range []string{"", "<html>"} {
		if _, err := ParseExposition(strings.NewReader(bad)); err == nil {
			t.Errorf("%q reads as metrics", bad)
		}
	}
}

func TestClient(t *testing.T) {
	t.Parallel()
	c, err := Client()
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{"go_goroutines": Gauge, "process_cpu_seconds_total": Counter} {
		if c[name].Type != kind {
			t.Errorf("%s is a %q", name, c[name].Type)
		}
	}
}

const goodPanel = `{"id": 1, "type": "stat", "title": "T", "description": "D", "datasource": {"uid": "${ds}"},
 "fieldConfig": {"defaults": {"unit": "s"}}, "targets": [{"refId": "A", "expr": "rate(n_sent_total{lane=~\"$lane\"}[$__rate_interval])"}]}`

func page(panels string) string {
	return `{"uid": "u", "title": "T", "templating": {"list": [{"name": "ds", "type": "datasource"},
 {"name": "lane", "type": "query", "definition": "label_values(n_sent_total{state=\"SENT\"}, lane)"}]}, "panels": [` + panels + `]}`
}

const goodRules = `groups:
  - name: g
    rules:
      - record: n:late
        expr: sum by (lane) (rate(n_sent_total[5m]))
        labels: {slo: a}
      - alert: A
        expr: n:late{slo="a"} > 1
        for: 5m
        labels: {severity: page}
        annotations: {summary: 'S {{ $labels.lane }}', description: D, runbook_url: R}
`

func TestFiles(t *testing.T) {
	t.Parallel()
	f := func(name, text, want string) {
		t.Helper()
		res := Check([]File{{Name: name, Data: []byte(text)}}, Options{Metrics: catalogue(t)})
		got := fmt.Sprint(res.Problems)
		if (want == "") != (len(res.Problems) == 0) || !strings.Contains(got, want) {
			t.Errorf("told %s, want %q", got, want)
		}
	}
	swap := strings.Replace
	f("a.json", page(goodPanel), "")
	f("a.json", page(goodPanel+","+goodPanel), "another panel has this id")
	f("a.json", page(`{"id": 7, "type": "row", "panels": [`+swap(goodPanel, "n_sent", "n_send", 1)+`]}`), "there is no metric n_send_total")
	f("a.json", "{", "not the JSON of a dashboard")
	f("a.json", page(""), "no panels")
	f("a.json", swap(page(goodPanel), `"uid": "u"`, `"uid": ""`, 1), "no uid")
	f("a.json", swap(page(goodPanel), `"type": "datasource"`, `"type": "textbox"`, 1), "no variable of type datasource")
	f("a.json", swap(page(goodPanel), `SENT\"}, lane`, `SENT\"}, zone`, 1), `has no label "zone"`)
	f("a.json", swap(page(goodPanel), `label_values(n_sent`, `label_names(n_sent`, 1), "is not label_values")
	f("a.json", page(swap(goodPanel, `"D"`, `""`, 1)), "no description")
	f("a.json", page(swap(goodPanel, `"unit": "s"`, `"unit": ""`, 1)), "no unit")
	f("a.json", page(swap(goodPanel, "${ds}", "abc", 1)), "does not use a variable as its datasource")
	f("a.json", page(swap(goodPanel, `"datasource": {"uid": "${ds}"},`, "", 1)), "has no datasource")
	f("a.json", page(swap(goodPanel, "$lane", "$line", 1)), "$line, which is not a variable")
	f("a.json", page(swap(goodPanel, `"refId": "A", `, "", 1)), "no unique refId")
	f("a.txt", "", "neither a dashboard")

	f("a.yml", goodRules, "")
	f("a.yml", swap(goodRules, "expr: n:late", "exp: n:late", 1), "field exp not found")
	f("a.yml", swap(goodRules, "n:late{", "n:later{", 1), "there is no metric n:later")
	f("a.yml", swap(goodRules, `{slo="a"}`, `{group="a"}`, 1), `has no label "group"`)
	f("a.yml", swap(goodRules, "record: n:late", "record: n_late", 1), "LEVEL:METRIC:OPERATION")
	f("a.yml", swap(goodRules, "5m\n        labels", "5 minutes\n        labels", 1), "is not a duration")
	f("a.yml", swap(goodRules, "page", "loud", 1), "severity")
	f("a.yml", swap(goodRules, ", runbook_url: R", "", 1), "no annotation runbook_url")
	f("a.yml", swap(goodRules, "$labels.lane", "$labels.state", 1), `shows label "state"`)
	f("a.yml", swap(goodRules, "alert: A", "record: n:more\n        alert: A", 1), "either record or alert")
	f("a.yml", goodRules+"  - name: g\n", "no unique name")
	f("a.yml", "groups: []", "no rule groups")
}

// TestTogether: files see each other, whatever their order.
func TestTogether(t *testing.T) {
	t.Parallel()
	files := []File{
		{Name: "a.json", Data: []byte(page(strings.Replace(goodPanel, "n_sent_total", "n:late", 1)))},
		{Name: "b.yml", Data: []byte("groups: [{name: b, rules: [{record: 'b:x', expr: 'sum by (lane, slo) (n:late)'}]}]")},
		{Name: "c.yml", Data: []byte(goodRules)},
	}
	if res := Check(files, Options{Metrics: catalogue(t)}); len(res.Problems) != 0 {
		t.Error(res.Problems)
	}
	if res := Check(files[:2], Options{Metrics: catalogue(t)}); len(res.Problems) == 0 {
		t.Error("what nobody records is there")
	}
	files[1] = File{Name: "d.json", Data: files[0].Data}
	if res := Check(files, Options{Metrics: catalogue(t)}); len(res.Problems) != 1 || !strings.Contains(res.Problems[0].String(), `its uid "u" is also the uid of a.json`) {
		t.Error(res.Problems)
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	o := Options{Metrics: catalogue(t), Values: map[string][]string{"n_took_seconds lane": {"push", "push-bulk"}}}
	f := func(matcher, want string) {
		t.Helper()
		rules := "groups: [{name: g, rules: [{record: 'a:b', expr: 'n_took_seconds_count{" + matcher + "}'}]}]"
		got := fmt.Sprint(Check([]File{{Name: "a.yml", Data: []byte(rules)}}, o).Problems)
		if (want == "") != (got == "[]") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", matcher, got)
		}
	}
	f(`lane="push"`, "")
	f(`lane=~".+-bulk"`, "")
	f(`lane!="push"`, "")
	f(`job="x"`, "")
	f(`lane="push_bulk"`, "matches lane=")
	f(`lane!~"push.*"`, "matches lane!~")
}

// TestSilent names what is used and has no series, each once.
func TestSilent(t *testing.T) {
	t.Parallel()
	c := catalogue(t)
	served := Catalogue{"n_open": c["n_open"]}
	res := Check([]File{{Name: "a.json", Data: []byte(page(goodPanel))}}, Options{Metrics: c, Served: served})
	if len(res.Problems) != 0 || fmt.Sprint(res.Silent) != "[n_sent_total]" {
		t.Errorf("%v, silent %v", res.Problems, res.Silent)
	}
}
