package app

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/server"
)

// readThenMeta is the Meta of one process. Once, another process acts between a read of this
// process and the write that follows it.
type readThenMeta struct {
	engine.Meta
	other func()
}

func (m *readThenMeta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	v, err := m.Meta.GetMeta(ctx, name)
	if act := m.other; act != nil {
		m.other = nil
		act()
	}
	return v, err
}

// TestPageOfTwoProcesses: two processes over one store make the key of the page at the same moment.
// A session that began at one process is valid at the other and after a restart. It is not valid
// after the key of the tokens was changed.
func TestPageOfTwoProcesses(t *testing.T) {
	t.Parallel()
	ctx, shared := t.Context(), memory.New().Meta()
	keyOf := func(m *readThenMeta) []byte {
		t.Helper()
		key, err := cluster.MetaSecret(ctx, m, pageKeyMeta)
		if err != nil || len(key) != 32 {
			t.Fatal(len(key), err)
		}
		return key
	}
	var keyB []byte
	between := &readThenMeta{Meta: shared, other: func() { keyB = keyOf(&readThenMeta{Meta: shared}) }}
	keyA := keyOf(between)
	if !bytes.Equal(keyA, keyB) {
		t.Fatal("two processes have two keys")
	}
	folder := t.TempDir()
	process := func(secret string, key []byte) http.Handler {
		t.Helper()
		file := filepath.Join(folder, secret[:1])
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := server.NewVerifier(server.AuthConfig{Issuer: "i", Audience: "a", SecretFile: file})
		if err != nil {
			t.Fatal(err)
		}
		n := &Node{log: slog.New(slog.DiscardHandler), verifier: v}
		return newPage(n, http.NotFoundHandler(), key)
	}
	secret := strings.Repeat("s", 32)
	signer, err := server.NewSigner([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signer.Sign(server.TokenSpec{Caller: "sre", Scopes: []string{api.ScopeOperate}, Issuer: "i", Audience: "a", Now: time.Now(), TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var cookies []*http.Cookie
	do := func(at http.Handler, method, target string, form url.Values) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range cookies {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		at.ServeHTTP(w, r)
		return w
	}
	a, b := process(secret, keyA), process(secret, keyB)
	w := do(a, "GET", "/ui/sign-in", nil)
	csrf := regexp.MustCompile(`name="csrf" value="([0-9a-f]+)"`).FindStringSubmatch(w.Body.String())
	if csrf == nil {
		t.Fatalf("no form to sign in: %s", w.Body)
	}
	cookies = w.Result().Cookies()
	w = do(a, "POST", "/ui/sign-in", url.Values{"token": {token}, "csrf": {csrf[1]}})
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	cookies = w.Result().Cookies()
	restarted := process(secret, keyOf(&readThenMeta{Meta: shared}))
	for name, at := range map[string]http.Handler{"a": a, "b": b, "a after its restart": restarted} {
		if w := do(at, "GET", "/ui/nothing", nil); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "<bdi>sre</bdi>") {
			t.Errorf("%s: %d to %q", name, w.Code, w.Header().Get("Location"))
		}
	}
	if w := do(process(strings.Repeat("t", 32), keyB), "GET", "/ui/nothing", nil); w.Code != http.StatusSeeOther {
		t.Errorf("where the token's key was changed: %d", w.Code)
	}
}
