package provider

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

var testECKey = func() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}()

func testAPNs(t testing.TB, e Endpoint, change func(*APNsConfig)) *APNs {
	t.Helper()
	cfg := APNsConfig{PushConfig: testPushConfig(e), Connections: 2, Confirmed: true, TeamID: "TEAM123456", KeyID: "KEY1234567", Key: testECKey, Topic: "com.example.app"}
	if change != nil {
		change(&cfg)
	}
	a, err := NewAPNs(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, a)
	return a
}

func deviceToken(i int) string { return fmt.Sprintf("apns:%064x", i) }

func TestAPNsRequest(t *testing.T) {
	t.Parallel()
	type push struct {
		path, body string
		h          http.Header
	}
	got := make(chan push, 10)
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- push{r.URL.Path, string(b), r.Header}
	}), nil)
	a := testAPNs(t, e, nil)
	call := testCall(notify.Push, notify.Content{
		Title: `He said "hi" {{name}}`, Body: "{{code}} is your code", CollapseKey: "order-1",
		Variables: []byte(`{"name":"you","code":7}`),
		Data:      []byte(`{"order":{"id":1},"ntf":"x","aps":{"badge":3,"alert":"no"},"seq":"9"}`),
	}, 1, deviceToken)
	call.Expires = 1893456000123
	call.Items[0].Variables = []byte(`{"name":"<Ann>\n\"\\"}`)
	r := collect(t, t.Context(), a, call)[0]
	if r.Class != notify.ClassAccepted || !r.Confirmed || r.Provider != "apns" {
		t.Fatalf("%+v", r)
	}
	p := <-got
	if p.path != "/3/device/"+strings.TrimPrefix(deviceToken(0), "apns:") {
		t.Error(p.path)
	}
	f := func(name, want string) {
		t.Helper()
		if v := p.h[name]; len(v) != 1 || v[0] != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	f("Apns-Topic", "com.example.app")
	f("Apns-Push-Type", "alert")
	f("Apns-Priority", "10")
	f("Apns-Expiration", "1893456000")
	f("Apns-Collapse-Id", "order-1")
	id := notify.AttemptID(call.Items[0].ID(), 2, 0)
	f("Apns-Id", fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:]))
	want := `{"aps":{"alert":{"title":"He said \"hi\" <Ann>\n\"\\","body":"7 is your code"},"badge":3},"order":{"id":1},"seq":"9","ntf":"` + call.Items[0].ID().String() + `"}`
	if p.body != want {
		t.Errorf("payload\n%s\nwant\n%s", p.body, want)
	}
	bearer := strings.TrimPrefix(p.h.Get("Authorization"), "bearer ")
	claims := jwt.MapClaims{}
	tok, err := jwt.ParseWithClaims(bearer, claims, func(*jwt.Token) (any, error) { return &testECKey.PublicKey, nil }, jwt.WithValidMethods([]string{"ES256"}))
	if err != nil || tok.Header["kid"] != "KEY1234567" || claims["iss"] != "TEAM123456" || claims["iat"] == nil || claims["exp"] != nil {
		t.Errorf("%v %v %v", err, tok.Header, claims)
	}
}

