package intake

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/notify"
)

// What a text uses and a receiver is not given is refused here, by the name of
// the variable, and not by the provider's client behind a 201.
func TestVariablesOfTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, channel, content, vars string
		code, field                  string // "": accepted
	}{
		{"none used", "push", `{"body":"hi"}`, `{"x":[]}`, "", ""},
		{"own", "push", `{"title":"{{ name }}","body":"{{n}} {{name}}"}`, `{"name":"Ada","n":7}`, "", ""},
		{"shared", "sms", `{"body":"{{code}}","variables":{"code":true}}`, ``, "", ""},
		{"own before shared", "sms", `{"body":"{{code}}","variables":{"code":{}}}`, `{"code":"1"}`, "", ""},
		{"no placeholder", "sms", `{"body":"{{a b}} {{}} {x} {{é}} {{a}"}`, ``, "", ""},
		{"a provider's template", "email", `{"template":"d-1","body":"{{x}}"}`, ``, "", ""},
		{"missing", "push", `{"body":"{{name}}"}`, ``, "missing_variable", "variables.name"},
		{"missing beside another", "push", `{"title":"{{b}}","body":"{{a}}"}`, `{"a":"1"}`, "missing_variable", "variables.b"},
		{"within braces", "sms", `{"body":"{{{code}}"}`, `{"x":"1"}`, "missing_variable", "variables.code"},
		{"html", "email", `{"title":"t","html":"<p>{{x}}"}`, ``, "missing_variable", "variables.x"},
		{"null", "push", `{"body":"{{name}}"}`, `{"name":null}`, "bad_variable", "variables.name"},
		{"object before a shared text", "push", `{"body":"{{name}}","variables":{"name":"x"}}`, `{"name":{}}`, "bad_variable", "variables.name"},
		{"shared list", "push", `{"body":"{{name}}","variables":{"name":[]}}`, ``, "bad_variable", "variables.name"},
		{"escaped name", "push", `{"body":"{{name}}"}`, `{"n\u0061me":"x"}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			category := "marketing"
			if c.channel == "sms" {
				category = "otp"
			}
			to := `{"user_id":"user-1"}`
			if c.vars != "" {
				to = `{"user_id":"user-1","variables":` + c.vars + `}`
			}
			head := `{"channel":"` + c.channel + `","category":"` + category + `","content":` + c.content
			r := newRig(t, Config{})
			_, err := r.Single(t.Context(), request.Meta{Caller: "c"}, []byte(head+`,"to":`+to+`}`))
			wantRefusal(t, err, c.code, "to."+c.field)

			a, err := r.Batch(t.Context(), request.Meta{Caller: "c"}, []byte(`[`+head+`,"to":`+to+`}]`))
			if err != nil {
				t.Fatal(err)
			}
			if refused := bytes.Contains(a.Body, []byte(`"code":"`+c.code+`","field":"to.`+c.field+`"`)); refused != (c.code != "") {
				t.Errorf("batch: %s", a.Body)
			}

			// The second receiver is the one, the first has all there is to have.
			const all = `{"name":"x","code":"x","x":"x","a":"x","b":"x","n":"x"}`
			a, err = r.Fanout(t.Context(), request.Meta{Caller: "c"}, []byte(head+`,"receivers":[{"user_id":"user-0","variables":`+all+`},`+to+`]}`))
			if err != nil {
				t.Fatal(err)
			}
			f := parseFan(t, a)
			switch {
			case c.code == "" && f.Accepted == 2 && f.Count == 0:
			case c.code != "" && f.Accepted == 1 && len(f.Rejected) == 1 && f.Rejected[0].Index == 1 &&
				f.Rejected[0].Code == c.code && strings.HasPrefix(f.Rejected[0].Detail, c.field+": "):
			default:
				t.Errorf("fan-out: %s", a.Body)
			}
		})
	}
}

// Plain ids take another way through a fan-out, in each of its forms.
func TestPlainReceiversNeedVariables(t *testing.T) {
	t.Parallel()
	const head = `"channel":"push","category":"marketing","content":{"body":"Hello {{name}}"}`
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{Index: 0, User: []byte("user-1")})
	w.Append(notify.Receiver{Index: 1, User: []byte("user-2"), Variables: []byte(`{"name":"Ada"}`)})
	const list = `["user-1",{"user_id":"user-2","variables":{"name":"Ada"}}]`
	for _, c := range []struct{ name, media, body string }{
		{"json", request.JSON, `{` + head + `,"receivers":` + list + `}`},
		{"ndjson", request.NDJSON, "{" + head + "}\n\"user-1\"\n{\"user_id\":\"user-2\",\"variables\":{\"name\":\"Ada\"}}"},
		{"protobuf", request.Proto, string(protoFanout("push", "marketing", notify.Content{Body: "Hello {{name}}"}, "", 0, 2, w.Bytes()))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{})
			a, err := r.Fanout(t.Context(), request.Meta{Caller: "c", ContentType: c.media}, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			f := parseFan(t, a)
			if f.Accepted != 1 || len(f.Rejected) != 1 || f.Rejected[0].Index != 0 || f.Rejected[0].Code != "missing_variable" {
				t.Errorf("%s", a.Body)
			}
			if got := received(t, r.log.records()); len(got) != 1 || !strings.HasPrefix(got[1], "user-2|") {
				t.Errorf("stored %v", got)
			}
			// The next request of the same buffers has no placeholders.
			a, err = r.Fanout(t.Context(), request.Meta{Caller: "c"}, fanout(`["user-1","user-2"]`))
			if f := parseFan(t, a); err != nil || f.Accepted != 2 {
				t.Errorf("afterwards: %s, %v", a.Body, err)
			}
		})
	}
}

func wantRefusal(t *testing.T, err error, code, field string) {
	t.Helper()
	if code == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if e := asError(err); e == nil || e.Code != code || e.Field != field || e.Kind != notify.KindInvalid {
		t.Errorf("%v (%s), want %s of %s", err, fmt.Sprint(e), code, field)
	}
}

func asError(err error) *notify.Error {
	e, _ := errors.AsType[*notify.Error](err)
	return e
}
