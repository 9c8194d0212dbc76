package engines

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/server"
)

// world is an installation of notifyd on the test servers, separate from other tests. It has its
// own Kafka broker in this process, because the topics of all installations have the same names.
type world struct {
	cfg   app.Config
	token string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	nodes, redis, dsn := enginetest.Server(t, enginetest.CassandraEnv), enginetest.Server(t, enginetest.RedisEnv), enginetest.Server(t, enginetest.PostgresEnv)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(9 << 20)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	name := "nodes_" + own
	admin(t, dsn, "CREATE DATABASE "+name)
	t.Cleanup(func() { admin(t, dsn, "DROP DATABASE "+name+" WITH (FORCE)") })
	at, err := withDatabase(dsn, name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := app.Default()
	cfg.Engines, cfg.Instance = app.EnginesDistributed, "test"
	cfg.Kafka.Brokers, cfg.Cassandra.Hosts, cfg.Redis.Addresses, cfg.Postgres.DSN = broker.ListenAddrs(), []string{nodes}, []string{redis}, at
	cfg.Cassandra.Keyspace, cfg.Cassandra.Replication, cfg.Cassandra.Timeout, cfg.Redis.Prefix = name, 1, patient, name+":"
	cfg.API.Listen, cfg.API.Admin = "127.0.0.1:0", ""
	cfg.Log.Partitions = map[string]int{"push": 2, "sms": 1, "email": 1}
	cfg.Timers.Shards, cfg.Providers.Stub = 4, true
	cfg.Triggers.Plain, cfg.Triggers.Ports, cfg.Triggers.Allow = true, []int{0}, []string{"127.0.0.0/8"}
	cfg.Auth.KeyFile = filepath.Join(t.TempDir(), "key.pem")
	key, err := server.NewSigningKey()
	if err == nil {
		err = os.WriteFile(cfg.Auth.KeyFile, key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	signer, err := server.OpenSigner(cfg.Auth.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cfg: cfg}
	if w.token, err = signer.Sign(server.TokenSpec{Caller: "test", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: time.Hour, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	if _, err := app.Migrate(ctx, &cfg, engine.Up, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
		defer stop()
		if _, err := cassandra.Migrate(ctx, cassandra.Config{Hosts: []string{nodes}, Keyspace: name, Timeout: patient}, engine.Down); err != nil {
			t.Errorf("the keyspace is left: %v", err)
		}
	})
	return w
}

func admin(t *testing.T, dsn, sql string) {
	t.Helper()
	if err := exec(dsn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// process is a node that runs some roles.
type process struct {
	node   *app.Node
	client *api.Client
	cancel context.CancelFunc
	done   chan error
	log    *output
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

func (w *world) start(t *testing.T, roles string) *process {
	t.Helper()
	p := &process{done: make(chan error, 1), log: &output{}}
	cfg := w.cfg
	cfg.Roles = strings.Split(roles, ",")
	n, err := app.New(cfg, slog.New(slog.NewTextHandler(p.log, nil)))
	if err != nil {
		t.Fatalf("%s: %v", roles, err)
	}
	p.node = n
	p.client = &api.Client{BaseURL: "http://" + n.Addr(), Token: func(context.Context) (string, error) { return w.token, nil }, Retries: 200, Backoff: 50 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.done <- n.Run(ctx) }()
	t.Cleanup(func() {
		if p.cancel != nil {
			if err := p.stop(); err != nil {
				t.Errorf("%s ended with %v", roles, err)
			}
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", roles, p.log)
		}
	})
	if err := p.client.Ready(t.Context()); err != nil {
		t.Fatalf("%s: %v", roles, err)
	}
	return p
}

func (p *process) stop() error {
	p.cancel()
	p.cancel = nil
	return <-p.done
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(5 * time.Minute)
	for !ok() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within five minutes: %s", what)
		}
	}
}

// TestNodesOverServers runs nodes of every role over real servers. It checks that immediate and
// scheduled messages are delivered while nodes start and stop, and that the audit finds no
// difference.
func TestNodesOverServers(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var called sync.Map
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n, _ := called.LoadOrStore(r.Header.Get("X-Trigger-Id"), new(int))
		*n.(*int)++
	}))
	defer sink.Close()
	a, b := w.start(t, "api"), w.start(t, "api")
	w.start(t, "worker")
	first := w.start(t, "worker:push,scheduler")
	w.start(t, "scheduler,dispatcher")
	w.start(t, "operator")
	w.start(t, "operator,dispatcher")
	if err := a.node.SeedCaller(ctx, "test", []string{sink.URL + "/"}, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(5 * time.Second)
	var ids []string
	for i := range 30 {
		n := api.Notification{
			Channel: "push", Category: "transactional", To: api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + strings.Repeat("ab", 32)},
			Content: api.Content{Title: "Hello", Body: "there"},
		}
		if i%3 == 0 {
			n.ScheduledAt = &at
		}
		sent, err := []*process{a, b}[i%2].client.Send(ctx, n, fmt.Sprint("key-", i))
		if err != nil {
			t.Fatal(err)
		}
		again, err := []*process{a, b}[(i+1)%2].client.Send(ctx, n, fmt.Sprint("key-", i))
		if err != nil || again.NotificationID != sent.NotificationID {
			t.Fatalf("the same key at the other API: %q, %v; was %s", again.NotificationID, err, sent.NotificationID)
		}
		ids = append(ids, sent.NotificationID)
	}
	var ts []string
	for i := range 10 {
		tr, err := b.client.Trigger(ctx, api.Trigger{CallbackURL: sink.URL + "/x", FireAt: &at, Payload: []byte(fmt.Sprint(`"`, i, `"`))}, "")
		if err != nil {
			t.Fatal(err)
		}
		ts = append(ts, tr.TriggerID)
	}
	for _, id := range ids {
		eventually(t, id+" is DELIVERED", func() bool {
			st, err := b.client.Notification(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			return st.Status == "DELIVERED"
		})
	}
	for _, id := range ts {
		eventually(t, id+" is FIRED", func() bool {
			st, err := a.client.TriggerStatus(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			return st.Status == "FIRED"
		})
		if n, ok := called.Load(id); !ok || *n.(*int) != 1 {
			t.Errorf("%s was called %v times", id, n)
		}
	}
	// Stop one of the two nodes of a role.
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	sent, err := a.client.Send(ctx, api.Notification{
		Channel: "push", Category: "otp", To: api.Receiver{UserID: "late", Address: "apns:" + strings.Repeat("ab", 32)}, Content: api.Content{Title: "x", Body: "y"},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other worker delivers", func() bool {
		st, err := b.client.Notification(ctx, sent.NotificationID)
		return err == nil && st.Status == "DELIVERED"
	})
	list, err := b.client.UserNotifications(ctx, "late", "", 10)
	if err != nil || len(list.Items) != 1 || list.Items[0].NotificationID != sent.NotificationID {
		t.Errorf("the user's history: %+v, %v", list, err)
	}
	rep, err := a.client.Conservation(ctx, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if all := int64(len(ids) + len(ts) + 1); rep.Drift != 0 || rep.Accepted != all || rep.Terminal != all {
		t.Errorf("drift %d, accepted %d, terminal %d of %d: %+v", rep.Drift, rep.Accepted, rep.Terminal, all, rep)
	}
	found, err := a.client.Doctor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	engines := map[string]bool{}
	for _, f := range found {
		word, _, _ := strings.Cut(f.Check, " ")
		engines[word] = true
		if f.Level != "ok" && f.Repair == "" {
			t.Errorf("the doctor says %s, %s, and no repair", f.Check, f.Detail)
		}
	}
	for _, name := range []string{"kafka", "cassandra", "redis", "postgres", "clock"} {
		if !engines[name] {
			t.Errorf("the doctor did not look at %s", name)
		}
	}
	if ms, err := app.Migrate(ctx, &w.cfg, engine.Look, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	} else {
		for _, m := range ms {
			if !m.Applied {
				t.Errorf("%s %s is missing", m.Engine, m.Step)
			}
		}
	}
}
