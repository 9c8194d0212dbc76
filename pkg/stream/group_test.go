package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestGroupReadsInOrderAndCommitsOnStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		b.append(t, append(numbered("topic", 0, 0, 500), numbered("topic", 1, 0, 300)...))
		var next [2]int64 // by partition: each has a goroutine of its own
		got := make(chan int, 100)
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, CommitEvery: time.Hour}, handlerFunc(
			func(_ context.Context, tp TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					if want := next[tp.Partition]; msg.Offset != want || msg.Attempt != 1 {
						t.Errorf("%s: offset %d, want %d; attempt %d", tp, msg.Offset, want, msg.Attempt)
					}
					next[tp.Partition]++
					msg.Done()
				}
				got <- len(msgs)
				return nil
			}))
		for n := 0; n < 800; {
			n += <-got
		}
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 500 || c[TopicPartition{"topic", 1}] != 300 {
			t.Fatalf("committed %v, want 500 and 300", c)
		}
	})
}

// effects is what would be durable outside: which records were carried out.
type effects struct {
	mu    sync.Mutex
	count map[string]int
}

func newEffects() *effects { return &effects{count: make(map[string]int)} }

func (e *effects) carryOut(m *Msg) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count[fmt.Sprint(m.Topic, "/", m.Partition, "@", m.Offset)]++
}

func (e *effects) distinct() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.count)
}

func (e *effects) repeated() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.count {
		n += c - 1
	}
	return n
}

// pool is a handler that finishes records in any order, as a pool of workers
// does; when its process is dead nothing more happens.
type pool struct {
	dead    func() bool
	effects *effects
	slow    time.Duration
	wg      sync.WaitGroup
}

func (p *pool) Assigned(context.Context, TopicPartition) PartitionHandler { return p }

func (p *pool) Handle(ctx context.Context, msgs []*Msg) error {
	for _, m := range msgs {
		p.wg.Add(1)
		time.AfterFunc(rand.N(p.slow), func() {
			defer p.wg.Done()
			if p.dead() || ctx.Err() != nil {
				return
			}
			p.effects.carryOut(m)
			m.Done()
		})
	}
	return nil
}

// Six members die one after the other in the middle of their work, and what
// they had not done is done by the next: nothing is lost, and what is done
// twice is bounded by what was in flight.
func TestNothingIsLostWhenMembersDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions, each, kills, inFlight = 3, 2000, 6, 300
		b := newBroker(t, partitions, "topic")
		for p := range int32(partitions) {
			b.append(t, numbered("topic", p, 0, each))
		}
		commits := b.watchCommits()
		done := newEffects()
		run := func(conn Conn, dead func() bool) (*pool, *member) {
			h := &pool{dead: dead, effects: done, slow: 400 * time.Millisecond}
			return h, start(t, GroupConfig{
				Conn: conn, Group: "g", Topics: []string{"topic"},
				CommitEvery: 50 * time.Millisecond, MaxPollRecords: 100, MaxInFlight: inFlight,
				DrainTimeout: time.Millisecond, RevokeWait: time.Millisecond,
			}, h)
		}
		for range kills {
			net, conn := b.wire()
			before := done.distinct()
			h, m := run(conn, net.killed)
			for done.distinct() < before+400 {
				time.Sleep(10 * time.Millisecond)
			}
			net.kill()
			h.wg.Wait()
			m.wait()                     // a dead process does not come back,
			time.Sleep(12 * time.Second) // and the broker notices that it is gone
		}
		h, m := run(b.conn, func() bool { return false })
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}]+c[TopicPartition{"topic", 1}]+c[TopicPartition{"topic", 2}] == partitions*each {
				break
			}
		}
		h.wg.Wait()
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		if lost := partitions*each - done.distinct(); lost != 0 {
			t.Errorf("lost %d of %d", lost, partitions*each)
		}
		if n, bound := done.repeated(), kills*partitions*(inFlight+100); n > bound || n == 0 {
			t.Errorf("%d repeated, bound %d; 0 would mean that the kills hit nothing", n, bound)
		}
		commits.check(t.Errorf)
	})
}

