package intake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("down")

// fakeLog keeps what was appended, per partition in order.
type fakeLog struct {
	mu      sync.Mutex
	recs    []log.Record
	appends int
	fail    error              // of every append
	before  func([]log.Record) // called in Append before anything else
	after   func() error       // called once the records are kept
}

func (l *fakeLog) Append(_ context.Context, recs []log.Record) error {
	if l.before != nil {
		l.before(recs)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends++
	if l.fail != nil {
		return l.fail
	}
	for _, r := range recs {
		r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		l.recs = append(l.recs, r)
	}
	if l.after != nil {
		return l.after()
	}
	return nil
}

func (l *fakeLog) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *fakeLog) records() []log.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.recs)
}

// envelopes decodes what is in the log.
func (l *fakeLog) envelopes(t testing.TB) []notify.Envelope {
	t.Helper()
	var out []notify.Envelope
	for _, r := range l.records() {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(r.Value, &e); err != nil {
			t.Fatalf("record in the log: %v", err)
		}
		if r.Partition != int32(e.Chunk.Partition) || r.Topic != e.Lane().Topic() {
			t.Fatalf("record of %s/%d holds an envelope of %s/%d", r.Topic, r.Partition, e.Lane().Topic(), e.Chunk.Partition)
		}
		out = append(out, e)
	}
	return out
}

// fakeIdem follows the contract in a map.
type fakeIdem struct {
	mu   sync.Mutex
	rows map[engine.IdemKey]engine.Reservation
	fail map[string]error // by method
}

func (f *fakeIdem) err(method string) error {
	if err := f.fail[method]; err != nil {
		return notify.Unavailable("idem", 0, err)
	}
	return nil
}

func (f *fakeIdem) Reserve(_ context.Context, r engine.Reservation, now int64) (engine.Reservation, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err("Reserve"); err != nil {
		return engine.Reservation{}, false, err
	}
	if old, ok := f.rows[r.Key]; ok && old.Expires > now {
		return old, false, nil
	}
	f.rows[r.Key] = r
	return r, true, nil
}

func (f *fakeIdem) TakeOver(_ context.Context, old engine.Reservation, owner string, until int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err("TakeOver"); err != nil {
		return false, err
	}
	r, ok := f.rows[old.Key]
	if !ok || r.Done || r.Owner != old.Owner || r.LeaseUntil != old.LeaseUntil {
		return false, nil
	}
	r.Owner, r.LeaseUntil = owner, until
	f.rows[old.Key] = r
	return true, nil
}

func (f *fakeIdem) Freeze(_ context.Context, r engine.Reservation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err("Freeze"); err != nil {
		return err
	}
	old, ok := f.rows[r.Key]
	if !ok || old.Done || old.Owner != r.Owner {
		return &notify.Error{Kind: notify.KindConflict}
	}
	old.Fire, old.Partitions, old.BlockSize, old.Version = r.Fire, r.Partitions, r.BlockSize, r.Version
	f.rows[r.Key] = old
	return nil
}

func (f *fakeIdem) Finish(_ context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err("Finish"); err != nil {
		return err
	}
	r := f.rows[key]
	r.Done, r.Status, r.Body, r.Expires = true, status, bytes.Clone(body), expires
	f.rows[key] = r
	return nil
}

func (f *fakeIdem) Release(_ context.Context, held engine.Reservation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.err("Release"); err != nil {
		return err
	}
	if r, ok := f.rows[held.Key]; ok && (r.Done || r.Owner != held.Owner || r.LeaseUntil != held.LeaseUntil) {
		return &notify.Error{Kind: notify.KindConflict}
	}
	delete(f.rows, held.Key)
	return nil
}

func (f *fakeIdem) Purge(context.Context, int64) (int, error) { return 0, nil }

func (f *fakeIdem) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows)
}

// edit changes the only row.
func (f *fakeIdem) edit(t testing.TB, fn func(*engine.Reservation)) engine.Reservation {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rows) != 1 {
		t.Fatalf("%d reservations, want 1", len(f.rows))
	}
	for k, r := range f.rows {
		fn(&r)
		f.rows[k] = r
		return r
	}
	panic("unreachable")
}

type fakeCampaigns struct {
	mu    sync.Mutex
	rows  map[string]engine.Campaign
	parts map[string]map[uint32]bool
	fail  error
}

func (f *fakeCampaigns) AddPart(_ context.Context, id, caller string, part uint32, base notify.Base, accepted, rejected, at int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return notify.Unavailable("campaigns", 0, f.fail)
	}
	c, ok := f.rows[id]
	if !ok {
		c = engine.Campaign{ID: id, Caller: caller, Created: at}
		f.parts[id] = map[uint32]bool{}
	}
	if c.Caller != caller {
		return notify.NotFound("campaign")
	}
	if !f.parts[id][part] {
		f.parts[id][part] = true
		c.Parts, c.Accepted, c.Rejected, c.Bases = c.Parts+1, c.Accepted+accepted, c.Rejected+rejected, append(c.Bases, base)
	}
	f.rows[id] = c
	return nil
}

func (f *fakeCampaigns) Get(_ context.Context, id string) (engine.Campaign, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.rows[id]
	return c, ok, nil
}

type fakeCancels map[string]engine.Cancel

func (f fakeCancels) Put(_ context.Context, c engine.Cancel) (uint64, error) {
	f[c.Scope] = c
	return uint64(len(f)), nil
}

func (f fakeCancels) Get(_ context.Context, scope string) (engine.Cancel, bool, error) {
	c, ok := f[scope]
	return c, ok, nil
}

