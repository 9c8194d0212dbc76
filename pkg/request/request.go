// Package request holds what every route that takes a body does the same way: it
// reads JSON strictly, answers once per Idempotency-Key, and writes what is wrong
// with an item of a batch.
package request

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Meta is what the server knows of a request besides its body.
type Meta struct {
	Caller      string // the token's sub
	Users       string // what ids of receivers must begin with; empty: any
	Key         string // Idempotency-Key; empty: none
	AtLeastOnce bool   // the request is taken without its key while the keys cannot be read, else refused
	Route       string // scope of the key, e.g. "POST /v1/notifications"
	ContentType string // of the body; empty: JSON
	Trace       string // W3C traceparent; empty: none
	TraceState  string // W3C tracestate beside it
	Load        *Load  // the request is of a load run that has a grant; nil: of none

	print *[32]byte // of Fingerprint, once it was asked for
}

// Load is what the grant of a load run allows.
type Load struct {
	Targets []string          // channels by their names, and trigger
	Take    func(n int) error // counts n messages; an error where the rate is used up
}

// Admit counts n messages to a target: the name of a channel, or trigger. It refuses them
// with notify.KindForbidden where the grant does not name the target, and with
// notify.KindThrottled where the grant's rate is used up. A nil Load admits all.
func (l *Load) Admit(target string, n int) error {
	if l == nil {
		return nil
	}
	if !slices.Contains(l.Targets, target) {
		return &notify.Error{Kind: notify.KindForbidden, Code: "load_target", Msg: "the load grant does not name the target " + target}
	}
	return l.Take(n)
}

// Limits of a Meta, in bytes.
const (
	maxKey        = 255 // of Key
	MaxTrace      = 128 // of Trace
	MaxTraceState = 512 // of TraceState
)

// Check refuses a Meta that is out of its limits. It drops a trace that is: no
// request is refused for that.
func (m *Meta) Check() error {
	if m.Caller == "" || len(m.Caller) > notify.MaxCaller {
		return notify.Invalid("bad_caller", "", fmt.Sprintf("a caller has 1 to %d bytes", notify.MaxCaller))
	}
	if len(m.Key) > maxKey || notify.HasHidden(m.Key) || !utf8.ValidString(m.Key) {
		return notify.Invalid("bad_idempotency_key", "Idempotency-Key", fmt.Sprintf("has at most %d bytes and ", maxKey)+notify.RuleHidden)
	}
	if len(m.Trace) > MaxTrace || len(m.TraceState) > MaxTraceState {
		m.Trace, m.TraceState = "", ""
	}
	return nil
}

// Fingerprint identifies a request's content: its route, its type and its bytes. It is
// computed once: a Meta is that of one body.
func (m *Meta) Fingerprint(body []byte) (sum [32]byte) {
	if m.print != nil {
		return *m.print
	}
	h := sha256.New()
	var n [8]byte
	for _, s := range [...]string{Media(m.ContentType), m.Route} {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	h.Write(body)
	h.Sum(sum[:0])
	m.print = &sum
	return sum
}

// Answer is what to send back.
type Answer struct {
	Status   int
	Body     []byte // JSON
	Replayed bool   // the first answer of a repeated key
	// Unguarded: the key could not be looked up, and the request was taken
	// without it (Meta.AtLeastOnce). A repeat may do everything again.
	Unguarded bool
}

// Media types of bodies.
const (
	JSON   = "application/json"
	NDJSON = "application/x-ndjson"
	Proto  = "application/x-protobuf"
)

// Media returns a Content-Type without its parameters, in lower case; JSON when
// there is none.
func Media(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	if m = strings.ToLower(strings.TrimSpace(m)); m == "" {
		return JSON
	}
	return m
}

// Unsupported is the error for a body of a type that the route does not take.
func Unsupported(allowed ...string) error {
	return notify.Invalid("unsupported_media_type", "Content-Type", "must be "+strings.Join(allowed, " or "))
}

// TooManyItems is the error for a batch of more than most items.
func TooManyItems(most int) error {
	return &notify.Error{Kind: notify.KindTooLarge, Code: "too_many_items", Msg: fmt.Sprintf("a batch has at most %d items", most)}
}

// AppendProblem appends {"error":{code,field,detail}}, the result of an item that
// was refused; field only if there is one.
func AppendProblem(b []byte, err error) []byte {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		e = &notify.Error{Code: notify.KindOf(err).String(), Msg: "the item could not be stored"}
	}
	b = append(b, `{"error":{"code":`...)
	b = AppendQuote(b, e.Code)
	if e.Field != "" {
		b = append(b, `,"field":`...)
		b = AppendQuote(b, e.Field)
	}
	b = append(b, `,"detail":`...)
	b = AppendQuote(b, e.Msg)
	return append(b, `}}`...)
}

// AppendQuote appends s as JSON; invalid UTF-8 in it is replaced.
func AppendQuote(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

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