func TestAPNsPayloads(t *testing.T) {
	t.Parallel()
	a, err := NewAPNs(APNsConfig{TeamID: "T", KeyID: "K", Key: testECKey, Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	f := func(c notify.Content, variables, want string) *apnsCall {
		t.Helper()
		call := testCall(notify.Push, c, 1, deviceToken)
		call.Items[0].Variables = []byte(variables)
		made, err := a.newCall(call, testNow)
		if err != nil {
			if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != want {
				t.Errorf("%+v: %v", c, err)
			}
			return nil
		}
		ac := made.(*apnsCall)
		got, err := ac.appendPayload(nil, &call.Items[0])
		if err != nil {
			if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != want {
				t.Errorf("%+v: %v", c, err)
			}
			return ac
		}
		s := strings.Replace(string(got), call.Items[0].ID().String(), "ID", 1)
		if s != want || !json.Valid(got) {
			t.Errorf("%+v:\n%s\nwant\n%s", c, s, want)
		}
		return ac
	}
	f(notify.Content{Title: "T", Body: "B"}, "", `{"aps":{"alert":{"title":"T","body":"B"}},"ntf":"ID"}`)
	f(notify.Content{Title: "T"}, "", `{"aps":{"alert":{"title":"T"}},"ntf":"ID"}`)
	f(notify.Content{Body: "B"}, "", `{"aps":{"alert":{"body":"B"}},"ntf":"ID"}`)
	f(notify.Content{Body: "{{a}}{{b}}"}, `{"a":1,"b":true}`, `{"aps":{"alert":{"body":"1true"}},"ntf":"ID"}`)
	ac := f(notify.Content{Data: []byte(`{"k":1}`)}, "", `{"aps":{"content-available":1},"k":1,"ntf":"ID"}`)
	if ac.pushKind != (pushKind{"background", "5"}) {
		t.Errorf("silent push: %+v", ac.pushKind)
	}
	f(notify.Content{Body: "{{a}}"}, `{"b":1}`, "missing_variable")
	f(notify.Content{Body: "{{a}}"}, `{"a":{}}`, "bad_variable")
	f(notify.Content{Body: "{{a}}"}, `{"a":1,"a":2}`, "bad_variables")
	f(notify.Content{Body: "B", Data: []byte(`[]`)}, "", "bad_data")
	f(notify.Content{Body: "B", Variables: []byte(`{`)}, "", "bad_variables")
	f(notify.Content{Template: "welcome"}, "", "template_unsupported")
	overhead := len(`{"aps":{"alert":{"body":""}},"ntf":""}`) + len((notify.ID{Base: testBase, FanOut: true}).String())
	f(notify.Content{Body: strings.Repeat("x", 4097-overhead)}, "", "payload_too_large")
	f(notify.Content{Body: strings.Repeat("x", 4096-overhead)}, "", `{"aps":{"alert":{"body":"`+strings.Repeat("x", 4096-overhead)+`"}},"ntf":"ID"}`)
}

func TestAPNsExpiration(t *testing.T) {
	t.Parallel()
	f := func(expires, want int64) {
		t.Helper()
		if got := apnsExpiration(expires, testNow); got != want {
			t.Errorf("%d: %d, want %d", expires, got, want)
		}
	}
	f(5_000_999, 5000)
	f(1, 1) // not 0: that means try once
	f(0, testNow.Unix()+30*24*3600)
}

func TestCollapseID(t *testing.T) {
	t.Parallel()
	f := func(key string, same bool) {
		t.Helper()
		got := collapseID(key)
		if (got == key) != same || len(got) > 64 || got != collapseID(key) {
			t.Errorf("%q: %q", key, got)
		}
	}
	f("order-1", true)
	f(strings.Repeat("k", 64), true)
	f(strings.Repeat("k", 65), false)
	f("line\nbreak", false)
	f("käse", false)
}

// The server never sees more requests at once than it allows, on any connection, and no
// connection is opened beyond the configured ones.
func TestPushKeepsToStreams(t *testing.T) { withPushers(t, testPushKeepsToStreams) }

func testPushKeepsToStreams(t *testing.T, start func(e Endpoint, n int) pusher) {
	const limit = 5
	var mu sync.Mutex
	busy, peak := map[string]int{}, 0
	var refused atomic.Int64
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		busy[r.RemoteAddr]++
		peak = max(peak, busy[r.RemoteAddr])
		mu.Unlock()
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		busy[r.RemoteAddr]--
		mu.Unlock()
	}), func(s *httptest.Server) {
		s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: limit, CountError: func(string) { refused.Add(1) }}
	})
	a := start(e, 3)
	for i, r := range collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 2000, deviceToken)) {
		if r.Class != notify.ClassAccepted {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if peak > limit || len(busy) > 3 || refused.Load() > 0 {
		t.Errorf("%d streams at once, %d connections, %d refused", peak, len(busy), refused.Load())
	}
	if s := a.pool.Stats(); s.Streams > 3*limit || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// An outdated token is replaced and the item sent again, once; a fresh token is
// not replaced whatever the server says.
func TestAPNsTokenRefused(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	var good atomic.Value
	good.Store("")
	var meanwhile atomic.Value // what happens during the next request
	meanwhile.Store(func() {})
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		meanwhile.Swap(func() {}).(func())()
		if r.Header.Get("Authorization") == good.Load() {
			return
		}
		w.WriteHeader(403)
		io.WriteString(w, `{"reason":"ExpiredProviderToken"}`)
	}), nil)
	a := testAPNs(t, e, nil)
	call := testCall(notify.Push, notify.Content{Body: "b"}, 1, deviceToken)
	r := collect(t, t.Context(), a, call)[0]
	if r.Class != notify.ClassRetry || r.Code != "apns_expired_provider_token" || n.Load() != 1 || r.RetryAfter < 19*time.Minute {
		t.Errorf("a fresh token: %+v after %d requests", r, n.Load())
	}
	// The same token, 21 minutes old.
	old := a.token.current.Load()
	aged := *old
	aged.minted = aged.minted.Add(-21 * time.Minute)
	aged.header = "bearer old"
	a.token.current.Store(&aged)
	good.Store("")
	n.Store(0)
	r = collect(t, t.Context(), a, call)[0]
	if fresh := a.token.current.Load(); fresh == &aged || r.Class != notify.ClassRetry || n.Load() != 2 {
		t.Errorf("an old token: %+v after %d requests", r, n.Load())
	}
	// One that was replaced while the push was under way, by a token that is old as well:
	// the push is sent once more and not a third time.
	n.Store(0)
	meanwhile.Store(func() {
		older := *a.token.current.Load()
		older.minted, older.header = older.minted.Add(-21*time.Minute), "bearer older"
		a.token.current.Store(&older)
	})
	r = collect(t, t.Context(), a, call)[0]
	if r.Class != notify.ClassRetry || n.Load() != 2 {
		t.Errorf("two old tokens: %+v after %d requests", r, n.Load())
	}
	good.Store(a.token.current.Load().header)
	if r = collect(t, t.Context(), a, call)[0]; r.Class != notify.ClassAccepted {
		t.Errorf("the new token: %+v", r)
	}
}