// Members come and go gracefully while records flow: each record is carried out
// exactly once, since whoever lets go of a partition finishes and commits first.
func TestRebalanceHandsOverWithoutRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions, rounds, each = 4, 40, 100
		b := newBroker(t, partitions, "topic")
		commits := b.watchCommits()
		done := newEffects()
		run := func() (*pool, *member) {
			h := &pool{dead: func() bool { return false }, effects: done, slow: 3 * time.Second} // always some in flight
			// No commits but those of hand-overs: the client waits for a join on
			// a lock, which would stop the bubble's clock.
			return h, start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, CommitEvery: 1000 * time.Hour}, h)
		}
		p := newProducer(t, ProducerConfig{Conn: b.conn})
		_, first := run()
		var second *member
		took := false
		for round := range rounds {
			for part := range int32(partitions) {
				if err := p.Append(t.Context(), numbered("topic", part, round*each, each)); err != nil {
					t.Fatal(err)
				}
			}
			switch round % 10 {
			case 2:
				_, second = run()
			case 8:
				took = took || len(second.Stats().Partitions) > 0
				if err := second.wait(); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Second)
		}
		for done.distinct() < partitions*rounds*each {
			time.Sleep(100 * time.Millisecond)
		}
		if err := first.wait(); err != nil {
			t.Error(err)
		}
		if n := done.repeated(); n != 0 || !took {
			t.Errorf("%d repeated; the second member took part: %v", n, took)
		}
		for part := range int32(partitions) {
			if c := b.committed(t, "g")[TopicPartition{"topic", part}]; c != rounds*each {
				t.Errorf("partition %d committed %d, want %d", part, c, rounds*each)
			}
		}
		commits.check(t.Errorf)
	})
}

// The same in real time, with a commit under way at nearly every moment: none
// arrives after its partition went to somebody else.
func TestRebalanceUnderConstantCommits(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "topic"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &broker{c, Conn{Brokers: c.ListenAddrs()}}
	commits := b.watchCommits()
	done := newEffects()
	run := func() *member {
		h := &pool{dead: func() bool { return false }, effects: done, slow: 100 * time.Millisecond}
		return start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, CommitEvery: time.Millisecond}, h)
	}
	stable := func(members int) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		if _, err := c.WaitGroupStable(ctx, "g", members); err != nil {
			t.Fatal(err)
		}
	}
	first := run()
	stable(1)
	p := newProducer(t, ProducerConfig{Conn: b.conn})
	sent := 0
	produce := func() {
		for range 20 {
			for part := range int32(4) {
				if err := p.Append(t.Context(), numbered("topic", part, 0, 10)); err != nil {
					t.Fatal(err)
				}
			}
			sent += 40
		}
	}
	for range 2 {
		produce()
		second := run()
		stable(2)
		produce()
		if err := second.wait(); err != nil {
			t.Error(err)
		}
		stable(1)
	}
	produce()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for done.distinct() < sent {
		<-tick.C
	}
	if err := first.wait(); err != nil {
		t.Error(err)
	}
	if n := done.repeated(); n != 0 {
		t.Errorf("%d of %d repeated", n, sent)
	}
	commits.check(t.Errorf)
}

// A member that is cut off learns that its partitions are lost: their context
// ends, their work is dropped, and nothing it marks later is committed.
func TestLostPartitionsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 10))
		commits := b.watchCommits()
		handed := make(chan []*Msg, 10)
		ended := make(chan struct{}, 10)
		lost := make(chan bool, 10)
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, CommitEvery: 100 * time.Millisecond,
			DrainTimeout: time.Second, MaxInFlight: 2, // it is paused when it goes, and must not stay so
			Events: GroupEvents{Gone: func(_ TopicPartition, l bool) { lost <- l }}},
			handlerFunc(func(ctx context.Context, _ TopicPartition, msgs []*Msg) error {
				context.AfterFunc(ctx, func() { ended <- struct{}{} })
				handed <- msgs
				return nil
			}))
		old := <-handed
		old[0].Done()
		time.Sleep(200 * time.Millisecond)
		// The broker expels the member; it hears of it at its next heartbeat.
		b.expel(t, "g")
		<-ended
		if !<-lost {
			t.Error("the partition was revoked, not lost")
		}
		again := <-handed // it joined again and begins at the commit
		if again[0].Offset != 1 || len(again) != 9 {
			t.Errorf("began again at %d with %d records", again[0].Offset, len(again))
		}
		for _, msg := range old {
			msg.Done()
		}
		time.Sleep(time.Second)
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 1 {
			t.Errorf("committed %v: marks of a lost partition counted", c)
		}
		for _, msg := range again {
			msg.Done()
		}
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 10 {
			t.Errorf("committed %v", c)
		}
		commits.check(t.Errorf)
	})
}

// expel takes every member out of a group, as an expired session would.
func (b *broker) expel(t testing.TB, group string) {
	t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range b.GroupInfo(group).Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		req.Members = append(req.Members, member)
	}
	cl, err := kgo.NewClient(b.conn.withDefaults().options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := req.RequestWith(t.Context(), cl); err != nil || len(req.Members) == 0 {
		t.Fatal(len(req.Members), err)
	}
}

func TestStopWaitsForWorkInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 10))
		handed := make(chan []*Msg, 1)
		cfg := GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxPollRecords: 4}
		ended := make(chan struct{})
		m := start(t, cfg, handlerFunc(func(ctx context.Context, _ TopicPartition, msgs []*Msg) error {
			handed <- msgs
			context.AfterFunc(ctx, func() { close(ended) })
			for _, msg := range msgs {
				time.Sleep(time.Second)
				msg.Done()
			}
			return nil
		}))
		<-handed
		time.Sleep(500 * time.Millisecond)
		before := time.Now()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		<-ended
		if took := time.Since(before); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("stopped after %v, the work took 3.5 s more", took)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 4 {
			t.Errorf("committed %v, want the 4 handed out", c)
		}

		// Work that does not end is given up after DrainTimeout; what was done
		// before it counts.
		m = start(t, cfg, handlerFunc(func(ctx context.Context, _ TopicPartition, msgs []*Msg) error {
			msgs[0].Done()
			handed <- msgs
			<-ctx.Done()
			return ctx.Err()
		}))
		<-handed
		before = time.Now()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("stopped after %v, want 20 s", took)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 5 {
			t.Errorf("committed %v, want 5", c)
		}
	})
}

// A handler that fails over and over works on nothing: stopping does not wait.
func TestStopDoesNotWaitForFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 10))
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				if msgs[0].Offset == 0 {
					msgs[0].Done()
				}
				return errors.New("store away")
			}))
		time.Sleep(30 * time.Second)
		before := time.Now()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("stopped after %v", took)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 1 {
			t.Errorf("committed %v, want 1", c)
		}
	})
}

// A commit costs the embedded log an fsync: what has not moved is not committed.
func TestIdleGroupCommitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 3, "topic")
		b.append(t, numbered("topic", 0, 0, 10))
		commits := b.watchCommits()
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, &pool{
			dead: func() bool { return false }, effects: newEffects(), slow: time.Second})
		time.Sleep(5 * time.Second)
		b.append(t, numbered("topic", 1, 0, 10))
		time.Sleep(time.Minute)
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		commits.check(t.Errorf)
		if commits.commits > 6 {
			t.Errorf("%d commits of partitions for two short bursts", commits.commits)
		}
	})
}

// drainable stops in the middle of a record when it is told to.
type drainable struct {
	partitionFunc
	drained chan struct{}
}

func (d drainable) Drain(context.Context) { close(d.drained) }

type assignFunc func() PartitionHandler

func (f assignFunc) Assigned(context.Context, TopicPartition) PartitionHandler { return f() }

func TestDrainerNeedNotFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 10))
		handed := make(chan struct{}, 10)
		d := drainable{drained: make(chan struct{}), partitionFunc: func(_ context.Context, msgs []*Msg) error {
			msgs[0].Done()
			handed <- struct{}{}
			return nil // the others never end
		}}
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, assignFunc(func() PartitionHandler { return d }))
		<-handed
		before := time.Now()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		<-d.drained
		if took := time.Since(before); took > time.Second {
			t.Errorf("stopped after %v", took)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 1 {
			t.Errorf("committed %v, want 1", c)
		}
	})
}

// A handler that falls behind on one partition stops that partition's fetches
// at the cap, and only that one's; as it catches up they go on.
func TestInFlightCaps(t *testing.T) {
	f := func(name string, cfg GroupConfig, most int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const each = 3000
				b := newBroker(t, 2, "topic")
				for p := range int32(2) {
					for i := range each / 100 { // batches: a fetch takes whole ones
						b.append(t, numbered("topic", p, i*100, 100))
					}
				}
				var mu sync.Mutex
				var held []*Msg
				fast := 0
				cfg.Conn, cfg.Group, cfg.Topics, cfg.MaxPollRecords = b.conn, "g", []string{"topic"}, 100
				m := start(t, cfg, handlerFunc(func(_ context.Context, tp TopicPartition, msgs []*Msg) error {
					mu.Lock()
					defer mu.Unlock()
					if tp.Partition == 0 {
						held = append(held, msgs...)
						return nil
					}
					fast += len(msgs)
					for _, msg := range msgs {
						msg.Done()
					}
					return nil
				}))
				time.Sleep(10 * time.Second)
				mu.Lock()
				if len(held) > most+100 || len(held) < most/2 || fast != each {
					t.Errorf("%d held, cap %d; the other partition got %d", len(held), most, fast)
				}
				mu.Unlock()
				paused := slices.ContainsFunc(m.Stats().Partitions, func(p PartitionStats) bool {
					return p.TP.Partition == 0 && p.Paused && p.InFlight >= most && p.Lag() > 0
				})
				if !paused {
					t.Errorf("not paused: %+v", m.Stats().Partitions)
				}
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
					mu.Lock()
					batch := held
					held = nil
					mu.Unlock()
					slices.Reverse(batch)
					for _, msg := range batch {
						msg.Done()
					}
					if s := m.Stats(); !slices.ContainsFunc(s.Partitions, func(p PartitionStats) bool { return p.LowWater != each }) {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("stuck: %+v", m.Stats())
					}
				}
			})
		})
	}
	f("records", GroupConfig{MaxInFlight: 200}, 200)
	f("bytes", GroupConfig{MaxInFlightBytes: 600}, 200) // values of 1 to 4 digits
}

