package api

import (
	"reflect"
	"testing"
	"time"
)

// TestLetterFilterIsReadBack: every field of a filter but IDs and All is written and
// read again, and makes it a filter that is not empty. A new field must be in parts.
func TestLetterFilterIsReadBack(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[LetterFilter]().NumField() {
		var f LetterFilter
		name := reflect.TypeFor[LetterFilter]().Field(i).Name
		switch v := reflect.ValueOf(&f).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("x y")
		case reflect.Int64:
			v.SetInt(1_700_000_000_123)
		default: // IDs and All
			continue
		}
		q := f.Query()
		got := ReadLetterFilter(q.Get, func(name string) int64 {
			if q.Get(name) == "" {
				return 0
			}
			at, err := time.Parse(time.RFC3339, q.Get(name))
			if err != nil {
				t.Fatal(err)
			}
			return at.UnixMilli()
		})
		if !reflect.DeepEqual(got, f) || len(q) != 1 || f.Empty() {
			t.Errorf("%s: %v is read back as %+v", name, q, got)
		}
	}
	if f := (LetterFilter{IDs: []string{"x"}}); f.Empty() || len(f.Query()) != 0 {
		t.Error("a filter of ids is empty, or is in a query")
	}
	if f := (LetterFilter{All: true}); !f.Empty() {
		t.Error("a filter of everything is not empty")
	}
}
