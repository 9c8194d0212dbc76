package stream

import (
	"context"
	"testing"
	"testing/synctest"
)

func TestGroupReadsInOrderAndCommitsOnStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		b.append(t, append(numbered("topic", 0, 0, 500), numbered("topic", 1, 0, 300)...))
		var next [2]int64 // by partition: each has a goroutine of its own
		got := make(chan int, 100)
		m := start(t, GroupConfig{Conn: b.conn, Group: "g", Topics: []string{"topic"}}, handlerFunc(
			func(_ context.Context, tp TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					if want := next[tp.Partition]; msg.Offset != want {
						t.Errorf("%s: offset %d, want %d", tp, msg.Offset, want)
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
