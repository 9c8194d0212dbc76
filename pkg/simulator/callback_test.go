package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

const callbackSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

func signCall(t testing.TB, r *http.Request, id, body string, at time.Time) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(callbackSecret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	ts := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + ts + "." + body))
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", ts)
	r.Header.Set("webhook-signature", "v1,AAAA v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// callback is a call of a trigger, not sent yet.
func callback(t testing.TB, s *Simulator, path, id string, attempt int) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.URLs().Callback+path, strings.NewReader(`{"trigger_id":"`+id+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Trigger-Id", id)
	r.Header.Set("X-Trigger-Attempt", strconv.Itoa(attempt))
	return r
}

func TestCallbackLedger(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	s := start(t, Config{Now: func() time.Time { return now }})
	if err := s.calls.setSecret(callbackSecret); err != nil {
		t.Fatal(err)
	}
	c := client(t, s, "h1")
	due := func(late time.Duration) string { return "/a?due=" + strconv.FormatInt(now.Add(-late).UnixMilli(), 10) }

	send := func(path, id string, attempt int, at time.Time) int {
		r := callback(t, s, path, id, attempt)
		signCall(t, r, id, `{"trigger_id":"`+id+`"}`, at)
		return do(t, c, r).status
	}
	if got := send(due(3*time.Millisecond), "trg_1", 1, now); got != 200 {
		t.Fatalf("answered %d", got)
	}
	send("/a", "trg_1", 2, now)                      // a duplicate
	send(due(-time.Second), "trg_2", 1, now)         // early
	send(due(700*time.Millisecond), "trg_3", 1, now) // late
	if got := send("/a", "trg_4", 1, now.Add(-10*time.Minute)); got != 401 {
		t.Errorf("a signature of ten minutes ago: %d", got)
	}
	if got := do(t, c, callback(t, s, "/a", "trg_5", 1)).status; got != 401 {
		t.Errorf("without a signature: %d", got)
	}
	forged := callback(t, s, "/a", "trg_6", 1)
	signCall(t, forged, "trg_6", `{"trigger_id":"another"}`, now)
	if got := do(t, c, forged).status; got != 401 {
		t.Errorf("a signature of another body: %d", got)
	}

	got := s.Callbacks()
	want := CallTotals{Calls: 7, Triggers: 6, Taken: 3, Duplicates: 1, BadSignature: 3, Early: 1, Timed: 3}
	want.LateBuckets, want.LateP50us, want.LateP99us, want.LateP999us, want.LateMaxus = got.LateBuckets, got.LateP50us, got.LateP99us, got.LateP999us, got.LateMaxus
	if a, b := asJSON(t, got), asJSON(t, want); a != b {
		t.Errorf("got  %s\nwant %s", a, b)
	}
	if b := got.LateBuckets; b[2] != 1 || b[9] != 1 || got.LateMaxus < 699_000 || got.LateMaxus > 701_000 {
		t.Errorf("lateness %v, max %d us", b, got.LateMaxus)
	}
	calls := s.CallsOf("trg_1")
	if len(calls) != 2 || calls[1].Attempt != 2 || calls[0].Signature != SignatureGood {
		t.Errorf("%+v", calls)
	}
	ask := caller(t, s)
	if r := ask("GET", "/callbacks?id=trg_9", ""); r.status != 404 {
		t.Errorf("an unknown trigger: %d", r.status)
	}
	if r := ask("GET", "/callbacks/dump", ""); strings.Count(r.body, "\n") != 7 {
		t.Errorf("dump:\n%s", r.body)
	}
	if r := ask("GET", "/callbacks/dump?since_ms="+strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10), ""); r.status != 200 || r.body != "" {
		t.Errorf("dump of what is to come:\n%s", r.body)
	}
	if r := ask("PUT", "/callbacks/secret", `{"secret":"whsec_c2hvcnQ="}`); r.status != 422 && r.status != 400 {
		t.Errorf("a short secret: %d", r.status)
	}
	ask("PUT", "/callbacks/secret", `{"secret":""}`)
	if got := do(t, c, callback(t, s, "/a", "trg_5", 2)).status; got != 200 {
		t.Errorf("nothing checked: %d", got)
	}
	ask("DELETE", "/callbacks", "")
	if got := s.Callbacks().Calls; got != 0 {
		t.Errorf("%d calls after forgetting", got)
	}
}

