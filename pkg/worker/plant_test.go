package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

// plant is a complete lane in one bubble: the log with the lane's two topics, both workers, the
// timer engine, and stores that fail by plan. A crash ends what is in memory; log and stores
// stay.
type plant struct {
	t    *testing.T
	cfg  Config
	plan *faulty.Plan

	store  *memory.Store
	log    *plantLog
	prefs  *fakePrefs
	cancel *fakeCancels
	prov   *ledger
	idle   time.Duration // how long a life reads nothing at first

	life *life
}

type life struct {
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup // committer, timers
	pumps  sync.WaitGroup
	halt   context.CancelFunc // ends the pumps
	parts  map[string]*partition
	gone   context.CancelFunc // ends the partitions, as the group does after their drain
	health *Health
	timers *timer.Engine
}

func newPlant(t *testing.T, lane notify.Lane, change ...func(*Config)) *plant {
	p := &plant{
		t: t, plan: faulty.NewPlan(7), store: memory.New(), prefs: &fakePrefs{addresses: map[string][]string{}}, cancel: &fakeCancels{},
		prov: &ledger{taken: map[target]int{}, first: map[string][]notify.ID{}, called: map[notify.ID]bool{}},
	}
	p.log = &plantLog{plan: p.plan, topics: map[string]*plantTopic{}}
	p.cfg = Config{
		Lane: lane, Routes: oneRoute("prov"), Log: p.log, Status: faulty.NewStatus(p.store.Status(), p.plan),
		Prefs: p.prefs, Cancels: p.cancel, Provider: p.prov, ChunkIndexes: p.seen,
		Holds: faultyHolds{p.store.Holds(), p.plan},
	}
	for _, f := range change {
		f(&p.cfg)
	}
	p.start()
	t.Cleanup(p.crash)
	return p
}

