// Package setting reads defaults and ranges from the tags of a struct's fields. So each rule is stated
// in one place only: at its field.
//
//	Timeout time.Duration `default:"2s" min:"10ms" max:"1m"`
//	Format  string        `default:"json" oneof:"json text"`
//	Proxy   string        `is:"url" empty:"yes"`
//
// The tags are: "default"; "min", "max" and "above" for numbers and durations; "oneof" for words;
// and "is" for texts of a certain form, such as a URL (the caller of Check supplies a function for
// each form). The tag "empty" exempts the zero value from every rule. A tag that cannot be parsed
// is a mistake in the program and causes a panic.
package setting

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Field is one value of a struct.
type Field struct {
	Key   string // the dotted key in the configuration file
	Value reflect.Value
	Tag   reflect.StructTag
}

// Fields returns the exported fields of the struct v. The key of a field is its tag koanf, or its
// name in snake case if it has no tag. A field that is itself a struct and has this tag is a
// section of the file: Fields returns the fields of the section, with the section's key before
// their keys. It omits fields tagged koanf:"-".
func Fields(v reflect.Value) (fields []Field) {
	for i := range v.NumField() {
		t := v.Type().Field(i)
		key, named := t.Tag.Lookup("koanf")
		switch {
		case key == "-" || !t.IsExported():
			continue
		case named && t.Type.Kind() == reflect.Struct:
			for _, f := range Fields(v.Field(i)) {
				f.Key = key + "." + f.Key
				fields = append(fields, f)
			}
			continue
		case !named:
			key = snakeCase(t.Name)
		}
		fields = append(fields, Field{key, v.Field(i), t.Tag})
	}
	return fields
}

// snakeCase converts a Go name: MaxConns becomes max_conns, LocalDC becomes local_dc.
func snakeCase(name string) string {
	var b strings.Builder
	for i, c := range name {
		upper := c >= 'A' && c <= 'Z'
		if upper && i > 0 && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(c)))
	}
	return b.String()
}

// Fill returns a copy of c in which every zero field has its default. The default of a logger is
// always a logger that discards everything.
func Fill[T any](c T) T {
	for _, f := range Fields(reflect.ValueOf(&c).Elem()) {
		if text, ok := f.Tag.Lookup("default"); ok && f.Value.IsZero() {
			setDefault(f.Value, text)
		}
	}
	return c
}

// setDefault parses the text of the tag "default" and assigns the value to v.
func setDefault(v reflect.Value, text string) {
	switch v.Interface().(type) {
	case []string:
		v.Set(reflect.ValueOf(strings.Split(text, ",")))
		return
	case *slog.Logger:
		v.Set(reflect.ValueOf(slog.New(slog.DiscardHandler)))
		return
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		v.SetBool(text == "true")
	case v.CanFloat():
		v.SetFloat(parseNumber(v, text))
	case v.CanInt():
		v.SetInt(int64(parseNumber(v, text)))
	default:
		v.SetUint(uint64(parseNumber(v, text)))
	}
}

// parseNumber parses the text of a tag ("min", "max", "above" or "default") for a value of v's
// type. The text is a duration, or a number that may contain underscores and may end with MiB or
// KiB. parseNumber panics if the text is neither.
func parseNumber(v reflect.Value, text string) float64 {
	if _, ok := v.Interface().(time.Duration); ok && text != "0" {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return float64(d)
	}
	digits, unit := text, 1.0
	if rest, ok := strings.CutSuffix(text, "MiB"); ok {
		digits, unit = rest, 1<<20
	} else if rest, ok := strings.CutSuffix(text, "KiB"); ok {
		digits, unit = rest, 1<<10
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(digits, "_", ""), 64)
	if err != nil {
		panic(err)
	}
	return n * unit
}

// Range describes in words which values the tags "min", "max" and "above" allow. It returns "" if
// the field has none of these tags.
func (f Field) Range() string {
	least, most, above := f.Tag.Get("min"), f.Tag.Get("max"), f.Tag.Get("above")
	switch {
	case least != "" && most != "":
		return "between " + least + " and " + most
	case least != "":
		return "at least " + least
	case above != "" && most != "":
		return "above " + above + ", at most " + most
	case above != "":
		return "above " + above
	case most != "":
		return "at most " + most
	}
	return ""
}

// Fault is a value that breaks a rule. Text states the rule.
type Fault struct{ Key, Text string }

// Check returns those values of a struct that break their rules. The parameter c points to the
// struct. The map forms has one function for each value of the tag "is". Such a function returns
// what is wrong with a text, or "" if nothing is wrong. If a value is a list, Check calls the
// function for each item. If the map is nil, Check ignores the tag "is".
func Check(c any, forms map[string]func(text string) string) (faults []Fault) {
	for _, f := range Fields(reflect.ValueOf(c).Elem()) {
		if f.Value.IsZero() && f.Tag.Get("empty") != "" {
			continue
		}
		if text := f.outOfRange(); text != "" {
			faults = append(faults, Fault{f.Key, text})
		}
		if words := strings.Fields(f.Tag.Get("oneof")); len(words) > 0 && !slices.Contains(words, f.Value.String()) {
			last := len(words) - 1
			faults = append(faults, Fault{f.Key, fmt.Sprintf("%q is not %s or %s", f.Value.String(), strings.Join(words[:last], ", "), words[last])})
		}
		if form := f.Tag.Get("is"); form != "" && forms != nil {
			items, list := f.Value.Interface().([]string)
			if !list {
				items = []string{f.Value.String()}
			}
			for _, item := range items {
				if text := forms[form](item); text != "" {
					faults = append(faults, Fault{f.Key, text})
				}
			}
		}
	}
	return faults
}

func (f Field) outOfRange() string {
	allowed := f.Range()
	if allowed == "" {
		return ""
	}
	var v float64
	switch {
	case f.Value.CanFloat():
		v = f.Value.Float()
	case f.Value.CanInt():
		v = float64(f.Value.Int())
	default:
		v = float64(f.Value.Uint())
	}
	// Each comparison is false for NaN, so NaN breaks every bound.
	within := func(tag string, holds func(v, bound float64) bool) bool {
		text := f.Tag.Get(tag)
		return text == "" || holds(v, parseNumber(f.Value, text))
	}
	if within("min", func(v, bound float64) bool { return v >= bound }) &&
		within("above", func(v, bound float64) bool { return v > bound }) &&
		within("max", func(v, bound float64) bool { return v <= bound }) {
		return ""
	}
	return fmt.Sprintf("%v is not %s", f.Value.Interface(), allowed)
}

// Err checks the configuration struct of a package, to which c points. The parameter name is the
// name of the package; the Field of the error begins with it. Err returns notify.KindInvalid with
// the code "bad_config" for the first value that breaks its rule, or nil if there is none.
func Err(name string, c any) error {
	if faults := Check(c, nil); len(faults) > 0 {
		return notify.Invalid("bad_config", name+"."+faults[0].Key, faults[0].Text)
	}
	return nil
}
