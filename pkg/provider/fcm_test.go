package provider

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/notifyd/notifyd/pkg/notify"
)

var testRSAKey = func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
}()

// fcmServer answers /token and sends; both can be replaced.
type fcmServer struct {
	tokens atomic.Int64
	send   func(w http.ResponseWriter, r *http.Request, body string)
	token  func(w http.ResponseWriter, r *http.Request)
}

func (s *fcmServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		n := s.tokens.Add(1)
		if s.token != nil {
			s.token(w, r)
			return
		}
		fmt.Fprintf(w, `{"access_token":"tok%d","expires_in":3599,"token_type":"Bearer"}`, n)
		return
	}
	b, _ := io.ReadAll(r.Body)
	s.send(w, r, string(b))
}

func testFCM(t testing.TB, s *fcmServer) *FCM {
	t.Helper()
	_, e := tlsServer(t, s, nil)
	return startFCM(t, FCMConfig{PushConfig: testPushConfig(e), Connections: 2, TokenURL: e.BaseURL + "/token"})
}

func startFCM(t testing.TB, cfg FCMConfig) *FCM {
	t.Helper()
	cfg.Account = ServiceAccount{Project: "demo", Email: "svc@demo.iam", Key: testRSAKey, KeyID: "kid1"}
	cfg.Confirmed = true
	f, err := NewFCM(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	return f
}

func fcmAddress(i int) string { return fmt.Sprintf("fcm:tok:%d", i) }

func TestFCMRequest(t *testing.T) {
	t.Parallel()
	var path, auth, body, form string
	s := &fcmServer{send: func(w http.ResponseWriter, r *http.Request, b string) {
		path, auth, body = r.URL.Path, r.Header.Get("Authorization"), b
		io.WriteString(w, `{"name":"projects/demo/messages/0:7"}`)
	}}
	s.token = func(w http.ResponseWriter, r *http.Request) {
		form = r.PostFormValue("assertion")
		if r.PostFormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			w.WriteHeader(400)
		}
		io.WriteString(w, `{"access_token":"tok","expires_in":3599}`)
	}
	f := testFCM(t, s)
	call := testCall(notify.Push, notify.Content{Title: "T{{n}}", Body: `B"`, CollapseKey: "c", Variables: []byte(`{"n":1}`),
		Data: []byte(`{"a":"x","n":1.5,"o":{"k":[1]},"ntf":"no","aps":{"badge":1}}`)}, 1, fcmAddress)
	call.Expires = time.Now().Add(time.Hour + 500*time.Millisecond).UnixMilli()
	r := collect(t, t.Context(), f, call)[0]
	if r.Class != notify.ClassAccepted || !r.Confirmed || r.ProviderID != "projects/demo/messages/0:7" || r.Provider != "fcm" {
		t.Fatalf("%+v", r)
	}
	id := call.Items[0].ID().String()
	want := `{"message":{"android":{"priority":"high","ttl":"3600s","collapse_key":"c"},"notification":{"title":"T1","body":"B\""},"data":{"a":"x","n":"1.5","o":"{\"k\":[1]}","ntf":"` + id + `"},"token":"tok:0"}}`
	if path != "/v1/projects/demo/messages:send" || auth != "Bearer tok" || body != want || !json.Valid([]byte(body)) {
		t.Errorf("%s %s\n%s\nwant\n%s", path, auth, body, want)
	}
	claims := jwt.MapClaims{}
	tok, err := jwt.ParseWithClaims(form, claims, func(*jwt.Token) (any, error) { return &testRSAKey.PublicKey, nil }, jwt.WithValidMethods([]string{"RS256"}))
	if err != nil || tok.Header["kid"] != "kid1" || claims["iss"] != "svc@demo.iam" || claims["scope"] != fcmScope || !strings.HasSuffix(claims["aud"].(string), "/token") {
		t.Errorf("%v %v", err, claims)
	}
}

