package log

import (
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// TestRetentionTakesNothingUnread: a record that no group has read stays in its lane, although it
// is older than any retention. The broker removes the same record from another topic that has a
// retention.
func TestRetentionTakesNothingUnread(t *testing.T) {
	k := startKafka(t, 1, "KAFKA_RETENTION_CHECK_MS=200")
	conn := Conn{Brokers: k.brokers}
	a, err := NewAdmin(AdminConfig{Conn: conn})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	lane, _ := notify.ParseLane("push")
	const week = "one-week"
	ctx := t.Context()
	if _, err := a.EnsureTopics(ctx, map[string]int{lane.Topic(): 1, lane.DLQTopic(): 1, notify.TopicFailed: 1}); err != nil {
		t.Fatal(err)
	}
	keep := strconv.FormatInt((7 * 24 * time.Hour).Milliseconds(), 10)
	if _, err := a.adm.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &keep}, week); err != nil {
		t.Fatal(err)
	}
	cl, err := setting.Fill(conn).client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	old := time.Now().Add(-60 * 24 * time.Hour)
	topics := []string{lane.Topic(), lane.DLQTopic(), notify.TopicFailed, week}
	for _, topic := range topics {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Timestamp: old, Value: []byte("unread")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	// The broker checks all topics in one pass, some of them after the topic with the retention of
	// a week. So when a second record has gone from that topic, a whole pass has ended.
	for want := int64(1); want <= 2; want++ {
		for {
			starts, err := a.StartOffsets(ctx, topics...)
			if err != nil {
				t.Fatal(err)
			}
			for _, topic := range topics[:3] {
				if at := starts[TopicPartition{Topic: topic}]; at != 0 {
					t.Fatalf("%s lost %d records that nobody had read", topic, at)
				}
			}
			if starts[TopicPartition{Topic: week}] == want {
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("retention never removed anything")
			}
		}
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: week, Timestamp: old, Value: []byte("unread")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}
