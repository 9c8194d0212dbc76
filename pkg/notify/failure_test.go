package notify

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schema is the part of JSON Schema that the published one uses.
type schema struct {
	Type       string
	Const      *int
	Enum       []string
	Pattern    string
	Minimum    *int64
	Required   []string
	Properties map[string]schema
}

func failureSchema(t *testing.T) schema {
	b, err := os.ReadFile("../../docs/notifications-failed.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFailureIsItsSchema holds the struct and the published schema together: the
// same fields, types and obligations.
func TestFailureIsItsSchema(t *testing.T) {
	t.Parallel()
	s := failureSchema(t)
	typ := reflect.TypeFor[Failure]()
	var names []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
		p, ok := s.Properties[name]
		if !ok {
			t.Errorf("the schema does not list %q", name)
			continue
		}
		want := "integer"
		if f.Type.Kind() == reflect.String {
			want = "string"
		}
		if p.Type != want {
			t.Errorf("%s: the schema says %s, the struct %s", name, p.Type, f.Type)
		}
		if required := slices.Contains(s.Required, name); required != (option == "") {
			t.Errorf("%s: required is %v in the schema, the struct says %q", name, required, option)
		}
	}
	for name := range s.Properties {
		if !slices.Contains(names, name) {
			t.Errorf("the schema lists %q, which does not exist", name)
		}
	}
}

// TestFailureSchemaKnowsEveryName: what the domain can say, the schema allows.
func TestFailureSchemaKnowsEveryName(t *testing.T) {
	t.Parallel()
	s := failureSchema(t)
	f := func(property string, want []string) {
		t.Helper()
		got := slices.Sorted(slices.Values(s.Properties[property].Enum))
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema allows %q, there are %q", property, got, want)
		}
	}
	var channels, categories, classes []string
	for _, c := range Channels {
		channels = append(channels, c.String())
	}
	for _, c := range Categories {
		categories = append(categories, c.String())
	}
	classes = append(classes, FailureUndeliverable)
	for c := ClassRetry; c <= ClassAmbiguous; c++ {
		classes = append(classes, c.String())
	}
	f("channel", channels)
	f("category", categories)
	f("class", classes)
}

func TestFailureFitsItsSchema(t *testing.T) {
	t.Parallel()
	s := failureSchema(t)
	f := func(x Failure, wrong ...string) {
		t.Helper()
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		if got := misfits(t, s, b); !slices.Equal(got, wrong) {
			t.Errorf("%s: misfits are %q, want %q", b, got, wrong)
		}
	}
	base, err := ParseID("ntf_01M7YZV16V1AK06NN6GR5VEFN7-12")
	if err != nil {
		t.Fatal(err)
	}
	good := Failure{
		Version: 1, ID: base.String(), Caller: "shop", Channel: SMS.String(), Category: OTP.String(), User: "ann",
		Class: ClassDeadAddress.String(), Code: "twilio_21211", Attempts: 1, Accepted: 1795262612699, Failed: 1795262612714,
		Chunk: "1.0", Topic: TopicFailed, Partition: 1, Offset: 7,
	}
	f(good)
	full := good
	full.Campaign, full.Template, full.Provider, full.Expires = "cmp_01M7YZV16V1AK06NN6GR5VEFN7", "welcome", "twilio:AC1", 1795262700000
	f(full)
	bad := good
	bad.Version, bad.ID, bad.Channel, bad.Attempts, bad.Chunk = 2, "12", "fax", -1, "1"
	f(bad, "attempts", "channel", "chunk", "id", "version")
}

// misfits names the properties of a record that break the schema.
func misfits(t *testing.T, s schema, record []byte) (wrong []string) {
	t.Helper()
	var x map[string]any
	if err := json.Unmarshal(record, &x); err != nil {
		t.Fatal(err)
	}
	for _, name := range s.Required {
		if _, ok := x[name]; !ok {
			wrong = append(wrong, name)
		}
	}
	for name, v := range x {
		p := s.Properties[name]
		ok := false
		switch v := v.(type) {
		case string:
			ok = p.Type == "string" && (p.Enum == nil || slices.Contains(p.Enum, v)) && regexp.MustCompile(p.Pattern).MatchString(v)
		case float64:
			ok = p.Type == "integer" && (p.Const == nil || float64(*p.Const) == v) && (p.Minimum == nil || float64(*p.Minimum) <= v)
		}
		if !ok {
			wrong = append(wrong, name)
		}
	}
	slices.Sort(wrong)
	return wrong
}
