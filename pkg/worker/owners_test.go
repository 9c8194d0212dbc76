package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// stops lets a test stop an owner at a certain place, as SIGSTOP does: every goroutine that comes
// to a place while the owner is stopped waits there.
type stops struct {
	mu      sync.Mutex
	stopped chan struct{} // closed when the owner goes on; nil: it runs
	at      map[string]int
	on      func(place string, n int)
}

func (s *stops) pass(place string) {
	s.mu.Lock()
	s.at[place]++
	on, n := s.on, s.at[place]
	s.mu.Unlock()
	if on != nil {
		on(place, n)
	}
	s.mu.Lock()
	wait := s.stopped
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

func (s *stops) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped == nil {
		s.stopped = make(chan struct{})
	}
}

func (s *stops) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		close(s.stopped)
		s.stopped = nil
	}
}

// stoppable is a store as an owner reaches it: the owner may be stopped before and after each
// request, and requests that are under way arrive late.
type stoppable struct {
	engine.Status
	*stops
}

func (s stoppable) Put(ctx context.Context, rows []notify.Row) error {
	s.pass("before a write")
	// The request is on its way: it arrives although the owner is gone.
	err := s.Status.Put(context.WithoutCancel(ctx), rows)
	s.pass("after a write")
	return err
}

func (s stoppable) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	s.pass("before a read")
	rows, err := s.Status.Resume(context.WithoutCancel(ctx), t, keys)
	s.pass("after a read")
	return rows, err
}

func (s stoppable) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	s.pass("before a take-over")
	t, err := s.Status.TakeOver(context.WithoutCancel(ctx), topic, partition)
	s.pass("after a take-over")
	return t, err
}

// late behaves like a store on several machines: rows of earlier tenures that arrive late
// replace unfinished rows until the owner has written the row itself. Stores over rows fence
// earlier.
type late struct {
	engine.Status
	mu     sync.Mutex
	stamps map[notify.RowKey]int64
}

func newLate(s engine.Status) *late { return &late{Status: s, stamps: map[notify.RowKey]int64{}} }

func (s *late) Put(ctx context.Context, rows []notify.Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stand []notify.Row
	for _, r := range rows {
		switch stamp := s.stamps[r.Key]; {
		case r.Stamp == engine.StampBeside:
			s.stamps[r.Key] = stamp + 1
		case r.Stamp != 0 && r.Stamp < stamp:
			continue // of an earlier tenure
		case r.Stamp != 0:
			s.stamps[r.Key] = r.Stamp
		}
		r.Stamp = 0
		stand = append(stand, r)
	}
	return s.Status.Put(ctx, stand)
}

func (s *late) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, err := s.Status.Get(ctx, keys)
	for i := range rows {
		if rows[i].Done {
			s.stamps[keys[i]] = max(s.stamps[keys[i]], t.Start)
		}
	}
	return rows, err
}

// owner is a process that owns the partition, or believes so.
type owner struct {
	stops
	part *partition
	end  context.CancelFunc
	held atomic.Bool // whether the group says that the owner has the partition
	wg   sync.WaitGroup
}

// providerOf is the ledger as an owner calls it.
type providerOf struct {
	*ledger
	o *owner
}

func (p providerOf) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	p.o.pass("before a call")
	p.ledger.Send(context.WithoutCancel(ctx), call, report)
	p.o.pass("after a call")
}

type logOf struct {
	*plantLog
	o *owner
}

func (l logOf) Append(ctx context.Context, recs []log.Record) error {
	l.o.pass("before a hand-on")
	return l.plantLog.Append(context.WithoutCancel(ctx), recs)
}

// newOwner starts an owner of the partition, in the lane's topic or in the topic of its retries.
func (p *plant) newOwner(status engine.Status, role Role) *owner {
	o := &owner{stops: stops{at: map[string]int{}}}
	ctx, stop := context.WithCancel(context.Background())
	o.end = stop
	o.held.Store(true)
	through := stoppable{status, &o.stops}
	committer := NewCommitter(CommitterConfig{Put: through.Put})
	o.wg.Go(func() { _ = committer.Run(ctx) })
	health, err := NewHealth(limit.BreakerConfig{}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	cfg := p.cfg
	cfg.Role, cfg.Status, cfg.Committer, cfg.Health, cfg.Provider, cfg.Log = role, through, committer, health, providerOf{p.prov, o}, logOf{p.log, o}
	cfg.Parker = p.life.timers
	topic := cfg.Lane.Topic()
	if role == Retries {
		topic = cfg.Lane.DLQTopic()
	}
	held := log.WithHeld(ctx, func() bool { return o.held.Load() })
	o.part = New(cfg).Assigned(held, log.TopicPartition{Topic: topic}).(*partition)
	o.wg.Go(func() { p.log.pump(held, topic, o.part) })
	return o
}

// gone is called when the process learns that the partition belongs to another process.
func (o *owner) gone() {
	o.end()
	o.goOn()
	o.wg.Wait()
	o.part.wg.Wait()
}

var places = []string{
	"before a take-over", "after a take-over", "before a read", "after a read", "before a write", "after a write",
	"before a call", "after a call", "before a hand-on",
}

// A partition has three owners, one after the other. The first, and sometimes the second, is paused
// anywhere for longer than its session while the next one works. It resumes before it learns that
// it owns nothing any more. What a later owner finished stays finished, every receiver ends, and
// the provider gets no notification more often than the rows allow.
func TestPausedOwners(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var thrown any
		synctest.Test(t, func(t *testing.T) {
			defer func() { thrown = recover() }()
			pausedOwners(t, rt)
		})
		if thrown != nil {
			panic(thrown)
		}
	})
}

