package simulator

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/net/http2"
)

// push builds a valid request for id; header overrides follow, an empty value
// removes.
func push(t testing.TB, s *Simulator, token, id string, header ...string) *http.Request {
	t.Helper()
	c := s.Credentials().APNs
	body := fmt.Appendf(nil, `{"aps":{"alert":{"title":"T","body":"B"}},"ntf":%q,"usr":"u1","seq":"5"}`, id)
	r := request(t, "POST", s.URLs().APNs+"/3/device/"+token, body,
		"Authorization", "bearer "+providerToken(t, c, s.now()), "apns-topic", c.Topic, "apns-push-type", "alert", "apns-priority", "10", "apns-expiration", "0")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i+1] == "" {
			r.Header.Del(header[i])
		}
	}
	return r
}

func TestAPNsAccepts(t *testing.T) {
	t.Parallel()
	s := start(t, Config{APNs: APNsConfig{TokenFloor: -1}})
	c := client(t, s, "h2")
	id, attempt := newID().String(), "123e4567-e89b-42d3-a456-426614174000"
	got := do(t, c, push(t, s, DeviceToken(1), id, "apns-id", attempt))
	if got.status != 200 || got.body != "" || got.header.Get("apns-id") != attempt || got.proto != 2 {
		t.Fatalf("%+v", got)
	}
	if got := do(t, c, push(t, s, DeviceToken(1), newID().String())); got.status != 200 || !isUUID(got.header.Get("apns-id")) {
		t.Errorf("no apns-id was made: %+v", got)
	}
	delivered(t, s, id, 1)
	d := s.Ledger().Lookup(id)[0]
	if d.Provider != APNs || d.Status != 200 || d.Address != hexAddr(uint32(addrHash(DeviceToken(1)))) || time.Since(d.At) > time.Minute {
		t.Errorf("%+v", d)
	}
	m := s.Inbox()[1]
	if m.Title != "T" || m.Body != "B" || m.ID != id || m.Attempt != attempt || m.To != DeviceToken(1) {
		t.Errorf("inbox: %+v", m)
	}
	if _, err := try(client(t, s, "h1"), push(t, s, DeviceToken(1), id)); err == nil {
		t.Error("HTTP/1.1 was served")
	}
}

func TestAPNsRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Config{APNs: APNsConfig{TokenFloor: -1}})
	c := client(t, s, "h2")
	cred := s.Credentials().APNs
	key := parseKey[*ecdsa.PrivateKey](t, cred.KeyPEM)
	other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	jwtOf := func(kid string, k *ecdsa.PrivateKey, claims jwt.MapClaims) string {
		return "bearer " + sign(t, jwt.SigningMethodES256, kid, k, claims)
	}
	now := time.Now()
	claims := jwt.MapClaims{"iss": cred.TeamID, "iat": now.Unix()}
	tok := DeviceToken(1)
	for _, tc := range []struct {
		name   string
		r      *http.Request
		status int
		reason string
	}{
		{"no token", push(t, s, tok, "", "Authorization", ""), 403, "MissingProviderToken"},
		{"basic", push(t, s, tok, "", "Authorization", "Basic eA=="), 403, "MissingProviderToken"},
		{"garbage", push(t, s, tok, "", "Authorization", "bearer x.y.z"), 403, "InvalidProviderToken"},
		{"other key", push(t, s, tok, "", "Authorization", jwtOf(cred.KeyID, other, claims)), 403, "InvalidProviderToken"},
		{"other kid", push(t, s, tok, "", "Authorization", jwtOf("OTHERKEYID", key, claims)), 403, "InvalidProviderToken"},
		{"other team", push(t, s, tok, "", "Authorization", jwtOf(cred.KeyID, key, jwt.MapClaims{"iss": "X", "iat": now.Unix()})), 403, "InvalidProviderToken"},
		{"no iat", push(t, s, tok, "", "Authorization", jwtOf(cred.KeyID, key, jwt.MapClaims{"iss": cred.TeamID})), 403, "InvalidProviderToken"},
		{"future", push(t, s, tok, "", "Authorization", jwtOf(cred.KeyID, key, jwt.MapClaims{"iss": cred.TeamID, "iat": now.Add(time.Hour).Unix()})), 403, "InvalidProviderToken"},
		{"alg", push(t, s, tok, "", "Authorization", "bearer "+sign(t, jwt.SigningMethodHS256, cred.KeyID, []byte("x"), claims)), 403, "InvalidProviderToken"},
		{"old", push(t, s, tok, "", "Authorization", "bearer "+providerToken(t, cred, now.Add(-time.Hour-time.Minute))), 403, "ExpiredProviderToken"},
		{"no topic", push(t, s, tok, "", "apns-topic", ""), 400, "MissingTopic"},
		{"topic", push(t, s, tok, "", "apns-topic", "com.other"), 400, "TopicDisallowed"},
		{"voip topic", push(t, s, tok, "", "apns-push-type", "voip"), 400, "BadTopic"},
		{"type", push(t, s, tok, "", "apns-push-type", "shout"), 400, "InvalidPushType"},
		{"priority", push(t, s, tok, "", "apns-priority", "7"), 400, "BadPriority"},
		{"background", push(t, s, tok, "", "apns-push-type", "background"), 400, "BadPriority"},
		{"expiration", push(t, s, tok, "", "apns-expiration", "soon"), 400, "BadExpirationDate"},
		{"apns-id", push(t, s, tok, "", "apns-id", "x"), 400, "BadMessageId"},
		{"collapse", push(t, s, tok, "", "apns-collapse-id", strings.Repeat("x", 65)), 400, "BadCollapseId"},
		{"token", push(t, s, "zz", ""), 400, "BadDeviceToken"},
		{"missing device", push(t, s, "", ""), 400, "MissingDeviceToken"},
		{"path", request(t, "POST", s.URLs().APNs+"/2/device/x", nil), 404, "BadPath"},
		{"method", request(t, "GET", s.URLs().APNs+"/3/device/"+tok, nil), 405, "MethodNotAllowed"},
		{"empty", setBody(push(t, s, tok, ""), nil), 400, "PayloadEmpty"},
		{"no aps", setBody(push(t, s, tok, ""), []byte(`{"a":1}`)), 400, "PayloadEmpty"},
		{"large", setBody(push(t, s, tok, ""), payload(4097)), 413, "PayloadTooLarge"},
		{"very large", setBody(push(t, s, tok, ""), payload(100_000)), 413, "PayloadTooLarge"},
		{"voip large", setBody(push(t, s, tok, "", "apns-push-type", "voip", "apns-topic", cred.Topic+".voip"), payload(5121)), 413, "PayloadTooLarge"},
	} {
		got := do(t, c, tc.r)
		if got.status != tc.status || field(t, got.body, "reason") != tc.reason || got.header.Get("apns-id") == "" {
			t.Errorf("%s: %d %s %v", tc.name, got.status, got.body, got.header)
		}
	}
	for name, r := range map[string]*http.Request{
		"4096":      setBody(push(t, s, tok, ""), payload(4096)),
		"voip 5120": setBody(push(t, s, tok, "", "apns-push-type", "voip", "apns-topic", cred.Topic+".voip"), payload(5120)),
	} {
		if got := do(t, c, r); got.status != 200 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func setBody(r *http.Request, b []byte) *http.Request {
	n, _ := http.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), bytes.NewReader(b))
	n.Header = r.Header
	return n
}

