package report

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// foldRules are the merge tags of a Result's fields. A field says how the segments'
// values of it become one.
var foldRules = map[string]string{
	"sum":   "numbers are added",
	"max":   "the highest number, or the latest time",
	"once":  "the sum; the highest where all segments asked one server, which counted for all of them",
	"or":    "true where one is",
	"and":   "true where all are",
	"first": "the first that is not empty",
	"key":   "is the same in all: it finds the elements of lists that belong together",
	"hist":  "encoded histograms are added",
	"each":  "structs by field, arrays by index, lists by their keys, or by index where they have none",
	"join":  "lists, one after the other",
	"own":   "Merge sets it itself",
}

// fold puts the values from together in to, which is zero, by the rule. shared says
// that all segments asked one server. It returns an error of notify.KindInvalid for a
// damaged histogram.
func fold(to reflect.Value, from []reflect.Value, rule string, shared bool) error {
	switch rule {
	case "key", "first":
		for _, v := range from {
			if to.IsZero() {
				to.Set(v)
			}
		}
	case "sum", "max", "once":
		for _, v := range from {
			addNumber(to, v, rule == "max" || rule == "once" && shared)
		}
	case "or", "and":
		to.SetBool(rule == "and")
		for _, v := range from {
			if v.Bool() == (rule == "or") {
				to.SetBool(v.Bool())
			}
		}
	case "hist":
		var texts []string
		for _, v := range from {
			if v.String() != "" {
				texts = append(texts, v.String())
			}
		}
		sum, err := addTexts(texts)
		if err != nil {
			return err
		}
		if len(texts) == 1 { // one alone stays as it is written
			to.SetString(texts[0])
			return nil
		}
		text, err := load.EncodeHistogram(sum)
		to.SetString(text)
		return err
	case "join":
		for _, v := range from {
			to.Set(reflect.AppendSlice(to, v))
		}
	case "each":
		return foldEach(to, from, shared)
	}
	return nil
}

func addNumber(to, v reflect.Value, highest bool) {
	switch {
	case v.CanInt() && highest:
		to.SetInt(max(to.Int(), v.Int()))
	case v.CanInt():
		to.SetInt(to.Int() + v.Int())
	case v.CanFloat() && highest:
		to.SetFloat(max(to.Float(), v.Float()))
	case v.CanFloat():
		to.SetFloat(to.Float() + v.Float())
	default:
		if v.Interface().(time.Time).After(to.Interface().(time.Time)) {
			to.Set(v)
		}
	}
}

func foldEach(to reflect.Value, from []reflect.Value, shared bool) error {
	parts := make([]reflect.Value, len(from))
	switch to.Kind() {
	case reflect.Struct:
		for i := range to.NumField() {
			for j, v := range from {
				parts[j] = v.Field(i)
			}
			f := to.Type().Field(i)
			if err := fold(to.Field(i), parts, f.Tag.Get("merge"), shared); err != nil {
				return fmt.Errorf("%s: %w", strings.ToLower(f.Name), err)
			}
		}
	case reflect.Array:
		for i := range to.Len() {
			for _, v := range from {
				addNumber(to.Index(i), v.Index(i), false)
			}
		}
	case reflect.Slice:
		var keys []string
		same := map[string][]reflect.Value{}
		for _, list := range from {
			for i := range list.Len() {
				k := keyOf(list.Index(i), i)
				if same[k] == nil {
					keys = append(keys, k)
				}
				same[k] = append(same[k], list.Index(i))
			}
		}
		if len(keys) > 0 {
			to.Set(reflect.MakeSlice(to.Type(), len(keys), len(keys)))
		}
		for i, k := range keys {
			if err := foldEach(to.Index(i), same[k], shared); err != nil {
				return fmt.Errorf("%s: %w", strings.TrimSpace(k), err)
			}
		}
	}
	return nil
}

// keyOf returns the key fields of an element of a list, or its index if it has none.
func keyOf(v reflect.Value, index int) string {
	key := ""
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("merge") == "key" {
			key += fmt.Sprintf("%#v ", v.FieldByIndex(f.Index))
		}
	}
	return cmp.Or(key, strconv.Itoa(index))
}

// addTexts adds encoded histograms. It returns an error of notify.KindInvalid for a
// damaged one.
func addTexts(texts []string) (*hdrhistogram.Histogram, error) {
	sum := load.NewHistogram()
	for _, text := range texts {
		h, err := load.DecodeHistogram(text)
		if err != nil {
			return nil, err
		}
		if dropped := sum.Merge(h); dropped > 0 {
			return nil, notify.Invalid("bad_histogram", "histogram", fmt.Sprintf("has %d values that are out of range", dropped))
		}
	}
	return sum, nil
}