func pausedOwners(t *testing.T, rt *rapid.T) {
	lane := rapid.SampledFrom([]notify.Lane{pushLane, smsLane, bulkMail}).Draw(rt, "lane")
	p := newPlant(t, lane, func(c *Config) {
		c.Window, c.Ahead = rapid.SampledFrom([]int{2, 5}).Draw(rt, "window"), 4
		c.BatchAge = -1
	})
	p.life.halt() // the owners below read the log
	p.life.pumps.Wait()
	cat := notify.Transactional
	if lane.Bulk {
		cat = notify.Marketing
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
	p.prov.set(20*time.Millisecond, func(*notify.Item) (notify.Result, bool) {
		switch rng.IntN(8) {
		case 0:
			return notify.Result{Class: notify.ClassRetry, Code: "again", Provider: "prov"}, false
		case 1:
			return notify.Result{Class: notify.ClassAmbiguous, Code: "lost", Provider: "prov"}, rng.IntN(2) == 0
		}
		return accepted, true
	})
	store := newLate(p.store.Status())
	retries := p.newOwner(store, Retries)
	var sent []notify.Envelope
	send := func() {
		for range 3 {
			e := p.envelope(cat, userIDs(rapid.SampledFrom([]int{1, 7, 23}).Draw(rt, "receivers"))...)
			sent = append(sent, e)
			p.send(e)
		}
	}
	send()
	owners := []*owner{p.newOwner(store, First)}
	for k := range 2 {
		o := owners[k]
		place, nth := rapid.SampledFrom(places).Draw(rt, "place"), rapid.IntRange(1, 6).Draw(rt, "time")
		o.mu.Lock()
		o.on = func(at string, n int) {
			if at == place && n >= nth {
				o.stops.stop()
			}
		}
		o.mu.Unlock()
		pass(time.Duration(rapid.SampledFrom([]int{1, 30, 300}).Draw(rt, "ms")) * time.Millisecond)
		o.stops.stop()
		o.held.Store(false) // its session is over, and the next owner is given the partition
		owners = append(owners, p.newOwner(store, First))
		if rapid.Bool().Draw(rt, "more") {
			send()
		}
		if rapid.Bool().Draw(rt, "new") { // what surely has no row yet, and requests that are repeated
			pass(clockMargin + time.Second)
			send()
			p.send(rapid.SampledFrom(sent).Draw(rt, "again"), rapid.SampledFrom(sent).Draw(rt, "again"))
		}
		if rapid.Bool().Draw(rt, "late") {
			pass(time.Duration(rapid.SampledFrom([]int{0, 10, 100, 5000}).Draw(rt, "wait ms")) * time.Millisecond)
			o.mu.Lock()
			o.on = nil
			o.mu.Unlock()
			o.goOn()
			pass(time.Duration(rapid.SampledFrom([]int{0, 10, 100}).Draw(rt, "until it learns, ms")) * time.Millisecond)
			o.gone()
		}
	}
	last := owners[2]
	pass(time.Hour)
	done := map[notify.RowKey]bool{}
	for i := range sent {
		for _, row := range p.rows(&sent[i]) {
			done[row.Key] = row.Done
		}
	}
	for _, o := range owners[:2] { // an owner that was stopped all the time continues at last
		o.mu.Lock()
		o.on = nil
		o.mu.Unlock()
		o.goOn()
		pass(10 * time.Millisecond)
		o.gone()
	}
	pass(time.Hour)
	resent, again := 0, 0
	for i := range sent {
		e := &sent[i]
		rows := p.rows(e)
		for k := range rows {
			resent += int(rows[k].Resent)
			if was, ok := done[rows[k].Key]; !rows[k].Done || ok && !was {
				rt.Errorf("a row is not done at the end: %+v", rows[k])
			}
		}
		for r := range e.Count {
			if out := notify.Fold(rows, r, r); !out.State.Terminal() {
				rt.Errorf("receiver %d of %v is %v at the end", r, e.Chunk, out.State)
			}
			_, more := p.prov.took(e.ID(r))
			again += more
		}
	}
	if again > resent {
		rt.Errorf("the provider took %d again, the rows admit %d", again, resent)
	}
	for _, topic := range []string{lane.Topic(), lane.DLQTopic()} {
		if n := p.log.waiting(topic); n != 0 {
			rt.Errorf("%d records of %s are not done", n, topic)
		}
	}
	last.gone()
	retries.gone()
}

// A worker that is not sure to own its partition begins no call and no claim.
func TestNoCallWithoutTheGroup(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.life.halt()
		p.life.pumps.Wait()
		p.send(p.envelope(notify.OTP, "ann"))
		o := p.newOwner(newLate(memory.New().Status()), First)
		pass(time.Second)
		o.held.Store(false)
		p.send(p.envelope(notify.OTP, "bob"))
		pass(time.Minute)
		if got := p.prov.users(); !slices.Equal(got, []string{"ann"}) {
			t.Errorf("called %v", got)
		}
		o.mu.Lock()
		writes := fmt.Sprint(o.at["before a write"])
		o.mu.Unlock()
		if writes != "2" {
			t.Errorf("%s writes, want a claim and an end", writes)
		}
		o.held.Store(true)
		pass(time.Minute)
		if got := p.prov.users(); !slices.Equal(got, []string{"ann", "bob"}) {
			t.Errorf("called %v", got)
		}
		o.gone()
	})
}

// users returns the users that were called, in order.
func (l *ledger) users() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u := range l.first {
		out = append(out, u)
	}
	slices.Sort(out)
	return out
}
