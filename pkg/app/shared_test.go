package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// shared has engines that several processes share; all of them run in this process. The log is a
// broker, and memory replaces the other servers.
type shared struct {
	broker *embedded.Broker
	store  *memory.Store
	lease  engine.Lease
	beats  engine.Heartbeats
	wire   engine.Broadcast
	past   *recorded
	limits *memory.Limits
}

func newShared(t *testing.T, cfg *Config) *shared {
	t.Helper()
	b, err := embedded.Open(embedded.Config{Topics: topics(cfg), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &shared{broker: b, store: memory.New(), lease: memory.NewLease(), beats: memory.NewHeartbeats(), wire: memory.NewBroadcast(), past: &recorded{}, limits: memory.NewLimits()}
	if err := s.store.Meta().PutMeta(t.Context(), storeIDMeta, []byte("shared")); err != nil {
		t.Fatal(err)
	}
	return s
}

// open replaces openServers.
func (s *shared) open(_ context.Context, n *Node) error {
	n.servers.historian = s.past
	n.st = stores{
		status: s.store.Status(), prefs: s.store.Prefs(), callers: s.store.Callers(), cancels: s.store.Cancels(), campaigns: s.store.Campaigns(),
		idem: s.store.Idem(), spill: s.store.Spill(), letters: s.store.DeadLetters(), jobs: s.store.Jobs(), audit: s.store.Audit(), holds: s.store.Holds(),
		meta: s.store.Meta(), timers: s.store.Timers(), cold: s.store.ColdTimers(), schedules: s.store.Schedules(), triggers: s.store.Triggers(),
		limits: s.limits, lease: s.lease, beats: s.beats, broadcast: s.wire,
		queue: func(name string, maxReceives int) (engine.Queue, error) { return s.store.Queue(name, maxReceives), nil },
		conn:  log.Conn{Brokers: []string{s.broker.Addr()}, Dial: s.broker.Dial, Logger: n.log},
	}
	return nil
}

// recorded is a history in memory.
type recorded struct {
	mu     sync.Mutex
	chunks []engine.Found
}

func (r *recorded) Append(_ context.Context, recs ...history.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range recs {
		f := engine.Found{Topic: rec.Topic, LogPart: rec.Partition, Offset: rec.Offset}
		// Copy the value, because the history must not refer to the buffer of the log.
		if err := notify.DecodeEnvelope(slices.Clone(rec.Value), &f.Envelope); err != nil || f.Envelope.Derived() {
			continue
		}
		if !slices.ContainsFunc(r.chunks, func(c engine.Found) bool { return c.Envelope.Chunk == f.Envelope.Chunk }) {
			r.chunks = append(r.chunks, f)
		}
	}
	return nil
}

func (r *recorded) Between(_ context.Context, offsets map[history.Part]history.OffsetRange, fn func(*engine.Found) error) error {
	r.mu.Lock()
	all := slices.Clone(r.chunks)
	r.mu.Unlock()
	for i := range all {
		if s := offsets[history.Part{Topic: all[i].Topic, Partition: all[i].LogPart}]; all[i].Offset >= s.From && all[i].Offset < s.Below {
			if err := fn(&all[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *recorded) Find(ctx context.Context, id notify.ID) (found engine.Found, err error) {
	err = r.Each(ctx, id.Base, func(f *engine.Found) error {
		if f.ID == id {
			found = *f
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return found, nil
	}
	return found, notify.NotFound("notification")
}

func (r *recorded) Each(_ context.Context, base notify.Base, fn func(*engine.Found) error) error {
	return r.each(func(f *engine.Found) error {
		if f.Envelope.Chunk.Base == base {
			return fn(f)
		}
		return nil
	})
}

func (r *recorded) each(fn func(*engine.Found) error) error {
	r.mu.Lock()
	all := slices.Clone(r.chunks)
	r.mu.Unlock()
	for i := range all {
		f := &all[i]
		rd, rec := notify.ReadReceivers(f.Envelope.Receivers), notify.Receiver{}
		for pos := uint32(0); rd.Next(&rec); pos++ {
			f.ID, f.Pos, f.User, f.Address = f.Envelope.ID(rec.Index), pos, rec.User, rec.Address
			if err := fn(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *recorded) User(_ context.Context, q engine.HistoryQuery) (out []engine.Found, next engine.HistoryCursor, err error) {
	err = r.each(func(f *engine.Found) error {
		if string(f.User) == q.User && (q.Caller == "" || q.Caller == f.Envelope.Caller) {
			out = append(out, *f)
		}
		return nil
	})
	slices.Reverse(out)
	return out, nil, err
}

// tallied counts what reached a provider, by notification and attempt.
type tallied struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *tallied) wrap(p worker.Provider) worker.Provider { return countingProvider{p, c} }

type countingProvider struct {
	worker.Provider
	to *tallied
}

func (p countingProvider) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	p.to.mu.Lock()
	for i := range call.Items {
		p.to.calls[call.Items[i].ID().String()]++
	}
	p.to.mu.Unlock()
	p.Provider.Send(ctx, call, report)
}

// sharing returns the configuration of processes over shared engines.
func sharing(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t, t.TempDir())
	cfg.Engines = EnginesDistributed
	cfg.Triggers.Plain, cfg.Triggers.Ports, cfg.Triggers.Allow = true, []int{0}, []string{"127.0.0.0/8"}
	return cfg
}

// TestRolesInProcessesOfTheirOwn: two processes of each role, over shared engines, do what one
// process does. Everything that either API accepts ends once, wherever its worker, its scheduler
// and its dispatcher are.
func TestRolesInProcessesOfTheirOwn(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	called := &tallied{calls: map[string]int{}}
	seam := seams{servers: s.open, provider: called.wrap, settle: 100 * time.Millisecond}
	var hooks sync.Map
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n, _ := hooks.LoadOrStore(r.Header.Get("X-Trigger-Id"), new(int))
		*n.(*int)++
	}))
	defer sink.Close()
	start := func(role string) *life { return runAs(t, role, cfg, seam) }
	a, b := start("api"), start("api")
	workers := []*life{start("worker:push,worker:sms"), start("worker")}
	schedulers := []*life{start("scheduler"), start("scheduler")}
	start("dispatcher")
	start("operator")
	second := start("dispatcher,operator")
	ctx := t.Context()
	if err := a.SeedCaller(ctx, "test", []string{sink.URL + "/"}, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	at := time.Now().Add(3 * time.Second)
	for i := range 60 {
		cl := []*api.Client{a.client, b.client}[i%2]
		n := push(fmt.Sprintf("user-%d", i), "hello")
		if i%3 == 0 {
			n.ScheduledAt = &at
		}
		sent, err := cl.Send(ctx, n, fmt.Sprintf("key-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sent.NotificationID)
		// All processes know an idempotency key.
		again, err := []*api.Client{a.client, b.client}[(i+1)%2].Send(ctx, n, fmt.Sprintf("key-%d", i))
		if err != nil || again.NotificationID != sent.NotificationID {
			t.Fatalf("the same key at the other API: %v %v, was %s", again, err, sent.NotificationID)
		}
	}
	var ts []string
	for i := range 20 {
		tr, err := b.client.Trigger(ctx, api.Trigger{CallbackURL: sink.URL + "/x", FireAt: &at, Payload: []byte(fmt.Sprint(`"`, i, `"`))}, "")
		if err != nil {
			t.Fatal(err)
		}
		ts = append(ts, tr.TriggerID)
	}
	for _, id := range ids {
		b.becomes(t, id, "DELIVERED")
	}
	for _, id := range ts {
		eventually(t, id+" is FIRED", func() bool {
			st, err := a.client.TriggerStatus(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			return st.Status == "FIRED"
		})
		if n, ok := hooks.Load(id); !ok || *n.(*int) != 1 {
			t.Errorf("%s was called %v times", id, n)
		}
	}
	called.mu.Lock()
	for _, id := range ids {
		if called.calls[id] != 1 {
			t.Errorf("%s: %d calls", id, called.calls[id])
		}
	}
	called.mu.Unlock()
	rep, err := a.client.Conservation(ctx, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Drift != 0 || rep.Accepted != int64(len(ids)+len(ts)) || rep.Terminal != rep.Accepted {
		t.Errorf("drift %d, accepted %d, terminal %d of %d: %+v", rep.Drift, rep.Accepted, rep.Terminal, len(ids)+len(ts), rep.Findings)
	}
	// What an operator sets at one process applies to the others.
	if _, err := a.client.SetLane(ctx, "push", true, "look"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both workers stand", func() bool {
		l, _ := notify.ParseLane("push")
		return workers[0].lanes.Gate(l).IsShut() && workers[1].lanes.Gate(l).IsShut()
	})
	if _, err := b.client.SetLane(ctx, "push", false, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.SetCircuit(ctx, "caller:test", "open"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dispatchers hold the caller's circuit", func() bool {
		for _, c := range second.later.dispatcher.Circuits() {
			if c.Caller == "test" {
				return c.State.String() == "open"
			}
		}
		return false
	})
	// One of two schedulers ends, and the other takes over its shards.
	if err := schedulers[0].stop(); err != nil {
		t.Fatal(err)
	}
	if err := workers[0].stop(); err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(4 * time.Second)
	n := push("late", "hello")
	n.ScheduledAt = &soon
	sent, err := a.client.Send(ctx, n, "")
	if err != nil {
		t.Fatal(err)
	}
	b.becomes(t, sent.NotificationID, "DELIVERED")
}

// TestLagsOfAProcess: one process asks the brokers how far every group is behind. The API reports
// all groups, and a worker reports its own. A process that runs no group asks nothing.
func TestLagsOfAProcess(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	seam := seams{servers: s.open, settle: 100 * time.Millisecond}
	front, mails := runAs(t, "api", cfg, seam), runAs(t, "worker:email", cfg, seam)
	groups := func(l *life) (out []string) {
		eventually(t, "lags are read", func() bool {
			out = nil
			for _, g := range l.groups.lags() {
				if !slices.Contains(out, g.Group) {
					out = append(out, g.Group)
				}
			}
			return out != nil
		})
		slices.Sort(out)
		return out
	}
	if got, want := groups(front), slices.Sorted(slices.Values(front.groups.names)); !slices.Equal(got, want) {
		t.Errorf("the API reads %v, want %v", got, want)
	}
	want := []string{"email-bulk-retry-workers", "email-bulk-workers", "email-retry-workers", "email-workers"}
	if got := groups(mails); !slices.Equal(got, want) {
		t.Errorf("the worker reads %v, want %v", got, want)
	}
	told, _, err := s.beats.Alive(t.Context(), "figure:lags", 0)
	if err != nil || len(told) != 1 || told[0].Owner != front.owner {
		t.Errorf("%d processes tell lags, %v", len(told), err)
	}
	for _, part := range []string{"lags", "lags seen"} {
		if _, reads := (runner{mails.Node}).innerParts(cluster.Tasks{Scheduler: true, Dispatcher: true})[part]; reads {
			t.Error("a process without groups has the part", part)
		}
	}
}

// errFound ends a walk that has found what it looks for.
var errFound = errors.New("found")
