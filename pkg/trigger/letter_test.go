package trigger

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// schema is the part of JSON Schema that the published schema uses.
type schema struct {
	Type       string
	Const      *int
	Enum       []string
	Pattern    string
	Required   []string
	Properties map[string]schema
}

func letterSchema(t *testing.T) schema {
	t.Helper()
	b, err := os.ReadFile("../../docs/triggers-dlq.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLetterIsItsSchema checks that the struct and the published schema have the same fields, types
// and required fields.
func TestLetterIsItsSchema(t *testing.T) {
	t.Parallel()
	s := letterSchema(t)
	typ := reflect.TypeFor[DeadLetter]()
	var names []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
		want := "integer"
		if f.Type.Kind() == reflect.String {
			want = "string"
		}
		if p, ok := s.Properties[name]; !ok || p.Type != want {
			t.Errorf("%s: the schema says %q, the struct %s", name, p.Type, want)
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
	classes := []string{
		noCall, ClassOK, ClassRetry, ClassThrottled, ClassRejected, ClassRedirect, ClassPermanent, ClassDenied, ClassTimeout,
		ClassDNS, ClassConnect, ClassTLS, ClassLost,
	}
	if got := s.Properties["class"].Enum; !slices.Equal(got, classes) {
		t.Errorf("the schema allows %q, there are %q", got, classes)
	}
}

// A record depends only on the row: it is the same each time, and follows the schema.
func TestLetterOf(t *testing.T) {
	t.Parallel()
	s := letterSchema(t)
	row := engine.Trigger{
		ID: idOf(notify.Base{1}), Caller: "shop", URL: "https://shop.example/hooks/1?token=CANARY", Reason: "http_503",
		State: engine.TriggerFailed, Attempts: 6, Gen: 2, Epoch: 7, Created: 1, FireAt: 2, Ended: 3, NextAt: 3, Trace: traceparent,
		Log: []engine.Attempt{{Class: ClassTimeout}, {Class: ClassRetry, Status: 503, Body: []byte("CANARY")}},
	}
	a, b := deadRecordOf(&row), deadRecordOf(&row)
	if string(a.Key) != row.ID || string(a.Value) != string(b.Value) || strings.Contains(string(a.Value), "CANARY") {
		t.Errorf("%s: %s", a.Key, a.Value)
	}
	var l DeadLetter
	if err := json.Unmarshal(a.Value, &l); err != nil {
		t.Fatal(err)
	}
	want := DeadLetter{1, row.ID, "shop", "https://shop.example/hooks/1", "http_503", ClassRetry, 503, 6, 2, 7, 1, 2, 3, traceparent}
	if l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	if !regexp.MustCompile(s.Properties["id"].Pattern).MatchString(l.ID) {
		t.Errorf("%s is not the schema's %s", l.ID, s.Properties["id"].Pattern)
	}
	if s.Properties["version"].Const == nil || *s.Properties["version"].Const != l.Version {
		t.Error("version")
	}
	row.Log = nil
	if err := json.Unmarshal(deadRecordOf(&row).Value, &l); err != nil || l.Class != noCall || l.Status != 0 {
		t.Errorf("without a call: %+v, %v", l, err)
	}
}
