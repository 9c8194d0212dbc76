package simulator

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

type serviceAccount struct {
	ProjectID   string `json:"project_id"`
	KeyID       string `json:"private_key_id"`
	PrivateKey  string `json:"private_key"`
	ClientEmail string `json:"client_email"`
	TokenURI    string `json:"token_uri"`
}

func account(t testing.TB, s *Simulator) serviceAccount {
	t.Helper()
	var a serviceAccount
	if err := json.Unmarshal(s.Credentials().FCM.ServiceAccountJSON, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// grant asks for a token with the account's assertion, changed by edit.
func grant(t testing.TB, s *Simulator, c *http.Client, edit func(jwt.MapClaims), key any) response {
	t.Helper()
	a := account(t, s)
	if key == nil {
		key = parseKey[*rsa.PrivateKey](t, a.PrivateKey)
	}
	claims := jwt.MapClaims{"iss": a.ClientEmail, "aud": a.TokenURI, "scope": fcmScope, "iat": s.now().Unix(), "exp": s.now().Add(time.Hour).Unix()}
	edit(claims)
	form := url.Values{"grant_type": {jwtBearer}, "assertion": {sign(t, jwt.SigningMethodRS256, a.KeyID, key, claims)}}
	return do(t, c, request(t, "POST", a.TokenURI, []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded"))
}

func accessToken(t testing.TB, s *Simulator, c *http.Client) string {
	t.Helper()
	r := grant(t, s, c, func(jwt.MapClaims) {}, nil)
	if r.status != 200 || field(t, r.body, "token_type") != "Bearer" || field(t, r.body, "expires_in").(float64) != 3599 {
		t.Fatalf("%+v", r)
	}
	return "Bearer " + field(t, r.body, "access_token").(string)
}

func fcmMessageFor(token, id string) string {
	return fmt.Sprintf(`{"message":{"token":%q,"notification":{"title":"T","body":"B"},"data":{"ntf":%q,"usr":"u1","seq":"7"},"android":{"priority":"HIGH","ttl":"3600s"}}}`, token, id)
}

func fcmSend(t testing.TB, s *Simulator, auth, body string) *http.Request {
	return request(t, "POST", s.URLs().FCM+"/v1/projects/"+s.Credentials().FCM.Project+"/messages:send", []byte(body), "Authorization", auth, "Content-Type", "application/json")
}

func TestFCMAccepts(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for _, proto := range []string{"h1", "h2"} {
		c := client(t, s, proto)
		id := newID().String()
		got := do(t, c, fcmSend(t, s, accessToken(t, s, c), fcmMessageFor(RegistrationToken(1), id)))
		if name, _ := field(t, got.body, "name").(string); got.status != 200 || !strings.HasPrefix(name, "projects/notifyd-dev/messages/0:") {
			t.Fatalf("%+v", got)
		}
		delivered(t, s, id, 1)
		if d := s.Ledger().Lookup(id)[0]; d.Provider != FCM || d.Status != 200 {
			t.Errorf("%+v", d)
		}
	}
	c := client(t, s, "h2")
	id := newID().String()
	auth := accessToken(t, s, c)
	dry := strings.Replace(fcmMessageFor(RegistrationToken(1), id), `{`, `{"validate_only":true,`, 1)
	if got := do(t, c, fcmSend(t, s, auth, dry)); got.status != 200 {
		t.Errorf("%+v", got)
	}
	delivered(t, s, id, 0)
	if m := s.Inbox()[0]; m.Title != "T" || m.Body != "B" || m.Channel != "push" || m.To != RegistrationToken(1) {
		t.Errorf("inbox: %+v", m)
	}
	// A rule of faults answers a dry run as well.
	if _, err := s.AddRule(Rule{Provider: FCM, Do: Fail, Code: "QUOTA_EXCEEDED", Count: 1}); err != nil {
		t.Fatal(err)
	}
	if got := do(t, c, fcmSend(t, s, auth, dry)); got.status != 429 {
		t.Errorf("a dry run against a rule: %+v", got)
	}
}

func TestFCMRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h2")
	auth := accessToken(t, s, c)
	tok := RegistrationToken(1)
	ok := fcmMessageFor(tok, "")
	for _, tc := range []struct {
		name      string
		r         *http.Request
		status    int
		rpc, want string
	}{
		{"no auth", fcmSend(t, s, "", ok), 401, "UNAUTHENTICATED", ""},
		{"bad auth", fcmSend(t, s, auth+"x", ok), 401, "UNAUTHENTICATED", ""},
		{"project", request(t, "POST", s.URLs().FCM+"/v1/projects/other/messages:send", []byte(ok), "Authorization", auth), 403, "PERMISSION_DENIED", ""},
		{"json", fcmSend(t, s, auth, `{`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"unknown field", fcmSend(t, s, auth, `{"message":{"token":"x","to":"y"}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"number in data", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","data":{"a":1}}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"reserved", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","data":{"from":"1"}}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"no target", fcmSend(t, s, auth, `{"message":{}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"two targets", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","topic":"t"}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"ttl", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","android":{"ttl":"60"}}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"priority", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","android":{"priority":"10"}}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"too big", fcmSend(t, s, auth, `{"message":{"token":"`+tok+`","data":{"a":"`+strings.Repeat("x", 4096)+`"}}}`), 400, "INVALID_ARGUMENT", "BadRequest"},
		{"token", fcmSend(t, s, auth, fcmMessageFor("not a token", "")), 400, "INVALID_ARGUMENT", "INVALID_ARGUMENT"},
		{"path", request(t, "POST", s.URLs().FCM+"/v1/projects/notifyd-dev/messages:batch", nil), 404, "NOT_FOUND", ""},
	} {
		got := do(t, c, tc.r)
		if got.status != tc.status || field(t, got.body, "error.status") != tc.rpc || field(t, got.body, "error.code") != float64(tc.status) {
			t.Errorf("%s: %d %s", tc.name, got.status, got.body)
		}
		switch tc.want {
		case "":
		case "BadRequest":
			if !strings.Contains(got.body, `"type.googleapis.com/google.rpc.BadRequest"`) {
				t.Errorf("%s: %s", tc.name, got.body)
			}
		default:
			if field(t, got.body, "error.details.0.errorCode") != tc.want || !strings.Contains(got.body, "google.firebase.fcm.v1.FcmError") {
				t.Errorf("%s: %s", tc.name, got.body)
			}
		}
	}
	if n := s.Ledger().Summary().Providers["fcm"]; n.Accepted != 0 || n.Deliveries != 0 || n.Rejected == 0 {
		t.Errorf("%+v", n)
	}
}

func TestOAuthRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := client(t, s, "h1")
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		edit func(jwt.MapClaims)
		key  any
		want string
	}{
		{"key", func(jwt.MapClaims) {}, stranger, "invalid_grant"},
		{"issuer", func(m jwt.MapClaims) { m["iss"] = "x@y" }, nil, "invalid_grant"},
		{"audience", func(m jwt.MapClaims) { m["aud"] = "https://oauth2.googleapis.com/token" }, nil, "invalid_grant"},
		{"expired", func(m jwt.MapClaims) { m["exp"] = time.Now().Add(-time.Hour).Unix() }, nil, "invalid_grant"},
		{"too long", func(m jwt.MapClaims) { m["exp"] = time.Now().Add(2 * time.Hour).Unix() }, nil, "invalid_grant"},
		{"no scope", func(m jwt.MapClaims) { delete(m, "scope") }, nil, "invalid_scope"},
		{"scope", func(m jwt.MapClaims) { m["scope"] = "https://mail.google.com/" }, nil, "invalid_scope"},
	} {
		if got := grant(t, s, c, tc.edit, tc.key); got.status != 400 || field(t, got.body, "error") != tc.want {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
	if got := do(t, c, request(t, "POST", s.URLs().FCMToken, []byte("grant_type=password"))); field(t, got.body, "error") != "unsupported_grant_type" {
		t.Errorf("%+v", got)
	}
	rule(t, s, Rule{Provider: OAuth, Do: Outage, Count: 1})
	if got := grant(t, s, c, func(jwt.MapClaims) {}, nil); got.status != 503 {
		t.Errorf("outage: %+v", got)
	}
	accessToken(t, s, c)
}

func TestFCMQuota(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	s := start(t, Config{Now: func() time.Time { return time.Unix(0, clock.Load()) }, FCM: FCMConfig{Quota: 4, PerDevice: 2}})
	c := client(t, s, "h2")
	auth := accessToken(t, s, c)
	send := func(body string) response { return do(t, c, fcmSend(t, s, auth, body)) }

	one, two := fcmMessageFor(RegistrationToken(1), ""), fcmMessageFor(RegistrationToken(2), "")
	var got []int
	for _, b := range []string{one, one, one, `{`, two} { // the third is over its device's limit, and uses quota as `{` does
		got = append(got, send(b).status)
	}
	if fmt.Sprint(got) != "[200 200 429 400 429]" {
		t.Errorf("%v", got)
	}
	r := send(two)
	after, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil || after < 1 || after > 60 || field(t, r.body, "error.status") != "RESOURCE_EXHAUSTED" || field(t, r.body, "error.details.0.errorCode") != "QUOTA_EXCEEDED" {
		t.Fatalf("%+v", r)
	}
	clock.Add(int64(time.Duration(after) * time.Second))
	if r := send(two); r.status != 200 {
		t.Errorf("after Retry-After: %+v", r)
	}
	clock.Add(int64(time.Hour))
	if r := send(two); r.status != 401 {
		t.Errorf("an old access token: %+v", r)
	}
}
