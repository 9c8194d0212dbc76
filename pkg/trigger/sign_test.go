package trigger

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// verify checks the signature of a call with the reference library.
func verify(t *testing.T, secret string, c received) error {
	t.Helper()
	w, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return w.Verify(c.body, c.header)
}

// The reference library accepts the signature of every attempt, under the same id and with a
// timestamp of its own. It does not accept a changed body.
func TestSignaturesVerify(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.sink.answer = func(_, _ string, n int) (time.Duration, result) {
			if n < 3 {
				return 0, status(500)
			}
			return 0, ok
		}
		p.run()
		id := p.create("shop", `"delay_seconds":1,"payload":{"order":1}`)
		var at []string
		for i, wait := range []time.Duration{3 * time.Second, 12 * time.Second, 40 * time.Second} {
			pass(wait)
			calls := p.sink.of(id)
			if len(calls) != i+1 {
				t.Fatalf("%d calls, want %d", len(calls), i+1)
			}
			last := calls[i]
			if err := verify(t, testSecret, last); err != nil {
				t.Errorf("attempt %s: %v", last.attempt, err)
			}
			at = append(at, last.header.Get("webhook-timestamp"))
			if got := last.header.Get("webhook-id"); got != id || strings.Contains(got, ".") {
				t.Errorf("webhook-id %q", got)
			}
			if verify(t, NewSecret(), last) == nil {
				t.Error("another secret verifies")
			}
			last.body[len(last.body)-3] ^= 1
			if verify(t, testSecret, last) == nil {
				t.Error("a changed body verifies")
			}
		}
		if n := len(p.sink.of(id)); n != 3 || at[0] == at[1] || at[1] == at[2] {
			t.Errorf("%d calls, timestamps %v", n, at)
		}
	})
}

// A rotation signs with both secrets until the old one's end, then with the new
// one alone.
func TestRotation(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, nil)
		p.run()
		ctx := context.Background()
		next := func() received {
			t.Helper()
			id := p.create("shop", `"delay_seconds":1`)
			pass(3 * time.Second)
			calls := p.sink.of(id)
			if len(calls) != 1 {
				t.Fatalf("%d calls", len(calls))
			}
			return calls[0]
		}
		verifies := func(c received, secret string, want bool) {
			t.Helper()
			if got := verify(t, secret, c) == nil; got != want {
				t.Errorf("verifies: %v, want %v (%s)", got, want, c.header.Get("webhook-signature"))
			}
		}
		verifies(next(), testSecret, true)
		second, err := rotateSecret(ctx, p.store.Callers(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second) // PolicyAge
		c := next()
		verifies(c, second, true)
		verifies(c, testSecret, true)
		pass(24*time.Hour - 20*time.Second)
		verifies(next(), testSecret, true)
		pass(20 * time.Second)
		c = next()
		verifies(c, testSecret, false)
		verifies(c, second, true)

		third, err := rotateSecret(ctx, p.store.Callers(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		fourth, err := rotateSecret(ctx, p.store.Callers(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		c = next()
		verifies(c, fourth, true)
		verifies(c, third, true)
		verifies(c, second, false) // two at a time
		fifth, err := rotateSecret(ctx, p.store.Callers(), 0)
		if err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		c = next()
		verifies(c, fifth, true)
		verifies(c, fourth, false)
	})
}

// rotateSecret gives the caller shop a fresh secret, as pkg/server does.
func rotateSecret(ctx context.Context, callers engine.Callers, overlap time.Duration) (string, error) {
	c, _, err := callers.Get(ctx, "shop")
	if err != nil {
		return "", err
	}
	c, secret := Rotate(c, time.Now(), overlap)
	return secret, callers.Put(ctx, c)
}

func TestParseSecret(t *testing.T) {
	t.Parallel()
	enc := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	f := func(secret string, want int) {
		t.Helper()
		key, err := ParseSecret(secret)
		if want < 0 {
			refused(t, err, notify.KindInvalid, "bad_secret", "secret")
		} else if err != nil || len(key) != want {
			t.Errorf("%q: %d bytes, %v", secret, len(key), err)
		}
	}
	f(NewSecret(), 32)
	f(enc(24), 24)
	f(enc(64), 64)
	f(enc(23), -1)
	f(enc(65), -1)
	f(strings.TrimPrefix(enc(32), "whsec_"), -1)
	f("whsec_%%%", -1)
	f("", -1)
	if a, b := NewSecret(), NewSecret(); a == b {
		t.Error("two secrets are the same")
	}
	if keys := keysOf([]engine.CallerSecret{{Secret: "whsec_x"}, {Secret: enc(32), Expires: 10}, {Secret: enc(24)}}, 10); len(keys) != 1 || len(keys[0]) != 24 {
		t.Errorf("keys %v", keys)
	}
}

// A secret that cannot be decrypted does not sign beside the new secret.
func TestRotateDropsASealedSecret(t *testing.T) {
	t.Parallel()
	c, secret := Rotate(engine.Caller{ID: "shop", Secrets: []engine.CallerSecret{{Secret: engine.SealedPrefix + "v1:0123456789abcdef:AAAA"}}}, time.Now(), time.Hour)
	if len(c.Secrets) != 1 || c.Secrets[0].Secret != secret {
		t.Errorf("%+v", c.Secrets)
	}
}
