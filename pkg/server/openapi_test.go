package server

import (
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

func TestOpenAPIMatchesTheRoutes(t *testing.T) {
	t.Parallel()
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("the document is not valid: %v", err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("openapi: %s", doc.OpenAPI)
	}
	described := map[string]*openapi3.Operation{}
	ids := map[string]string{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			name := method + " " + path
			described[name] = op
			if op.OperationID == "" || ids[op.OperationID] != "" {
				t.Errorf("%s: operationId %q is empty or also %s", name, op.OperationID, ids[op.OperationID])
			}
			ids[op.OperationID] = name
			if op.Summary == "" || len(op.Tags) == 0 {
				t.Errorf("%s has no summary or tag", name)
			}
			// Each path parameter is declared, and nothing else is.
			params := map[string]bool{}
			for _, list := range []openapi3.Parameters{item.Parameters, op.Parameters} {
				for _, p := range list {
					if p.Value.In == "path" {
						params["{"+p.Value.Name+"}"] = true
					}
				}
			}
			for _, seg := range strings.Split(path, "/") {
				if strings.HasPrefix(seg, "{") && !params[seg] {
					t.Errorf("%s: %s is not declared", name, seg)
				}
				delete(params, seg)
			}
			for p := range params {
				t.Errorf("%s: %s is declared and not in the path", name, p)
			}
		}
	}
	for _, rt := range routes() {
		name := rt.method + " " + rt.path
		op := described[name]
		if op == nil {
			t.Errorf("%s is not described", name)
			continue
		}
		delete(described, name)
		checkOperation(t, name, &rt, op)
	}
	for name := range described {
		t.Errorf("%s is described and is no route", name)
	}
}

func checkOperation(t *testing.T, name string, rt *route, op *openapi3.Operation) {
	if op.Security == nil {
		t.Errorf("%s: no security of its own", name)
		return
	}
	scope := ""
	for _, req := range *op.Security {
		for _, scopes := range req {
			scope += strings.Join(scopes, " ")
		}
	}
	if scope != rt.scope {
		t.Errorf("%s: described with scope %q, needs %q", name, scope, rt.scope)
	}
	needs := map[string]bool{}
	if rt.scope != "" {
		for _, s := range []string{"401", "403", "429", "500", "503"} {
			needs[s] = true
		}
	}
	if rt.body != noBody {
		for _, s := range []string{"400", "408", "413", "415", "422", "500", "503"} {
			needs[s] = true
		}
		if op.RequestBody == nil {
			t.Errorf("%s: body not described", name)
		}
	} else if op.RequestBody != nil {
		t.Errorf("%s: has no body", name)
	}
	good := false
	for status, resp := range op.Responses.Map() {
		delete(needs, status)
		good = good || status[0] == '2'
		if status[0] == '4' || status[0] == '5' {
			if resp.Value.Content.Get("application/problem+json") == nil {
				t.Errorf("%s: %s is no problem", name, status)
			}
		}
	}
	if !good {
		t.Errorf("%s: no answer of success", name)
	}
	for s := range needs {
		t.Errorf("%s: answer %s is not described", name, s)
	}
}

// The examples are what people copy: each must fit its schema.
func TestOpenAPIExamplesFitTheirSchemas(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	check := func(where string, content openapi3.Content) {
		for media, m := range content {
			examples := map[string]any{}
			if m.Example != nil {
				examples["example"] = m.Example
			}
			for name, e := range m.Examples {
				examples[name] = e.Value.Value
			}
			for name, v := range examples {
				n++
				if err := m.Schema.Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
					t.Errorf("%s %s %s: %v", where, media, name, err)
				}
			}
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody != nil {
				check(method+" "+path, op.RequestBody.Value.Content)
			}
			for status, r := range op.Responses.Map() {
				check(method+" "+path+" "+status, r.Value.Content)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d examples", n)
	}
}
