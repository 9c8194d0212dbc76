package app

import (
	"bytes"
	"context"
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
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
)

// childEnv tells a test that it runs in the process that another test has started.
const childEnv = "NOTIFYD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// testConfig returns the configuration of a node in dir whose providers accept everything.
func testConfig(t *testing.T, dir string) Config {
	t.Helper()
	cfg := Default()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.API.Listen, cfg.API.Admin, cfg.Log.Listen = "127.0.0.1:0", "", "127.0.0.1:0"
	cfg.Log.Sync, cfg.Providers.Stub = false, true
	cfg.Log.Partitions = map[string]int{"push": 2, "sms": 1, "email": 1}
	cfg.Auth.KeyFile = filepath.Join(dir, "key.pem")
	if _, err := os.Stat(cfg.Auth.KeyFile); err == nil {
		return cfg
	}
	key, err := server.NewSigningKey()
	if err == nil {
		err = os.WriteFile(cfg.Auth.KeyFile, key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// life is a running node.
type life struct {
	*Node
	client *api.Client
	log    *output
	done   chan error
	cancel context.CancelFunc
	idle   func()
}

// output is a log that can be read while it is written.
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

// run runs a node until the test is over or stop is called.
func run(t *testing.T, cfg Config, s seams, prepare ...func(*Node)) *life {
	t.Helper()
	return runAs(t, cluster.RoleAll, cfg, s, prepare...)
}

func runAs(t *testing.T, role string, cfg Config, s seams, prepare ...func(*Node)) *life {
	t.Helper()
	l := &life{log: &output{}, done: make(chan error, 1)}
	n, err := newNode(cfg, slog.New(slog.NewTextHandler(l.log, nil)), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(n)
	}
	signer, err := server.OpenSigner(cfg.Auth.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signer.Sign(server.TokenSpec{
		Caller: "test", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	transport := api.NewTransport(0)
	l.Node, l.idle = n, transport.CloseIdleConnections
	l.client = &api.Client{
		BaseURL: "http://" + n.Addr(), HTTPClient: &http.Client{Transport: transport}, Retries: 50, Backoff: 10 * time.Millisecond,
		Token: func(context.Context) (string, error) { return token, nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go func() { l.done <- n.RunAs(ctx, strings.Split(role, ",")...) }()
	t.Cleanup(func() {
		if err := l.stop(); err != nil && !t.Failed() {
			t.Errorf("the node ended with %v", err)
		}
		if t.Failed() {
			t.Logf("log of the node:\n%s", l.log)
		}
	})
	if err := started(t.Context(), l.client); err != nil {
		t.Fatal(err)
	}
	return l
}

// started waits until a node is ready, however long that takes on a machine with other work. It
// does not use the client's own number of retries, which is small for the tests of refusals.
func started(ctx context.Context, cl *api.Client) error {
	patient := *cl
	patient.Retries = 5000
	return patient.Ready(ctx)
}

// stop ends the node and returns the result of Run. It does so only once.
func (l *life) stop() error {
	if l.cancel == nil {
		return nil
	}
	l.cancel()
	l.cancel = nil
	err := <-l.done
	l.idle()
	return err
}

// ended waits for a node that must end by itself.
func (l *life) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.done:
		l.cancel()
		l.cancel = nil
		l.idle()
		return err
	case <-time.After(time.Minute):
		t.Fatal("the node goes on")
		return nil
	}
}

// eventually calls the function ok again and again until it returns true, for a minute at most.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-t.Context().Done():
			t.Fatalf("the test ended before: %s", what)
		}
	}
}

// becomes waits until a notification has the given state.
func (l *life) becomes(t *testing.T, id, want string) {
	t.Helper()
	eventually(t, id+" becomes "+want, func() bool {
		st, err := l.client.Notification(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if s, _ := notify.ParseState(st.Status); s.Terminal() && st.Status != want && s != notify.Sent {
			t.Fatalf("%s is %s (%s), want %s", id, st.Status, st.Code, want)
		}
		return st.Status == want
	})
}

func push(user, body string) api.Notification {
	return api.Notification{
		Channel: "push", Category: "transactional", To: api.Receiver{UserID: user, Address: "apns:" + device},
		Content: api.Content{Title: "Hello", Body: body},
	}
}

const device = "abababababababababababababababababababababababababababababababab"