func (p *plant) start() {
	l := &life{parts: map[string]*partition{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	pumping, halt := context.WithCancel(l.ctx)
	l.halt = halt
	assigned, gone := context.WithCancel(l.ctx)
	l.gone = gone
	committer := NewCommitter(CommitterConfig{Put: p.cfg.Status.Put})
	l.wg.Go(func() { _ = committer.Run(l.ctx) })
	l.timers = timer.New(timer.Config{Store: faulty.NewTimers(p.store.Timers(), p.plan), Publish: timer.ToLog(p.log), Shards: 2})
	l.wg.Go(func() {
		if err := l.timers.Run(l.ctx); err != nil {
			p.t.Errorf("timers: %v", err)
		}
	})
	var err error
	if l.health, err = NewHealth(limit.BreakerConfig{}, nil); err != nil {
		p.t.Fatal(err)
	}
	for _, role := range []Role{First, Retries} {
		cfg := p.cfg
		cfg.Role, cfg.Committer, cfg.Health, cfg.Parker = role, committer, l.health, l.timers
		topic := cfg.Lane.Topic()
		if role == Retries {
			topic = cfg.Lane.DLQTopic()
		}
		part := New(cfg).Assigned(assigned, log.TopicPartition{Topic: topic}).(*partition)
		l.parts[topic] = part
		l.pumps.Go(func() {
			notify.Sleep(pumping, p.idle)
			p.log.pump(pumping, topic, part)
		})
	}
	p.life = l
}

// crash ends the life without a drain.
func (p *plant) crash() {
	p.life.stop()
	p.life.halt()
	p.life.gone()
	p.life.pumps.Wait()
	for _, part := range p.life.parts {
		part.wg.Wait()
	}
	p.life.wg.Wait()
}

// drain ends the life like a shutdown that has all the time it needs.
func (p *plant) drain() { p.drainFor(24 * time.Hour) }

// drainFor ends the life like a shutdown that drains for most.
func (p *plant) drainFor(most time.Duration) {
	p.life.halt()
	p.life.pumps.Wait()
	ctx, stop := context.WithTimeout(p.life.ctx, most)
	defer stop()
	for _, part := range p.life.parts {
		part.Drain(ctx)
	}
	p.life.gone()
	synctest.Wait() // the committer, which belongs to the process, goes on
	p.crash()
}

func (p *plant) seen(_ context.Context, row *notify.Row) (map[uint32]struct{}, error) {
	e := decode(p.t, p.log.at(row.Topic, row.Offset))
	m := map[uint32]struct{}{}
	rd := notify.ReadReceivers(e.Receivers)
	for r := (notify.Receiver{}); rd.Next(&r); {
		m[r.Index] = struct{}{}
	}
	return m, nil
}

func (p *plant) send(envs ...notify.Envelope) {
	for i := range envs {
		p.log.add(log.Record{Topic: p.cfg.Lane.Topic(), Value: notify.AppendEnvelope(nil, &envs[i])})
	}
}

func (p *plant) envelope(cat notify.Category, users ...string) notify.Envelope {
	return (&rig{cfg: p.cfg, prefs: p.prefs}).envelope(cat, users...)
}

func (p *plant) rows(e *notify.Envelope) []notify.Row {
	p.t.Helper()
	rows, err := p.store.Status().Chunk(context.Background(), e.Chunk)
	if err != nil {
		p.t.Fatal(err)
	}
	return rows
}

func (p *plant) state(e *notify.Envelope, index uint32) notify.Outcome {
	p.t.Helper()
	return notify.Fold(p.rows(e), index, index)
}

// told returns what notifications-outcomes says about each receiver, in order.
func (p *plant) told() map[string][]notify.EndedReceiver {
	m := map[string][]notify.EndedReceiver{}
	for _, rec := range p.log.all(notify.TopicOutcomes) {
		var e notify.Ended
		if err := json.Unmarshal(rec.Value, &e); err != nil || e.Version != notify.EndedVersion || len(e.Receivers) == 0 || len(e.Receivers) > notify.MaxEnded {
			p.t.Fatalf("%s: %v", rec.Value, err)
		}
		for _, r := range e.Receivers {
			m[r.ID] = append(m[r.ID], r)
		}
	}
	return m
}

func (p *plant) failed() map[string]notify.Failure {
	m := map[string]notify.Failure{}
	for _, f := range failures(p.t, p.log.all(notify.TopicFailed)) {
		m[f.ID] = f
	}
	return m
}

// plantLog is a log of one partition a topic, with a committed mark.
type plantLog struct {
	plan   *faulty.Plan
	mu     sync.Mutex
	topics map[string]*plantTopic
}

type plantTopic struct {
	recs  []log.Record
	done  []bool
	mark  int // all below is done
	added chan struct{}
}

func (l *plantLog) topic(name string) *plantTopic {
	t := l.topics[name]
	if t == nil {
		t = &plantTopic{added: make(chan struct{})}
		l.topics[name] = t
	}
	return t
}

func (l *plantLog) add(r log.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topic(r.Topic)
	r.Offset, r.Partition = int64(len(t.recs)), 0
	t.recs, t.done = append(t.recs, r), append(t.done, false)
	close(t.added)
	t.added = make(chan struct{})
}

// Append implements Log. It fails as the plan says; see appendTo.
func (l *plantLog) Append(ctx context.Context, recs []log.Record) error {
	return faulty.NewStatus(appendTo{log: l, recs: recs}, l.plan).Scan(ctx, 0, 0, nil)
}

// appendTo makes appends fail by plan. In the plan an append has the name "Status.Scan", a method
// that workers never call.
type appendTo struct {
	engine.Status
	log  *plantLog
	recs []log.Record
}

func (a appendTo) Scan(context.Context, int64, int64, func(*notify.Row) error) error {
	for _, r := range a.recs {
		a.log.add(r)
	}
	return nil
}

func (l *plantLog) all(topic string) []log.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.topic(topic).recs)
}

func (l *plantLog) at(topic string, offset int64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topic(topic).recs[offset].Value
}

// waiting returns how many records of a topic are not below its mark.
func (l *plantLog) waiting(topic string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.topic(topic).recs) - l.topic(topic).mark
}

