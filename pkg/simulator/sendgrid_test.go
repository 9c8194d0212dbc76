package simulator

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// mailBody is a valid request to n recipients from first on; ids follow.
func mailBody(first uint64, ids ...string) map[string]any {
	var ps []any
	for i, id := range ids {
		ps = append(ps, map[string]any{
			"to":          []any{map[string]string{"email": Mailbox(first + uint64(i))}},
			"custom_args": map[string]any{"ntf": id, "usr": "u" + strconv.Itoa(i), "seq": "3"},
		})
	}
	return map[string]any{
		"personalizations": ps, "from": map[string]string{"email": "news@example.com"}, "subject": "Hello", "ip_pool_name": "pool-2",
		"content": []any{map[string]string{"type": "text/plain", "value": "World"}}, "categories": []string{"digest"},
	}
}

func mailSend(t testing.TB, s *Simulator, v any) *http.Request {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return request(t, "POST", s.URLs().SendGrid+"/v3/mail/send", b, "Authorization", "Bearer "+s.Credentials().SendGrid.APIKey, "Content-Type", "application/json")
}

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = newID().String()
	}
	return out
}

func TestSendGridAccepts(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h1")
	many := ids(1000)
	got := do(t, c, mailSend(t, s, mailBody(0, many...)))
	if got.status != 202 || got.body != "" || got.header.Get("X-Message-Id") == "" {
		t.Fatalf("%+v", got)
	}
	for _, id := range many {
		delivered(t, s, id, 1)
	}

	packed := ids(1)
	plain, _ := json.Marshal(mailBody(0, packed...))
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(plain)
	w.Close()
	r := setBody(mailSend(t, s, nil), z.Bytes())
	r.Header.Set("Content-Encoding", "gzip")
	if got := do(t, c, r); got.status != 202 {
		t.Errorf("gzip: %+v", got)
	}
	delivered(t, s, packed[0], 1)

	sandbox, box := mailBody(0, ids(1)...), map[string]any{"sandbox_mode": map[string]any{"enable": true}}
	sandbox["mail_settings"] = box
	if got := do(t, c, mailSend(t, s, sandbox)); got.status != 200 {
		t.Errorf("sandbox: %+v", got)
	}

	whole := mailBody(5, "")
	id := newID().String()
	whole["custom_args"] = map[string]any{"ntf": id}
	delete(whole["personalizations"].([]any)[0].(map[string]any), "custom_args")
	if got := do(t, c, mailSend(t, s, whole)); got.status != 202 {
		t.Errorf("%+v", got)
	}
	delivered(t, s, id, 1)
	if n := s.Ledger().Summary().Providers["sendgrid"]; n.Deliveries != 1002 || n.Requests != 4 || n.Status["202"] != 1002 {
		t.Errorf("%+v", n)
	}
	if m := s.Inbox(); len(m) != 200 || m[0].Title != "Hello" || m[0].Body != "World" || m[0].Channel != "email" {
		t.Errorf("inbox: %d, %+v", len(m), m[0])
	}
}

func TestSendGridRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h1")
	with := func(name string, v any) *http.Request {
		b := mailBody(0, ids(1)...)
		b[name] = v
		if v == nil {
			delete(b, name)
		}
		return mailSend(t, s, b)
	}
	to := func(email string) map[string]any {
		return map[string]any{"to": []any{map[string]string{"email": email}}}
	}
	for name, tc := range map[string]struct {
		r      *http.Request
		status int
		field  any
	}{
		"key":          {func() *http.Request { r := with("x", 1); r.Header.Set("Authorization", "Bearer SG.x"); return r }(), 401, nil},
		"media type":   {func() *http.Request { r := with("x", 1); r.Header.Set("Content-Type", "text/plain"); return r }(), 415, nil},
		"method":       {request(t, "PUT", s.URLs().SendGrid+"/v3/mail/send", nil), 405, nil},
		"path":         {request(t, "POST", s.URLs().SendGrid+"/v3/mail/sent", nil), 404, nil},
		"json":         {setBody(with("x", 1), []byte("{")), 400, nil},
		"gzip":         {func() *http.Request { r := with("x", 1); r.Header.Set("Content-Encoding", "gzip"); return r }(), 400, nil},
		"from":         {with("from", nil), 400, "from.email"},
		"content":      {with("content", nil), 400, "content"},
		"empty":        {with("content", []any{map[string]string{"type": "text/plain"}}), 400, "content.0.value"},
		"subject":      {with("subject", nil), 400, "personalizations.0.subject"},
		"nobody":       {with("personalizations", []any{}), 400, "personalizations"},
		"no to":        {with("personalizations", []any{map[string]any{}}), 400, "personalizations.0.to"},
		"address":      {with("personalizations", []any{to("a@b"), to("nobody")}), 400, "personalizations.1.to"},
		"twice":        {with("personalizations", []any{to("a@example.com"), to("A@example.com")}), 400, "personalizations.1.to"},
		"1001":         {mailSend(t, s, mailBody(0, ids(1001)...)), 400, "personalizations"},
		"pool":         {with("ip_pool_name", "pool-9"), 400, "ip_pool_name"},
		"categories":   {with("categories", strings.Split("abcdefghijk", "")), 400, "categories"},
		"send_at":      {with("send_at", time.Now().Add(73*time.Hour).Unix()), 400, "personalizations.0.send_at"},
		"large args":   {with("custom_args", map[string]string{"a": strings.Repeat("x", 10_000)}), 400, "personalizations.0.custom_args"},
		"1001 with cc": {with("personalizations", crowd(1001)), 400, "personalizations"},
	} {
		got := do(t, c, tc.r)
		if got.status != tc.status || field(t, got.body, "errors.0.field") != tc.field || field(t, got.body, "errors.0.message") == "" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if n := s.Ledger().Summary(); n.Deliveries != 0 || n.Accepted != 0 {
		t.Errorf("%+v", n)
	}
}

