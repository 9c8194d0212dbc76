package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// Limits of one step of an expression. A deadline interrupts an expression only between two steps.
// So each step must be short and make small values.
const (
	maxWhereText     = 64 << 10 // bytes of a text that + makes or that fromjson decodes
	maxWhereNumber   = 64       // bytes of a text that tonumber reads
	maxWhereContains = 10_000   // comparisons in one call of the function contains or inside
	maxWhereAtOnce   = 4        // expressions that run at the same time in the process
)

// whereSlots contains a token for each running expression. It is global because it limits the
// cores that expressions use in the whole process.
var whereSlots = make(chan struct{}, maxWhereAtOnce)

// enterWhere waits for a free slot of whereSlots and takes it. The returned function frees the
// slot.
func enterWhere(ctx context.Context) (leave func(), err error) {
	select {
	case whereSlots <- struct{}{}:
		return func() { <-whereSlots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// boundedFuncs contains functions that replace some operators and functions of jq. The replaced
// operators and functions split, join, repeat or compare values of any size. The replacements accept
// only numbers and texts. An expression cannot call a replacement by its name, because the name is
// not valid in jq.
var boundedFuncs = map[string]func(v any, args []any) any{
	"where/tostring": func(v any, _ []any) any {
		switch v.(type) {
		case string, nil, bool, int, float64:
			if s, ok := v.(string); ok {
				return s
			}
			b, err := gojq.Marshal(v)
			if err != nil {
				return err
			}
			return string(b)
		}
		return errors.New(`the function "tostring" accepts only texts, numbers, true, false and null`)
	},
	"where/tonumber": func(v any, _ []any) any {
		s, ok := v.(string)
		if !ok {
			if f, ok := gojq.ToFloat64(v); ok {
				return f
			}
			return errors.New(`the function "tonumber" accepts only texts and numbers`)
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || len(s) > maxWhereNumber {
			return errors.New(`the function "tonumber" got a text that is not a number`)
		}
		return f
	},
	"where/fromjson": func(v any, _ []any) any {
		s, ok := v.(string)
		if !ok || len(s) > maxWhereText {
			return errors.New(`the function "fromjson" accepts only texts of up to 64 KiB`)
		}
		var out any
		if err := json.Unmarshal([]byte(s), &out); err != nil {
			return errors.New(`the function "fromjson" got a text that is not JSON`)
		}
		return out
	},
	"where/contains": func(v any, args []any) any { return containsWithin(v, args[0]) },
	"where/inside":   func(v any, args []any) any { return containsWithin(args[0], v) },
	"where/index":    func(v any, args []any) any { return indexOf(v, args[0], strings.Index) },
	"where/rindex":   func(v any, args []any) any { return indexOf(v, args[0], strings.LastIndex) },
	"where/+": func(_ any, args []any) any {
		a, aText := args[0].(string)
		b, bText := args[1].(string)
		switch {
		case aText && bText && len(a)+len(b) <= maxWhereText:
			return a + b
		case aText && bText:
			return errors.New(`the operator "+" would make a text of more than 64 KiB`)
		case args[0] == nil:
			return args[1]
		case args[1] == nil:
			return args[0]
		}
		return onNumbers("+", args, func(a, b float64) any { return a + b })
	},
	"where/-": func(_ any, args []any) any {
		return onNumbers("-", args, func(a, b float64) any { return a - b })
	},
	"where//": func(_ any, args []any) any {
		return onNumbers("/", args, func(a, b float64) any {
			if b == 0 {
				return errors.New("division by zero")
			}
			return a / b
		})
	},
	"where/%": func(_ any, args []any) any {
		return onNumbers("%", args, func(a, b float64) any {
			if b = math.Trunc(b); b == 0 {
				return errors.New("division by zero")
			}
			return math.Mod(math.Trunc(a), b)
		})
	},
}

// boundedOptions returns the compiler options that define boundedFuncs.
func boundedOptions() (out []gojq.CompilerOption) {
	for name, f := range boundedFuncs {
		n := 0
		switch name {
		case "where/contains", "where/inside", "where/index", "where/rindex":
			n = 1
		case "where/+", "where/-", "where//", "where/%":
			n = 2
		}
		out = append(out, gojq.WithFunction(name, n, n, f))
	}
	return out
}

// onNumbers returns the result of fn for the two operands of an operator, or an error if one of
// them is not a number.
func onNumbers(op string, args []any, fn func(a, b float64) any) any {
	a, aOK := gojq.ToFloat64(args[0])
	b, bOK := gojq.ToFloat64(args[1])
	if !aOK || !bOK {
		return errors.New(`the operator "` + op + `" accepts only numbers`)
	}
	return fn(a, b)
}

func indexOf(v, part any, find func(s, part string) int) any {
	s, ok := v.(string)
	p, isText := part.(string)
	if !ok || !isText {
		return errors.New(`the functions "index" and "rindex" accept only texts`)
	}
	i := find(s, p)
	if i < 0 || p == "" {
		return nil
	}
	return utf8.RuneCountInString(s[:i]) // jq counts characters
}

func containsWithin(v, part any) any {
	left := maxWhereContains
	yes, err := contains(v, part, &left)
	if err != nil {
		return err
	}
	return yes
}

// contains reports whether v contains wanted, with the rules of jq. A text contains its substrings.
// For arrays, each element of wanted must be contained in some element of v. For objects, the value
// of each key of wanted must be contained in v's value of the same key. The parameter budget is how
// many more values may be compared.
func contains(v, wanted any, budget *int) (bool, error) {
	if *budget--; *budget < 0 {
		return false, errors.New(`the functions "contains" and "inside" can compare at most 10,000 values`)
	}
	switch wanted := wanted.(type) {
	case string:
		if s, ok := v.(string); ok {
			return strings.Contains(s, wanted), nil
		}
	case []any:
		vs, ok := v.([]any)
		if !ok {
			return false, errors.New(`the functions "contains" and "inside" can compare only values of the same type`)
		}
		for _, p := range wanted {
			found := false
			for i := 0; i < len(vs) && !found; i++ {
				if gojq.TypeOf(vs[i]) != gojq.TypeOf(p) {
					*budget--
					continue
				}
				var err error
				if found, err = contains(vs[i], p, budget); err != nil {
					return false, err
				}
			}
			if !found {
				return false, nil
			}
		}
		return true, nil
	case map[string]any:
		vs, ok := v.(map[string]any)
		if !ok {
			return false, errors.New(`the functions "contains" and "inside" can compare only values of the same type`)
		}
		for k, p := range wanted {
			inner, ok := vs[k]
			if !ok || gojq.TypeOf(inner) != gojq.TypeOf(p) {
				return false, nil
			}
			if yes, err := contains(inner, p, budget); !yes || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if gojq.TypeOf(v) != gojq.TypeOf(wanted) {
		return false, errors.New(`the functions "contains" and "inside" can compare only values of the same type`)
	}
	return gojq.Compare(v, wanted) == 0, nil
}
