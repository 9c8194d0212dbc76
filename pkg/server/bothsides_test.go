package server

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/ops"
)

// What clients and jobs say to each other is declared on both sides: a client
// depends on nothing of the server, and a plan's digest on nothing of a client. A
// field that one side has and the other not would be lost on its way, silently.
func TestBothSidesOfTheWire(t *testing.T) {
	t.Parallel()
	f := func(client, server any) {
		t.Helper()
		a, b := form(reflect.TypeOf(client)), form(reflect.TypeOf(server))
		if a != b {
			t.Errorf("%T and %T differ:\n%s\n%s", client, server, a, b)
		}
	}
	f(api.LetterFilter{}, ops.Filter{})
	f(api.JobSpec{}, ops.Spec{})
	f(api.Plan{}, ops.Plan{})
	f(api.JobRequest{}, ops.Request{})
	f(api.Job{}, ops.Job{})
	f(api.LetterTop{}, ops.Top{})
	f(api.AuditRow{}, ops.Act{})
	// That it can tell:
	if a, b := form(reflect.TypeOf(api.Job{})), form(reflect.TypeOf(api.Plan{})); a == b {
		t.Error("a job has the form of a plan")
	}
}

// form is a type as its JSON shows it.
func form(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer:
		if t.PkgPath() == "" { // else it has a form of its own, like json.RawMessage
			return t.Kind().String() + " of " + form(t.Elem())
		}
	case reflect.Struct:
		if strings.HasPrefix(t.PkgPath(), "github.com/notifyd/") || t.Name() == "" {
			var fields []string
			for _, f := range reflect.VisibleFields(t) {
				if tag := f.Tag.Get("json"); f.IsExported() && tag != "-" {
					fields = append(fields, fmt.Sprintf("%s %s", tag, form(f.Type)))
				}
			}
			slices.Sort(fields)
			return "{" + strings.Join(fields, "; ") + "}"
		}
	}
	return t.String()
}
