package trigger

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// strict refuses unknown fields; duplicate keys, invalid UTF-8 and data after
// the value are refused by the library anyway.
var strict = json.RejectUnknownMembers(true)

// loose finds where the items of an array end. What is wrong inside of one is
// that item's own error.
var loose = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

const maxDepth = 32

// createJSON is the body of POST /v1/triggers and an item of its batch.
type createJSON struct {
	CallbackURL   string         `json:"callback_url"`
	Payload       jsontext.Value `json:"payload"`
	PayloadBase64 *string        `json:"payload_base64"`
	timeJSON
	Retry       *[]float64 `json:"retry_schedule_seconds"`
	MaxLateness *float64   `json:"max_lateness_seconds"`
	LatePolicy  string     `json:"late_policy"`
}

// timeJSON is when: also the body of PATCH /v1/triggers/{id}.
type timeJSON struct {
	Delay  *float64   `json:"delay_seconds"`
	FireAt *time.Time `json:"fire_at"`
	Jitter *float64   `json:"jitter_seconds"`
	Exact  bool       `json:"exact"`
}

func decodeCreate(b []byte) (*Create, error) {
	var j createJSON
	if err := json.Unmarshal(b, &j, strict); err != nil {
		return nil, decodeError(err)
	}
	c := &Create{URL: j.CallbackURL, Late: j.LatePolicy}
	var err error
	if c.Payload, c.Form, err = j.payload(); err != nil {
		return nil, err
	}
	if c.When, err = j.when(); err != nil {
		return nil, err
	}
	if j.Retry != nil {
		c.Schedule = make([]time.Duration, len(*j.Retry))
		for i, s := range *j.Retry {
			if c.Schedule[i], err = duration(fmt.Sprintf("retry_schedule_seconds[%d]", i), s); err != nil {
				return nil, err
			}
		}
	}
	if j.MaxLateness != nil {
		if c.MaxLateness, err = duration("max_lateness_seconds", *j.MaxLateness); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func decodeWhen(b []byte) (When, error) {
	var j timeJSON
	if err := json.Unmarshal(b, &j, strict); err != nil {
		return When{}, decodeError(err)
	}
	return j.when()
}

func (j *timeJSON) when() (w When, err error) {
	if j.Delay != nil {
		d, err := duration("delay_seconds", *j.Delay)
		if err != nil {
			return When{}, err
		}
		w.Delay = &d
	}
	if j.Jitter != nil {
		d, err := duration("jitter_seconds", *j.Jitter)
		if err != nil {
			return When{}, err
		}
		w.Jitter = &d
	}
	w.FireAt, w.Exact = j.FireAt, j.Exact
	return w, nil
}

// payload returns the bytes to deliver and how they were given.
func (j *createJSON) payload() ([]byte, engine.PayloadForm, error) {
	none := len(j.Payload) == 0 || j.Payload.Kind() == 'n'
	if j.PayloadBase64 != nil {
		if !none {
			return nil, 0, notify.Invalid("payload_twice", "payload_base64", "payload and payload_base64 exclude each other")
		}
		b, err := base64.StdEncoding.Strict().DecodeString(*j.PayloadBase64)
		if err != nil || strings.ContainsAny(*j.PayloadBase64, "\r\n") {
			return nil, 0, notify.Invalid("bad_base64", "payload_base64", "must be base64 with padding, without line breaks")
		}
		return b, engine.PayloadBase64, nil
	}
	switch {
	case none:
		return nil, engine.PayloadText, nil
	case j.Payload.Kind() == '"':
		b, err := jsontext.AppendUnquote(nil, j.Payload)
		if err != nil {
			return nil, 0, notify.Invalid("bad_utf8", "payload", "is not valid text")
		}
		return b, engine.PayloadText, nil
	case j.Payload.Kind() == '{' || j.Payload.Kind() == '[':
		if nesting(j.Payload) >= maxDepth {
			return nil, 0, notify.Invalid("too_deep", "payload", fmt.Sprintf("nested deeper than %d", maxDepth-1))
		}
		return bytes.Clone(j.Payload), engine.PayloadJSON, nil
	}
	return nil, 0, notify.Invalid("wrong_type", "payload", "must be a string, an object or an array")
}

// duration reads a number of seconds, rounded up to a millisecond: what is
// rounded down would fire early.
func duration(field string, seconds float64) (time.Duration, error) {
	const most = 100 * 366 * 24 * 3600
	if seconds < 0 || seconds > most || math.IsNaN(seconds) {
		return 0, notify.Invalid("out_of_range", field, "must be a number of seconds from 0 to a hundred years")
	}
	// A thousandth of a millisecond is the float's own error, not the caller's.
	return time.Duration(math.Ceil(seconds*1000-1e-3)) * time.Millisecond, nil
}

// eachItem calls fn with every item of a batch: a JSON array, or one per line.
func eachItem(contentType string, b []byte, most int, fn func(i int, item []byte)) error {
	var items [][]byte
	switch media(contentType) {
	case mediaJSON:
		var vs []jsontext.Value
		if k := jsontext.Value(b).Kind(); k != '[' && k != 0 {
			return notify.Invalid("wrong_type", "", "the body must be an array")
		}
		if err := json.Unmarshal(b, &vs, loose); err != nil {
			return decodeError(err)
		}
		for _, v := range vs {
			items = append(items, v)
		}
	case mediaNDJSON:
		for line := range bytes.Lines(b) {
			if line = bytes.Trim(line, " \t\r\n"); len(line) > 0 {
				items = append(items, line)
			}
		}
	default:
		return notify.Invalid("unsupported_media_type", "Content-Type", "a batch is "+mediaJSON+" or "+mediaNDJSON)
	}
	switch {
	case len(items) == 0:
		return notify.Invalid("empty", "", "the batch has no items")
	case len(items) > most:
		return &notify.Error{Kind: notify.KindTooLarge, Code: "too_many_items", Msg: fmt.Sprintf("a batch has at most %d items", most)}
	}
	for i, item := range items {
		fn(i, item)
	}
	return nil
}

const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
)

// media is the type without its parameters; JSON when there is none.
func media(contentType string) string {
	if contentType == "" {
		return mediaJSON
	}
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType
	}
	return t
}

