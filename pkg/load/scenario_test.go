package load

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestScenariosOfTheRepository checks that every scenario of the repository can be read in each of
// its forms, fits the schema, and has an about.
func TestScenariosOfTheRepository(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../scenarios/*.yaml")
	if err != nil || len(files) < 16 {
		t.Fatalf("%v: %d scenarios", err, len(files))
	}
	schema := schemaForTest(t)
	for _, file := range files {
		s, err := ReadScenario(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Name+".yaml" != filepath.Base(file) || s.About == "" || len(s.Thresholds) == 0 {
			t.Errorf("%s: name %q, about %q, %d thresholds", file, s.Name, s.About, len(s.Thresholds))
		}
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), "# ") {
			t.Errorf("%s: no comment says what it shows", file)
		}
		for what, form := range map[string]Scenario{"": s, "short": s.Shortened(), "scaled": s.Scaled(0.5)} {
			if _, err := New(form, CompileOnlyConfig()); err != nil {
				t.Errorf("%s %s: %v", file, what, err)
			}
		}
		short := s.Shortened()
		if d := short.Length(); d > 20*time.Second {
			t.Errorf("%s: its short form takes %v", file, d)
		}
		var doc any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Error(err)
		}
		if err := schema.VisitJSON(asJSON(t, doc)); err != nil {
			t.Errorf("%s does not fit the schema: %v", file, err)
		}
	}
}

func asJSON(t *testing.T, v any) (out any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// schemaForTest compiles the schema with a library that supports most of JSON Schema. It moves the
// definitions to the place where that library expects them.
func schemaForTest(t *testing.T) *openapi3.Schema {
	t.Helper()
	b, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Ref  string                     `json:"$ref"`
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	doc := map[string]any{
		"openapi": "3.0.3", "info": map[string]any{"title": "t", "version": "1"}, "paths": map[string]any{},
		"components": map[string]any{"schemas": s.Defs},
	}
	b, err = json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("#/$defs/", "#/components/schemas/", `"examples"`, `"x-examples"`, `"patternProperties"`, `"x-pattern"`, `"type":["string","null"]`, `"type":"string"`).Replace(string(b))
	api, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return api.Components.Schemas[strings.TrimPrefix(s.Ref, "#/$defs/")].Value
}

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	schema := schemaForTest(t)
	for text, ok := range map[string]bool{
		"name: x\nsteps: [{rate: 5M, target: http-batch}]":               true,
		"name: x\nsteps: [{arrival: poisson, users: 100k, payload: 20}]": true,
		"name: x\nnme: y":         false,
		"steps: [{target: smtp}]": false,
		"steps: [{size: lots}]":   false,
		"duration: 10":            false,
		"thresholds: [lost == 0, {expr: lost == 0, abort: true}]": true,
	} {
		var doc any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if err := schema.VisitJSON(asJSON(t, doc)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// processFaults returns a scenario with these faults.
func processFaults(list string) string {
	return "name: x\nserver: {mode: process}\nphases: [{name: p, duration: 9s, faults: [" + list + "]}]"
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	if _, err := ParseScenario([]byte(processFaults("{process: kill, for: 2s}, {do: outage}, {process: pause, at: 2s}"))); err != nil {
		t.Fatal(err)
	}
	step := "name: x\nduration: 1s\nsteps:\n  - target: http-single\n    rate: 1\n"
	if _, err := ParseScenario([]byte(step)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][2]string{
		"nam: x\n" + step:                                                  {"nam", `line 1: unknown key "nam"; did you mean "name"?`},
		step + "    chanel: push\n":                                        {"steps[0].chanel", `line 6: unknown key "chanel"; did you mean "channel"?`},
		step + "    rate: 2\n":                                             {"steps[0].rate", "twice"},
		step + "    rate2: 2\n":                                            {"steps[0].rate2", `did you mean "rate"?`},
		step + "    workers: many\n":                                       {"steps[0].workers", `line 6: must be a whole number, not "many"`},
		step + "    start: 5\n":                                            {"steps[0].start", "not a length of time"},
		step + "    channel: fax\n":                                        {"phases[0].steps[0].channel", `no channel is called "fax"`},
		step + "    users: {count: 5, pick: odd}\n":                        {"phases[0].steps[0].users.pick", "odd"},
		step + "phases: []\n":                                              {"phases", ""},
		step + "phases: [{name: p}]\n":                                     {"phases", "must not also have steps"},
		step + "thresholds: [lst == 0]\n":                                  {"thresholds[0]", `did you mean "lost"?`},
		step + "expect: [GONE]\n":                                          {"expect[0]", "no state"},
		step + "    workers: 200k\n":                                       {"steps[0].workers", "line 6"},
		step + "    workers: 200000\n":                                     {"phases[0].steps[0].workers", "from 1 to 100,000"},
		step + "    name: a\nthresholds: ['response{step=b}.p99 < 1s']\n":  {"thresholds[0]", `no step is called "b"`},
		step + "    name: a\nthresholds: ['response{phase=b}.p99 < 1s']\n": {"thresholds[0]", `no phase is called "b"`},
		step + "    name: a\nobjective: {holds: ['rate{step=b} > 1']}\n":   {"objective.holds[0]", `no step is called "b"`},
		"steps: 5\n":                             {"steps", "must be a list"},
		step + "objective: {from: 5, most: 4}\n": {"objective.most", "must not be below objective.from"},
		"steps: [5]\n":                           {"steps[0]", ""},
		"":                                       {"", "empty"},
		step + "---\nname: y\n":                  {"", "more than one"},
		"name: x\nsteps: [{target: http-fanout, rate: 1, size: 10, users: 3}]\nduration: 1s": {"phases[0].steps[0].users", "must be at least 10"},
		"name: x\nsteps: [{target: http-batch, rate: 1, size: 1001}]\nduration: 1s":          {"phases[0].steps[0].size", "1 to 1,000"},
		"name: x\nsteps: [{target: http-single}]":                                            {"phases[0].steps[0].count", "is required"},
		"name: x\nphases: [{name: p, duration: 1s, faults: [{process: kill}]}]":              {"phases[0].faults[0].process", "mode process"},
		"name: x\nphases: [{name: p, duration: 1s, faults: [{do: latency}]}]":                {"phases[0].faults[0].latency", "needs a median"},
		processFaults("{process: kill, for: 2s}, {process: pause, at: 1s, for: 2s}"):         {"phases[0].faults[1].at", "faults[0]"},
		processFaults("{process: kill, at: 5s}, {do: outage}, {process: stop, at: 8s}"):      {"phases[0].faults[2].at", "faults[0]"},
		processFaults("{process: kill, at: 5s, for: 1s}, {process: stop, at: 4s, for: 2s}"):  {"phases[0].faults[1].at", "faults[0]"},
		"name: x\nphases: [{name: p, duration: 1s}, {name: p, duration: 1s}]":                {"phases[1].name", "name of two phases"},
		"name: x\nphases: [{name: p, duration: 1s, steps: [&s {<<: *s, rate: 1}]}]":          {"", "a YAML alias is part of the value that it stands for"},
		"name: x\nserver: {mode: pipeline, set: {api.listen: \"0.0.0.0:1\"}}\nduration: 1s":  {"server.set", "api.listen cannot be set by a scenario"},
		"name: x\nserver: {mode: process, set: {providers.apns.url: x}}\nduration: 1s":       {"server.set", "providers.apns.url"},
		"name: x\nserver: {mode: process, set: {log.listen: x}}\nduration: 1s":               {"server.set", "log.listen"},
		"name: x\nserver: {providers: stub}\nphases: [{name: p, duration: 1s}]":              {"server.providers", "mode pipeline"},
	} {
		_, err := ParseScenario([]byte(text))
		if want[0] == "phases" && want[1] == "" { // a scenario with an empty list has no phases
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		e, ok := errors.AsType[*notify.Error](err)
		if !ok || e.Field != want[0] || !strings.Contains(e.Msg, want[1]) || e.Kind != notify.KindInvalid {
			t.Errorf("%q: %+v, want %v", text, err, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Number{"200": 200, "1_000": 1000, "50k": 50_000, "2.5M/s": 2.5e6, "5M": 5e6, "0": 0} {
		if got, err := ParseNumber(text); err != nil || got != want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "k", "-1", "1e99", "NaN", "5 apples", "Inf"} {
		if v, err := ParseNumber(text); err == nil {
			t.Errorf("%q was read as %v", text, v)
		}
	}
}

// TestAnchors checks that phases can share steps by anchors and merges.
func TestAnchors(t *testing.T) {
	t.Parallel()
	s, err := ParseScenario([]byte(`
name: x
x-common: &c {target: http-single, rate: 5}
phases:
  - {name: a, duration: 1s, steps: [&s {<<: *c, name: s}]}
  - {name: b, duration: 1s, steps: [{<<: *s, rate: 7}]}
`))
	if err != nil || s.Phases[0].Steps[0].Arrival.Rate != 5 || s.Phases[1].Steps[0].Arrival.Rate != 7 || s.Phases[1].Steps[0].Name != "s" {
		t.Errorf("%v %+v", err, s.Phases)
	}
	if s, err := ParseScenario([]byte("name: x\nduration: 1s\nsteps: [{target: null, rate: 1}]")); err != nil || s.Phases[0].Steps[0].Target != Null {
		t.Errorf("the bare word null: %v %+v", err, s.Phases)
	}
	if _, err := ParseScenario([]byte("name: x\nx-c: &c {tagret: null}\nphases: [{name: a, duration: 1s, steps: [{<<: *c, rate: 1}]}]")); err == nil || !strings.Contains(err.Error(), "tagret") {
		t.Errorf("a key that was merged in: %v", err)
	}
}

// TestDurationLeavesWarmupsAlone checks that --duration does not change warm-ups.
func TestDurationLeavesWarmupsAlone(t *testing.T) {
	t.Parallel()
	s := Scenario{Name: "s", Phases: []PhaseSpec{{Name: "warm", Warmup: true, Duration: Duration(5 * time.Second)}, {Name: "main", Duration: Duration(time.Minute)}}}
	got := s.With(Overrides{Duration: 20 * time.Second}).Phases
	if got[0].Duration != Duration(5*time.Second) || got[1].Duration != Duration(20*time.Second) {
		t.Errorf("warm-up %v, main %v", time.Duration(got[0].Duration), time.Duration(got[1].Duration))
	}
}
