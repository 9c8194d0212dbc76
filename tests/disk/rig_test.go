// Package disk_test causes faults in whole nodes: in the disk, in the log, in the providers and in
// the process itself. It checks what callers and receivers see.
package disk_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world holds the data folder and the simulated providers. They stay when a node ends.
type world struct {
	t   *testing.T
	dir string
	cfg app.Config
	sim *simulator.Simulator
}

func newWorld(t *testing.T, sc simulator.Config, change ...func(*app.Config)) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), cfg: app.Default()}
	sc.Dir = filepath.Join(w.dir, "simulator")
	var err error
	if w.sim, err = simulator.New(sc); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.sim.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("simulators: %v", err)
		}
	})
	write := func(name string, b []byte) string {
		path := filepath.Join(w.dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := server.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	creds, urls := w.sim.Credentials(), w.sim.URLs()
	accounts, err := json.Marshal(creds.Twilio)
	if err != nil {
		t.Fatal(err)
	}
	c := &w.cfg
	c.DataDir = filepath.Join(w.dir, "data")
	c.API.Listen, c.API.Admin, c.Log.Listen, c.Log.Sync = "127.0.0.1:0", "", "127.0.0.1:0", false
	c.Log.Partitions = map[string]int{"push": 2, "sms": 1, "email": 1}
	c.Auth.KeyFile = write("key.pem", key)
	p := &c.Providers
	p.CAFile = filepath.Join(sc.Dir, "ca.pem")
	p.APNs.URL, p.APNs.KeyFile = urls.APNs, filepath.Join(sc.Dir, "apns.p8")
	p.APNs.KeyID, p.APNs.TeamID, p.APNs.Topic = creds.APNs.KeyID, creds.APNs.TeamID, creds.APNs.Topic
	p.FCM.URL, p.FCM.TokenURL, p.FCM.Credentials = urls.FCM, urls.FCMToken, filepath.Join(sc.Dir, "fcm-service-account.json")
	p.Twilio.URL, p.Twilio.AccountsFile = urls.Twilio, write("twilio.json", accounts)
	p.SendGrid.URL, p.SendGrid.KeyFile = urls.SendGrid, write("sendgrid.key", []byte(creds.SendGrid.APIKey))
	p.SendGrid.From, p.SendGrid.Pools, p.SendGrid.Rate = "test <no-reply@example.com>", creds.SendGrid.Pools, 20_000
	for _, f := range change {
		f(c)
	}
	return w
}

// patience is the longest time of any wait. It is long because the machine may be busy. No test
// measures how long a wait takes.
const patience = 3 * time.Minute

// node is one notifyd from its start to its stop. It runs inside the test process.
type node struct {
	*api.Client
	w    *world
	log  *output
	stop func() error
}

// start runs a node in this world until the test ends or stop is called.
func (w *world) start(role string) *node {
	w.t.Helper()
	n := &node{w: w, log: &output{}}
	a, err := app.New(w.cfg, slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		w.t.Fatal(err)
	}
	signer, err := server.OpenSigner(w.cfg.Auth.KeyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := signer.Sign(server.TokenSpec{
		Caller: "test", Scopes: api.Scopes[:], Issuer: w.cfg.Auth.Issuer, Audience: w.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	transport := api.NewTransport(0)
	n.Client = &api.Client{
		BaseURL: "http://" + a.Addr(), HTTPClient: &http.Client{Transport: transport},
		Token: func(context.Context) (string, error) { return token, nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.RunAs(ctx, role) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		err := <-done
		transport.CloseIdleConnections()
		return err
	})
	w.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			w.t.Errorf("the node ended with %v", err)
		}
		if w.t.Failed() {
			w.t.Logf("log of the node:\n%s", n.log)
		}
	})
	n.eventually("it answers", func() bool {
		_, err := n.Doctor(w.t.Context())
		return err == nil
	})
	return n
}

// eventually calls condition until condition returns true. It fails the test if that takes longer
// than patience.
func (n *node) eventually(what string, condition func() bool) {
	n.w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			n.w.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// status waits until matches returns true for the state of the notification, and returns its
// status.
func (n *node) status(id string, matches func(notify.State) bool) (out api.Status) {
	n.w.t.Helper()
	n.eventually(id+" comes to its state", func() bool {
		var err error
		if out, err = n.Notification(n.w.t.Context(), id); err != nil {
			n.w.t.Fatal(err)
		}
		s, _ := notify.ParseState(out.Status)
		return matches(s)
	})
	return out
}

// counts waits until every receiver of a fan-out has a terminal state. It returns the number of
// receivers in each state.
func (n *node) counts(id string) map[string]int {
	n.w.t.Helper()
	id = strings.TrimSuffix(id, "-0")
	var counts map[string]int
	n.eventually("every receiver has its outcome", func() bool {
		counts = map[string]int{}
		for p := (api.Page{}); ; {
			s, err := n.Summary(n.w.t.Context(), id, p)
			if err != nil {
				n.w.t.Fatal(err)
			}
			for k, v := range s.Counts {
				counts[k] += v
			}
			if p.After = s.Next; s.Complete || s.Next == "" {
				return counts["ACCEPTED"]+counts["DEFERRED"] == 0
			}
		}
	})
	return counts
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func token(i int) string { return fmt.Sprintf("apns:%064x", i+1) }

func push(i int) api.Notification {
	return api.Notification{
		Channel: "push", Category: "transactional", To: api.Receiver{UserID: fmt.Sprintf("u%06d", i), Address: token(i)},
		Content: api.Content{Title: "Hello", Body: "there"},
	}
}

func mail(category string) api.Notification {
	return api.Notification{
		Channel: "email", Category: category, To: api.Receiver{UserID: "ann", Address: "ann@example.org"},
		Content: api.Content{Title: "Hello", Body: "there"},
	}
}

func receivers(n int) api.Receivers {
	rs := make(api.Receivers, n)
	for i := range rs {
		rs[i] = push(i).To
	}
	return rs
}

// refusal returns the API error in err. It fails the test if the request was not refused.
func refusal(t *testing.T, err error) *notify.Error {
	t.Helper()
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		t.Fatalf("not refused as it should be: %v", err)
	}
	return e
}
