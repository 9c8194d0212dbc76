package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 3 * time.Minute

// TestFallback runs a whole notifyd with simulated providers. Bob's number is
// dead, so his code comes by mail; Ann's is not.
func TestFallback(t *testing.T) {
	n := startNode(t)
	dir := t.TempDir()
	f, logged := n.service(t, dir)
	if err := f.Send(t.Context(), "order-1", "ann", "Your code is 111"); err != nil {
		t.Fatal(err)
	}
	if err := f.Send(t.Context(), "order-2", "bob", "Your code is 222"); err != nil {
		t.Fatal(err)
	}
	first := follow(t, f, logged, "email ")
	n.received(t, "email", "Your code is 222")
	n.received(t, "sms", "Your code is 111")

	// The service died before it kept its place: it reads the same page again.
	if err := os.Remove(filepath.Join(dir, "place")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	f, logged = n.service(t, dir)
	if again := follow(t, f, logged, "email "); again != first {
		t.Errorf("the second reading says %q, the first %q: two mails", again, first)
	}
}

// follow follows the feed until the service says a line that begins with prefix,
// and returns that line.
func follow(t *testing.T, f *Fallback, logged <-chan string, prefix string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	done := make(chan error, 1)
	go func() { done <- f.Follow(ctx) }()
	defer func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Follow ended with %v", err)
		}
	}()
	for {
		select {
		case line := <-logged:
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-ctx.Done():
			t.Fatalf("the service never said %q", prefix)
		}
	}
}

type node struct {
	url, token string
	sim        *simulator.Simulator
}

// service returns the example on its folder, and what it says.
func (n *node) service(t *testing.T, dir string) (*Fallback, <-chan string) {
	t.Helper()
	store, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	logged := make(chan string, 100)
	return &Fallback{Client: n.client(t), Store: store, Log: func(format string, args ...any) {
		logged <- fmt.Sprintf(format, args...)
	}}, logged
}

func (n *node) client(t *testing.T) *api.Client {
	transport := api.NewTransport(0)
	t.Cleanup(transport.CloseIdleConnections)
	return &api.Client{
		BaseURL: n.url, HTTPClient: &http.Client{Transport: transport}, Retries: 5000, Backoff: 10 * time.Millisecond,
		Token: func(context.Context) (string, error) { return n.token, nil },
	}
}

// received waits until the simulated providers took a text.
func (n *node) received(t *testing.T, channel, text string) {
	t.Helper()
	over := time.After(limit)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		for _, m := range n.sim.Inbox() {
			if m.Channel == channel && strings.HasPrefix(m.Body, text) && m.Outcome == "accepted" {
				return
			}
		}
		select {
		case <-look.C:
		case <-over:
			t.Fatalf("no %s said %q: %+v", channel, text, n.sim.Inbox())
		}
	}
}

// startNode runs a notifyd and simulated providers until the test is over; bob's
// phone number is one that Twilio calls invalid.
func startNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	sim, err := simulator.New(simulator.Config{Dir: dir, ControlAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sim.AddRule(simulator.Rule{Provider: simulator.Twilio, Prefix: simulator.Phone(2), Do: simulator.Fail, Code: "21211"}); err != nil {
		t.Fatal(err)
	}
	file := func(name string, b []byte, err error) string {
		path := filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg, creds := app.Default(), sim.Credentials()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.API.Listen, cfg.API.Admin, cfg.Log.Listen, cfg.Log.Sync = "127.0.0.1:0", "", "127.0.0.1:0", false
	key, err := server.NewSigningKey()
	cfg.Auth.KeyFile = file("key.pem", key, err)
	accounts, err := json.Marshal(creds.Twilio)
	p := &cfg.Providers
	p.Twilio.URL, p.Twilio.AccountsFile = sim.URLs().Twilio, file("twilio.json", accounts, err)
	p.SendGrid.URL, p.SendGrid.KeyFile = sim.URLs().SendGrid, file("sendgrid.key", []byte(creds.SendGrid.APIKey), nil)
	p.SendGrid.From, p.SendGrid.Pools = "shop <no-reply@example.com>", creds.SendGrid.Pools
	p.CAFile = filepath.Join(dir, "ca.pem")

	nd, err := app.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	simCtx, stopSim := context.WithCancel(context.Background())
	ended, simEnded := make(chan error, 1), make(chan error, 1)
	go func() { ended <- nd.Run(ctx) }()
	go func() { simEnded <- sim.Run(simCtx) }()
	t.Cleanup(func() {
		stop() // a drain still needs the providers
		err := <-ended
		stopSim()
		if err := errors.Join(err, <-simEnded); err != nil {
			t.Error(err)
		}
	})

	n := &node{url: "http://" + nd.Addr(), sim: sim}
	signer, err := server.OpenSigner(cfg.Auth.KeyFile)
	if err == nil {
		n.token, err = signer.Sign(server.TokenSpec{
			Caller: "shop", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	cl := n.client(t)
	if err := cl.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, user := range []string{"ann", "bob"} {
		_, err := cl.PutUser(t.Context(), api.User{UserID: user, Addresses: map[string][]string{
			"sms": {simulator.Phone(uint64(i + 1))}, "email": {simulator.Mailbox(uint64(i + 1))},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}
