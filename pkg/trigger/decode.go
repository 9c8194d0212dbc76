package trigger

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// loose are the JSON options with which an array is split into its items. They ignore errors inside
// an item. Such an error is found when that item is decoded, so it fails only that item.
var loose = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// createJSON is the body of POST /v1/triggers, and an item of the batch route.
type createJSON struct {
	CallbackURL   string         `json:"callback_url"`
	Payload       jsontext.Value `json:"payload"`
	PayloadBase64 *string        `json:"payload_base64"`
	timeJSON
	Retry       *[]float64 `json:"retry_schedule_seconds"`
	MaxLateness *float64   `json:"max_lateness_seconds"`
	LatePolicy  string     `json:"late_policy"`
}

// timeJSON contains the fields of the fire time. It is also the body of PATCH /v1/triggers/{id}.
type timeJSON struct {
	Delay  *float64   `json:"delay_seconds"`
	FireAt *time.Time `json:"fire_at"`
	Jitter *float64   `json:"jitter_seconds"`
	Exact  bool       `json:"exact"`
}

func decodeCreate(b []byte) (*Create, error) {
	var j createJSON
	if err := request.Decode(b, &j); err != nil {
		return nil, err
	}
	c := &Create{URL: j.CallbackURL, Late: j.LatePolicy}
	var err error
	if c.Payload, c.Form, err = j.decodePayload(); err != nil {
		return nil, err
	}
	if c.When, err = j.when(); err != nil {
		return nil, err
	}
	if j.Retry != nil {
		c.Schedule = make([]time.Duration, len(*j.Retry))
		for i, s := range *j.Retry {
			if c.Schedule[i], err = secondsToDuration(fmt.Sprintf("retry_schedule_seconds[%d]", i), s); err != nil {
				return nil, err
			}
		}
	}
	if j.MaxLateness != nil {
		if c.MaxLateness, err = secondsToDuration("max_lateness_seconds", *j.MaxLateness); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func decodeWhen(b []byte) (When, error) {
	var j timeJSON
	if err := request.Decode(b, &j); err != nil {
		return When{}, err
	}
	return j.when()
}

func (j *timeJSON) when() (w When, err error) {
	if j.Delay != nil {
		d, err := secondsToDuration("delay_seconds", *j.Delay)
		if err != nil {
			return When{}, err
		}
		w.Delay = &d
	}
	if j.Jitter != nil {
		d, err := secondsToDuration("jitter_seconds", *j.Jitter)
		if err != nil {
			return When{}, err
		}
		w.Jitter = &d
	}
	w.FireAt, w.Exact = j.FireAt, j.Exact
	return w, nil
}

// decodePayload returns the bytes to deliver. It also returns in which form the request contains
// the payload.
func (j *createJSON) decodePayload() ([]byte, engine.PayloadForm, error) {
	none := len(j.Payload) == 0 || j.Payload.Kind() == 'n'
	if j.PayloadBase64 != nil {
		if !none {
			return nil, 0, notify.Invalid("payload_twice", "payload_base64", "payload and payload_base64 cannot be used together")
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
			return nil, 0, notify.Invalid("bad_utf8", "payload", "must be a valid Unicode string")
		}
		return b, engine.PayloadText, nil
	case j.Payload.Kind() == '{' || j.Payload.Kind() == '[':
		if request.Nesting(j.Payload) >= request.MaxDepth {
			return nil, 0, notify.Invalid("too_deep", "payload", fmt.Sprintf("must have at most %d levels of nesting", request.MaxDepth-1))
		}
		return bytes.Clone(j.Payload), engine.PayloadJSON, nil
	}
	return nil, 0, notify.Invalid("wrong_type", "payload", "must be a string, an object or an array")
}

// secondsToDuration converts seconds to a duration. It rounds up to a millisecond, because a value
// rounded down would fire early.
func secondsToDuration(field string, seconds float64) (time.Duration, error) {
	const most = 100 * 366 * 24 * 3600
	if seconds < 0 || seconds > most || math.IsNaN(seconds) {
		return 0, notify.Invalid("out_of_range", field, fmt.Sprintf("must be from 0 seconds to a hundred years, not %g seconds", seconds))
	}
	// Subtract a thousandth of a millisecond, so that a rounding error of the float does not add a
	// millisecond.
	return time.Duration(math.Ceil(seconds*1000-1e-3)) * time.Millisecond, nil
}

// eachItem calls the function fn for every item of a batch, in order. A batch is a JSON array, or
// NDJSON with one item per line.
func eachItem(contentType string, b []byte, most int, fn func(i int, item []byte)) error {
	var items [][]byte
	switch request.Media(contentType) {
	case request.JSON:
		var vs []jsontext.Value
		if k := jsontext.Value(b).Kind(); k != '[' && k != 0 {
			return notify.Invalid("wrong_type", "", "the body must be an array")
		}
		if err := json.Unmarshal(b, &vs, loose); err != nil {
			return request.DecodeError(err)
		}
		for _, v := range vs {
			items = append(items, v)
		}
	case request.NDJSON:
		for line := range bytes.Lines(b) {
			if line = bytes.Trim(line, " \t\r\n"); len(line) > 0 {
				items = append(items, line)
			}
		}
	default:
		return request.Unsupported(request.JSON, request.NDJSON)
	}
	switch {
	case len(items) == 0:
		return notify.Invalid("empty", "", "the batch has no items")
	case len(items) > most:
		return request.TooManyItems(most)
	}
	for i, item := range items {
		fn(i, item)
	}
	return nil
}
