package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/itchyny/gojq"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Whoever may look may send an expression, and it runs in the server's process.
// jq has no bound of memory, and a single step of it may take any: values that
// share their parts (reduce range(40) as $i (1; [., .])) are written or compared
// in full by one step, which no deadline cuts. So what makes values larger is left
// out: an expression selects, with paths, comparisons and the functions below.
// Some operators and functions need more time, or return more, for larger operands.
// The functions of wherefuncs.go replace them.
const (
	maxWhere  = 4096
	maxRegexp = 256 // bytes; one of more may compile into many megabytes

	whereTime = 100 * time.Millisecond // for one letter
	// For a walk over letters: a start, and so much more for each.
	whereStart = 5 * time.Second
	whereEach  = time.Millisecond
)

// whereFuncs are the functions of an expression, by their name and number of
// arguments. Those that bounded has are replaced by it; none of the others returns
// more than it is given.
var whereFuncs = strings.Fields(`
	not/0 empty/0 length/0 utf8bytelength/0 type/0 tostring/0 tonumber/0 fromjson/0 keys/0 now/0 fromdate/0 fromdateiso8601/0
	ascii_downcase/0 ascii_upcase/0 trim/0 ltrim/0 rtrim/0 abs/0 floor/0 ceil/0 round/0 first/0 last/0
	values/0 nulls/0 strings/0 numbers/0 booleans/0 arrays/0 objects/0 scalars/0 iterables/0
	any/0 any/1 any/2 all/0 all/1 all/2 isempty/1 first/1 last/1 select/1 IN/1 IN/2
	has/1 in/1 contains/1 inside/1 startswith/1 endswith/1 ltrimstr/1 rtrimstr/1 index/1 rindex/1 test/1 test/2`)

// where compiles an expression, without an environment and without modules.
func where(expr string) (*gojq.Code, error) {
	if len(expr) > maxWhere {
		return nil, notify.Invalid("too_long", "where", "at most 4,096 bytes")
	}
	q, err := gojq.Parse(expr)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "not a jq expression", Err: err}
	}
	if not := refusal(reflect.ValueOf(q)); not != "" {
		return nil, notify.Invalid("bad_where", "where", fmt.Sprintf("an expression selects with paths, comparisons and functions that make nothing larger: no %s", not))
	}
	code, err := gojq.Compile(q, boundedOptions()...)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "not a jq expression", Err: err}
	}
	return code, nil
}

// refusal walks a parsed expression, and returns what may not be part of one, in the
// words of a message; "" when all may. It replaces in it what bounded has.
func refusal(v reflect.Value) (not string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return ""
		}
		switch part := v.Interface().(type) {
		case *gojq.Query:
			not = queryRefusal(part)
		case *gojq.Term:
			not = termRefusal(part)
		case *gojq.Func:
			not = callRefusal(part)
		case *gojq.String:
			not = text(part)
		case *gojq.Array:
			not = list(part.Query)
		}
		if not != "" {
			return not
		}
		return refusal(v.Elem())
	case reflect.Slice:
		for i := 0; i < v.Len() && not == ""; i++ {
			not = refusal(v.Index(i))
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && not == ""; i++ {
			not = refusal(v.Field(i))
		}
	}
	return not
}

func queryRefusal(q *gojq.Query) string {
	switch {
	case q.Meta != nil || len(q.Imports) > 0:
		return "modules"
	case len(q.FuncDefs) > 0:
		return "definitions (def)"
	case slices.ContainsFunc(q.Patterns, func(p *gojq.Pattern) bool { return p.Name == "" }):
		return "patterns behind as but names"
	case q.Term != nil:
		return ""
	}
	switch q.Op {
	case gojq.OpPipe, gojq.OpComma, gojq.OpEq, gojq.OpNe, gojq.OpGt, gojq.OpLt, gojq.OpGe, gojq.OpLe, gojq.OpAnd, gojq.OpOr, gojq.OpAlt:
		return ""
	case gojq.OpAdd, gojq.OpSub, gojq.OpDiv, gojq.OpMod:
		call := &gojq.Func{Name: "where/" + q.Op.String(), Args: []*gojq.Query{q.Left, q.Right}}
		*q = gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: call}}
		return ""
	}
	return q.Op.String()
}

