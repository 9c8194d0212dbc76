package load

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of a scenario file, for editors. It is derived
// from the types that read the file.
func Schema() ([]byte, error) {
	defs := map[string]any{}
	root := schemaOf(reflect.TypeFor[Scenario](), defs).(map[string]any)
	doc := map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "notifyctl load scenario",
		"$ref":    root["$ref"],
		"$defs":   defs,
	}
	return json.MarshalIndent(doc, "", "  ")
}

func schemaOf(t reflect.Type, defs map[string]any) any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[Duration]():
		return map[string]any{"type": "string", "pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`, "examples": []string{"500ms", "10s", "2m"}}
	case reflect.TypeFor[Number]():
		return map[string]any{"oneOf": []any{
			map[string]any{"type": "number", "minimum": 0},
			map[string]any{"type": "string", "pattern": `^[0-9][0-9_.]*[kKmMgG]?(/s)?$`},
		}, "examples": []string{"200", "50k", "5M"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), defs)}
	}
	name := t.Name()
	if _, ok := defs[name]; !ok {
		defs[name] = nil // a type may contain itself
		defs[name] = structSchema(t, defs)
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// shorthand lists the types that a scenario may write as a single value, with the field that this
// value sets.
var shorthand = map[reflect.Type]string{
	reflect.TypeFor[Arrival](): "shape", reflect.TypeFor[Users](): "count",
	reflect.TypeFor[Payload](): "bytes", reflect.TypeFor[Threshold](): "expr",
}

func structSchema(t reflect.Type, defs map[string]any) any {
	props := map[string]any{}
	var required []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		one := schemaOf(f.Type, defs).(map[string]any)
		if doc := f.Tag.Get("doc"); doc != "" {
			one["description"] = doc
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			words := []any{}
			for _, w := range strings.Split(enum, "|") {
				if words = append(words, w); w == Null {
					words = append(words, nil) // YAML reads the bare word null as nil
					one["type"] = []string{"string", "null"}
				}
			}
			one["enum"] = words
		}
		props[name] = one
		if opts != "omitempty" && t != reflect.TypeFor[Scenario]() && t != reflect.TypeFor[Threshold]() {
			required = append(required, name)
		}
	}
	out := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	if t == reflect.TypeFor[Scenario]() {
		out["patternProperties"] = map[string]any{"^x-": map[string]any{}} // keys that hold YAML anchors
	}
	if field, ok := shorthand[t]; ok {
		return map[string]any{"oneOf": []any{props[field], out}}
	}
	return out
}
