package main

import (
	"encoding/json"
	"fmt"
)

// Units of Grafana.
const (
	seconds   = "s"
	bytesIEC  = "bytes"
	perSecond = "ops"
	share     = "percentunit"
	number    = "short"
	boolean   = "bool_yes_no"
)

// chosenTargets selects the job and the instances chosen at the top of a dashboard.
const chosenTargets = `job=~"$job",instance=~"$instance"`

// dashboard is one page of Grafana.
type dashboard struct {
	file, title, about string
	panels             []panel
}

// panel is a graph, a number, or the title of a row of panels. Panels are placed from left to
// right in lines of 24 columns.
type panel struct {
	kind              string // timeseries, stat, row
	title, about      string
	unit              string
	queries           []query
	width             int
	bad               float64 // values from this threshold on are red; 0: no threshold
	low               bool    // true: values below the threshold are red instead
	stacked, logScale bool
}

type query struct{ expr, legend string }

func row(title string) panel { return panel{kind: "row", title: title, width: 24} }

// graph returns a graph that fills a third of a line. The parameter about is a text that explains
// the graph to the operator.
func graph(title, unit, about string, qs ...query) panel {
	return panel{kind: "timeseries", title: title, unit: unit, about: about, queries: qs, width: 8}
}

// figure returns a panel with one number.
func figure(title, unit, about string, qs ...query) panel {
	return panel{kind: "stat", title: title, unit: unit, about: about, queries: qs, width: 4}
}

func (p panel) wide(columns int) panel { p.width = columns; return p }
func (p panel) red(from float64) panel { p.bad = from; return p }
func (p panel) below(at float64) panel { p.bad, p.low = at, true; return p }
func (p panel) stack() panel           { p.stacked = true; return p }
func (p panel) logarithmic() panel     { p.logScale = true; return p }
func (p panel) height() int            { return map[string]int{"row": 1, "stat": 4, "timeseries": 8}[p.kind] }
func one(expr, legend string) query    { return query{expr, legend} }
func quantile(q, name, by, more string) string {
	groups := "le"
	if by != "" {
		groups = by + ", le"
	}
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket{%s%s}[$__rate_interval])))", q, groups, name, chosenTargets, more)
}

// obj is an object of Grafana's JSON; encoding/json sorts its keys.
type obj = map[string]any

var source = obj{"type": "prometheus", "uid": "${datasource}"}

func (d *dashboard) json() ([]byte, error) {
	var out []obj
	x, y, rowHeight := 0, 0, 0
	for i, p := range d.panels {
		if p.kind == "row" || x+p.width > 24 {
			x, y, rowHeight = 0, y+rowHeight, 0
		}
		o := obj{
			"id": i + 1, "type": p.kind, "title": p.title,
			"gridPos": obj{"x": x, "y": y, "w": p.width, "h": p.height()},
		}
		if p.kind == "row" {
			o["collapsed"], o["panels"] = false, []obj{}
		} else {
			p.fill(o)
		}
		out = append(out, o)
		x, rowHeight = x+p.width, max(rowHeight, p.height())
	}
	variable := func(name, label, from string) obj {
		return obj{
			"name": name, "label": label, "type": "query", "datasource": source, "definition": from,
			"query": obj{"query": from, "refId": name}, "refresh": 2, "sort": 1,
			"multi": true, "includeAll": true, "allValue": ".*", "current": obj{"text": "All", "value": "$__all"},
		}
	}
	b, err := json.MarshalIndent(obj{
		"uid": "notifyd-" + d.file, "title": "notifyd / " + d.title, "description": d.about, "tags": []string{"notifyd"},
		"schemaVersion": 41, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s",
		"time": obj{"from": "now-3h", "to": "now"}, "timezone": "browser",
		"links": []obj{{"type": "dashboards", "tags": []string{"notifyd"}, "title": "notifyd", "asDropdown": true, "keepTime": true, "includeVars": true}},
		"templating": obj{"list": []obj{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": obj{}, "refresh": 1},
			variable("job", "Job", "label_values(notifyd_log_open, job)"),
			variable("instance", "Instance", `label_values(notifyd_log_open{job=~"$job"}, instance)`),
		}},
		"annotations": obj{"list": []obj{{
			"name": "Starts", "enable": true, "datasource": source, "iconColor": "orange", "titleFormat": "{{instance}} started",
			"expr": fmt.Sprintf("changes(process_start_time_seconds{%s}[1m]) > 0", chosenTargets),
		}}},
		"panels": out,
	}, "", "  ")
	return append(b, '\n'), err
}

func (p *panel) fill(o obj) {
	var targets []obj
	for i, q := range p.queries {
		targets = append(targets, obj{
			"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend,
			"range": p.kind != "stat", "instant": p.kind == "stat",
		})
	}
	steps := []obj{{"color": "green", "value": nil}}
	switch {
	case p.low:
		steps = []obj{{"color": "red", "value": nil}, {"color": "green", "value": p.bad}}
	case p.bad != 0:
		steps = append(steps, obj{"color": "red", "value": p.bad})
	}
	defaults := obj{"unit": p.unit, "thresholds": obj{"mode": "absolute", "steps": steps}}
	o["description"], o["datasource"], o["targets"] = p.about, source, targets
	if p.kind == "stat" {
		o["options"] = obj{"reduceOptions": obj{"calcs": []string{"lastNotNull"}}, "colorMode": "value", "graphMode": "area"}
	} else {
		custom := obj{"fillOpacity": 5, "showPoints": "never", "spanNulls": false}
		if p.stacked {
			custom["stacking"], custom["fillOpacity"] = obj{"mode": "normal"}, 30
		}
		if p.logScale {
			custom["scaleDistribution"] = obj{"type": "log", "log": 10}
		}
		if p.bad != 0 {
			custom["thresholdsStyle"] = obj{"mode": "dashed"}
		}
		defaults["custom"] = custom
		o["options"] = obj{
			"legend":  obj{"displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull", "max"}},
			"tooltip": obj{"mode": "multi", "sort": "desc"},
		}
	}
	o["fieldConfig"] = obj{"defaults": defaults, "overrides": []obj{}}
}
