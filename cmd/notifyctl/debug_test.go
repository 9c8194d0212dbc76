package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
)

// canaries are what must not leave in a bundle, by what they are.
var canaries = map[string]string{
	"phone": "+15550001234", "phone in a URL": "%2B15550009876", "mail": "ann.canary+c@example.com", "mail in a URL": "bob.canary%40example.com",
	"jwt": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzaG9wIn0.Y2FuYXJ5c2lnbmF0dXJl", "bearer": "Bearer canaryabcdefghijkl", "basic": "Basic Y2FuYXJ5OnNlY3JldA==",
	"sendgrid key": "SG.canary12345678.canary87654321", "signing secret": "whsec_Y2FuYXJ5c2VjcmV0Y2FuYXJ5c2VjcmV0",
	"device": strings.Repeat("0a1B", 16), "fcm": "fcm:dGVzdA:canary-token_1", "fcm alone": "dGVzdA:APA91bcanary",
	"user in a URL": "https://canaryuser:canarypass@jwks.example/keys", "named": `password=canarypass1`, "named in JSON": `"auth_token": "canarypass2"`,
	"named in YAML": "client_secret: canarypass3", "a key": "-----BEGIN PRIVATE KEY-----\nY2FuYXJ5Y2FuYXJ5\n-----END PRIVATE KEY-----",
}

// marks of secrets that must not be found: of longer ones the part that is secret.
func markOf(name, secret string) string {
	switch name {
	case "bearer", "basic":
		_, secret, _ = strings.Cut(secret, " ")
	case "user in a URL":
		return "canaryuser:canarypass@"
	case "named":
		return "canarypass1"
	case "named in JSON":
		return "canarypass2"
	case "named in YAML":
		return "canarypass3"
	case "a key":
		return "Y2FuYXJ5Y2FuYXJ5"
	}
	return secret
}

// unpack reads a bundle: the text of every file, compressed ones as what they are.
func unpack(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if inner, err := gzip.NewReader(bytes.NewReader(b)); err == nil && strings.HasSuffix(h.Name, ".gz") {
			if b, err = io.ReadAll(inner); err != nil {
				t.Fatal(err)
			}
		}
		_, name, ok := strings.Cut(h.Name, "/")
		if !ok || h.Mode&0o077 != 0 {
			t.Errorf("%s: in no folder, or for other eyes (%o)", h.Name, h.Mode)
		}
		out[name] = b
	}
}

// A server that says secrets wherever it can.
func TestBundleMasksWhatTheServerSays(t *testing.T) {
	t.Parallel()
	all := ""
	for _, s := range canaries {
		all += "to " + s + " .\n"
	}
	mux := http.NewServeMux()
	answer := func(path string, v any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			b, err := json.Marshal(v)
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(b)
		})
	}
	answer("/healthz", map[string]string{"version": "dev"})
	answer("/v1/ops/doctor", map[string]any{"items": []map[string]string{{"check": "store", "level": "fail", "detail": all, "token": "canarypass4"}}})
	answer("/v1/ops/circuits", api.Circuits{Items: []api.Circuit{{Name: canaries["mail"], State: "open"}}})
	answer("/v1/ops/debug", api.Debug{Texts: map[string]string{"log.txt": all, "config.txt": all, "metrics.txt": `x{to="` + canaries["phone"] + `"} 1`, "../evil.txt": "x"}})
	mux.HandleFunc("/v1/ops/lag", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, `{"status":500,"code":"internal","detail":"broke at %s"}`, canaries["mail"])
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	w := newWorld(t, srv.URL)
	w.env["NOTIFYCTL_TOKEN"] = canaries["jwt"]
	file := filepath.Join(t.TempDir(), "bug.tar.gz")
	out, errs, code := w.ctl(t.Context(), "debug", "bundle", "--file", file)
	if code != term.ExitPartial || !strings.Contains(out, "lag.json") || !strings.Contains(errs, "1 parts are missing") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	parts := unpack(t, file)
	for _, name := range []string{"version.json", "doctor.json", "circuits.json", "server/log.txt", "server/config.txt", "server/metrics.txt", "server/evil.txt", "README.txt"} {
		if len(parts[name]) == 0 {
			t.Errorf("%s is not in it", name)
		}
	}
	parts["standard output"], parts["standard error"] = []byte(out), []byte(errs)
	for part, b := range parts {
		for name, s := range canaries {
			if strings.Contains(string(b), markOf(name, s)) {
				t.Errorf("%s holds the %s %s:\n%s", part, name, s, b)
			}
		}
		if strings.Contains(string(b), "canarypass") {
			t.Errorf("%s holds a password:\n%s", part, b)
		}
	}
	for _, want := range []string{"lag.json                     missing:", "phone numbers", "device tokens", "signing secrets", "values named secret"} {
		if !strings.Contains(string(parts["README.txt"]), want) {
			t.Errorf("README.txt lacks %q:\n%s", want, parts["README.txt"])
		}
	}
	// A bundle never takes another's place.
	if _, errs, code := w.ctl(t.Context(), "debug", "bundle", "--file", file); code != term.ExitUsage || !strings.Contains(errs, "exists") {
		t.Errorf("exit %d\n%s", code, errs)
	}
}