func TestCallbackKeeps(t *testing.T) {
	t.Parallel()
	l := newCallLedger(2)
	for _, id := range []string{"a", "b", "b", "c"} {
		l.add(Call{ID: id, Taken: true})
	}
	if len(l.callsOf("a")) != 0 || len(l.callsOf("b")) != 2 || len(l.callsOf("c")) != 1 || l.totals().Triggers != 3 {
		t.Errorf("%v, %+v", l.order, l.totals())
	}
}

func TestCallbackFaults(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h1")
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	add := func(r Rule) {
		t.Helper()
		r.Provider, r.Count = Callback, 1
		if _, err := s.AddRule(r); err != nil {
			t.Fatal(err)
		}
	}
	add(Rule{Do: Throttle, RetryAfter: Duration(7 * time.Second)})
	if got := do(t, c, callback(t, s, "/x", "trg_1", 1)); got.status != 429 || got.header.Get("Retry-After") != "7" {
		t.Errorf("throttled: %d %q", got.status, got.header.Get("Retry-After"))
	}
	add(Rule{Do: Redirect, Location: "http://127.0.0.1:1/"})
	if got := do(t, c, callback(t, s, "/x", "trg_1", 2)); got.status != 302 || got.header.Get("Location") != "http://127.0.0.1:1/" {
		t.Errorf("redirect: %d", got.status)
	}
	add(Rule{Do: Huge})
	if got := do(t, c, callback(t, s, "/x", "trg_2", 1)); len(got.body) != hugeAnswer {
		t.Errorf("huge: %d bytes", len(got.body))
	}
	for _, a := range []struct {
		do    Action
		taken bool
	}{{Reset, true}, {Drop, false}} {
		add(Rule{Do: a.do})
		id := "trg_" + string(a.do)
		if r, err := try(c, callback(t, s, "/x", id, 1)); err == nil {
			t.Errorf("%s: answered %d", a.do, r.status)
		}
		if calls := s.CallsOf(id); len(calls) != 1 || calls[0].Taken != a.taken || calls[0].Status != 0 {
			t.Errorf("%s: %+v", a.do, calls)
		}
	}
	if _, err := s.AddRule(Rule{Provider: Twilio, Do: Redirect, Location: "x"}); err == nil {
		t.Error("a provider redirects")
	}
	if _, err := s.AddRule(Rule{Provider: Callback, Do: Redirect}); err == nil {
		t.Error("a redirect to nowhere")
	}
	if got := do(t, c, callback(t, s, "/x", "trg_2", 2)); got.status != 200 || s.Callbacks().Duplicates != 1 {
		t.Errorf("%d, %+v", got.status, s.Callbacks())
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCallContent: what a call carried can be seen, of the latest calls and up to a size.
func TestCallContent(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h1")
	send := func(id, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "PUT", s.URLs().Callback+"/hook?a=1", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Trigger-Id", id)
		r.Header.Set("X-Mine", "yes")
		if got := do(t, c, r); got.status != 200 {
			t.Fatalf("answered %d", got.status)
		}
	}
	send("trg_1", `{"hold":7}`)
	send("trg_1", "\xff\x00")
	send("trg_1", strings.Repeat("x", contentBytes-1)+"\u00e4")
	of := s.CallsOf("trg_1")
	if k := of[0].Content; k == nil || k.Method != "PUT" || k.URL != "/hook?a=1" || k.Header.Get("X-Mine") != "yes" || k.Body != `{"hold":7}` || k.Binary || k.Cut {
		t.Errorf("%+v", k)
	}
	if k := of[1].Content; k == nil || !k.Binary || k.Body != "/wA=" {
		t.Errorf("no text: %+v", k)
	}
	if k := of[2].Content; k == nil || !k.Cut || k.Binary || k.Body != strings.Repeat("x", contentBytes-1) {
		t.Errorf("too long: %+v", k)
	}
	// Load does not fill memory: the content of older calls goes, the calls stay.
	for i := range contentKeep - 2 {
		s.calls.ledger.add(Call{ID: strconv.Itoa(i), Content: &CallContent{}})
	}
	if of = s.CallsOf("trg_1"); len(of) != 3 || of[0].Content != nil || of[1].Content == nil || of[2].Content == nil {
		t.Errorf("after %d more: %+v", contentKeep-2, of)
	}
}
