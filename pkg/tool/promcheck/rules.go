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

// Rule is one rule of a rules file.
type Rule struct {
	Record        string            `yaml:"record"`
	Alert         string            `yaml:"alert"`
	Expr          string            `yaml:"expr"`
	For           string            `yaml:"for"`
	KeepFiringFor string            `yaml:"keep_firing_for"`
	Labels        map[string]string `yaml:"labels"`
	Annotations   map[string]string `yaml:"annotations"`
}

// Rules is the content of a rules file.
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

// ReadRules parses a rules file. It returns an error for a key that Prometheus does not have.
func ReadRules(b []byte) (*Rules, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	r := &Rules{}
	return r, dec.Decode(r)
}

// Severities are the severities of alerts. An alert with the severity "page" wakes a person. An
// alert with the severity "ticket" waits until working hours.
var Severities = []string{"page", "ticket"}

// learnRecorded notes the labels of the metrics that the rules of a file record. It reads the rules
// in order, because a rule may use a metric that an earlier rule records.
func (c *checker) learnRecorded(r *Rules) {
	for _, g := range r.Groups {
		for i := range g.Rules {
			rule := &g.Rules[i]
			if rule.Record == "" {
				continue
			}
			have := c.query(func(string, ...any) {}).check(rule.Expr) // the check of the rule itself reports the problems
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

// checkRules checks every rule of a file.
func (c *checker) checkRules(name string, r *Rules) {
	if len(r.Groups) == 0 {
		c.complainAt(name, "")("it has no rule groups")
	}
	groups := map[string]bool{}
	for _, g := range r.Groups {
		complain := c.complainAt(name, "group "+g.Name)
		if groups[g.Name] || g.Name == "" {
			complain("it has no unique name")
		}
		groups[g.Name] = true
		duration(complain, "interval", g.Interval)
		for i := range g.Rules {
			rule := &g.Rules[i]
			switch {
			case (rule.Record == "") == (rule.Alert == ""):
				c.complainAt(name, fmt.Sprintf("rule %d of group %s", i+1, g.Name))("it must have either record or alert")
			case rule.Record != "":
				complain := c.complainAt(name, "record "+rule.Record)
				if !strings.Contains(rule.Record, ":") {
					complain("the name of a recorded metric must be LEVEL:METRIC:OPERATION")
				}
				c.query(complain).check(rule.Expr)
			default:
				c.alert(c.complainAt(name, "alert "+rule.Alert), rule)
			}
		}
	}
}

func duration(complain func(string, ...any), field, text string) {
	if _, err := model.ParseDuration(text); text != "" && err != nil {
		complain("%s %q is not a duration such as 5m", field, text)
	}
}

var labelUse = regexp.MustCompile(`\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)`)

func (c *checker) alert(complain func(string, ...any), rule *Rule) {
	before := len(c.result.Problems)
	have := c.query(complain).check(rule.Expr)
	known := len(c.result.Problems) == before // if there are problems, the labels are unknown
	duration(complain, "for", rule.For)
	duration(complain, "keep_firing_for", rule.KeepFiringFor)
	if s := rule.Labels["severity"]; !slices.Contains(Severities, s) {
		complain("its severity %q must be one of %s", s, strings.Join(Severities, ", "))
	}
	for _, want := range []string{"summary", "description", "runbook_url"} {
		if rule.Annotations[want] == "" {
			complain("it has no annotation %s", want)
		}
	}
	for name, text := range rule.Annotations {
		for _, m := range labelUse.FindAllStringSubmatch(text, -1) {
			if _, own := rule.Labels[m[1]]; known && !have[m[1]] && !own {
				complain("annotation %s shows label %q, which is not a label of the alert: %s", name, m[1], have)
			}
		}
	}
}
