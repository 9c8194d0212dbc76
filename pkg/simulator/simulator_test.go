package simulator

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestSeed checks that the simulator accepts the same clients after a restart.
func TestSeed(t *testing.T) {
	t.Parallel()
	open := func(cfg Config) (Credentials, []byte) {
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := s.Credentials()
		c.FCM.ServiceAccountJSON = bytes.ReplaceAll(c.FCM.ServiceAccountJSON, []byte(s.URLs().FCMToken), []byte("TOKEN"))
		return c, s.CAPEM()
	}
	a, caA := open(Config{Seed: 7})
	b, caB := open(Config{Seed: 7})
	c, _ := open(Config{Seed: 8})
	if !reflect.DeepEqual(a, b) || !bytes.Equal(caA, caB) {
		t.Error("one seed gave two sets of keys")
	}
	if a.APNs == c.APNs || a.Twilio[0] == c.Twilio[0] || a.SendGrid.APIKey == c.SendGrid.APIKey || a.CAPEM == c.CAPEM {
		t.Error("two seeds share keys")
	}

	dir := filepath.Join(t.TempDir(), "sim")
	d, _ := open(Config{Dir: dir})
	e, _ := open(Config{Dir: dir, Seed: 9})
	if !reflect.DeepEqual(d, e) {
		t.Error("the directory did not keep the keys")
	}
	f, _ := open(Config{Dir: filepath.Join(t.TempDir(), "other")})
	if f.APNs == d.APNs {
		t.Error("two directories share keys")
	}
	for _, name := range []string{"seed", "ca.pem", "apns.p8", "fcm-service-account.json", "simulator.json"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}

	// Configured accounts take precedence over those from the seed.
	if g, _ := open(Config{Seed: 8, Twilio: TwilioConfig{Accounts: a.Twilio[:1]}}); len(g.Twilio) != 1 || g.Twilio[0] != a.Twilio[0] {
		t.Error("supplied accounts were not used")
	}
}

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]Config{
		"control_addr":          {ControlAddr: "nowhere"},
		"apns.latency":          {APNs: APNsConfig{Latency: Lognormal(10, 5)}},
		"twilio.n":              {Twilio: TwilioConfig{N: -1}},
		"twilio.accounts[0]":    {Twilio: TwilioConfig{Accounts: []TwilioAccount{{SID: "AC1"}}}},
		"receipts":              {Receipts: Receipts{Undelivered: 2}},
		"receipts.sendgrid_url": {Receipts: Receipts{SendGridURL: "ftp://x"}},
	} {
		s, err := New(cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: accepted", field)
			continue
		}
		if e, ok := err.(*notify.Error); !ok || e.Kind != notify.KindInvalid || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestClose: a simulator that never ran frees its ports, one that could not bind
// leaves none behind, and Run happens once.
func TestClose(t *testing.T) {
	t.Parallel()
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	addrs := s.Addrs()
	if _, err := New(Config{ControlAddr: addrs.Twilio}); notify.KindOf(err) != notify.KindUnavailable {
		t.Errorf("a taken port: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{addrs.APNs, addrs.FCM, addrs.Twilio, addrs.SendGrid, addrs.Control} {
		// Another process may use the port for an outgoing connection, but does not listen on it.
		if c, err := net.Dial("tcp", a); err == nil {
			c.Close()
			t.Errorf("%s is still served", a)
		}
	}
	if s.Run(context.Background()) == nil {
		t.Error("Run after Close")
	}
}

// TestStopWhileHanging: requests that hang, or wait out a latency, do not hold Run.
func TestStopWhileHanging(t *testing.T) {
	t.Parallel()
	s, err := New(Config{FCM: FCMConfig{Latency: Constant(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	rule(t, s, Rule{Provider: APNs, Do: Hang})
	c := client(t, s, "h2")
	auth := accessToken(t, s, c)
	left := make(chan error, 2)
	for _, r := range []*http.Request{push(t, s, DeviceToken(1), ""), fcmSend(t, s, auth, fcmMessageFor(RegistrationToken(1), ""))} {
		r.GetBody = nil
		go func() {
			_, err := try(c, r)
			left <- err
		}()
	}
	waitFor(t, func() bool { return s.Ledger().Summary().Receivers == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-left; err == nil {
			t.Error("a hanging request was answered")
		}
	}
}