func TestFCMMessages(t *testing.T) {
	t.Parallel()
	fcm, err := NewFCM(FCMConfig{Account: ServiceAccount{Project: "demo", Email: "e", Key: testRSAKey}})
	if err != nil {
		t.Fatal(err)
	}
	f := func(c notify.Content, variables, want string) {
		t.Helper()
		call := testCall(notify.Push, c, 1, fcmAddress)
		call.Category = notify.Marketing
		call.Items[0].Variables = []byte(variables)
		fc, err := fcm.newCall(call, testNow)
		var got []byte
		if err == nil {
			got, err = fc.(*fcmCall).appendMessage(nil, &call.Items[0])
		}
		if err != nil {
			got = []byte(err.(*notify.Error).Code)
		} else if !json.Valid(got) {
			t.Errorf("not JSON: %s", got)
		}
		if s := strings.Replace(string(got), call.Items[0].ID().String(), "ID", 1); s != want {
			t.Errorf("%+v\n%s\nwant\n%s", c, s, want)
		}
	}
	head, tail := `{"message":{"android":{"priority":"normal"}`, `"ntf":"ID"},"token":"tok:0"}}`
	f(notify.Content{Title: "T"}, "", head+`,"notification":{"title":"T"},"data":{`+tail)
	f(notify.Content{Body: "{{a}}"}, `{"a":"x"}`, head+`,"notification":{"body":"x"},"data":{`+tail)
	f(notify.Content{Data: []byte(`{"a":1}`)}, "", head+`,"data":{"a":"1",`+tail)
	f(notify.Content{Body: "{{a}}"}, "", "missing_variable")
	f(notify.Content{Template: "x"}, "", "template_unsupported")
	f(notify.Content{Body: "x", Data: []byte(`1`)}, "", "bad_data")
	f(notify.Content{Body: strings.Repeat("x", 4100)}, "", "payload_too_large")
}

// One token for all; a refused one is renewed and the item sent again.
func TestFCMToken(t *testing.T) {
	t.Parallel()
	var valid atomic.Value
	valid.Store("Bearer tok1")
	s := &fcmServer{send: func(w http.ResponseWriter, r *http.Request, b string) {
		if r.Header.Get("Authorization") != valid.Load() {
			w.WriteHeader(401)
			io.WriteString(w, `{"error":{"code":401,"status":"UNAUTHENTICATED"}}`)
		}
	}}
	f := testFCM(t, s)
	call := testCall(notify.Push, notify.Content{Body: "b"}, 500, fcmAddress)
	check := func(class notify.Class, tokens int64) {
		t.Helper()
		for _, r := range collect(t, t.Context(), f, call) {
			if r.Class != class {
				t.Fatalf("%+v", r)
			}
		}
		if n := s.tokens.Load(); n != tokens {
			t.Errorf("%d tokens, want %d", n, tokens)
		}
	}
	check(notify.ClassAccepted, 1)
	// Revoked, a minute old: one renewal serves everybody.
	aged := *f.token.current.Load()
	aged.minted = aged.minted.Add(-2 * time.Minute)
	f.token.current.Store(&aged)
	valid.Store("Bearer tok2")
	check(notify.ClassAccepted, 2)
	// Revoked again at once: our credentials are the matter.
	valid.Store("Bearer other")
	check(notify.ClassConfig, 2)
}

