package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/term"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	device := strings.Repeat("0a1B", 16)
	secrets := map[string]string{
		"bearer": "Bearer abcdefghijklmnop", "basic": "basic QUMxMjM6c2VjcmV0", "jwt": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzaG9wIn0.c2lnbmF0dXJlMTIz",
		"sendgrid key": "SG.abcdefgh12345678.ijklmnop", "phone": "+15550001234", "phone in a URL": "%2B15550001234", "mail": "ann.b+c@example.com",
		"mail in a URL": "ann%40example.com", "apns": device, "fcm": "fcm:dGVzdA:canary-token_1", "fcm alone": "dGVzdA:APA91bcanary",
	}
	cfg := app.Default()
	for _, format := range []string{"json", "text"} {
		cfg.Logging.Format = format
		for name, secret := range secrets {
			var b strings.Builder
			log := newLogger(&b, &cfg)
			log.Info("to " + secret + ".")
			log.Info("m", "detail", "sent to "+secret+" now")
			log.Info("m", "err", fmt.Errorf("call: %w", &url.Error{Op: "Post", URL: "https://x/" + secret, Err: errors.New(secret)}))
			log.Info("m", "list", []string{"a", secret}, "raw", json.RawMessage(`{"to":"`+secret+`"}`), "bytes", []byte(secret))
			log.Info("m", "struct", struct{ To string }{secret}, "url", &url.URL{Scheme: "https", Host: "h", RawQuery: "to=" + secret})
			log.With("inner", secret).WithGroup("g").Info("m", slog.Group("h", "x", secret))
			if hits := strings.Count(b.String(), secret); hits > 0 {
				t.Errorf("%s: %s stands %d times in\n%s", format, name, hits, &b)
			}
		}
	}
	for _, key := range []string{"token", "Authorization", "password", "address", "body", "title", "variables", "phone", "email", "secret"} {
		var b strings.Builder
		cfg.Logging.Format = "json"
		newLogger(&b, &cfg).Info("m", slog.Group("g", key, "canary"), key, []string{"canary"})
		if strings.Contains(b.String(), "canary") {
			t.Errorf("%s is logged: %s", key, &b)
		}
	}
	// What operators need stays.
	for _, keep := range []string{
		"ntf_01JZ8Q6V9K3T5W7Y9A1B3C5D7E-0", "127.0.0.1:7420", "notifications-push", "took 12ms", "2026-05-01T10:00:00.000+0200", "4bf92f3577b34da6a3ce929d0e0e4736",
	} {
		if got := term.Mask(keep); got != keep {
			t.Errorf("%s became %s", keep, got)
		}
	}
}