func payload(n int) []byte {
	const frame = `{"aps":{"alert":""}}`
	return []byte(`{"aps":{"alert":"` + strings.Repeat("x", n-len(frame)) + `"}}`)
}

func TestAPNsLimits(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	s := start(t, Config{Now: func() time.Time { return time.Unix(0, clock.Load()) }})
	tok := "bearer " + providerToken(t, s.Credentials().APNs, s.now())
	c := client(t, s, "h2")
	if r := do(t, c, push(t, s, DeviceToken(1), "", "Authorization", tok)); r.status != 200 {
		t.Errorf("%+v", r)
	}

	// A second provider token within 20 minutes blocks the connection for the first as well.
	second := "bearer " + providerToken(t, s.Credentials().APNs, s.now().Add(-time.Second))
	for _, auth := range []string{second, tok} {
		if r := do(t, c, push(t, s, DeviceToken(3), "", "Authorization", auth)); r.status != 429 || field(t, r.body, "reason") != "TooManyProviderTokenUpdates" {
			t.Errorf("token change: %+v", r)
		}
	}
	if r := do(t, client(t, s, "h2"), push(t, s, DeviceToken(3), "", "Authorization", second)); r.status != 200 {
		t.Errorf("another connection: %+v", r)
	}
	clock.Add(int64(20 * time.Minute))
	if r := do(t, c, push(t, s, DeviceToken(3), "", "Authorization", second)); r.status != 200 {
		t.Errorf("after 20 minutes: %+v", r)
	}
	clock.Add(int64(time.Hour))
	if r := do(t, c, push(t, s, DeviceToken(3), "", "Authorization", second)); field(t, r.body, "reason") != "ExpiredProviderToken" {
		t.Errorf("after an hour: %+v", r)
	}
}

// TestAPNsSettings reads the limit off the wire.
func TestAPNsSettings(t *testing.T) {
	t.Parallel()
	s := start(t, Config{APNs: APNsConfig{Streams: 37}})
	conn, err := tls.Dial("tcp", s.Addrs().APNs, &tls.Config{RootCAs: s.CAPool(), NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Fatalf("ALPN %q", p)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(conn, conn)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	f, err := fr.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := f.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); !ok || n != 37 {
		t.Errorf("MAX_CONCURRENT_STREAMS %d", n)
	}
}
