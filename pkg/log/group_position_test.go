package log

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

func TestPositionOutsideTheLogIsReported(t *testing.T) {
	f := func(name string, committed, trimmed, wantFirst int64) {
		t.Run(name, func(t *testing.T) {
			onClusters(t, 1, func(t *testing.T, b *broker) {
				tp := TopicPartition{b.topic, 0}
				b.append(t, numbered(b.topic, 0, 0, 20))
				adm := b.admin(t)
				at := make(kadm.Offsets)
				at.AddOffset(b.topic, 0, committed, -1)
				if err := adm.adm.CommitAllOffsets(t.Context(), b.group, at); err != nil {
					t.Fatal(err)
				}
				if err := adm.DeleteRecords(t.Context(), map[TopicPartition]int64{tp: trimmed}); err != nil {
					t.Fatal(err)
				}
				resets := make(chan Reset, 100)
				first := make(chan int64, 100)
				m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic},
					Events: GroupEvents{Reset: func(r Reset) { resets <- r }}},
					handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
						first <- msgs[0].Offset
						for _, msg := range msgs {
							msg.Done()
						}
						return nil
					}))
				want := Reset{TP: tp, Committed: committed, Start: trimmed, End: 20}
				if r := <-resets; r != want {
					t.Errorf("reset %+v, want %+v", r, want)
				}
				if got := <-first; got != wantFirst {
					t.Errorf("began at %d, want %d", got, wantFirst)
				}
				if err := m.wait(); err != nil || m.Stats().Resets != 1 {
					t.Error(err, m.Stats().Resets)
				}
				if c := b.committed(t, b.group)[tp]; c != 20 {
					t.Errorf("committed %d", c)
				}
			})
		})
	}
	f("trimmed away", 5, 10, 10)
	f("log cut short", 30, 10, 10)
}

// A running member also notices if records are trimmed that it has not read yet.
func TestTrimmedUnderARunningMember(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		tp := TopicPartition{b.topic, 0}
		for i := range 50 {
			b.append(t, numbered(b.topic, 0, i, 1))
		}
		resets := make(chan Reset, 100)
		began, release := make(chan struct{}, 100), make(chan struct{})
		offsets := make(chan int64, 100)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}, MaxInFlight: 2, MaxPollRecords: 1,
			Events: GroupEvents{Reset: func(r Reset) { resets <- r }}},
			handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				began <- struct{}{}
				<-release
				for _, msg := range msgs {
					offsets <- msg.Offset
					msg.Done()
				}
				return nil
			}))
		<-began
		time.Sleep(time.Second) // the partition is paused: records that were fetched and not handed out are dropped
		if err := b.admin(t).DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 40}); err != nil {
			t.Fatal(err)
		}
		close(release)
		r := <-resets
		if r.Start != 40 || r.Committed >= 40 {
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
	a.ChainDone(b)
	b.ChainDone(c)
	a.Done()
	a.Done()
	a.ChainDone(d) // done already
	if !slices.Equal(order, []string{"a", "b", "c", "d"}) {
		t.Fatal(order)
	}
}

func TestAfterWithinAGroup(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		b.append(t, numbered(b.topic, 0, 0, 3))
		handed := make(chan []*Msg, 1)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				handed <- msgs
				return nil
			}))
		msgs := <-handed
		msgs[0].ChainDone(msgs[1])
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
