package log

import (
	"context"
	"testing"
	"time"
)

// A Counter counts the requests of all clients of its Conn.
func TestCounts(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		if c := (*Counter)(nil).Counts(); c != (Counts{}) {
			t.Errorf("none: %+v", c)
		}
		b.conn.Counter = &Counter{}
		b.append(t, append(numbered(b.topic, 0, 0, 10), numbered(b.topic, 1, 0, 10)...))
		if b.Cluster != nil {
			time.Sleep(time.Second) // of the bubble: the client counts a batch after it has acknowledged the records
		}
		c := b.conn.Counter.Counts()
		if c.Produce < 1 || c.ProduceBatches < 2 || c.ProduceBatches > 20 || c.Other == 0 || c.Fetch != 0 {
			t.Errorf("after an append: %+v", c)
		}
		read := make(chan int, 20)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					msg.Done()
				}
				read <- len(msgs)
				return nil
			}))
		for n := 0; n < 20; {
			n += <-read
		}
		if b.Cluster != nil {
			time.Sleep(2 * time.Second) // of the bubble: members send a heartbeat every second
		}
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		c = b.conn.Counter.Counts()
		if c.Fetch < 1 || c.FetchBatches < 2 || c.Commit < 1 || b.Cluster != nil && c.Heartbeat < 1 {
			t.Errorf("after a group has read: %+v", c)
		}
	})
}
