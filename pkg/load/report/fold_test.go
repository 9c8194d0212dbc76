package report

import (
	"reflect"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// TestEveryFieldHasARule checks that every field has a merge tag. Merge would lose a field without a tag.
func TestEveryFieldHasARule(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(ty reflect.Type, at string)
	walk = func(ty reflect.Type, at string) {
		switch ty.Kind() {
		case reflect.Slice, reflect.Array:
			walk(ty.Elem(), at+"[]")
		case reflect.Struct:
			for i := range ty.NumField() {
				f, seenAt := ty.Field(i), at+"."+ty.Field(i).Name
				rule := f.Tag.Get("merge")
				if foldRules[rule] == "" {
					t.Errorf("%s has the rule %q, which is none", seenAt, rule)
				}
				if seen++; rule == "each" {
					walk(f.Type, seenAt)
				}
			}
		}
	}
	walk(reflect.TypeFor[load.Result](), "Result")
	if seen < 100 {
		t.Errorf("only %d fields were seen", seen)
	}
}

// TestFold checks each rule with two values.
func TestFold(t *testing.T) {
	t.Parallel()
	type one struct {
		Key string  `merge:"key"`
		N   float64 `merge:"sum"`
	}
	type all struct {
		Sum   int           `merge:"sum"`
		Max   time.Duration `merge:"max"`
		Last  time.Time     `merge:"max"`
		Once  int64         `merge:"once"`
		Or    bool          `merge:"or"`
		And   bool          `merge:"and"`
		First string        `merge:"first"`
		Lists []one         `merge:"each"`
		Index []struct {
			N int `merge:"max"`
		} `merge:"each"`
		Array [2]int64 `merge:"each"`
		Join  []string `merge:"join"`
		Own   int      `merge:"own"`
	}
	at := time.Unix(1e9, 0)
	a := all{Sum: 1, Max: 5, Last: at, Once: 3, Or: true, And: true, Lists: []one{{"x", 1}, {"y", 2}}, Array: [2]int64{1, 2}, Join: []string{"a"}, Own: 4}
	b := all{Sum: 2, Max: 4, Last: at.Add(-1), Once: 2, First: "b", Lists: []one{{"z", 4}, {"y", 8}}, Array: [2]int64{3, 4}, Join: []string{"b"}, Own: 5}
	b.Index = append(b.Index, struct {
		N int `merge:"max"`
	}{7})
	want := all{Sum: 3, Max: 5, Last: at, Once: 5, Or: true, First: "b", Lists: []one{{"x", 1}, {"y", 10}, {"z", 4}}, Index: b.Index, Array: [2]int64{4, 6}, Join: []string{"a", "b"}}
	for _, shared := range []bool{false, true} {
		if shared {
			want.Once = 3
		}
		var got all
		if err := foldValues(reflect.ValueOf(&got).Elem(), []reflect.Value{reflect.ValueOf(a), reflect.ValueOf(b)}, "each", shared); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("shared %t: %+v, want %+v", shared, got, want)
		}
	}
}
