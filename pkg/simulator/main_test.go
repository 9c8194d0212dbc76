package simulator

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestMain ignores the runtime's own goroutine for finalizers. It closes the files of ledgers that
// were reset, because a query may still read them at the reset.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("runtime.runFinalizers"))
}

// start runs a simulator until the test ends and checks that it ends well.
func start(t testing.TB, cfg Config) *Simulator {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// client trusts the simulator; protocol is "h1" or "h2".
func client(t testing.TB, s *Simulator, protocol string) *http.Client {
	t.Helper()
	p := new(http.Protocols)
	p.SetHTTP1(protocol == "h1")
	p.SetHTTP2(protocol == "h2")
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.CAPool(), MinVersion: tls.VersionTLS12}, Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute} // a test that hangs fails
}

// response is an answer, read to its end.
type response struct {
	status int
	header http.Header
	body   string
	proto  int
}

func do(t testing.TB, c *http.Client, r *http.Request) response {
	t.Helper()
	out, err := try(c, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func try(c *http.Client, r *http.Request) (response, error) {
	resp, err := c.Do(r)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(b), resp.ProtoMajor}, err
}

func request(t testing.TB, method, url string, body []byte, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header[http.CanonicalHeaderKey(header[i])] = []string{header[i+1]}
	}
	return r
}

// field returns a member of a JSON object, by dotted path.
func field(t testing.TB, body, path string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for p := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			v = x[p[0]-'0']
		default:
			return nil
		}
	}
	return v
}

func parseKey[K any](t testing.TB, text string) K {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatal("no PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return k.(K)
}

func sign(t testing.TB, m jwt.SigningMethod, kid string, key any, claims jwt.MapClaims) string {
	t.Helper()
	tok := jwt.NewWithClaims(m, claims)
	if kid != "" {
		tok.Header["kid"] = kid
	}
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func providerToken(t testing.TB, c APNsCredentials, issued time.Time) string {
	return sign(t, jwt.SigningMethodES256, c.KeyID, parseKey[*ecdsa.PrivateKey](t, c.KeyPEM), jwt.MapClaims{"iss": c.TeamID, "iat": issued.Unix()})
}

func newID() notify.ID { return notify.ID{Base: notify.NewBase(time.Now())} }

func rule(t testing.TB, s *Simulator, r Rule) Rule {
	t.Helper()
	r, err := s.AddRule(r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// delivered checks that an id was taken exactly n times in all.
func delivered(t testing.TB, s *Simulator, id string, n int) {
	t.Helper()
	got := 0
	for _, d := range s.Ledger().Lookup(id) {
		got += d.Deliveries
	}
	if got != n {
		t.Errorf("the ledger has %s %d times, want %d", id, got, n)
	}
}

// waitFor waits for a condition that no signal announces.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Error("it did not come to pass")
			return
		}
	}
}
