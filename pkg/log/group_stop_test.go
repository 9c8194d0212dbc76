package log

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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

		// Work that does not end is given up after DrainTimeout. Records that were done before are
		// committed.
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

// A handler that fails again and again has no work under way. So a stop does not wait for it.
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

// A commit costs the embedded log an fsync. So an offset that has not moved is not committed again.
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

// drainable is a handler that stops in the middle of a record when it is told to drain.
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
