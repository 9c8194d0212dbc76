package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/notify"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every kind reaches the client as the kind it was.
func TestStatusAndKindAreInverse(t *testing.T) {
	t.Parallel()
	for k := notify.KindInternal; k <= notify.KindPermanent; k++ {
		code := "some_code"
		if k == notify.KindMismatch {
			code = CodeMismatch
		}
		if got := KindOf(StatusOf(k, code), code); got != k {
			t.Errorf("%v became %v", k, got)
		}
	}
	for code, status := range map[string]int{
		CodeMalformed: 400, "bad_json": 400, CodeUnsupportedMediaType: 415, CodeMethodNotAllowed: 405, CodeBodyTimeout: 408, "required": 422,
	} {
		if got := StatusOf(notify.KindInvalid, code); got != status {
			t.Errorf("%s: %d, want %d", code, got, status)
		}
		if got := KindOf(status, code); got != notify.KindInvalid {
			t.Errorf("%d %s: %v", status, code, got)
		}
	}
	// A proxy's own answers have no code.
	for _, status := range []int{502, 503, 504} {
		if got := KindOf(status, ""); got != notify.KindUnavailable {
			t.Errorf("%d: %v", status, got)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	date := now.Format(http.TimeFormat)
	f := func(v string, want time.Duration) {
		t.Helper()
		if got := retryAfter(v, date); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
	f("", 0)
	f("0", 0)
	f("7", 7*time.Second)
	f("-7", 0)
	f("99999999999", 24*time.Hour)
	f(now.Add(90*time.Second).Format(http.TimeFormat), 90*time.Second)
	f(now.Add(-time.Hour).Format(http.TimeFormat), 0)
	f("soon", 0)
}

func TestReceiversHaveTwoForms(t *testing.T) {
	t.Parallel()
	in := Receivers{{UserID: "u1"}, {UserID: `a"b\` + "\n"}, {UserID: "ü", Address: "+1"}, {UserID: "v", Variables: json.RawMessage(`{"n":[1]}`)}}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `["u1","a\"b\\\n",{"user_id":"ü","address":"+1"},{"user_id":"v","variables":{"n":[1]}}]`; string(b) != want {
		t.Errorf("%s", b)
	}
	var out Receivers
	if err := json.Unmarshal(b, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%v %v", out, err)
	}
	if one, err := json.Marshal(Notification{To: Receiver{UserID: "u"}}); err != nil || !strings.Contains(string(one), `"to":{"user_id":"u"}`) {
		t.Errorf("%s %v", one, err)
	}
	if last := reflect.TypeFor[Fanout]().Field(reflect.TypeFor[Fanout]().NumField() - 1); last.Name != "Receivers" {
		t.Errorf("SendFanout needs Receivers to be Fanout's last field, not %s", last.Name)
	}
}

// answersEarly is a transport that answers before it has read the body, and
// reads on afterwards, as http.Transport may.
type answersEarly struct{ body io.ReadCloser }

func (a *answersEarly) RoundTrip(r *http.Request) (*http.Response, error) {
	a.body = r.Body
	return &http.Response{StatusCode: 204, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// A body is the caller's again when Post returns.
func TestPostGivesTheBodyBack(t *testing.T) {
	t.Parallel()
	tr := &answersEarly{}
	c := Client{BaseURL: "http://x", HTTPClient: &http.Client{Transport: tr}}
	if _, err := c.Post(t.Context(), "/v1/notifications", TypeJSON, []byte("{}"), ""); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(tr.body); len(b) > 0 || err == nil {
		t.Errorf("the transport still reads %q, %v", b, err)
	}
}

// What cannot stand in a header is said by its name: the transport would name
// neither the file nor the flag, and take it for a server that does not answer.
func TestHeadersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ token, reason, code string }{
		"a token file of zeros": {token: "\x00\x00", code: "no_token"},
		"a reason of two lines": {token: "t", reason: "a\nb", code: "control_character"},
		"both in order":         {token: "t", reason: "Störung"},
	} {
		c := Client{
			BaseURL: "http://x", Reason: x.reason, HTTPClient: &http.Client{Transport: &answersEarly{}},
			Token: func(context.Context) (string, error) { return x.token, nil },
		}
		_, err := c.Post(t.Context(), "/v1/notifications", TypeJSON, []byte("{}"), "")
		if e, _ := errors.AsType[*notify.Error](err); (e != nil && e.Code != x.code) || (err == nil) != (x.code == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is written by hand reads back as what it was.
func FuzzAppendReceiver(f *testing.F) {
	f.Add("u1", "")
	f.Add("a\"\\\x00\x7f ü\u2028", "apns:x")
	f.Fuzz(func(t *testing.T, user, address string) {
		if !utf8.ValidString(user) || !utf8.ValidString(address) {
			t.Skip("the server takes only UTF-8")
		}
		in := Receiver{UserID: user, Address: address}
		var out Receivers
		b, err := Receivers{in}.MarshalJSON()
		if err != nil || json.Unmarshal(b, &out) != nil || !reflect.DeepEqual(Receivers{in}, out) {
			t.Fatalf("%q became %s (%v)", user, b, err)
		}
	})
}

// 29 ns a receiver of 12 bytes, no allocation, on a busy machine.
func BenchmarkAppendReceiver(b *testing.B) {
	r := Receiver{UserID: fmt.Sprintf("user-%07d", 42)}
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = appendReceiver(buf[:0], r)
	}
}

// TestNoRedirectIsFollowed: a redirect would carry the body and the token elsewhere.
func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		here := httptest.NewServer(http.RedirectHandler(other.URL, status))
		tr := NewTransport(1)
		cl := &Client{BaseURL: here.URL, HTTPClient: &http.Client{Transport: tr}, Token: func(context.Context) (string, error) { return "secret", nil }}
		if _, err := cl.User(t.Context(), "ann"); err == nil {
			t.Errorf("%d: taken for an answer", status)
		}
		tr.CloseIdleConnections()
		here.Close()
	}
	if elsewhere.Load() != 0 {
		t.Errorf("%d requests went elsewhere", elsewhere.Load())
	}
}