func termRefusal(t *gojq.Term) string {
	switch t.Type {
	case gojq.TermTypeIdentity, gojq.TermTypeRecurse, gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber,
		gojq.TermTypeIndex, gojq.TermTypeFunc, gojq.TermTypeString, gojq.TermTypeUnary, gojq.TermTypeQuery, gojq.TermTypeArray,
		gojq.TermTypeTry, gojq.TermTypeIf:
		return ""
	case gojq.TermTypeObject:
		return "objects"
	case gojq.TermTypeFormat:
		return t.Format
	case gojq.TermTypeReduce:
		return "reduce"
	case gojq.TermTypeForeach:
		return "foreach"
	}
	return "label"
}

func callRefusal(f *gojq.Func) string {
	name := fmt.Sprintf("%s/%d", f.Name, len(f.Args))
	switch {
	case f.Name == "$ENV":
		return f.Name
	case strings.HasPrefix(f.Name, "$"), strings.HasPrefix(f.Name, "where/"):
		return "" // one that as has named, compiling refuses the others; or an operator
	case !slices.Contains(whereFuncs, name):
		return name
	}
	if f.Name == "test" {
		for _, arg := range f.Args {
			if !literal(arg) || arg.Term.Type != gojq.TermTypeString || len(arg.Term.Str.Str) > maxRegexp {
				return fmt.Sprintf("test of anything but a text of up to %d bytes", maxRegexp)
			}
		}
	}
	if _, ok := bounded["where/"+f.Name]; ok {
		f.Name = "where/" + f.Name
	}
	return ""
}

// text refuses strings that hold other values: "\(.) \(.)" is twice as long.
func text(t *gojq.String) string {
	if t != nil && t.Queries != nil {
		return `\(...) in a string`
	}
	return ""
}

// list admits the list of constants that IN and inside are asked about, and none
// that holds values.
func list(q *gojq.Query) string {
	switch {
	case q == nil, literal(q):
		return ""
	case q.Term == nil && q.Op == gojq.OpComma && len(q.Patterns) == 0 && len(q.FuncDefs) == 0:
		if not := list(q.Left); not != "" {
			return not
		}
		return list(q.Right)
	}
	return "arrays but of constants"
}

// literal reports whether q is a text, a number, true, false or null.
func literal(q *gojq.Query) bool {
	if q == nil || q.Term == nil || len(q.Term.SuffixList) > 0 || len(q.FuncDefs) > 0 {
		return false
	}
	switch t := q.Term; t.Type {
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return true
	case gojq.TermTypeString:
		return text(t.Str) == ""
	}
	return false
}

// selects reports whether the expression is true of a letter. One that fails, or
// that takes too long, is an error: it must not select less than was meant.
func (m *Matcher) selects(ctx context.Context, d *engine.DeadLetter) (bool, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		return false, err
	}
	v["id"] = LetterID(d)
	leave, err := enterWhere(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, whereTime)
	defer stop()
	out, ok := m.where.RunWithContext(ctx, v).Next()
	if err, bad := out.(error); bad {
		return false, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "the expression failed for " + LetterID(d), Err: err}
	}
	m.looked++
	if m.spent += time.Since(began); m.spent > whereStart+time.Duration(m.looked)*whereEach {
		return false, notify.Invalid("bad_where", "where", fmt.Sprintf("the expression takes too long: %s for %d dead letters", m.spent.Round(time.Millisecond), m.looked))
	}
	yes, isBool := out.(bool)
	return ok && isBool && yes, nil
}