// A record that makes the handler panic is tried again alone and put aside
// after MaxAttempts; its neighbours are delivered, and the process lives.
func TestPanicIsAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic", notify.TopicPoison)
		b.append(t, []Record{{Topic: "topic", Value: []byte("0")}, {Topic: "topic", Value: []byte("1")},
			{Topic: "topic", Key: []byte("k"), Value: []byte("bad"), Headers: []Header{{"h", []byte("v")}}}, {Topic: "topic", Value: []byte("3")}})
		poisoner := Poisoner{Log: newProducer(t, ProducerConfig{Conn: b.conn})}
		var mu sync.Mutex
		var attempts []int
		var panics, failures int
		finished := make(chan struct{})
		m := start(t, GroupConfig{
			Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxAttempts: 3,
			Poison: func(ctx context.Context, msg *Msg, cause error) error {
				defer close(finished)
				return poisoner.Poison(ctx, msg, cause)
			},
			Events: GroupEvents{Failed: func(_ TopicPartition, cause error) {
				mu.Lock()
				defer mu.Unlock()
				if p, ok := errors.AsType[*Panic](cause); ok && p.Value == "ouch" && len(p.Stack) > 0 {
					panics++
				} else {
					failures++
				}
			}},
		}, handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
			for _, msg := range msgs {
				if string(msg.Value) == "bad" {
					mu.Lock()
					attempts = append(attempts, msg.Attempt)
					mu.Unlock()
					panic("ouch")
				}
				msg.Done()
			}
			return nil
		}))
		<-finished
		synctest.Wait()
		if err := m.wait(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(attempts, []int{1, 2, 3}) || panics != 3 || failures != 0 || m.Stats().Failures != 3 {
			t.Errorf("attempts %v, %d panics, %d failures", attempts, panics, failures)
		}
		if c := b.committed(t, "g"); c[TopicPartition{"topic", 0}] != 4 {
			t.Errorf("committed %v", c)
		}
		got := b.collect(t, notify.TopicPoison)
		if len(got) != 1 || string(got[0].Value) != "bad" || string(got[0].Key) != "k" {
			t.Fatalf("poison: %+v", got)
		}
		headers := make(map[string]string)
		for _, h := range got[0].Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["h"] != "v" || headers[HeaderOriginTopic] != "topic" || headers[HeaderOriginPartition] != "0" ||
			headers[HeaderOriginOffset] != "2" || headers[HeaderCause] != "handler panicked: ouch" {
			t.Errorf("headers %v", headers)
		}
	})
}

// Without a Poison hook a failing record is tried until it succeeds.
func TestFailedHandleIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 3))
		tries := 0
		done := make(chan struct{})
		start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				if tries++; tries < 30 {
					return errors.New("store away")
				}
				for _, msg := range msgs {
					msg.Done()
					if msg.Offset == 2 {
						close(done)
					}
				}
				return nil
			}))
		before := time.Now()
		<-done
		if took := time.Since(before); took < 10*time.Second {
			t.Errorf("29 failures took only %v", took)
		}
	})
}