// crowd is one personalization with n recipients.
func crowd(n int) []any {
	var cc []any
	for i := range n - 1 {
		cc = append(cc, map[string]string{"email": Mailbox(uint64(i + 1))})
	}
	return []any{map[string]any{"to": []any{map[string]string{"email": Mailbox(0)}}, "cc": cc}}
}

func TestSendGridRate(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	clock.Store(1_700_000_001 * 1e9)
	s := start(t, Config{Now: func() time.Time { return time.Unix(0, clock.Load()) }})
	c := client(t, s, "h1")
	send := func(pool string) response {
		b := mailBody(0, ids(1)...)
		b["ip_pool_name"] = pool
		return do(t, c, mailSend(t, s, b))
	}
	rule(t, s, Rule{Provider: SendGrid, Pool: "pool-2", Do: Throttle, RetryAfter: Duration(7 * time.Second)})
	if r := send("pool-2"); r.status != 429 || r.header.Get("X-RateLimit-Reset") != "1700000008" || r.header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("a scripted 429: %+v", r)
	}
	if r := send("pool-3"); r.status != 202 {
		t.Errorf("another pool: %+v", r)
	}
}

// eventCalls verifies each webhook call as SendGrid's documentation says, and
// returns its events.
func eventCalls(t testing.TB, s *Simulator, got <-chan *http.Request) func() []map[string]any {
	der, err := base64.StdEncoding.DecodeString(s.Credentials().SendGrid.WebhookPublicKey)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		t.Fatal(err)
	}
	return func() []map[string]any {
		r := <-got
		body := r.Form.Get("raw")
		sum := sha256.Sum256([]byte(r.Header.Get("X-Twilio-Email-Event-Webhook-Timestamp") + body))
		sig, err := base64.StdEncoding.DecodeString(r.Header.Get("X-Twilio-Email-Event-Webhook-Signature"))
		if err != nil || !ecdsa.VerifyASN1(pub.(*ecdsa.PublicKey), sum[:], sig) {
			t.Errorf("the signature of %s does not hold", body)
		}
		var events []map[string]any
		if err := json.Unmarshal([]byte(body), &events); err != nil {
			t.Error(err)
		}
		return events
	}
}

func TestSendGridEvents(t *testing.T) {
	t.Parallel()
	var refused atomic.Int64
	refused.Store(1) // the first call is refused, and must come again
	url0, got := callbacks(t, func(*http.Request) int {
		if refused.Add(-1) >= 0 {
			return 500
		}
		return 200
	})
	s := start(t, Config{Receipts: Receipts{SendGridURL: url0 + "/sendgrid", Batch: 3, Delay: Constant(20 * time.Millisecond)}})
	next := eventCalls(t, s, got)
	rule(t, s, Rule{Provider: SendGrid, Prefix: Mailbox(1), Do: Receipt, Code: "bounce"})
	rule(t, s, Rule{Provider: SendGrid, Prefix: Mailbox(2), Do: Receipt, Code: "dropped"})
	rule(t, s, Rule{Provider: SendGrid, Prefix: Mailbox(3), Do: Receipt, Code: "async_bounce"})
	c := client(t, s, "h1")
	all := ids(4)
	var msg [4]string
	for i, id := range all {
		r := do(t, c, mailSend(t, s, mailBody(uint64(i), id)))
		if r.status != 202 {
			t.Fatalf("%+v", r)
		}
		msg[i] = r.header.Get("X-Message-Id")
	}
	seen := map[string]string{} // event id -> event, as SendGrid asks to drop repetitions
	story := make([]string, 4)
	for len(seen) < 8 {
		batch := next()
		if len(batch) > 3 {
			t.Errorf("%d events in one call", len(batch))
		}
		for _, e := range batch {
			key := e["sg_event_id"].(string)
			if seen[key] != "" {
				continue
			}
			seen[key] = e["event"].(string)
			i := int(e["email"].(string)[4] - '0')
			story[i] += " " + e["event"].(string)
			mid, has := e["sg_message_id"].(string)
			if e["ntf"] != all[i] || (has && !strings.HasPrefix(mid, msg[i]+".filter")) || e["timestamp"] == nil || e["usr"] != "u0" {
				t.Errorf("%v", e)
			}
			if i == 3 && e["event"] == "bounce" && has {
				t.Error("an asynchronous bounce carries sg_message_id")
			}
		}
	}
	// Calls run side by side, and one was late, so only what happened counts.
	for i, want := range []string{"delivered processed", "bounce processed", "dropped", "bounce delivered processed"} {
		if fmt.Sprint(sortedWords(story[i])) != "["+want+"]" {
			t.Errorf("mail %d: %s, want %s", i, story[i], want)
		}
	}
	waitFor(t, func() bool { return s.ReceiptStats().Pending == 0 })
	if st := s.ReceiptStats(); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}
