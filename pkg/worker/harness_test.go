package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a worker with test doubles: a log and timers that only record, and a provider that
// answers as the test says.
type rig struct {
	t      *testing.T
	cfg    Config
	status engine.Status
	log    *fakeLog
	parked *fakeParker
	prov   *fakeProvider
	prefs  *fakePrefs
	cancel *fakeCancels
	w      *Worker
	part   log.PartitionHandler
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	marked map[int64]bool
	offset int64
}

func newRig(t *testing.T, lane notify.Lane, change ...func(*Config)) *rig {
	t.Helper()
	store := memory.New()
	r := &rig{
		t: t, status: store.Status(), log: &fakeLog{}, parked: &fakeParker{}, prov: &fakeProvider{},
		prefs: &fakePrefs{}, cancel: &fakeCancels{}, marked: map[int64]bool{},
	}
	r.cfg = Config{
		Lane: lane, Routes: oneRoute("prov"), Log: r.log, Status: r.status, Prefs: r.prefs, Cancels: r.cancel,
		Parker: r.parked, Provider: r.prov,
	}
	for _, f := range change {
		f(&r.cfg)
	}
	r.start()
	t.Cleanup(r.close)
	return r
}

func oneRoute(name string) Routes {
	return Routes{Names: []string{name}, Of: func([]byte) int { return 0 }}
}

// start begins a new life of the process, with the same stores and a new worker.
func (r *rig) start() {
	r.ctx, r.stop = context.WithCancel(context.Background())
	committer := NewCommitter(CommitterConfig{Put: r.cfg.Status.Put})
	ctx := r.ctx
	r.done.Go(func() { _ = committer.Run(ctx) })
	health, err := NewHealth(limit.BreakerConfig{}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := r.cfg
	cfg.Committer, cfg.Health = committer, health
	r.w = New(cfg)
	r.part = r.w.Assigned(r.ctx, log.TopicPartition{Topic: r.cfg.Lane.Topic()})
}

// crash ends the life without a drain: nothing in memory survives.
func (r *rig) crash() {
	r.stop()
	r.part.(*partition).wg.Wait()
	r.done.Wait()
}

func (r *rig) close() {
	r.crash()
}

// envelope makes an envelope for users.
func (r *rig) envelope(cat notify.Category, users ...string) notify.Envelope {
	var w notify.ReceiverWriter
	for i, u := range users {
		rec := notify.Receiver{Index: uint32(i), User: []byte(u)}
		if _, ok := r.prefs.addresses[u]; !ok {
			rec.Address = []byte("addr-" + u)
		}
		w.Append(rec)
	}
	return notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}, FanOut: len(users) > 1, Channel: r.cfg.Lane.Channel, Category: cat,
		Accepted: time.Now().UnixMilli(), Caller: "caller", Content: notify.Content{Body: "hello"},
		Count: uint32(len(users)), Receivers: w.Bytes(),
	}
}

// feed hands envelopes to the partition in log order and returns their offsets.
func (r *rig) feed(envs ...notify.Envelope) []int64 {
	r.t.Helper()
	var msgs []*log.Msg
	var at []int64
	for i := range envs {
		topic := r.cfg.Lane.Topic()
		if r.cfg.Role == Retries {
			topic = r.cfg.Lane.DLQTopic()
		}
		r.mu.Lock()
		off := r.offset
		r.offset++
		r.mu.Unlock()
		at = append(at, off)
		rec := log.Record{Topic: topic, Offset: off, Value: notify.AppendEnvelope(nil, &envs[i])}
		msgs = append(msgs, log.NewMsg(rec, func() {
			r.mu.Lock()
			r.marked[off] = true
			r.mu.Unlock()
		}))
	}
	if err := r.part.Handle(r.ctx, msgs); err != nil && r.ctx.Err() == nil {
		r.t.Fatal(err)
	}
	return at
}

func (r *rig) isMarked(off int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.marked[off]
}

// state returns the outcome in the store of the receiver with this index.
func (r *rig) state(e *notify.Envelope, index uint32) notify.Outcome {
	r.t.Helper()
	rows, err := r.status.Chunk(context.Background(), e.Chunk)
	if err != nil {
		r.t.Fatal(err)
	}
	return notify.Fold(rows, index, index)
}

type fakeLog struct {
	mu   sync.Mutex
	recs []log.Record
	err  error
}

func (l *fakeLog) Append(_ context.Context, recs []log.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.recs = append(l.recs, recs...)
	return nil
}

func (l *fakeLog) take() []log.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	recs := l.recs
	l.recs = nil
	return recs
}

// failures decodes the records of notifications-failed among recs.
func failures(t *testing.T, recs []log.Record) (fs []notify.Failure) {
	t.Helper()
	for _, rec := range recs {
		if rec.Topic != notify.TopicFailed {
			continue
		}
		var f notify.Failure
		if err := json.Unmarshal(rec.Value, &f); err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	return fs
}

type fakeParker struct {
	mu sync.Mutex
	ts []engine.Timer
}

func (p *fakeParker) Park(_ context.Context, ts []engine.Timer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ts = append(p.ts, ts...)
	return nil
}

func (p *fakeParker) take() []engine.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	ts := p.ts
	p.ts = nil
	return ts
}

