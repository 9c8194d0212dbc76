package request

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

// MaxDepth is how deep a body may be nested.
const MaxDepth = 32

// Strict are the options of Decode: unknown fields are refused. The library itself
// refuses duplicate keys, invalid UTF-8 and data after the value.
var Strict = json.RejectUnknownMembers(true)

// Decode reads b into v strictly. Its errors are those of DecodeError.
func Decode(b []byte, v any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return DecodeError(io.EOF)
	}
	if err := json.Unmarshal(b, v, Strict); err != nil {
		return DecodeError(err)
	}
	return nil
}

// DecodeError makes a notify.KindInvalid of an error of the JSON library. It names
// the field, the rule and, where the JSON itself is wrong, the byte. It quotes
// nothing of the body: that may hold addresses.
func DecodeError(err error) error {
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return notify.Invalid("bad_json", "", "the body is empty")
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		field := FieldPath(e.JSONPointer)
		if errors.Is(e.Err, json.ErrUnknownName) {
			return notify.Invalid("unknown_field", field, "there is no such field")
		}
		return notify.Invalid("wrong_type", field, "must be "+typeName(e.GoType))
	}
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return notify.Invalid("bad_json", "", "not valid JSON")
	}
	field := FieldPath(e.JSONPointer)
	switch {
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return notify.Invalid("duplicate_key", field, "the field is given twice")
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return notify.Invalid("bad_json", field, fmt.Sprintf("the JSON ends too early, at byte %d", e.ByteOffset))
	case strings.Contains(e.Err.Error(), "UTF-8"): // the library does not export it
		return notify.Invalid("bad_utf8", field, fmt.Sprintf("invalid UTF-8 at byte %d", e.ByteOffset))
	}
	why := e.Err.Error()
	if i := strings.IndexByte(why, '`'); i >= 0 { // there it quotes the body
		why = strings.TrimSpace(why[:i])
	}
	return notify.Invalid("bad_json", field, fmt.Sprintf("not valid JSON at byte %d: %s", e.ByteOffset, why))
}

// FieldPath makes /receivers/3/user_id receivers[3].user_id. It cuts at 200 bytes:
// an unknown field may have any length.
func FieldPath(p jsontext.Pointer) string {
	var b strings.Builder
	for tok := range p.Tokens() {
		if tok != "" && strings.Trim(tok, "0123456789") == "" {
			b.WriteString("[" + tok + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(tok)
	}
	return strings.ToValidUTF8(b.String()[:min(b.Len(), 200)], "")
}

func typeName(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == nil:
		return "of another type"
	case t == reflect.TypeFor[time.Time]():
		return "a time in RFC 3339, e.g. 2026-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "an array"
	case reflect.Bool:
		return "true or false"
	case reflect.Uint32:
		return "a number from 0 to 4294967295"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "of another type"
}

// Nesting is the depth of a valid JSON value: 0 for a scalar.
func Nesting(v []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case inString:
			if c == '\\' {
				i++
			}
			inString = c != '"'
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}
