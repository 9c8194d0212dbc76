package promcheck

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// dashboard contains the checked fields of Grafana's JSON in its classic schema.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string          `json:"name"`
			Type       string          `json:"type"`
			Query      json.RawMessage `json:"query"`
			Definition string          `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int         `json:"id"`
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Datasource  *datasource `json:"datasource"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		RefID      string      `json:"refId"`
		Expr       string      `json:"expr"`
		Datasource *datasource `json:"datasource"`
	} `json:"targets"`
	Panels []panel `json:"panels"` // panels of a collapsed row
}

// datasource is a data source. In JSON it may also be a string with the name.
type datasource struct{ UID string }

// UnmarshalJSON implements json.Unmarshaler.
func (d *datasource) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &d.UID) == nil {
		return nil
	}
	var full struct {
		UID string `json:"uid"`
	}
	err := json.Unmarshal(b, &full)
	d.UID = full.UID
	return err
}

var (
	labelValues = regexp.MustCompile(`^label_values\((?:(.+), *)?([a-zA-Z_][a-zA-Z0-9_]*)\)$`)
	intervals   = strings.NewReplacer(
		"${__rate_interval}", "5m", "$__rate_interval", "5m", "${__interval}", "1m", "$__interval", "1m", "${__range}", "1h", "$__range", "1h",
	)
	variable = regexp.MustCompile(`\$\{?([a-zA-Z_][a-zA-Z0-9_]*)`)
)

// checkDashboard checks the fields of a dashboard and every query in it.
func (c *checker) checkDashboard(name string, b []byte) {
	var d dashboard
	whole := c.complainAt(name, "")
	if err := json.Unmarshal(b, &d); err != nil {
		whole("it is not the JSON of a dashboard: %v", err)
		return
	}
	if d.UID == "" {
		whole("it has no uid: links to it break at each import")
	}
	if d.Title == "" {
		whole("it has no title")
	}
	if other, taken := c.uids[d.UID]; taken && d.UID != "" {
		whole("its uid %q is also the uid of %s", d.UID, other)
	}
	c.uids[d.UID] = name
	sources, variables := map[string]bool{}, map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "datasource" {
			sources["${"+v.Name+"}"], sources["$"+v.Name] = true, true
		}
		if v.Type == "query" {
			c.checkVariable(c.complainAt(name, "variable "+v.Name), v.Definition, v.Query)
		}
	}
	if len(sources) == 0 {
		whole("it has no variable of type datasource, so it only works in one Grafana")
	}
	seen := map[int]bool{}
	var walk func(ps []panel)
	walk = func(ps []panel) {
		for i := range ps {
			p := &ps[i]
			complain := c.complainAt(name, fmt.Sprintf("panel %d %q", p.ID, p.Title))
			if seen[p.ID] {
				complain("another panel has this id")
			}
			seen[p.ID] = true
			walk(p.Panels)
			if p.Type != "row" && p.Type != "text" {
				c.panel(complain, p, sources, variables)
			}
		}
	}
	walk(d.Panels)
	if len(seen) == 0 {
		whole("it has no panels")
	}
}

// checkVariable checks the query of a dashboard variable.
func (c *checker) checkVariable(complain func(string, ...any), definition string, raw json.RawMessage) {
	text := definition
	var asText string
	var asObject struct {
		Query string `json:"query"`
	}
	switch {
	case json.Unmarshal(raw, &asText) == nil && asText != "":
		text = asText
	case json.Unmarshal(raw, &asObject) == nil && asObject.Query != "":
		text = asObject.Query
	}
	m := labelValues.FindStringSubmatch(text)
	if m == nil {
		complain("its query %q is not label_values(METRIC, LABEL)", text)
		return
	}
	if m[1] == "" {
		return // a label of any metric
	}
	q := c.query(complain)
	if have := q.check(m[1]); len(have) > 0 && !have[m[2]] {
		complain("%s has no label %q; its labels are %s", m[1], m[2], have)
	}
}

func (c *checker) panel(complain func(string, ...any), p *panel, sources, variables map[string]bool) {
	if p.Title == "" {
		complain("it has no title")
	}
	if p.Description == "" {
		complain("it has no description; say what it shows, and when that is bad")
	}
	if p.FieldConfig.Defaults.Unit == "" {
		complain("it has no unit")
	}
	if len(p.Targets) == 0 {
		complain("it has no query")
	}
	refs := map[string]bool{}
	for i, t := range p.Targets {
		switch source := t.Datasource; {
		case source == nil && p.Datasource == nil:
			complain("query %s has no datasource", t.RefID)
		case source == nil && !sources[p.Datasource.UID], source != nil && !sources[source.UID]:
			complain("query %s does not use a variable as its datasource", t.RefID)
		}
		if refs[t.RefID] || t.RefID == "" {
			complain("query %d has no unique refId", i+1)
		}
		refs[t.RefID] = true
		expr := intervals.Replace(t.Expr)
		for _, m := range variable.FindAllStringSubmatch(expr, -1) {
			if !variables[m[1]] {
				complain("query %s uses $%s, which is not a variable", t.RefID, m[1])
			}
		}
		c.query(complain).check(expr)
	}
}
