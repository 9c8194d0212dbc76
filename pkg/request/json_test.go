package request

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	type body struct {
		Name  string            `json:"name"`
		At    *time.Time        `json:"at"`
		Part  *uint32           `json:"part"`
		Rate  float64           `json:"rate"`
		On    bool              `json:"on"`
		Tags  []string          `json:"tags"`
		Quiet *struct{ A int }  `json:"quiet"`
		Notes map[string]string `json:"notes"`
	}
	for _, c := range []struct{ body, code, field, says string }{
		{"", "bad_json", "", "the body is empty"},
		{" \n", "bad_json", "", "the body is empty"},
		{"{", "bad_json", "", "ends too early, at byte 1"},
		{"{} {}", "bad_json", "", "not valid JSON at byte 3"},
		{`{"name":"a" "b"}`, "bad_json", "", "not valid JSON at byte 12"},
		{"{\"name\":\"\xff\"}", "bad_utf8", "name", "invalid UTF-8 at byte 9"},
		{`{"name":"a","name":"b"}`, "duplicate_key", "name", "given twice"},
		{`{"Name":"a"}`, "unknown_field", "Name", "no such field"},
		{`{"` + strings.Repeat("x", 300) + `":1}`, "unknown_field", strings.Repeat("x", 200), "no such field"},
		{`{"name":1}`, "wrong_type", "name", "must be a string"},
		{`{"at":1}`, "wrong_type", "at", "a time in RFC 3339"},
		{`{"part":-1}`, "wrong_type", "part", "a number from 0 to 4294967295"},
		{`{"rate":"1"}`, "wrong_type", "rate", "must be a number"},
		{`{"on":1}`, "wrong_type", "on", "true or false"},
		{`{"tags":["a",2]}`, "wrong_type", "tags[1]", "must be a string"},
		{`{"tags":{}}`, "wrong_type", "tags", "must be an array"},
		{`{"quiet":[]}`, "wrong_type", "quiet", "must be an object"},
		{`{"quiet":{"A":0.5}}`, "wrong_type", "quiet.A", "a whole number"},
		{`{"notes":"x"}`, "wrong_type", "notes", "must be an object"},
	} {
		err := Decode([]byte(c.body), new(body))
		e, ok := errors.AsType[*notify.Error](err)
		if !ok || e.Kind != notify.KindInvalid || e.Code != c.code || e.Field != c.field || !strings.Contains(e.Msg, c.says) {
			t.Errorf("%q: %v, want %s of %q: %s", c.body, err, c.code, c.field, c.says)
		}
	}
	var b body
	if err := Decode([]byte(` {"name":"a","tags":["b"]} `), &b); err != nil || b.Name != "a" || len(b.Tags) != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

// What a message says of a body that is wrong must not quote it: it may hold addresses.
func TestDecodeQuotesNothing(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"a":ann@example.com}`, `{"a":"ann@example.com" x}`, `["ann@example.com`} {
		if err := Decode([]byte(body), new(struct{})); err == nil || strings.Contains(err.Error(), "example") {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestNesting(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{`1`: 0, `"[{"`: 0, `"\"["`: 0, `[]`: 1, `{"a":[{}]}`: 3, `[[1],"]",[[2]]]`: 3} {
		if got := Nesting([]byte(in)); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}
