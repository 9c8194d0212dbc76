package intake

import (
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

// strict refuses unknown fields; duplicate keys, invalid UTF-8 and data after
// the value are refused by the library anyway.
var strict = json.RejectUnknownMembers(true)

type contentJSON struct {
	Title       string         `json:"title"`
	Body        string         `json:"body"`
	HTML        string         `json:"html"`
	Template    string         `json:"template"`
	Variables   jsontext.Value `json:"variables"`
	Data        jsontext.Value `json:"data"`
	CollapseKey string         `json:"collapse_key"`
	From        string         `json:"from"`
}

type termsJSON struct {
	Channel     string      `json:"channel"`
	Category    string      `json:"category"`
	Content     contentJSON `json:"content"`
	ScheduledAt *time.Time  `json:"scheduled_at"`
	ExpiresAt   *time.Time  `json:"expires_at"`
}

type receiverJSON struct {
	User      string         `json:"user_id"`
	Address   string         `json:"address"`
	Variables jsontext.Value `json:"variables"`
}

// noteJSON is the body of a single notification and an item of a batch.
type noteJSON struct {
	termsJSON
	To receiverJSON `json:"to"`
}

// note is one notification for one receiver. Its slices and strings may alias
// the request's body.
type note struct {
	terms
	user, address, vars []byte
}

// decodeNote reads the body of a single notification, or one item of a batch.
func decodeNote(b []byte, n *note) error {
	if fastNote(b, n) {
		return nil
	}
	return slowNote(b, n)
}

func slowNote(b []byte, n *note) error {
	var j noteJSON
	if err := json.Unmarshal(b, &j, strict); err != nil {
		return decodeError(err)
	}
	if err := j.termsJSON.terms(&n.terms); err != nil {
		return err
	}
	vars, err := object(j.To.Variables, "to.variables", 2)
	if err != nil {
		return err
	}
	n.user, n.address, n.vars = []byte(j.To.User), []byte(j.To.Address), vars
	return nil
}

func (j *termsJSON) terms(t *terms) (err error) {
	if t.channel, t.category, err = parseLane(j.Channel, j.Category); err != nil {
		return err
	}
	t.content = notify.Content{
		Template: j.Content.Template, Title: j.Content.Title, Body: j.Content.Body, HTML: j.Content.HTML,
		CollapseKey: j.Content.CollapseKey, From: j.Content.From,
	}
	if t.content.Variables, err = object(j.Content.Variables, "content.variables", 2); err != nil {
		return err
	}
	if t.content.Data, err = object(j.Content.Data, "content.data", 2); err != nil {
		return err
	}
	t.scheduled, t.expires = notBefore(j.ScheduledAt), millis(j.ExpiresAt)
	return nil
}

func parseLane(channel, category string) (notify.Channel, notify.Category, error) {
	if channel == "" {
		return 0, 0, invalid("required", "channel", "push, sms or email")
	}
	ch, ok := notify.ParseChannel(channel)
	if !ok {
		return 0, 0, invalid("unknown_channel", "channel", "push, sms or email")
	}
	if category == "" {
		return 0, 0, invalid("required", "category", "otp, alert, transactional, marketing or digest")
	}
	cat, ok := notify.ParseCategory(category)
	if !ok {
		return 0, 0, invalid("unknown_category", "category", "otp, alert, transactional, marketing or digest")
	}
	return ch, cat, nil
}

// millis is never 0 for a given time, so that 0 can mean none: 1970 is past.
func millis(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	if ms := t.UnixMilli(); ms != 0 {
		return ms
	}
	return 1
}

// notBefore is millis of a time before which nothing may happen: the part of a
// millisecond counts as all of it.
func notBefore(t *time.Time) int64 {
	ms := millis(t)
	if t != nil && t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// object returns v if it is an object nested no deeper than allowed, nil for
// null; depth is the number of values around it.
func object(v jsontext.Value, field string, depth int) ([]byte, error) {
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil, nil
	case v.Kind() != '{':
		return nil, invalid("wrong_type", field, "must be an object")
	case nesting(v)+depth > maxDepth:
		return nil, tooDeep(field)
	}
	return v, nil
}

func tooDeep(field string) error {
	return invalid("too_deep", field, fmt.Sprintf("nested deeper than %d", maxDepth))
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
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("bad_json", "", "the body is empty")
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		field := fieldPath(e.JSONPointer)
		if errors.Is(e.Err, json.ErrUnknownName) {
			return invalid("unknown_field", field, "there is no such field")
		}
		return invalid("wrong_type", field, "must be "+typeName(e.GoType))
	}
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return invalid("bad_json", "", "not valid JSON")
	}
	field := fieldPath(e.JSONPointer)
	switch {
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return invalid("duplicate_key", field, "the field is given twice")
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return invalid("bad_json", field, fmt.Sprintf("the JSON ends too early, at byte %d", e.ByteOffset))
	case strings.Contains(e.Err.Error(), "UTF-8"): // the library does not export it
		return invalid("bad_utf8", field, fmt.Sprintf("invalid UTF-8 at byte %d", e.ByteOffset))
	}
	why := e.Err.Error()
	if i := strings.IndexByte(why, '`'); i >= 0 { // there it quotes what may be an address
		why = strings.TrimSpace(why[:i])
	}
	return invalid("bad_json", field, fmt.Sprintf("not valid JSON at byte %d: %s", e.ByteOffset, why))
}

// fieldPath makes /receivers/3/user_id receivers[3].user_id.
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
	switch {
	case t == nil:
		return "of another type"
	case t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[*time.Time]():
		return "a time in RFC 3339, e.g. 2026-01-02T15:04:05Z"
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Struct:
		return "an object"
	case t.Kind() == reflect.Uint32, t.Kind() == reflect.Pointer:
		return "a number from 0 to 4294967295"
	case t.Kind() == reflect.Slice:
		return "an array"
	}
	return "of another type"
}
