package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
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
	if not := (selection{}).query(q); not != "" {
		return nil, notify.Invalid("bad_where", "where", fmt.Sprintf("an expression selects with paths, comparisons and functions that make nothing larger: no %s", not))
	}
	code, err := gojq.Compile(q, boundedOptions()...)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_where", Field: "where", Msg: "not a jq expression", Err: err}
	}
	return code, nil
}

// selection holds an expression to what may be part of one, and replaces in it what
// bounded has. Its methods return what may not be part, in the words of a message;
// "" when all may.
type selection struct{}

func (s selection) query(q *gojq.Query) string {
	switch {
	case q == nil:
		return ""
	case q.Meta != nil || len(q.Imports) > 0:
		return "modules"
	case len(q.FuncDefs) > 0:
		return "definitions (def)"
	case q.Term != nil:
		return s.term(q.Term)
	}
	for _, p := range q.Patterns {
		if p.Name == "" {
			return "patterns behind as but names"
		}
	}
	switch q.Op {
	case gojq.OpPipe, gojq.OpComma, gojq.OpEq, gojq.OpNe, gojq.OpGt, gojq.OpLt, gojq.OpGe, gojq.OpLe, gojq.OpAnd, gojq.OpOr, gojq.OpAlt:
	case gojq.OpAdd, gojq.OpSub, gojq.OpDiv, gojq.OpMod:
		if not := s.queries(q.Left, q.Right); not != "" {
			return not
		}
		call := &gojq.Func{Name: "where/" + q.Op.String(), Args: []*gojq.Query{q.Left, q.Right}}
		*q = gojq.Query{Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: call}}
		return ""
	default:
		return q.Op.String()
	}
	return s.queries(q.Left, q.Right)
}

func (s selection) queries(qs ...*gojq.Query) string {
	for _, q := range qs {
		if not := s.query(q); not != "" {
			return not
		}
	}
	return ""
}

func (s selection) term(t *gojq.Term) string {
	for _, x := range t.SuffixList {
		if not := s.index(x.Index); not != "" {
			return not
		}
	}
	switch t.Type {
	case gojq.TermTypeIdentity, gojq.TermTypeRecurse, gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return ""
	case gojq.TermTypeIndex:
		return s.index(t.Index)
	case gojq.TermTypeFunc:
		return s.call(t.Func)
	case gojq.TermTypeString:
		return text(t.Str)
	case gojq.TermTypeUnary:
		return s.term(t.Unary.Term)
	case gojq.TermTypeQuery:
		return s.query(t.Query)
	case gojq.TermTypeArray:
		return list(t.Array.Query)
	case gojq.TermTypeTry:
		return s.queries(t.Try.Body, t.Try.Catch)
	case gojq.TermTypeIf:
		for _, e := range t.If.Elif {
			if not := s.queries(e.Cond, e.Then); not != "" {
				return not
			}
		}
		return s.queries(t.If.Cond, t.If.Then, t.If.Else)
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

func (s selection) index(i *gojq.Index) string {
	if i == nil {
		return ""
	}
	if not := text(i.Str); not != "" {
		return not
	}
	return s.queries(i.Start, i.End)
}

func (s selection) call(f *gojq.Func) string {
	if strings.HasPrefix(f.Name, "$") {
		if f.Name == "$ENV" {
			return f.Name
		}
		return "" // one that as has named; compiling refuses the others
	}
	name := fmt.Sprintf("%s/%d", f.Name, len(f.Args))
	if !slices.Contains(whereFuncs, name) {
		return name
	}
	if f.Name == "test" {
		for _, arg := range f.Args {
			if !literal(arg) || arg.Term.Type != gojq.TermTypeString || len(arg.Term.Str.Str) > maxRegexp {
				return fmt.Sprintf("test of anything but a text of up to %d bytes", maxRegexp)
			}
		}
	}
	if not := s.queries(f.Args...); not != "" {
		return not
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