func TestAPNsAmbiguous(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "1"):
			panic(http.ErrAbortHandler) // RST_STREAM
		case strings.HasSuffix(r.URL.Path, "2"):
			<-hang
		}
	}), nil)
	t.Cleanup(func() { close(hang) })
	e.Timeout = 5 * time.Second
	a := testAPNs(t, e, nil)
	f := func(i int, class notify.Class, code string) {
		t.Helper()
		call := testCall(notify.Push, notify.Content{Body: "b"}, 1, func(int) string { return deviceToken(i) })
		if r := collect(t, t.Context(), a, call)[0]; r.Class != class || r.Code != code {
			t.Errorf("%+v, want %v %s", r, class, code)
		}
	}
	f(0, notify.ClassAccepted, "")
	f(1, notify.ClassAmbiguous, "connection_lost")
	f(2, notify.ClassAmbiguous, "timeout")
	f(0, notify.ClassAccepted, "")
}

func TestAPNsUnreachable(t *testing.T) {
	t.Parallel()
	a := testAPNs(t, Endpoint{BaseURL: "https://127.0.0.1:1"}, nil)
	call := testCall(notify.Push, notify.Content{Body: "b"}, 3, deviceToken)
	for _, r := range collect(t, t.Context(), a, call) {
		if r.Class != notify.ClassUnavailable || r.Code != "no_connection" {
			t.Errorf("%+v", r)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call.Items[2].Address = []byte("apns:../../x")
	rs := collect(t, ctx, a, call)
	if rs[2].Class != notify.ClassPermanent || rs[2].Code != "bad_address" {
		t.Errorf("%+v", rs[2])
	}
}

// A mass of dead tokens is our mistake, not that of so many devices.
func TestAPNsSpike(t *testing.T) {
	t.Parallel()
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		io.WriteString(w, `{"reason":"BadDeviceToken"}`)
	}), nil)
	a := testAPNs(t, e, nil)
	failed := 0
	for _, r := range collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 1000, deviceToken)) {
		switch {
		case r.Class == notify.ClassPermanent: // and not suppressed
			failed++
		case r.Class != notify.ClassConfig || r.Code != "apns_bad_token_spike":
			t.Fatalf("%+v", r)
		}
	}
	if failed >= guardLeast {
		t.Errorf("%d messages failed", failed)
	}
}