// pump passes the records that are not below the mark to a partition, a few at a time.
func (l *plantLog) pump(ctx context.Context, topic string, part *partition) {
	l.mu.Lock()
	next, newFrom := l.topic(topic).mark, len(l.topic(topic).recs)
	l.mu.Unlock()
	for ctx.Err() == nil {
		l.mu.Lock()
		t := l.topic(topic)
		added := t.added
		var msgs []*log.Msg
		for ; next < len(t.recs) && len(msgs) < 20; next++ {
			off := next
			m := log.NewMsg(t.recs[off], func() { l.markDone(topic, off) })
			m.AfterAssign = off >= newFrom
			msgs = append(msgs, m)
		}
		l.mu.Unlock()
		if len(msgs) > 0 {
			if part.Handle(ctx, msgs) != nil {
				return
			}
			continue
		}
		select {
		case <-added:
		case <-ctx.Done():
		}
	}
}

func (l *plantLog) markDone(topic string, off int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topic(topic)
	t.done[off] = true
	for t.mark < len(t.done) && t.done[t.mark] {
		t.mark++
	}
}

// ledger is a provider that records each message it accepted, even if its answer was lost.
type ledger struct {
	mu      sync.Mutex
	latency time.Duration
	answer  func(item *notify.Item) (res notify.Result, took bool)
	taken   map[target]int
	calls   int
	called  map[notify.ID]bool
	first   map[string][]notify.ID // per user: ids in the order of their first call
	all     map[string][]notify.ID // per user: the ids of all calls
}

func (l *ledger) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	res := make([]notify.Result, len(call.Items))
	l.mu.Lock()
	latency := l.latency
	for i := range call.Items {
		item := &call.Items[i]
		took := true
		res[i] = notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}
		if l.answer != nil {
			res[i], took = l.answer(item)
		}
		l.calls++
		if took {
			l.taken[target{item.ID(), item.Addr}]++
		}
		if l.all == nil {
			l.all = map[string][]notify.ID{}
		}
		l.all[string(item.User)] = append(l.all[string(item.User)], item.ID())
		if !l.called[item.ID()] {
			l.called[item.ID()] = true
			l.first[string(item.User)] = append(l.first[string(item.User)], item.ID())
		}
	}
	l.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			for i := range res {
				res[i] = notify.Result{Class: notify.ClassAmbiguous, Code: "timeout", Provider: "prov"}
			}
		}
	}
	for i := range res {
		report.One(i, res[i])
	}
}

func (l *ledger) set(latency time.Duration, f func(item *notify.Item) (notify.Result, bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency, l.answer = latency, f
}

// takes sets the latency of the calls that begin from now on.
func (l *ledger) takes(latency time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency = latency
}

// count returns the number of calls.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// took returns at how many addresses the provider accepted a notification, and how often it accepted
// the notification again. A receiver that is sent again is sent again at all of its addresses.
func (l *ledger) took(id notify.ID) (addresses, again int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range 4 {
		if n := l.taken[target{id, uint8(a)}]; n > 0 {
			addresses++
			again = max(again, n-1)
		}
	}
	return addresses, again
}

// target is an address of a notification.
type target struct {
	id   notify.ID
	addr uint8
}

func pass(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

func name(i int) string { return fmt.Sprintf("u%05d", i) }

// slowGet reads first and answers later.
type slowGet struct {
	engine.Status
	after time.Duration
}

func (s *slowGet) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	rows, err := s.Status.Resume(ctx, t, keys)
	time.Sleep(s.after) // of the bubble
	return rows, err
}

// faultyHolds are Holds whose calls fail by plan.
type faultyHolds struct {
	Holds
	plan *faulty.Plan
}

func (w faultyHolds) Update(ctx context.Context, add, remove []engine.Hold) error {
	return w.plan.Do(ctx, "Holds.Update", func() error { return w.Holds.Update(ctx, add, remove) })
}

func (w faultyHolds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	return faulty.Get(ctx, w.plan, "Holds.Get", func() ([][]engine.Hold, error) { return w.Holds.Get(ctx, lane, users) })
}
