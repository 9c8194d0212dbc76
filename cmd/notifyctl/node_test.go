package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

// node is a notifyd in this process, with simulated providers.
type node struct {
	url, control, callback, metrics, kafka string
	signer                                 *server.Signer
	cfg                                    app.Config
	log                                    *lockedBuffer
}

// startNode runs one until the test and its subtests are over.
func startNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	sim, err := simulator.New(simulator.Config{Dir: dir, ControlAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cfg: app.Default(), control: sim.URLs().Control, callback: sim.URLs().Callback}
	key, err := server.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	c, creds, urls := &n.cfg, sim.Credentials(), sim.URLs()
	accounts, err := json.Marshal(creds.Twilio)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c.DataDir = filepath.Join(dir, "data")
	c.API.Listen, c.API.Admin, c.Log.Listen, c.Log.Sync = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", false
	c.Auth.KeyFile = write("key.pem", key)
	c.Triggers.Plain, c.Triggers.Allow, c.Triggers.Ports = true, []string{"127.0.0.0/8"}, []int{0}
	p := &c.Providers
	p.Simulated, p.CAFile = true, filepath.Join(dir, "ca.pem")
	p.APNs.URL, p.APNs.KeyFile = urls.APNs, filepath.Join(dir, "apns.p8")
	p.APNs.KeyID, p.APNs.TeamID, p.APNs.Topic = creds.APNs.KeyID, creds.APNs.TeamID, creds.APNs.Topic
	p.FCM.URL, p.FCM.TokenURL, p.FCM.Credentials = urls.FCM, urls.FCMToken, filepath.Join(dir, "fcm-service-account.json")
	p.Twilio.URL, p.Twilio.AccountsFile = urls.Twilio, write("twilio.json", accounts)
	p.SendGrid.URL, p.SendGrid.KeyFile = urls.SendGrid, write("sendgrid.key", []byte(creds.SendGrid.APIKey))
	p.SendGrid.From, p.SendGrid.Pools, p.SendGrid.Rate = "test <no-reply@example.com>", creds.SendGrid.Pools, 20_000
	if n.signer, err = server.OpenSigner(c.Auth.KeyFile); err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	n.log = log
	nd, err := app.New(n.cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	nd.Describe(app.About{Config: app.Loaded{Config: n.cfg}.Print(), Log: func() []string { return strings.Split(log.String(), "\n") }})
	n.url, n.metrics, n.kafka = "http://"+nd.Addr(), "http://"+nd.Admin()+"/metrics", "unix:"+nd.KafkaSocket()
	ctx, stop := context.WithCancel(context.Background())
	simCtx, stopSim := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := sim.Run(simCtx); err != nil {
			t.Errorf("simulator: %v", err)
		}
	})
	wg.Go(func() {
		defer stopSim() // a drain still needs the providers
		if err := nd.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("node: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
		if t.Failed() {
			t.Logf("log of the node:\n%s", log)
		}
	})
	cl := &api.Client{BaseURL: n.url, Retries: 5000, Backoff: 10 * time.Millisecond}
	if err := cl.Ready(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return n
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// setup gives a script a context of its own: another caller each, so that feeds
// do not mix.
func (n *node) setup(env *testscript.Env) error {
	caller := filepath.Base(env.WorkDir)
	sign := func(file string, scopes ...string) error {
		token, err := n.signer.Sign(server.TokenSpec{
			Caller: caller, Scopes: scopes, Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience,
			TTL: time.Hour, Now: time.Now(),
		})
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(env.WorkDir, file), []byte(token+"\n"), 0o600)
	}
	if err := sign("token", api.Scopes[:]...); err != nil {
		return err
	}
	if err := sign("token-send", api.ScopeSend); err != nil {
		return err
	}
	if err := sign("token-observe", api.ScopeObserve); err != nil {
		return err
	}
	caller = "other-" + caller
	if err := sign("token-other", api.ScopeOperate); err != nil {
		return err
	}
	env.Setenv("HOME", env.WorkDir)
	cs, err := term.OpenContexts(env.Getenv)
	if err != nil {
		return err
	}
	if err := cs.Set("test", term.Context{Server: n.url, TokenFile: filepath.Join(env.WorkDir, "token"), Simulators: n.control}); err != nil {
		return err
	}
	env.Setenv("NOTIFYCTL_TIMEOUT", "5m") // for a machine with other work
	env.Setenv("SERVER", n.url)
	env.Setenv("SIMULATORS", n.control)
	env.Setenv("METRICS", n.metrics)
	env.Setenv("CALLBACK", n.callback)
	env.Setenv("CALLER", filepath.Base(env.WorkDir))
	for i := range 4 {
		env.Setenv(fmt.Sprintf("DEVICE%d", i), "apns:"+simulator.DeviceToken(uint64(9000+i)))
	}
	return cs.Use("test")
}
