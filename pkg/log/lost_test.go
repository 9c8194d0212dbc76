package log

import (
	"context"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Records that stand for lost records are handed to no handler. The group's mark passes them in the
// middle of a partition, several in a row, and at the end.
func TestGroupGoesOverLostRecords(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		tp := TopicPartition{b.topic, 0}
		lost := Record{Topic: b.topic, Headers: []Header{{Key: LostHeader}}}
		similar := Record{Topic: b.topic, Headers: []Header{{Key: LostHeader}}, Value: []byte("a value")}
		for _, recs := range [][]Record{{lost}, numbered(b.topic, 0, 1, 2), {lost, lost}, {similar}, {lost}} {
			b.append(t, recs)
		}
		got := make(chan int64, 10)
		m := start(t, GroupConfig{Conn: b.conn, Group: b.group, Topics: []string{b.topic}}, handlerFunc(
			func(_ context.Context, _ TopicPartition, msgs []*Msg) error {
				for _, msg := range msgs {
					got <- msg.Offset
					msg.Done()
				}
				return nil
			}))
		for _, want := range []int64{1, 2, 5} {
			if at := <-got; at != want {
				t.Errorf("handed offset %d, want %d", at, want)
			}
		}
		b.waitCommitted(t, tp, 7) // while the group runs
		if st := m.Stats().Partitions[0]; st.InFlight != 0 || st.Bytes != 0 || st.Lag() != 0 {
			t.Errorf("%+v", st)
		}
		if err := m.wait(); err != nil {
			t.Error(err)
		}
		r := newReader(t, b)
		for _, at := range []int64{0, 6} {
			if _, err := r.Fetch(t.Context(), tp, at); notify.KindOf(err) != notify.KindNotFound {
				t.Errorf("fetching a lost record: %v", err)
			}
		}
	})
}