// nesting is the depth of a valid JSON value: 0 for a scalar.
func nesting(v []byte) (deepest int) {
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

// decodeError is the one place where the JSON library's errors become ours.
func decodeError(err error) error {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		field := fieldPath(e.JSONPointer)
		if errors.Is(e.Err, json.ErrUnknownName) {
			return notify.Invalid("unknown_field", field, "there is no such field")
		}
		return notify.Invalid("wrong_type", field, "must be "+typeName(e.GoType))
	}
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return notify.Invalid("bad_json", "", "not valid JSON, or empty")
	}
	field := fieldPath(e.JSONPointer)
	switch {
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return notify.Invalid("duplicate_key", field, "the field is given twice")
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return notify.Invalid("bad_json", field, fmt.Sprintf("the JSON ends too early, at byte %d", e.ByteOffset))
	case strings.Contains(e.Err.Error(), "UTF-8"): // the library does not export it
		return notify.Invalid("bad_utf8", field, fmt.Sprintf("invalid UTF-8 at byte %d", e.ByteOffset))
	}
	return notify.Invalid("bad_json", field, fmt.Sprintf("not valid JSON at byte %d", e.ByteOffset))
}

// fieldPath makes /retry_schedule_seconds/3 retry_schedule_seconds[3].
func fieldPath(p jsontext.Pointer) string {
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
	const longest = 200 // an unknown field may have any length
	return strings.ToValidUTF8(b.String()[:min(b.Len(), longest)], "")
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
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Struct:
		return "an object"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "an array"
	}
	return "of another type"
}
