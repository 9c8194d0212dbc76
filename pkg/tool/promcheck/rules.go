package promcheck

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// Rule is one rule of a file.
type Rule struct {
	Record        string            `yaml:"record"`
	Alert         string            `yaml:"alert"`
	Expr          string            `yaml:"expr"`
	For           string            `yaml:"for"`
	KeepFiringFor string            `yaml:"keep_firing_for"`
	Labels        map[string]string `yaml:"labels"`
	Annotations   map[string]string `yaml:"annotations"`
}

// Rules is a file of rules.
type Rules struct {
	Groups []struct {
		Name        string            `yaml:"name"`
		Interval    string            `yaml:"interval"`
		QueryOffset string            `yaml:"query_offset"`
		Limit       int               `yaml:"limit"`
		Labels      map[string]string `yaml:"labels"`
		Rules       []Rule            `yaml:"rules"`
	} `yaml:"groups"`
}

// ReadRules reads a file of rules; a key that Prometheus does not know is an
// error.
func ReadRules(b []byte) (*Rules, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	r := &Rules{}
	return r, dec.Decode(r)
}

// Severities of alerts: page wakes somebody, ticket waits for the morning.
var Severities = []string{"page", "ticket"}

// recording learns what the rules of a file record, in their order: a rule may
// use what one before it records.
func (c *checker) recording(r *Rules) {
	for _, g := range r.Groups {
		for i := range g.Rules {
			rule := &g.Rules[i]
			if rule.Record == "" {
				continue
			}
			have := c.query(func(string, ...any) {}).check(rule.Expr) // complaints come with the check itself
			for name := range rule.Labels {
				have[name] = true
			}
			for name := range g.Labels {
				have[name] = true
			}
			c.recorded[rule.Record] = have.with(c.recorded[rule.Record])
		}
	}
}

// rules checks every rule of a file.
func (c *checker) rules(name string, r *Rules) {
	if len(r.Groups) == 0 {
		c.at(name, "")("it has no groups of rules")
	}
	groups := map[string]bool{}
	for _, g := range r.Groups {
		complain := c.at(name, "group "+g.Name)
		if groups[g.Name] || g.Name == "" {
			complain("it has no name of its own")
		}
		groups[g.Name] = true
		duration(complain, "interval", g.Interval)
		for i := range g.Rules {
			rule := &g.Rules[i]
			switch {
			case (rule.Record == "") == (rule.Alert == ""):
				c.at(name, fmt.Sprintf("rule %d of group %s", i+1, g.Name))("it has one of record and alert")
			case rule.Record != "":
				complain := c.at(name, "record "+rule.Record)
				if !strings.Contains(rule.Record, ":") {
					complain("what a rule records is named LEVEL:METRIC:OPERATION")
				}
				c.query(complain).check(rule.Expr)
			default:
				c.alert(c.at(name, "alert "+rule.Alert), rule)
			}
		}
	}
}

func duration(complain func(string, ...any), field, text string) {
	if _, err := model.ParseDuration(text); text != "" && err != nil {
		complain("%s %q is no duration such as 5m", field, text)
	}
}

var labelUse = regexp.MustCompile(`\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)`)

func (c *checker) alert(complain func(string, ...any), rule *Rule) {
	before := len(c.result.Problems)
	have := c.query(complain).check(rule.Expr)
	known := len(c.result.Problems) == before // else the labels are not
	duration(complain, "for", rule.For)
	duration(complain, "keep_firing_for", rule.KeepFiringFor)
	if s := rule.Labels["severity"]; !slices.Contains(Severities, s) {
		complain("its severity %q is none of %s", s, strings.Join(Severities, ", "))
	}
	for _, want := range []string{"summary", "description", "runbook_url"} {
		if rule.Annotations[want] == "" {
			complain("it has no annotation %s", want)
		}
	}
	for name, text := range rule.Annotations {
		for _, m := range labelUse.FindAllStringSubmatch(text, -1) {
			if _, own := rule.Labels[m[1]]; known && !have[m[1]] && !own {
				complain("annotation %s shows label %q, which the alert does not have: %s", name, m[1], have)
			}
		}
	}
}