func TestPositionOutsideTheLogIsReported(t *testing.T) {
	f := func(name string, policy OutOfRange, committed, trimmed, wantFirst int64) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBroker(t, 1, "topic")
				tp := TopicPartition{"topic", 0}
				b.append(t, numbered("topic", 0, 0, 20))
				adm := b.admin(t)
				at := make(kadm.Offsets)
				at.AddOffset("topic", 0, committed, -1)
				if err := adm.adm.CommitAllOffsets(t.Context(), "g", at); err != nil {
					t.Fatal(err)
				}
				if err := adm.DeleteRecords(t.Context(), map[TopicPartition]int64{tp: trimmed}); err != nil {
					t.Fatal(err)
				}
				resets := make(chan Reset, 100)
				first := make(chan int64, 100)
				m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, OutOfRange: policy,
					Events: GroupEvents{Reset: func(r Reset) { resets <- r }}},
					handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
						first <- msgs[0].Offset
						for _, msg := range msgs {
							msg.Done()
						}
						return nil
					}))
				want := Reset{TP: tp, Committed: committed, Start: trimmed, End: 20, Next: wantFirst}
				if r := <-resets; r != want {
					t.Errorf("reset %+v, want %+v", r, want)
				}
				if policy == Stop {
					if e, ok := errors.AsType[*notify.Error](<-m.done); !ok || e.Code != "log_reset" {
						t.Errorf("Run returned %v", e)
					}
					m.done <- nil
					return
				}
				if got := <-first; got != wantFirst {
					t.Errorf("began at %d, want %d", got, wantFirst)
				}
				if err := m.wait(); err != nil || m.Stats().Resets != 1 {
					t.Error(err, m.Stats().Resets)
				}
				if c := b.committed(t, "g")[tp]; c != 20 {
					t.Errorf("committed %d", c)
				}
			})
		})
	}
	f("trimmed away", FromStart, 5, 10, 10)
	f("log cut short", FromStart, 30, 10, 10)
	f("log cut short, stop", Stop, 30, 10, -1)
	f("trimmed away, stop", Stop, 5, 10, -1)
}

// What is trimmed from under a running member is noticed too.
func TestTrimmedUnderARunningMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		tp := TopicPartition{"topic", 0}
		for i := range 50 {
			b.append(t, numbered("topic", 0, i, 1))
		}
		resets := make(chan Reset, 100)
		release := make(chan struct{})
		offsets := make(chan int64, 100)
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}, MaxInFlight: 2, MaxPollRecords: 1,
			Events: GroupEvents{Reset: func(r Reset) { resets <- r }}},
			handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				<-release
				for _, msg := range msgs {
					offsets <- msg.Offset
					msg.Done()
				}
				return nil
			}))
		time.Sleep(time.Second)
		if err := b.admin(t).DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 40}); err != nil {
			t.Fatal(err)
		}
		close(release)
		r := <-resets
		if r.Next != 40 || r.Committed >= 40 {
			t.Errorf("%+v", r)
		}
		for last := int64(-1); last != 49; {
			o := <-offsets
			if o <= last {
				t.Errorf("offset %d after %d", o, last)
			}
			last = o
		}
		if err := m.wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestAfter(t *testing.T) {
	t.Parallel()
	var order []string
	msg := func(name string) *Msg {
		return NewMsg(Record{Key: []byte(name)}, func() { order = append(order, name) })
	}
	a, b, c, d := msg("a"), msg("b"), msg("c"), msg("d")
	a.After(b)
	b.After(c)
	a.Done()
	a.Done()
	a.After(d) // done already
	if !slices.Equal(order, []string{"a", "b", "c", "d"}) {
		t.Fatal(order)
	}
}

func TestAfterWithinAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		b.append(t, numbered("topic", 0, 0, 3))
		handed := make(chan []*Msg, 1)
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				handed <- msgs
				return nil
			}))
		msgs := <-handed
		msgs[0].After(msgs[1])
		msgs[2].Done()
		if s := m.Stats().Partitions[0]; s.LowWater != 0 || s.InFlight != 2 {
			t.Errorf("%+v", s)
		}
		msgs[0].Done()
		if s := m.Stats().Partitions[0]; s.LowWater != 3 || s.InFlight != 0 || s.Bytes != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestGroupConfigIsChecked(t *testing.T) {
	t.Parallel()
	ok := GroupConfig{Conn: Conn{Brokers: []string{"b:1"}}, Group: "g", Topics: []string{"t"}}
	for i, change := range []func(*GroupConfig){
		func(c *GroupConfig) { c.Group = "" },
		func(c *GroupConfig) { c.Topics = nil },
		func(c *GroupConfig) { c.Conn.Brokers = nil },
		func(c *GroupConfig) { c.MaxInFlight = -1 },
		func(c *GroupConfig) { c.CommitEvery = -1 },
		func(c *GroupConfig) { c.OutOfRange = "maybe" },
	} {
		c := ok
		change(&c)
		if _, err := NewGroup(c, &pool{}); err == nil {
			t.Error("accepted " + strconv.Itoa(i))
		}
	}
	if _, err := NewGroup(ok, &pool{}); err != nil {
		t.Error(err)
	}
}