// With the key of another project every user's token is refused. That is a matter of
// our configuration: no message fails, no token is given up, until a success has
// proven the key.
func TestFCMOtherProject(t *testing.T) {
	t.Parallel()
	refuse := func(w http.ResponseWriter, status int, state, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%d,"status":%q,"details":[{"@type":"type.googleapis.com/google.firebase.fcm.v1.FcmError","errorCode":%q}]}}`, status, state, code)
	}
	var code atomic.Value
	code.Store("SENDER_ID_MISMATCH")
	f := testFCM(t, &fcmServer{send: func(w http.ResponseWriter, r *http.Request, _ string) {
		switch code.Load() {
		case "SENDER_ID_MISMATCH":
			refuse(w, 403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH")
		case "UNREGISTERED":
			refuse(w, 404, "NOT_FOUND", "UNREGISTERED")
		}
	}})
	call := testCall(notify.Push, notify.Content{Body: "b"}, 1000, fcmAddress)
	classes := func() map[notify.Class]int {
		n := map[notify.Class]int{}
		for _, r := range collect(t, t.Context(), f, call) {
			n[r.Class]++
		}
		return n
	}
	if n := classes(); n[notify.ClassConfig] != 1000 {
		t.Errorf("another project's key: %v", n)
	}
	code.Store("UNREGISTERED")
	if n := classes(); n[notify.ClassDeadAddress] > 0 || n[notify.ClassPermanent] != guardLeast-1 || n[notify.ClassConfig] != 1000-guardLeast+1 {
		t.Errorf("unknown tokens only: %v", n)
	}
	code.Store("")
	if n := classes(); n[notify.ClassAccepted] != 1000 {
		t.Fatalf("%v", n)
	}
	for _, dead := range []string{"SENDER_ID_MISMATCH", "UNREGISTERED"} {
		code.Store(dead)
		if n := classes(); n[notify.ClassDeadAddress] != 1000 {
			t.Errorf("%s of a proven key: %v", dead, n)
		}
	}
}

func TestFCMTokenErrors(t *testing.T) {
	t.Parallel()
	f := func(status int, body string, class notify.Class, code string) {
		t.Helper()
		s := &fcmServer{token: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}}
		c := testFCM(t, s)
		for _, r := range collect(t, t.Context(), c, testCall(notify.Push, notify.Content{Body: "b"}, 50, fcmAddress)) {
			if r.Class != class || r.Code != code {
				t.Fatalf("%d: %+v", status, r)
			}
		}
		if n := s.tokens.Load(); n != 1 {
			t.Errorf("%d requests for a token", n)
		}
		if _, err := c.token.get(t.Context()); status == 503 && !strings.HasSuffix(err.Error(), "http_503") {
			t.Errorf("the log does not say why: %v", err)
		}
	}
	f(400, `{"error":"invalid_grant","error_description":"secret"}`, notify.ClassConfig, "fcm_oauth_refused")
	f(401, ``, notify.ClassConfig, "fcm_oauth_refused")
	f(200, `{}`, notify.ClassConfig, "fcm_oauth_refused")
	f(503, ``, notify.ClassUnavailable, "fcm_oauth")
}

// A used-up quota answers for everybody until it is refilled.
func TestFCMQuota(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	f := testFCM(t, &fcmServer{send: func(w http.ResponseWriter, r *http.Request, b string) {
		n.Add(1)
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(429)
		io.WriteString(w, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Quota exceeded"}}`)
	}})
	call := testCall(notify.Push, notify.Content{Body: "b"}, 1000, fcmAddress)
	for _, r := range collect(t, t.Context(), f, call) {
		if r.Class != notify.ClassThrottled || r.RetryAfter <= 15*time.Second || r.RetryAfter > 20*time.Second {
			t.Fatalf("%+v", r)
		}
	}
	if n.Load() > 300 { // what two connections had under way
		t.Errorf("%d requests reached a project without quota", n.Load())
	}
	n.Store(0)
	collect(t, t.Context(), f, call)
	if n.Load() != 0 {
		t.Errorf("%d requests while blocked", n.Load())
	}
}

func TestParseServiceAccount(t *testing.T) {
	t.Parallel()
	der, _ := x509.MarshalPKCS8PrivateKey(testRSAKey)
	file, _ := json.Marshal(map[string]string{"type": "service_account", "project_id": "p", "client_email": "e", "private_key_id": "k",
		"token_uri": "https://t/token", "private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))})
	a, err := ParseServiceAccount(file)
	if err != nil || a.Project != "p" || a.Email != "e" || a.KeyID != "k" || a.TokenURL != "https://t/token" || !a.Key.Equal(testRSAKey) {
		t.Errorf("%+v %v", a, err)
	}
	for _, bad := range []string{"", "{}", strings.Replace(string(file), "service_account", "user", 1), strings.Replace(string(file), "BEGIN", "BEG", 1)} {
		if _, err := ParseServiceAccount([]byte(bad)); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