func decode(t *testing.T, value []byte) notify.Envelope {
	t.Helper()
	var e notify.Envelope
	if err := notify.DecodeEnvelope(value, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// fakeProvider answers with its function, after its latency, and records its calls.
type fakeProvider struct {
	mu      sync.Mutex
	calls   [][]string // users per call
	users   []string
	latency time.Duration
	answer  func(item *notify.Item) notify.Result
	before  func(call *notify.Call)
}

func (p *fakeProvider) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	p.mu.Lock()
	latency, answer, before := p.latency, p.answer, p.before
	p.mu.Unlock()
	if before != nil {
		before(call)
	}
	var users []string
	for i := range call.Items {
		users = append(users, string(call.Items[i].User))
	}
	p.mu.Lock()
	p.calls = append(p.calls, users)
	p.users = append(p.users, users...)
	p.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			for i := range call.Items {
				report.One(i, notify.Result{Class: notify.ClassAmbiguous, Code: "timeout", Provider: "prov"})
			}
			return
		}
	}
	for i := range call.Items {
		res := notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}
		if answer != nil {
			res = answer(&call.Items[i])
		}
		report.One(i, res)
	}
}

func (p *fakeProvider) set(f func(*notify.Item) notify.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *fakeProvider) count() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := map[string]int{}
	for _, u := range p.users {
		m[u]++
	}
	return m
}

func (p *fakeProvider) order() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.users...)
}

func answer(class notify.Class, code string) func(*notify.Item) notify.Result {
	return func(*notify.Item) notify.Result {
		return notify.Result{Class: class, Code: code, Provider: "prov"}
	}
}

type fakePrefs struct {
	mu           sync.Mutex
	verdict      func(user string) users.Verdict
	addresses    map[string][]string
	suppressed   map[string]bool
	unsubscribed map[string]bool // users
	stale        bool            // the preferences are too old for bulk lanes
	absent       bool            // the preferences were never read
	strange      map[string]bool // users whose profiles are not in memory
	fetched      int             // users that Fetch was asked for
	away         int             // how many calls of Fetch fail
	held         [][2]int        // see holds
}

func (p *fakePrefs) Loaded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.absent
}

func (p *fakePrefs) Decide(user []byte, _ notify.Channel, cat notify.Category, _ time.Time) users.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verdict == nil || cat.Critical() {
		return users.Verdict{}
	}
	return p.verdict(string(user))
}

func (p *fakePrefs) DecideMany(answers []users.Answer, list [][]byte, ch notify.Channel, cat notify.Category, now time.Time) (known bool) {
	known = true
	for i, u := range list {
		v := p.Decide(u, ch, cat, now)
		p.mu.Lock()
		answers[i] = users.NewAnswer(v, p.addresses[string(u)]...)
		if _, strange := p.strange[string(u)]; strange {
			answers[i], known = users.NewAnswer(users.Verdict{Action: users.Unknown}), false
		}
		p.mu.Unlock()
	}
	return known
}

func (p *fakePrefs) Hold(_ notify.Channel, partitions int, n int32) *users.Holding {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, [2]int{partitions, int(n)})
	return nil
}

// holds returns the partitions whose profiles were requested, each with the number of
// partitions.
func (p *fakePrefs) holds() [][2]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.held)
}

// Fetch makes users known, unless it fails.
func (p *fakePrefs) Fetch(_ context.Context, _ notify.Channel, list [][]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetched += len(list)
	if p.away > 0 {
		p.away--
		return notify.Unavailable("preferences", time.Second, nil)
	}
	for _, u := range list {
		delete(p.strange, string(u))
	}
	return nil
}

func (p *fakePrefs) Addresses(dst []notify.Target, user []byte, _ notify.Channel) []notify.Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	as := p.addresses[string(user)]
	for i, a := range as {
		dst = append(dst, notify.Target{Addr: uint8(i), Of: uint8(len(as)), Address: []byte(a)})
	}
	return dst
}

func (p *fakePrefs) Suppressed(_ notify.Channel, address []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suppressed[string(address)]
}

func (p *fakePrefs) Suppresses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.suppressed) > 0
}

func (p *fakePrefs) Suppress(_ context.Context, _ string, _ notify.Channel, address, _ string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.suppressed == nil {
		p.suppressed = map[string]bool{}
	}
	p.suppressed[address] = true
	return nil
}

func (p *fakePrefs) Unsubscribe(_ context.Context, user string, _ notify.Channel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unsubscribed == nil {
		p.unsubscribed = map[string]bool{}
	}
	p.unsubscribed[user] = true
	return nil
}

func (p *fakePrefs) Fresh(time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.stale
}

func (p *fakePrefs) age(stale bool, verdict func(user string) users.Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale, p.verdict = stale, verdict
}

type fakeCancels struct {
	mu  sync.Mutex
	ids map[notify.ID]bool
	all bool
	old bool // the cancellations are too old for bulk lanes
}

func (c *fakeCancels) age(old, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.old, c.all = old, all
}

func (c *fakeCancels) Fresh(time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.old
}

func (c *fakeCancels) Cancelled(e *notify.Envelope, index uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all || c.ids[e.ID(index)]
}

func (c *fakeCancels) MayBeCancelled(e *notify.Envelope) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.ids {
		if id.Base == e.Chunk.Base {
			return true
		}
	}
	return c.all
}

func userIDs(n int) []string {
	us := make([]string, n)
	for i := range us {
		us[i] = fmt.Sprintf("u%05d", i)
	}
	return us
}