func (f fakeCancels) Changes(context.Context, uint64, int) ([]engine.Cancel, error) { return nil, nil }

type fakeSpill struct {
	mu    sync.Mutex
	recs  []engine.Spilled
	seq   uint64
	stats error
}

func (f *fakeSpill) Push(_ context.Context, recs []engine.Spilled, limit int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var size int64
	for _, r := range slices.Concat(f.recs, recs) {
		size += int64(len(r.Value))
	}
	if size > limit {
		return notify.Unavailable("spill", 0, nil)
	}
	for _, r := range recs {
		f.seq++
		r.Seq, r.Value, r.Key = f.seq, bytes.Clone(r.Value), bytes.Clone(r.Key)
		f.recs = append(f.recs, r)
	}
	return nil
}

func (f *fakeSpill) Peek(_ context.Context, n int) ([]engine.Spilled, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.recs[:min(n, len(f.recs))]), nil
}

func (f *fakeSpill) Drop(_ context.Context, seq uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.recs) > 0 && f.recs[0].Seq <= seq {
		f.recs = f.recs[1:]
	}
	return nil
}

func (f *fakeSpill) Stats(context.Context) (n, size, oldest int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.recs)), 0, 0, f.stats
}

func (f *fakeSpill) len() int {
	n, _, _, _ := f.Stats(context.Background())
	return int(n)
}

type fakeGate struct {
	err   error
	asked func() // nil: nothing happens meanwhile
}

func (g *fakeGate) Err() error {
	if g.asked != nil {
		g.asked()
	}
	return g.err
}

type gateFunc func() error

func (f gateFunc) Err() error { return f() }

type fakeLater struct {
	mu   sync.Mutex
	ss   map[notify.Base]engine.Schedule
	ts   []engine.Timer
	fail error
}

// Put also holds intake to what engine.Schedule says of its timers.
func (f *fakeLater) Put(_ context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return notify.Unavailable("timers", 0, f.fail)
	}
	if f.ss == nil {
		f.ss = map[notify.Base]engine.Schedule{}
	}
	weight := map[notify.Base]uint32{}
	for _, s := range ss {
		if old, ok := f.ss[s.Base]; ok && old != s {
			return fmt.Errorf("schedule %+v, before %+v", s, old)
		}
		f.ss[s.Base] = s
	}
	for _, t := range ts {
		s, ok := f.ss[t.Head]
		var env notify.Envelope
		if err := notify.DecodeEnvelope(t.Payload, &env); err != nil {
			return err
		}
		chunk := env.Chunk
		if !s.FanOut && chunk.Partition != s.Partition || s.FanOut && (chunk.Partition >= s.Partitions || chunk.Block > (s.Receivers-1)/s.BlockSize) {
			return fmt.Errorf("timer of chunk %+v outside its schedule %+v", chunk, s)
		}
		if !ok || s.FireAt != t.FireAt || env.NotBefore != s.FireAt || !bytes.Equal(t.ID, chunk.TimerID(0)) || t.Weight != env.Count {
			return fmt.Errorf("timer %+v does not follow its schedule %+v", t, s)
		}
		weight[t.Head] += t.Weight
	}
	for base, n := range weight {
		if s := f.ss[base]; n != s.Accepted {
			return fmt.Errorf("timers of %d receivers, the schedule has %d", n, s.Accepted)
		}
	}
	for _, t := range ts {
		t.Payload = bytes.Clone(t.Payload)
		if !slices.ContainsFunc(f.ts, func(o engine.Timer) bool { return o.FireAt == t.FireAt && bytes.Equal(o.ID, t.ID) }) {
			f.ts = append(f.ts, t)
		}
	}
	return nil
}

// rig is a service over doubles.
type rig struct {
	*Service
	log       *fakeLog
	idem      *fakeIdem
	campaigns *fakeCampaigns
	cancels   fakeCancels
	spill     *fakeSpill
	gate      *fakeGate
	laterGate *fakeGate
	clock     *fakeGate
	later     *fakeLater
	parts     int
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{
		log: &fakeLog{}, idem: &fakeIdem{rows: map[engine.IdemKey]engine.Reservation{}, fail: map[string]error{}},
		campaigns: &fakeCampaigns{rows: map[string]engine.Campaign{}, parts: map[string]map[uint32]bool{}},
		cancels:   fakeCancels{}, spill: &fakeSpill{}, gate: &fakeGate{}, laterGate: &fakeGate{}, clock: &fakeGate{}, later: &fakeLater{}, parts: 6,
	}
	r.Service = r.service(t, cfg)
	return r
}

// service makes another service over the same stores: the process after a
// restart.
func (r *rig) service(t testing.TB, cfg Config) *Service {
	t.Helper()
	s, err := New(Stores{
		Log: r.log, Partitions: func(string, notify.Base) int { return r.parts }, Idem: r.idem, Campaigns: r.campaigns,
		Cancels: r.cancels, Spill: r.spill, Gate: r.gate, Later: r.later, LaterGate: r.laterGate, Clock: r.clock,
	}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stored reports whether anything is stored anywhere.
func (r *rig) stored() bool {
	return len(r.log.records()) > 0 || r.idem.len() > 0 || r.spill.len() > 0 || len(r.later.ts) > 0 || len(r.campaigns.rows) > 0
}

// logFunc is a log that only looks at the context.
type logFunc func(context.Context) error

func (f logFunc) Append(ctx context.Context, _ []log.Record) error { return f(ctx) }
