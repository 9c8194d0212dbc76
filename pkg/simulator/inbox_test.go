package simulator

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A mail is shown as its receiver reads it: with its own subject and values, and
// without markup.
func TestInboxShowsWhatReceiversRead(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}})
	c := client(t, s, "h1")
	mail := func(change func(body map[string]any, first map[string]any)) Message {
		t.Helper()
		body := mailBody(0, ids(2)...)
		change(body, body["personalizations"].([]any)[0].(map[string]any))
		if got := do(t, c, mailSend(t, s, body)); got.status != 202 {
			t.Fatalf("%+v", got)
		}
		return s.Inbox()[1] // that of the first personalization
	}
	part := func(kind, value string) []any { return []any{map[string]string{"type": kind, "value": value}} }
	is := func(m Message, title, body string) {
		t.Helper()
		if m.Title != title || m.Body != body {
			t.Errorf("shown as %q, %q; want %q, %q", m.Title, m.Body, title, body)
		}
	}
	is(mail(func(body, first map[string]any) {
		body["content"] = part("text/plain", "Thank you, -ntf.t0-, for -ntf.t1-. -ntf.t10- -ntf.t2-")
		first["subject"] = "For -ntf.t0-"
		first["substitutions"] = map[string]string{"-ntf.t0-": "Ann -ntf.t1-", "-ntf.t1-": "17", "-ntf.t10-": "ten", "-ntf": "no"}
	}), "For Ann -ntf.t1-", "Thank you, Ann -ntf.t1-, for 17. ten no.t2-")
	is(s.Inbox()[0], "Hello", "Thank you, -ntf.t0-, for -ntf.t1-. -ntf.t10- -ntf.t2-") // one without values
	is(mail(func(body, first map[string]any) {
		body["content"] = part("text/html", "<head><title>x</title><style>p{}</style></head><h1>Hi -ntf.h0-</h1>\n<p>Your <b>order</b><br>is\non its&nbsp;way.</p><script>x</script><ul><li>a<li>b</ul>")
		first["substitutions"] = map[string]string{"-ntf.h0-": "&lt;Ann&gt;"}
	}), "Hello", "Hi <Ann>\nYour order\nis on its\u00a0way.\na\nb")
	is(mail(func(body, first map[string]any) {
		delete(body, "content")
		body["template_id"] = "d-17"
		first["dynamic_template_data"] = map[string]any{"name": "Ann"}
	}), "template d-17", `{"name":"Ann"}`)
	long := mail(func(body, first map[string]any) {
		body["content"] = part("text/plain", strings.Repeat("x", maxClip-5)+"-ntf.t0- "+strings.Repeat("é", maxClip))
		first["substitutions"] = map[string]string{"-ntf.t0-": "Ann"}
	})
	if !strings.HasSuffix(long.Body, "xAnn …") && !strings.HasSuffix(long.Body, "Ann é…") || len(long.Body) > maxClip+3 || !utf8.ValidString(long.Body) {
		t.Errorf("a long one ends with %q, %d bytes", long.Body[len(long.Body)-20:], len(long.Body))
	}

	a := s.Credentials().Twilio[0]
	do(t, c, smsSend(t, s, a, smsForm(a, Phone(1), "", "Body", "", "ContentSid", "HX1", "ContentVariables", `{"1":"Ann"}`)))
	is(s.Inbox()[0], "template HX1", `{"1":"Ann"}`)
}

// The inbox holds what it shows, not the requests that it came in.
func TestInboxLetsGoOfRequests(t *testing.T) {
	t.Parallel()
	b := newInbox(2)
	all := make([]personalization, 1000)
	c := &providerCall{provider: SendGrid}
	for i := range all {
		c.receivers = append(c.receivers, receiver{personal: &all[i]})
	}
	b.addCall(c, 202, Accepted, time.Now())
	for _, e := range b.entries {
		for i := range all {
			if e.personal == &all[i] {
				t.Fatalf("one of %d that came together is held with the others", len(all))
			}
		}
	}
}
