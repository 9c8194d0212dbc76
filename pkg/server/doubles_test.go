package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	mem "github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	issuer   = "https://issuer.test"
	audience = "notifyd"
)

// world is everything behind the server, in memory: small stores that keep the
// contracts' words as far as the server leans on them.
type world struct {
	mu       sync.Mutex
	intake   func(ctx context.Context, route string, m request.Meta, body []byte) (request.Answer, error)
	requests []request.Meta
	users    map[string]engine.Profile
	version  uint64
	found    []engine.Found // of history
	findErr  error
	listMost int // how many a page of the list reads; 0: all
	rows     map[notify.Chunk][]notify.Row
	dead     []engine.DeadLetter
	deadNews chan struct{} // told when a feed was asked
	cancels  map[string]engine.Cancel
	camps    map[string]engine.Campaign
	callers  map[string]engine.Caller
	lookups  int        // of callers
	later    *mem.Store // schedules and their timers
	ended    int        // timers of cancelled schedules
}

func newWorld() *world {
	return &world{
		users: map[string]engine.Profile{}, rows: map[notify.Chunk][]notify.Row{},
		cancels: map[string]engine.Cancel{}, camps: map[string]engine.Campaign{}, callers: map[string]engine.Caller{},
		later: mem.New(),
	}
}

func (w *world) Single(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	return w.take(ctx, "single", m, body)
}
func (w *world) Batch(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	return w.take(ctx, "batch", m, body)
}
func (w *world) Fanout(ctx context.Context, m request.Meta, body []byte) (request.Answer, error) {
	return w.take(ctx, "fanout", m, body)
}

func (w *world) take(ctx context.Context, route string, m request.Meta, body []byte) (request.Answer, error) {
	w.mu.Lock()
	w.requests = append(w.requests, m)
	fn := w.intake
	w.mu.Unlock()
	if fn != nil {
		return fn(ctx, route, m, body)
	}
	return request.Answer{Status: 201, Body: []byte(`{"notification_id":"ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS","status":"ACCEPTED"}`)}, nil
}

func (w *world) taken() []request.Meta {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.requests)
}

type usersOf struct{ *world }

func (u usersOf) Get(_ context.Context, user string) (engine.Profile, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p, ok := u.users[user]; ok {
		return p, nil
	}
	return engine.Profile{}, notify.NotFound("user")
}

func (u usersOf) Put(_ context.Context, p engine.Profile) (engine.Profile, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	stored, ok := u.users[p.User]
	switch {
	case p.Suppressed != nil:
		return p, notify.Invalid("suppressed", "suppressed", "is not the user's to set")
	case p.Version != 0 && stored.Version != p.Version:
		return p, &notify.Error{Kind: notify.KindConflict, Code: "version_changed", Msg: "the user was changed meanwhile"}
	case ok:
		p.Suppressed = stored.Suppressed
	}
	u.version++
	p.Version = u.version
	u.users[p.User] = p
	return p, nil
}

type historyOf struct{ *world }

func (h historyOf) Find(_ context.Context, id notify.ID) (engine.Found, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.findErr != nil {
		return engine.Found{}, h.findErr
	}
	for _, f := range h.found {
		if f.ID == id {
			return f, nil
		}
	}
	return engine.Found{}, notify.NotFound("notification")
}

