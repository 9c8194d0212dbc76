package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
)

// mortal are heartbeats of processes, some of which the test has killed. A killed process cannot
// send heartbeats, and its last one looks a minute older than it is.
type mortal struct {
	engine.Heartbeats
	mu   sync.Mutex
	dead []string // owners
}

var errKilled = errors.New("this process was killed")

func (m *mortal) kill(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = append(m.dead, owner)
}

func (m *mortal) isDead(owner string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.dead, owner)
}

func (m *mortal) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	if m.isDead(owner) {
		return 0, errKilled
	}
	return m.Heartbeats.Beat(ctx, group, owner, value, ttl)
}

func (m *mortal) Alive(ctx context.Context, group string, known int64) ([]engine.Heartbeat, int64, error) {
	all, version, err := m.Heartbeats.Alive(ctx, group, known)
	for i := range all {
		if m.isDead(all[i].Owner) {
			all[i].Age += time.Minute
		}
	}
	return all, version, err
}

func (m *mortal) Leave(ctx context.Context, group, owner string) error {
	if m.isDead(owner) {
		return errKilled
	}
	return m.Heartbeats.Leave(ctx, group, owner)
}

// TestOneView: whichever process is asked, the answer is about all processes. Rates, circuits and
// the doctor's findings name their process, and a process that was killed is named as missing.
func TestOneView(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	beats := &mortal{Heartbeats: s.beats}
	s.beats = beats
	seam := seams{servers: s.open, settle: 100 * time.Millisecond}
	start := func(name, role string) *life {
		c := cfg
		c.Instance = name
		return runAs(t, role, c, seam)
	}
	front := start("front", "api")
	start("pushes", "worker:push,dispatcher")
	mails := start("mails", "worker:email,scheduler")
	ctx := t.Context()
	names := func(ps []api.ProcessRates) (out []string) {
		for i := range ps {
			out = append(out, ps[i].Name+" "+ps[i].State)
		}
		return out
	}
	_, err := front.client.Send(ctx, push("ann", "hello"), "")
	if err != nil {
		t.Fatal(err)
	}
	var r api.Rates
	for _, asked := range []*life{front, mails} {
		eventually(t, "what pushes did is told to "+asked.cfg.Instance, func() bool {
			if r, err = asked.client.Rates(ctx); err != nil {
				t.Fatal(err)
			}
			return slices.Equal(names(r.Processes), []string{"front ready", "mails ready", "pushes ready"}) && reached(r.Processes[2].Rates) > 0 && reached(r.Rates) > 0
		})
		if p := &r.Processes[2]; !slices.Equal(p.Roles, []string{"worker:push", "dispatcher"}) || p.API == "" || p.StartedAt.IsZero() || reached(r.Processes[1].Rates) > 0 {
			t.Errorf("%+v", r.Processes)
		}
	}

	// A circuit of a provider is listed for each process that calls it, and for no other.
	if _, err := front.client.SetCircuit(ctx, "provider:apns", "open"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both workers' circuits are held", func() bool {
		cs, err := front.client.Circuits(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var held []string
		for _, c := range cs.Items {
			if c.Name == "provider:apns" && c.Pinned {
				held = append(held, c.Process)
			}
		}
		return slices.Equal(held, []string{"mails", "pushes"}) && cs.Missing == nil
	})
	finding := func(process, check string) (found api.Finding) {
		fs, err := front.client.Doctor(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fs {
			if f.Process == process && f.Check == check {
				found = f
			}
		}
		return found
	}
	eventually(t, "the doctor of another process names the held circuit", func() bool { return finding("pushes", "circuit apns").Level == "warn" })
	if f := finding("mails", "process"); f.Level != "ok" || !strings.HasPrefix(f.Detail, "ready: worker:email, scheduler on ") {
		t.Errorf("%+v", f)
	}

	eventually(t, "the lag names who works on the partitions", func() bool {
		ls, err := front.client.Lag(ctx)
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]api.GroupMember{}
		for _, l := range ls {
			for _, m := range l.Members {
				has[l.Group+" "+m.Process] = m
			}
		}
		return has["push-workers pushes"].Partitions == 2 && has["email-workers mails"].Partitions == 1
	})

	beats.kill(mails.owner)
	eventually(t, "the killed process is missing", func() bool {
		cs, err := front.client.Circuits(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(cs.Missing) == 1 && cs.Missing[0].Name == "mails" && cs.Missing[0].AgeSeconds > 59 &&
			!slices.ContainsFunc(cs.Items, func(c api.Circuit) bool { return c.Process == "mails" })
	})
	if r, err := front.client.Rates(ctx); err != nil || !slices.Equal(names(r.Processes), []string{"front ready", "mails missing", "pushes ready"}) {
		t.Errorf("%v %v", names(r.Processes), err)
	}
	// No other process is a scheduler.
	if f := finding("mails", "process"); f.Level != "fail" || !strings.HasPrefix(f.Detail, "mails did not answer for 1m") || f.Repair == "" {
		t.Errorf("%+v", f)
	}
}

func reached(rs []api.Rate) (n float64) {
	for _, r := range rs {
		n += r.Reached
	}
	return n
}

// TestOneProcessIsNotNamed: a process with engines of its own answers without names of processes,
// because there is only one.
func TestOneProcessIsNotNamed(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), seams{})
	r, err := l.client.Rates(t.Context())
	if err != nil || r.Processes != nil || len(r.Rates) != 4 {
		t.Errorf("%+v %v", r, err)
	}
	cs, err := l.client.Circuits(t.Context())
	if err != nil || len(cs.Items) == 0 || cs.Missing != nil || cs.Items[0].Process != "" {
		t.Errorf("%+v %v", cs, err)
	}
	fs, err := l.client.Doctor(t.Context())
	if err != nil || slices.ContainsFunc(fs, func(f api.Finding) bool { return f.Process != "" || f.Check == "process" }) {
		t.Errorf("%+v %v", fs, err)
	}
}

