package log

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/pkg/setting"
)

func TestGroupReadsInOrderAndCommitsOnStop(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		b.append(t, append(numbered(b.topic, 0, 0, 500), numbered(b.topic, 1, 0, 300)...))
		var next [2]int64 // by partition: each has a goroutine of its own
		got := make(chan int, 100)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}, CommitEvery: time.Hour}, handlerFunc(
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
		if c := b.committed(t, b.group); c[TopicPartition{b.topic, 0}] != 500 || c[TopicPartition{b.topic, 1}] != 300 {
			t.Fatalf("committed %v, want 500 and 300", c)
		}
	})
}

// effects stands for a durable store outside the process: it counts how often each record was
// carried out.
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

// pool is a handler that finishes records in any order, as a pool of workers does. When its process
// is dead, nothing more happens.
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

// Six members die one after the other in the middle of their work. The next member does what they
// had not done. Nothing is lost, and the number of records that are done twice is bounded by the
// number in flight.
func TestNothingIsLostWhenMembersDie(t *testing.T) {
	const partitions, each, kills, inFlight = 3, 2000, 6, 300
	onClusters(t, partitions, func(t *testing.T, b *broker) {
		for p := range int32(partitions) {
			b.append(t, numbered(b.topic, p, 0, each))
		}
		commits := b.watchCommits()
		done := newEffects()
		run := func(conn Conn, dead func() bool) (*pool, *member) {
			h := &pool{dead: dead, effects: done, slow: 400 * time.Millisecond}
			return h, start(t, GroupConfig{
				Conn: conn, Group: b.group, Topics: []string{b.topic},
				CommitEvery: 50 * time.Millisecond, MaxPollRecords: 100, MaxInFlight: inFlight,
				DrainTimeout: time.Millisecond, RevokeWait: time.Millisecond, SessionTimeout: 6 * time.Second,
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
			m.wait()                    // a dead process does not come back,
			time.Sleep(7 * time.Second) // and the broker notices that it is gone
		}
		h, m := run(b.conn, func() bool { return false })
		for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if c := b.committed(t, b.group); c[TopicPartition{b.topic, 0}]+c[TopicPartition{b.topic, 1}]+c[TopicPartition{b.topic, 2}] == partitions*each {
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

// Members come and go gracefully while records flow. Each record is carried out exactly once,
// because a member finishes and commits before it gives up a partition.
func TestRebalanceHandsOverWithoutRepeats(t *testing.T) {
	const partitions, rounds, each = 4, 40, 100
	onClusters(t, partitions, func(t *testing.T, b *broker) {
		commits := b.watchCommits()
		done := newEffects()
		run := func() (*pool, *member) {
			h := &pool{dead: func() bool { return false }, effects: done, slow: 3 * time.Second} // always some in flight
			// Only hand-overs commit. Otherwise the client would wait for a join on a lock, which
			// would stop the clock of the bubble.
			return h, start(t, GroupConfig{
				Conn: b.conn, Group: b.group, Topics: []string{b.topic}, CommitEvery: 1000 * time.Hour,
				RevokeWait: time.Minute, DrainTimeout: time.Minute, SessionTimeout: time.Minute, // longer than any machine takes
			}, h)
		}
		p := newProducer(t, ProducerConfig{Conn: b.conn, AppendTimeout: time.Minute})
		_, first := run()
		var second *member
		took := false
		for round := range rounds {
			for part := range int32(partitions) {
				if err := p.Append(t.Context(), numbered(b.topic, part, round*each, each)); err != nil {
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
			if c := b.committed(t, b.group)[TopicPartition{b.topic, part}]; c != rounds*each {
				t.Errorf("partition %d committed %d, want %d", part, c, rounds*each)
			}
		}
		commits.check(t.Errorf)
	})
}

// The same test in real time, with a commit under way at nearly every moment. No commit arrives
// after its partition was given to another member.
func TestRebalanceUnderConstantCommits(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "topic"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b := &broker{Cluster: c, conn: Conn{Brokers: c.ListenAddrs()}}
	commits := b.watchCommits()
	done := newEffects()
	run := func() *member {
		h := &pool{dead: func() bool { return false }, effects: done, slow: 100 * time.Millisecond}
		// The waits are longer than any machine takes, because this test checks only the order.
		return start(t, GroupConfig{
			Conn: b.conn, Group: "g", Topics: []string{"topic"}, CommitEvery: time.Millisecond,
			RevokeWait: time.Minute, DrainTimeout: time.Minute, SessionTimeout: time.Minute,
		}, h)
	}
	stable := func(members int) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := c.WaitGroupStable(ctx, "g", members); err != nil {
			t.Fatal(err)
		}
	}
	first := run()
	stable(1)
	p := newProducer(t, ProducerConfig{Conn: b.conn, AppendTimeout: time.Minute})
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

// A member that is cut off learns that its partitions are lost. Their context ends, their work is
// dropped, and nothing that the member marks later is committed.
func TestLostPartitionsAreDropped(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		b.append(t, numbered(b.topic, 0, 0, 10))
		commits := b.watchCommits()
		handed := make(chan []*Msg, 10)
		ended := make(chan struct{}, 10)
		lost := make(chan bool, 10)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}, CommitEvery: 100 * time.Millisecond,
			DrainTimeout: time.Second, MaxInFlight: 2, // the partition is paused when the member loses it, and must not stay paused
			Events: GroupEvents{Gone: func(_ TopicPartition, l bool) { lost <- l }}},
			handlerFunc(func(ctx context.Context, _ TopicPartition, msgs []*Msg) error {
				context.AfterFunc(ctx, func() { ended <- struct{}{} })
				handed <- msgs
				return nil
			}))
		old := <-handed
		old[0].Done()
		b.waitCommitted(t, TopicPartition{b.topic, 0}, 1)
		// The broker expels the member. The member learns that at its next heartbeat.
		b.expel(t, b.group)
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
		if c := b.committed(t, b.group); c[TopicPartition{b.topic, 0}] != 1 {
			t.Errorf("committed %v: marks of a lost partition counted", c)
		}
		for _, msg := range again {
			msg.Done()
		}
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		if c := b.committed(t, b.group); c[TopicPartition{b.topic, 0}] != 10 {
			t.Errorf("committed %v", c)
		}
		commits.check(t.Errorf)
	})
}

// expel removes every member from a group, as an expired session would.
func (b *broker) expel(t testing.TB, group string) {
	t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	described, err := b.admin(t).adm.DescribeGroups(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range described[group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		req.Members = append(req.Members, member)
	}
	cl, err := setting.Fill(b.conn).client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := req.RequestWith(t.Context(), cl); err != nil || len(req.Members) == 0 {
		t.Fatal(len(req.Members), err)
	}
}

// A record says whether it was appended after the member was given its partition.
func TestAfterAssign(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		type seen struct {
			offset int64
			after  bool
		}
		got := make(chan seen, 100)
		read := func() *member {
			return start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}}, handlerFunc(
				func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
					for _, msg := range msgs {
						if msg.Offset != 1 { // the next member reads it again
							msg.Done()
						}
						got <- seen{msg.Offset, msg.AfterAssign}
					}
					return nil
				}))
		}
		expect := func(what string, want ...seen) {
			t.Helper()
			for _, w := range want {
				if s := <-got; s != w {
					t.Errorf("%s: %+v, want %+v", what, s, w)
				}
			}
		}
		b.append(t, numbered(b.topic, 0, 0, 2))
		m := read()
		expect("what was there", seen{0, false}, seen{1, false})
		b.append(t, numbered(b.topic, 0, 2, 1))
		expect("what came later", seen{2, true})
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		m = read()
		expect("the next owner", seen{1, false}, seen{2, false})
		b.append(t, numbered(b.topic, 0, 3, 1))
		expect("what came later", seen{3, true})
		if err := m.wait(); err != nil {
			t.Error(err)
		}
	})
}
