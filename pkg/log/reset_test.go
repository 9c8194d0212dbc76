package log

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The offsets of a group are set only while it has no members, and a topic that is made
// again under its name has another id. With a prefix the group of an installation without
// one stays as it is.
func TestSetCommitted(t *testing.T) {
	t.Run("no prefix", func(t *testing.T) {
		onClusters(t, 1, func(t *testing.T, b *broker) { testSetCommitted(t, b) })
	})
	t.Run("prefix", func(t *testing.T) {
		onClusters(t, 1, func(t *testing.T, b *broker) {
			conn := b.conn
			conn.Prefix = "red."
			b.deleteLater(t, "red."+b.topic)
			red := &broker{Cluster: b.Cluster, conn: conn, topic: b.topic, group: b.group}
			if _, err := red.admin(t).EnsureTopics(t.Context(), map[string]int{b.topic: 1}); err != nil {
				t.Fatal(err)
			}
			testSetCommitted(t, red)
			if at, err := b.admin(t).Committed(t.Context(), b.group); err != nil || len(at) != 0 {
				t.Errorf("the group without a prefix is at %v, %v", at, err)
			}
		})
	})
}

func testSetCommitted(t *testing.T, b *broker) {
	b.append(t, numbered(b.topic, 0, 0, 10))
	a := b.admin(t)
	tp := TopicPartition{b.topic, 0}
	handed := make(chan *Msg, 20)
	run := func() *member {
		return start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}, CommitEvery: 50 * time.Millisecond},
			handlerFunc(func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, m := range msgs {
					m.Done()
					handed <- m
				}
				return nil
			}))
	}
	m := run()
	for range 10 {
		<-handed
	}
	b.waitCommitted(t, tp, 10)
	members, err := a.Members(t.Context(), b.group, b.group+"-nobody")
	if err != nil || len(members) != 1 || members[b.group] != 1 {
		t.Errorf("members %v, %v", members, err)
	}
	err = a.SetCommitted(t.Context(), b.group, map[TopicPartition]int64{tp: 4})
	if e, ok := errors.AsType[*notify.Error](err); !ok || e.Kind != notify.KindConflict || e.Code != "cluster_running" {
		t.Errorf("with a member: %v", err)
	}
	if err := m.wait(); err != nil {
		t.Error(err)
	}
	if err := a.SetCommitted(t.Context(), b.group, map[TopicPartition]int64{tp: 4}); err != nil {
		t.Fatal(err)
	}
	if at, err := a.Committed(t.Context(), b.group); err != nil || at[tp] != 4 {
		t.Fatalf("set to %v, %v; want 4", at, err)
	}
	if members, err := a.Members(t.Context(), b.group); err != nil || len(members) != 0 {
		t.Errorf("members %v, %v", members, err)
	}
	m = run()
	if first := <-handed; first.Offset != 4 {
		t.Errorf("goes on at %d, want 4", first.Offset)
	}
	for range 5 {
		<-handed
	}
	if err := m.wait(); err != nil {
		t.Error(err)
	}
	one, other := b.topic, b.named(t, "other")
	if _, err := a.EnsureTopics(t.Context(), map[string]int{other: 1}); err != nil {
		t.Fatal(err)
	}
	ids, err := a.TopicIDs(t.Context(), one, other, b.topic+"-missing")
	if err != nil || len(ids) != 2 || ids[one] == "" || ids[one] == ids[other] {
		t.Errorf("%v, %v", ids, err)
	}
}