// A whole notifyd that has handled secrets.
func TestBundleOfANode(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	token, err := n.signer.Sign(server.TokenSpec{Caller: "shop", Scopes: api.Scopes[:], Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, n.url)
	w.env["NOTIFYCTL_TOKEN"] = token
	for _, args := range [][]string{
		{"send", "--channel", "sms", "--category", "otp", "--user", "ann", "--address", canaries["phone"], "--body", "canarybody"},
		{"send", "--channel", "email", "--category", "otp", "--user", "ann", "--address", canaries["mail"], "--title", "canarybody", "--body", "canarybody"},
		{"send", "--channel", "push", "--category", "otp", "--user", "ann", "--address", "apns:" + canaries["device"], "--body", "canarybody", "--wait"},
	} {
		if out, errs, code := w.ctl(t.Context(), args...); code != 0 && code != 1 {
			t.Fatalf("%v: exit %d\n%s%s", args, code, out, errs)
		}
	}
	fmt.Fprintf(n.log, "a line that quotes %s and %s\n", canaries["phone"], token)
	file := filepath.Join(t.TempDir(), "bug.tar.gz")
	out, errs, code := w.ctl(t.Context(), "debug", "bundle", "--file", file)
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	parts := unpack(t, file)
	for part, want := range map[string]string{
		"server/build.txt": "notifyd ", "server/config.txt": "api.listen:", "server/log.txt": "a line that quotes [phone] and [token]",
		"server/metrics.txt": "notifyd_log_bytes", "server/goroutines.txt": "goroutine profile:", "server/heap.pb.gz": "", "server/offsets.txt": "notifications-push/000 from 0 to ",
		"doctor.json": `"check": "store"`, "lag.json": "push-workers", "circuits.json": "apns", "version.json": `"notifyctl": "dev"`,
	} {
		if b, ok := parts[part]; !ok || len(b) == 0 || !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %q:\n%.300s", part, want, b)
		}
	}
	accounts, err := os.ReadFile(n.cfg.Providers.Twilio.AccountsFile)
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(accounts, &list); err != nil || len(list) == 0 || list[0].Token == "" {
		t.Fatalf("%v: %s", err, accounts)
	}
	key, err := os.ReadFile(n.cfg.Providers.SendGrid.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	never := map[string]string{"the token": token, "Twilio's token": list[0].Token, "SendGrid's key": string(key), "the body": "canarybody",
		"the phone": canaries["phone"], "the mail": canaries["mail"], "the device": canaries["device"]}
	for part, b := range parts {
		for what, s := range never {
			if strings.Contains(string(b), s) {
				t.Errorf("%s holds %s", part, what)
			}
		}
	}
	// Without the scope nothing of the server is told.
	if token, err = n.signer.Sign(server.TokenSpec{Caller: "shop", Scopes: []string{api.ScopeSend}, Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	w.env["NOTIFYCTL_TOKEN"] = token
	if out, _, code := w.ctl(t.Context(), "debug", "bundle", "--file", file+"2"); code != term.ExitPartial || !strings.Contains(out, "the token lacks the scope operate") {
		t.Errorf("exit %d\n%s", code, out)
	}
}