// fixedBeats are heartbeats with fixed members, or an error.
type fixedBeats struct {
	engine.Heartbeats
	members []engine.Heartbeat
	err     error
}

func (t *fixedBeats) Alive(context.Context, string, int64) ([]engine.Heartbeat, int64, error) {
	return t.members, 1, t.err
}

// TestProvidersThatAreNotTold: for a load grant, a process that does not tell which providers it
// calls counts as one that calls real providers. So do processes that cannot be read.
func TestProvidersThatAreNotTold(t *testing.T) {
	t.Parallel()
	worker := func(value string) *fixedBeats {
		return &fixedBeats{members: []engine.Heartbeat{{Owner: "w", Value: value}}}
	}
	for name, c := range map[string]struct {
		beats engine.Heartbeats
		want  string
	}{
		"alone":           {nil, api.ProvidersStub},
		"none beside it":  {worker(`{"name":"w","providers":"none"}`), api.ProvidersStub},
		"simulators":      {worker(`{"name":"w","providers":"simulated"}`), api.ProvidersSimulated},
		"real":            {worker(`{"name":"w","providers":"real"}`), api.ProvidersReal},
		"not told":        {worker(`{"name":"w"}`), api.ProvidersReal},
		"cannot be read":  {&fixedBeats{err: errKilled}, api.ProvidersReal},
		"of another kind": {worker(`{"name":"w","providers":"novel"}`), api.ProvidersReal},
	} {
		own := func(context.Context) cluster.Card {
			return cluster.Card{Process: api.Process{Name: "a", Providers: api.ProvidersNone}}
		}
		n := &Node{}
		n.cards = &cluster.Cards{Owner: "a", Own: own, Beats: c.beats}
		if got := (cardWriter{n}).worstProviders(t.Context()); got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
	}
}
