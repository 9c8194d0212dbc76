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

// Everybody who may read dead letters may send an expression, and it runs in the server's process.
// jq has no memory limit, and a single step may need any amount of memory. For example, a small
// value can refer to its own parts many times (reduce range(40) as $i (1; [., .])). When a step
// writes or compares such a value, jq expands the value completely, and a deadline cannot interrupt
// a step. So an expression must not use operations that make values larger. It selects with paths,
// comparisons and the functions below. Some of the allowed operators and functions of jq need more
// time, or return more, for larger operands. The functions in wherefuncs.go replace these.
const (
	maxWhere  = 4096
	maxRegexp = 256 // bytes; a longer one may need many megabytes when compiled

	whereTime = 100 * time.Millisecond // time limit of an expression for one letter
	// The time limit of an expression for all letters of a walk: whereStart, plus whereEach for
	// each letter.
	whereStart = 5 * time.Second
	whereEach  = time.Millisecond
)

// whereFuncs lists the functions that an expression may call, with their number of arguments.
// boundedFuncs replaces some of them. The other functions never return more than their input.
var whereFuncs = strings.Fields(`
	not/0 empty/0 length/0 utf8bytelength/0 type/0 tostring/0 tonumber/0 fromjson/0 keys/0 now/0 fromdate/0 fromdateiso8601/0
	ascii_downcase/0 ascii_upcase/0 trim/0 ltrim/0 rtrim/0 abs/0 floor/0 ceil/0 round/0 first/0 last/0
	values/0 nulls/0 strings/0 numbers/0 booleans/0 arrays/0 objects/0 scalars/0 iterables/0
	any/0 any/1 any/2 all/0 all/1 all/2 isempty/1 first/1 last/1 select/1 IN/1 IN/2
	has/1 in/1 contains/1 inside/1 startswith/1 endswith/1 ltrimstr/1 rtrimstr/1 index/1 rindex/1 test/1 test/2`)

// compileWhere compiles an expression, without an environment and without modules. It returns
// notify.KindInvalid if the expression is too long, is not jq, or is not allowed.
func compileWhere(expr string) (*gojq.Code, error) {
	if len(expr) > maxWhere {
		return nil, notify.Invalid("too_long", "where", fmt.Sprintf("has %d bytes; the maximum is %d", len(expr), maxWhere))
	}
	q, err := gojq.Parse(expr)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "is not a valid jq expression", Err: err}
	}
	if not := refusedPart(reflect.ValueOf(q)); not != "" {
		return nil, notify.Invalid("bad_where", "where", fmt.Sprintf("contains a part that is not allowed: %s; use only paths, comparisons and functions that do not make values larger", not))
	}
	code, err := gojq.Compile(q, boundedOptions()...)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "is not a valid jq expression", Err: err}
	}
	return code, nil
}

// refusedPart walks a parsed expression. It returns a description of the first part that is not
// allowed, or "" if all parts are allowed. During the walk it replaces operators and functions by
// the functions of boundedFuncs.
func refusedPart(v reflect.Value) (not string) {
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
			not = refusedString(part)
		case *gojq.Array:
			not = refusedArray(part.Query)
		}
		if not != "" {
			return not
		}
		return refusedPart(v.Elem())
	case reflect.Slice:
		for i := 0; i < v.Len() && not == ""; i++ {
			not = refusedPart(v.Index(i))
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && not == ""; i++ {
			not = refusedPart(v.Field(i))
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
		return `a pattern after "as" that is not a single name`
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
		return "" // a variable, which the compiler checks, or a function of boundedFuncs
	case !slices.Contains(whereFuncs, name):
		return name
	}
	if f.Name == "test" {
		for _, arg := range f.Args {
			if !isLiteral(arg) || arg.Term.Type != gojq.TermTypeString || len(arg.Term.Str.Str) > maxRegexp {
				return fmt.Sprintf(`the function "test" with an argument that is not a constant text of up to %d bytes`, maxRegexp)
			}
		}
	}
	if _, ok := boundedFuncs["where/"+f.Name]; ok {
		f.Name = "where/" + f.Name
	}
	return ""
}

// refusedString refuses strings with interpolation: "\(.) \(.)" is twice as long as its input.
func refusedString(t *gojq.String) string {
	if t != nil && t.Queries != nil {
		return `\(...) in a string`
	}
	return ""
}

// refusedArray allows arrays of constants, which the functions IN and inside need as arguments. It
// refuses all other arrays.
func refusedArray(q *gojq.Query) string {
	switch {
	case q == nil, isLiteral(q):
		return ""
	case q.Term == nil && q.Op == gojq.OpComma && len(q.Patterns) == 0 && len(q.FuncDefs) == 0:
		if not := refusedArray(q.Left); not != "" {
			return not
		}
		return refusedArray(q.Right)
	}
	return "an array with an element that is not a constant"
}

// isLiteral reports whether q is a constant: a text, a number, true, false or null.
func isLiteral(q *gojq.Query) bool {
	if q == nil || q.Term == nil || len(q.Term.SuffixList) > 0 || len(q.FuncDefs) > 0 {
		return false
	}
	switch t := q.Term; t.Type {
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return true
	case gojq.TermTypeString:
		return refusedString(t.Str) == ""
	}
	return false
}

// evalWhere reports whether the expression is true for a letter. It returns an error if the
// expression fails or takes too long. If it skipped the letter instead, the filter would select
// fewer letters than the operator wanted.
func (m *Matcher) evalWhere(ctx context.Context, d *engine.DeadLetter) (bool, error) {
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
	m.evaluated++
	if m.evalTime += time.Since(began); m.evalTime > whereStart+time.Duration(m.evaluated)*whereEach {
		return false, notify.Invalid("bad_where", "where", fmt.Sprintf("the expression takes too long: %s for %d dead letters", m.evalTime.Round(time.Millisecond), m.evaluated))
	}
	yes, isBool := out.(bool)
	return ok && isBool && yes, nil
}
