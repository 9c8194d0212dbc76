// Package request contains what all routes with a body share: strict JSON decoding (Decode), one
// answer per Idempotency-Key (Once), and the error entries of a batch (AppendProblem).
//
// A route fills a Meta, checks it, and passes it to Once.Do with a function that makes a Plan from
// the body. If the store of the keys is down, Do refuses the request. With Meta.AtLeastOnce it
// accepts the request without its key instead. Start reading at Once.Do in once.go.
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

// Meta is what the server knows about a request besides its body.
type Meta struct {
	Caller      string // the claim sub of the caller's token
	Users       string // prefix that user ids of receivers must have; empty: any user id
	Key         string // Idempotency-Key; empty: none
	AtLeastOnce bool   // while the key store is down, accept the request without its key instead of refusing it
	Route       string // scope of the key, e.g. "POST /v1/notifications"
	ContentType string // media type of the body; empty: JSON
	Trace       string // W3C traceparent; empty: none
	TraceState  string // W3C tracestate; used with Trace
	// Load contains the limits of the load grant that the request used. nil: the request used no
	// grant.
	Load *Load

	fingerprint *[32]byte // cached result of Fingerprint
}

// Load is what a load grant allows.
type Load struct {
	Targets []string          // names of channels, and "trigger"
	UseRate func(n int) error // counts n messages; returns an error if the grant's rate is used up
}

// Admit counts n messages to a target. A target is the name of a channel, or "trigger". Admit
// returns notify.KindForbidden if the grant does not name the target, and notify.KindThrottled if
// the grant's rate is used up. A nil Load admits everything.
func (l *Load) Admit(target string, n int) error {
	if l == nil {
		return nil
	}
	if !slices.Contains(l.Targets, target) {
		return &notify.Error{Kind: notify.KindForbidden, Code: "load_target", Msg: "the load grant does not name the target " + target}
	}
	return l.UseRate(n)
}

// Limits of a Meta, in bytes.
const (
	maxKey        = 255 // longest Key
	MaxTrace      = 128 // longest Trace
	MaxTraceState = 512 // longest TraceState
)

// Check returns notify.KindInvalid if Caller is empty or too long, or if Key is too long or contains
// hidden characters or invalid UTF-8. It removes a trace that is too long, because no request should
// be refused for its trace.
func (m *Meta) Check() error {
	if m.Caller == "" || len(m.Caller) > notify.MaxCaller {
		return notify.Invalid("bad_caller", "", fmt.Sprintf("the id of the caller must have 1 to %d bytes", notify.MaxCaller))
	}
	if len(m.Key) > maxKey || notify.HasHidden(m.Key) || !utf8.ValidString(m.Key) {
		return notify.Invalid("bad_idempotency_key", "Idempotency-Key", fmt.Sprintf("must have at most %d bytes and ", maxKey)+notify.RuleHidden)
	}
	if len(m.Trace) > MaxTrace || len(m.TraceState) > MaxTraceState {
		m.Trace, m.TraceState = "", ""
	}
	return nil
}

// Fingerprint returns a hash of the request's content: route, media type and body. The hash is
// computed once, so a Meta must only be used with one body.
func (m *Meta) Fingerprint(body []byte) (sum [32]byte) {
	if m.fingerprint != nil {
		return *m.fingerprint
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
	m.fingerprint = &sum
	return sum
}

// Answer is a response to send to the caller.
type Answer struct {
	Status   int
	Body     []byte // JSON
	Replayed bool   // a repeat got the stored answer of its key
	// Unguarded means that the key store could not be used, and the request was accepted without
	// its key (Meta.AtLeastOnce). So a repeat may store and send everything again.
	Unguarded bool
}

// Media types of bodies.
const (
	JSON   = "application/json"
	NDJSON = "application/x-ndjson"
	Proto  = "application/x-protobuf"
)

// Media returns a Content-Type without its parameters, in lower case. If the Content-Type is empty,
// it returns JSON.
func Media(contentType string) string {
	m, _, _ := strings.Cut(contentType, ";")
	if m = strings.ToLower(strings.TrimSpace(m)); m == "" {
		return JSON
	}
	return m
}

// Unsupported returns the error for a body whose media type the route does not accept. It lists the
// allowed types.
func Unsupported(allowed ...string) error {
	return notify.Invalid("unsupported_media_type", "Content-Type", "must be "+strings.Join(allowed, " or "))
}

// TooManyItems returns the error for a batch of more than maxItems items.
func TooManyItems(maxItems int) error {
	return &notify.Error{Kind: notify.KindTooLarge, Code: "too_many_items", Msg: fmt.Sprintf("the batch has more than %d items, which is the maximum", maxItems)}
}

// AppendProblem appends {"error":{code,field,detail}}, the result of a refused item. It omits
// "field" if the error names no field.
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

// AppendQuote appends s as a JSON string. It replaces invalid UTF-8.
func AppendQuote(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// MaxDepth is the greatest nesting depth of a body.
const MaxDepth = 32

// Strict makes the JSON library refuse unknown fields. The library always refuses duplicate keys,
// invalid UTF-8 and data after the value.
var Strict = json.RejectUnknownMembers(true)

// Decode reads b into v strictly. Its errors come from DecodeError.
func Decode(b []byte, v any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return DecodeError(io.EOF)
	}
	if err := json.Unmarshal(b, v, Strict); err != nil {
		return DecodeError(err)
	}
	return nil
}

// DecodeError turns an error of the JSON library into a notify.KindInvalid error. The error names
// the field and the rule and, if the JSON itself is wrong, the position of the byte. It quotes
// nothing of the body, because the body may contain addresses.
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
		return notify.Invalid("bad_json", "", "the body is not valid JSON")
	}
	field := FieldPath(e.JSONPointer)
	switch {
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return notify.Invalid("duplicate_key", field, "the field is given twice")
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return notify.Invalid("bad_json", field, fmt.Sprintf("the JSON ends too early, at byte %d", e.ByteOffset))
	case strings.Contains(e.Err.Error(), "UTF-8"): // the library exports no error for it
		return notify.Invalid("bad_utf8", field, fmt.Sprintf("invalid UTF-8 at byte %d", e.ByteOffset))
	}
	why := e.Err.Error()
	if i := strings.IndexByte(why, '`'); i >= 0 { // from this character on the library quotes the body
		why = strings.TrimSpace(why[:i])
	}
	return notify.Invalid("bad_json", field, fmt.Sprintf("not valid JSON at byte %d: %s", e.ByteOffset, why))
}

// FieldPath turns /receivers/3/user_id into receivers[3].user_id. It cuts the path at 200 bytes,
// because an unknown field may have any length.
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

// Nesting returns the depth of a valid JSON value: 0 for a scalar.
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