func (h historyOf) Each(_ context.Context, base notify.Base, fn func(*engine.Found) error) error {
	h.mu.Lock()
	found := slices.Clone(h.found)
	h.mu.Unlock()
	for i := range found {
		if found[i].ID.Base == base {
			if err := fn(&found[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h historyOf) User(_ context.Context, q engine.HistoryQuery) ([]engine.Found, engine.HistoryCursor, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	skip := len(q.Before) // as many bytes as were listed before
	var out []engine.Found
	for i := len(h.found) - 1; i >= 0; i-- {
		f := h.found[i]
		if string(f.User) != q.User || (q.Caller != "" && f.Envelope.Caller != q.Caller) {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		if len(out) == q.Limit {
			return out, bytes.Repeat([]byte{1}, len(q.Before)+q.Limit), nil
		}
		out = append(out, f)
	}
	return out, nil, nil
}

// listOf lists what historyOf holds, the latest first, and reads listMost at a time.
type listOf struct{ *world }

func (l listOf) List(_ context.Context, q engine.ListQuery, fn func(*engine.Found) (bool, error)) (engine.HistoryCursor, error) {
	l.mu.Lock()
	found, most := slices.Clone(l.found), l.listMost
	l.mu.Unlock()
	slices.Reverse(found)
	for i := len(q.After); i < len(found); i++ {
		if most > 0 && i-len(q.After) == most {
			return bytes.Repeat([]byte{1}, i), nil
		}
		if !q.Want(&found[i].Envelope) {
			continue
		}
		if more, err := fn(&found[i]); err != nil || !more {
			return bytes.Repeat([]byte{1}, i), err
		}
	}
	return nil, nil
}

type statusOfWorld struct {
	engine.Status
	*world
}

func (s statusOfWorld) Chunk(_ context.Context, c notify.Chunk) ([]notify.Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[c], nil
}

type deadOf struct {
	engine.DeadLetters
	*world
}

func (d deadOf) Get(_ context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.dead {
		if x.ID == id && x.Epoch == epoch {
			return x, nil
		}
	}
	return engine.DeadLetter{}, notify.NotFound("dead_letter")
}

func (d deadOf) Feed(_ context.Context, caller string, after uint64, max int) (out []engine.DeadLetter, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deadNews != nil {
		select {
		case d.deadNews <- struct{}{}:
		default:
		}
	}
	for _, x := range d.dead {
		if x.Caller == caller && x.Seq > after && len(out) < max {
			out = append(out, x)
		}
	}
	return out, nil
}

func (d deadOf) List(_ context.Context, f engine.DeadLetterFilter, cursor []byte, max int) (out []engine.DeadLetter, next []byte, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	skip := len(cursor)
	for _, x := range d.dead {
		if !f.Matches(&x) {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		if len(out) == max {
			return out, bytes.Repeat([]byte{1}, len(cursor)+max), nil
		}
		out = append(out, x)
	}
	return out, nil, nil
}

type cancelsOf struct{ *world }

func (c cancelsOf) Put(_ context.Context, x engine.Cancel) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancels[x.Scope] = x
	return uint64(len(c.cancels)), nil
}

func (c cancelsOf) Get(_ context.Context, scope string) (engine.Cancel, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.cancels[scope]
	return x, ok, nil
}

type campaignsOf struct{ *world }

func (c campaignsOf) List(_ context.Context, caller string, after engine.Campaign, n int) ([]engine.Campaign, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.SortedFunc(maps.Values(c.camps), func(a, b engine.Campaign) int {
		return cmp.Or(cmp.Compare(b.Created, a.Created), strings.Compare(b.ID, a.ID))
	})
	all = slices.DeleteFunc(all, func(x engine.Campaign) bool {
		return caller != "" && x.Caller != caller || after.ID != "" && (x.Created > after.Created || x.Created == after.Created && x.ID >= after.ID)
	})
	return all[:min(len(all), n)], nil
}

func (c campaignsOf) Get(_ context.Context, id string) (engine.Campaign, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.camps[id]
	return x, ok, nil
}

type callersOf struct {
	engine.Callers
	*world
}

func (c callersOf) Get(_ context.Context, id string) (engine.Caller, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookups++
	x, ok := c.callers[id]
	return x, ok, nil
}

// signingKey is one key for all tests of the package: making one is slow.
var signingKey = sync.OnceValue(func() []byte {
	key, err := NewSigningKey()
	if err != nil {
		panic(err)
	}
	return key
})

func keyFile(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newVerifier(t testing.TB, cfg AuthConfig) *Verifier {
	t.Helper()
	cfg.Issuer, cfg.Audience = issuer, audience
	v, err := NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func token(t testing.TB, caller string, scopes ...string) string {
	t.Helper()
	return tokenAt(t, time.Now(), caller, scopes...)
}

func tokenAt(t testing.TB, now time.Time, caller string, scopes ...string) string {
	t.Helper()
	signer, err := NewSigner(signingKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := signer.Sign(TokenSpec{Caller: caller, Scopes: scopes, Issuer: issuer, Audience: audience, TTL: time.Hour, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) deps(t testing.TB) Deps {
	return Deps{
		Auth:   newVerifier(t, AuthConfig{KeyFile: keyFile(t, signingKey())}),
		Intake: w, Users: usersOf{w}, History: historyOf{w}, List: listOf{w}, Status: statusOfWorld{world: w},
		DeadLetters: deadOf{world: w}, Cancels: cancelsOf{w}, Campaigns: campaignsOf{w}, CampaignHolds: fakeHolds{}, Tail: noTail{},
		Schedules: w.schedules(), Triggers: w.triggers(t), Lanes: fakeLanes{}, Suppressions: fakeSuppressions{}, Circuits: fakeCircuits{"caller:shop": {Name: "caller:shop"}},
		Grants: fakeGrants{}, Jobs: fakeJobs{}, Audit: &deadletter.AuditLog{Store: w.later.Audit()},
		CheckURL: func(_ context.Context, url string) (api.URLVerdict, error) {
			return api.URLVerdict{URL: url, Allowed: true}, nil
		},
		TestProvider: func(ctx context.Context, name string, _ api.ProviderTestRequest) (api.ProviderTest, error) {
			return api.ProviderTest{Provider: name, OK: true, Items: []api.ProviderTrial{}}, notify.BeforeAct(ctx)
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

// listenOn listens until the test ends.
func listenOn(t testing.TB, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// start makes a server over w without serving it.
func (w *world) start(t testing.TB, cfg Config, change func(*Deps)) *Server {
	t.Helper()
	deps := w.deps(t)
	if change != nil {
		change(&deps)
	}
	if cfg.Listener == nil {
		cfg.Listener = listenOn(t, "127.0.0.1:0")
	}
	cfg.AdminListener = listenOn(t, "127.0.0.1:0")
	s, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// reply is an answer a test looks at.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) problem(t testing.TB) api.Problem {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != api.TypeProblem {
		t.Fatalf("Content-Type %q of status %d: %s", got, r.status, r.body)
	}
	var p api.Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	if p.Status != r.status || p.Code == "" || p.Title == "" || p.Type != "urn:notifyd:"+p.Code || p.RequestID == "" {
		t.Fatalf("incomplete problem: %s", r.body)
	}
	return p
}

func (r reply) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
}

type option func(*http.Request)

func header(name, value string) option {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func ask(s *Server, method, path, token, body string, opts ...option) reply {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, path, rd)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for _, o := range opts {
		o(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return reply{w.Code, w.Result().Header, w.Body.String()}
}

// Bases of tests: distinct and readable.
func baseOf(n byte) notify.Base {
	b := notify.NewBase(time.UnixMilli(1_800_000_000_000))
	for i := 6; i < 16; i++ {
		b[i] = n
	}
	return b
}

// single stores one single notification of caller in w.
func (w *world) single(n byte, caller, user string, rows ...notify.Row) notify.ID {
	id := notify.ID{Base: baseOf(n)}
	f := engine.Found{ID: id, User: []byte(user), Topic: "notifications-sms", Envelope: notify.Envelope{
		Chunk: notify.Chunk{Base: id.Base}, Channel: notify.SMS, Category: notify.OTP,
		Accepted: 1_800_000_000_000, Expires: 1_800_000_300_000, Caller: caller, Count: 1,
	}}
	w.add(f, rows)
	return id
}

func (w *world) add(f engine.Found, rows []notify.Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, f)
	for _, r := range rows {
		r.Key.Chunk = f.Envelope.Chunk
		if r.Count == 0 {
			r.Count = 1
		}
		w.rows[f.Envelope.Chunk] = append(w.rows[f.Envelope.Chunk], r)
	}
}

// fanout stores a fan-out of n receivers in chunks of size.
func (w *world) fanout(base notify.Base, caller, campaign string, n, size int, rows func(chunk int) []notify.Row) {
	for i := range n {
		f := engine.Found{
			ID: notify.ID{Base: base, Index: uint32(i), FanOut: true}, Pos: uint32(i % size), User: []byte("u" + string(rune('a'+i%26))),
			Envelope: notify.Envelope{
				Chunk: notify.Chunk{Base: base, Block: uint32(i / size)}, FanOut: true, Channel: notify.Push, Category: notify.Marketing,
				Accepted: 1_800_000_000_000, Caller: caller, Campaign: campaign, Count: uint32(size), Total: uint32(n + 2), // two more than are found
			},
		}
		var rs []notify.Row
		if i%size == 0 && rows != nil {
			rs = rows(i / size)
			for j := range rs {
				if rs[j].Count == 0 {
					rs[j].Count = uint32(size)
				}
			}
		}
		w.add(f, rs)
	}
}

// fakeJobs has one job.
type fakeJobs struct{}

func (fakeJobs) Plan(_ context.Context, s api.JobSpec) (api.Plan, error) {
	return api.Plan{Spec: s}, nil
}

func (fakeJobs) Apply(_ context.Context, r api.JobRequest, by deadletter.By) (api.Job, bool, error) {
	if r.Digest == "stale" {
		return api.Job{}, false, &notify.Error{Kind: notify.KindConflict, Code: "stale_plan"}
	}
	return api.Job{ID: "job_1", By: by.Caller, Context: by.Context, Reason: by.Reason}, true, nil
}

func (fakeJobs) List(context.Context, int) ([]api.Job, error) { return []api.Job{{ID: "job_1"}}, nil }

func (fakeJobs) Get(_ context.Context, id string) (api.Job, error) {
	if id != "job_1" {
		return api.Job{}, notify.NotFound("job")
	}
	return api.Job{ID: id}, nil
}

func (fakeJobs) Report(context.Context, string, uint64, int) ([]json.RawMessage, uint64, error) {
	return nil, 0, nil
}

func (fakeJobs) ChangeState(_ context.Context, id string, c deadletter.Change, by deadletter.By) (api.Job, error) {
	switch {
	case id != "job_1":
		return api.Job{}, notify.NotFound("job")
	case c == deadletter.Approve:
		return api.Job{}, &notify.Error{Kind: notify.KindForbidden, Code: "own_job"}
	}
	return api.Job{ID: id, State: string(c), By: by.Caller}, nil
}

func (fakeJobs) Top(context.Context, api.LetterFilter, int) (api.LetterTop, error) {
	return api.LetterTop{}, nil
}

// fakeGrants holds grants by their tokens.
type fakeGrants map[string]api.LoadGrant

func (f fakeGrants) List(context.Context) (api.LoadGrants, error) {
	return api.LoadGrants{Items: []api.LoadGrant{}}, nil
}

func (f fakeGrants) Create(ctx context.Context, by string, in api.LoadGrantRequest) (api.LoadGrant, error) {
	if in.Rate < 0 {
		return api.LoadGrant{}, notify.Invalid("bad_load_grant", "rate", "is 1 or more")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return api.LoadGrant{}, err
	}
	g := api.LoadGrant{ID: "lg_" + strconv.Itoa(len(f)), By: by, State: api.GrantActive}
	f[g.ID] = g
	return g, nil
}

func (f fakeGrants) Change(ctx context.Context, id, by, to string) (api.LoadGrant, error) {
	if id == "lg_none" {
		return api.LoadGrant{}, notify.NotFound("load_grant")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return api.LoadGrant{}, err
	}
	g := f[id]
	g.State = to
	f[id] = g
	return g, nil
}

func (f fakeGrants) Check(token, host string) (api.LoadGrant, error) {
	g, ok := f[token]
	switch {
	case !ok && strings.HasPrefix(token, "late"):
		return g, &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_unknown", Msg: "not yet"}
	case !ok:
		return g, &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_revoked", Msg: "revoked"}
	case !g.Covers(host):
		return g, &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_host", Msg: "another host"}
	}
	return g, nil
}

func (f fakeGrants) CheckStored(_ context.Context, token, host string) (api.LoadGrant, error) {
	return f.Check(strings.TrimPrefix(token, "late"), host)
}