// Invented tokens of a caller are that caller's failures. They neither stop the lane for others
// nor fill the suppression list.
func TestAPNsMadeUpTokens(t *testing.T) {
	t.Parallel()
	var known atomic.Bool
	_, e := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if known.Load() {
			return
		}
		w.WriteHeader(400)
		io.WriteString(w, `{"reason":"BadDeviceToken"}`)
	}), nil)
	a := testAPNs(t, e, nil)
	call := testCall(notify.Push, notify.Content{Body: "b"}, 1000, deviceToken)
	for i := range call.Items {
		call.Items[i].FromRequest = true
	}
	b, err := limit.NewBreaker(time.Now(), limit.BreakerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range collect(t, t.Context(), a, call) {
		if r.Class != notify.ClassPermanent || r.Code != "apns_bad_device_token" {
			t.Fatalf("%+v", r)
		}
		b.Report(time.Now(), limit.OutcomeOf(r.Class))
	}
	if s := b.State(time.Now()).State; s != limit.Closed {
		t.Errorf("the breaker is %v", s)
	}
	// Once a push was accepted, such an answer is about the token.
	known.Store(true)
	collect(t, t.Context(), a, testCall(notify.Push, notify.Content{Body: "b"}, 1, deviceToken))
	known.Store(false)
	for _, r := range collect(t, t.Context(), a, call) {
		if r.Class != notify.ClassDeadAddress {
			t.Fatalf("%+v", r)
		}
	}
}

func TestParseAPNsKey(t *testing.T) {
	t.Parallel()
	der, _ := x509.MarshalPKCS8PrivateKey(testECKey)
	p8 := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if k, err := ParseAPNsKey(p8); err != nil || !k.Equal(testECKey) {
		t.Error(err)
	}
	for _, bad := range []string{"", "x", string(p8[:60]), strings.Replace(string(p8), "M", "N", 1)} {
		if _, err := ParseAPNsKey([]byte(bad)); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	rec := func(name string) Sender {
		return sendFunc(func(_ context.Context, call *notify.Call, report notify.Report) {
			for i := range call.Items {
				if !strings.HasPrefix(string(call.Items[i].Address), name+":") {
					t.Errorf("%s got another's item", name)
				}
				report.One(i, notify.Result{Provider: name, Code: string(call.Items[i].Address)})
			}
		})
	}
	addr := func(i int) string { return []string{"apns:a", "fcm:b", "sms:c"}[i%3] + fmt.Sprint(i) }
	call := testCall(notify.Push, notify.Content{}, 9, addr)
	for i, r := range collect(t, t.Context(), NewPush(rec("apns"), rec("fcm")), call) {
		if i%3 == 2 {
			if r.Class != notify.ClassPermanent {
				t.Errorf("%+v", r)
			}
		} else if r.Code != addr(i) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	for i, r := range collect(t, t.Context(), NewPush(rec("apns"), nil), call) {
		if i%3 == 1 && (r.Class != notify.ClassConfig || r.Provider != "fcm") {
			t.Errorf("%+v", r)
		}
	}
	one := testCall(notify.Push, notify.Content{}, 2, func(i int) string { return "fcm:x" })
	if r := collect(t, t.Context(), NewPush(nil, rec("fcm")), one); r[1].Provider != "fcm" {
		t.Errorf("%+v", r)
	}
}

type sendFunc func(ctx context.Context, call *notify.Call, report notify.Report)

func (f sendFunc) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	f(ctx, call, report)
}
