package log

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// named returns the name of a topic that no other test uses, and deletes that topic at the end of
// the test.
func (b *broker) named(t testing.TB, name string) string {
	name = b.topic + "-" + name
	b.deleteLater(t, name)
	return name
}

func TestAdmin(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		a := b.admin(t)
		old, one, two := b.topic, b.named(t, "a"), b.named(t, "b")
		for i, want := range [][]string{{one, two}, nil} { // again changes nothing
			created, err := a.EnsureTopics(t.Context(), map[string]int{old: 2, one: 3, two: 5})
			if err != nil || !slices.Equal(created, want) {
				t.Fatalf("time %d: created %v, %v", i, created, err)
			}
		}
		got, err := a.Partitions(t.Context(), old, one, two, b.topic+"-missing")
		if err != nil || len(got) != 3 || got[old] != 2 || got[one] != 3 || got[two] != 5 {
			t.Errorf("%v, %v", got, err)
		}
		if c, err := a.Committed(t.Context(), b.group+"-nobody"); err != nil || len(c) != 0 {
			t.Errorf("%v, %v", c, err)
		}
		b.append(t, numbered(one, 2, 0, 10))
		if err := a.DeleteRecords(t.Context(), map[TopicPartition]int64{{one, 2}: 4}); err != nil {
			t.Error(err)
		}
		starts, err1 := a.StartOffsets(t.Context(), one)
		ends, err2 := a.EndOffsets(t.Context(), one)
		if tp := (TopicPartition{one, 2}); errors.Join(err1, err2) != nil || starts[tp] != 4 || ends[tp] != 10 {
			t.Errorf("%v, %v, %v, %v", starts, ends, err1, err2)
		}
		if err := a.DeleteRecords(t.Context(), map[TopicPartition]int64{{one, 2}: 11}); notify.KindOf(err) != notify.KindGone {
			t.Errorf("beyond the end: %v", err)
		}
	})
}

// Partitions are added to topics that have too few, and clients find them.
func TestGrow(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		a, other := b.admin(t), b.another(t, 3)
		for range 2 { // again changes nothing
			if err := a.Grow(t.Context(), 3, other, b.topic); err != nil {
				t.Fatal(err)
			}
			if got, err := a.Partitions(t.Context(), b.topic, other); err != nil || got[b.topic] != 3 || got[other] != 3 {
				t.Fatalf("%v, %v", got, err)
			}
		}
		b.append(t, numbered(b.topic, 2, 0, 1))
		if err := a.Grow(t.Context(), 1, b.topic); err != nil {
			t.Errorf("fewer than there are: %v", err)
		}
	})
}

// Keys are spread over as many partitions as the producer is told before each append, however many
// the topic has. While that number is not known, nothing is appended.
func TestKeysGoWhereTheyAreTold(t *testing.T) {
	onClusters(t, 8, func(t *testing.T, b *broker) {
		parts, unknown := 2, error(nil)
		other := b.another(t, 8)
		p := newProducer(t, ProducerConfig{Conn: b.conn, AppendTimeout: time.Minute, Partitions: func(topic string) (int, error) {
			if topic != b.topic {
				return 0, nil
			}
			return parts, unknown
		}})
		var recs []Record
		for i := range 40 {
			key := fmt.Appendf(nil, "user-%d", i)
			recs = append(recs, Record{Topic: b.topic, Key: key, Partition: 7}, Record{Topic: b.topic, Value: key, Partition: 6},
				Record{Topic: other, Key: key, Partition: 5}, Record{Topic: other, Key: key, Partition: -1})
		}
		for _, parts = range []int{2, 4} {
			if err := p.Append(t.Context(), recs); err != nil {
				t.Fatal(err)
			}
		}
		unknown = notify.Unavailable("spread_unknown", time.Second, nil)
		if err := p.Append(t.Context(), recs); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("appended without knowing where: %v", err)
		}
		want := map[TopicPartition]int64{{b.topic, 6}: 80, {other, 5}: 80}
		for i := range 40 {
			key := fmt.Appendf(nil, "user-%d", i)
			want[TopicPartition{b.topic, notify.Partition(key, 2)}]++
			want[TopicPartition{b.topic, notify.Partition(key, 4)}]++
			want[TopicPartition{other, notify.Partition(key, 8)}] += 2
		}
		ends, err := b.admin(t).EndOffsets(t.Context(), b.topic, other)
		if err != nil {
			t.Fatal(err)
		}
		for tp, n := range ends {
			if n != want[tp] {
				t.Errorf("%s has %d records, want %d", tp, n, want[tp])
			}
		}
	})
}

// A topic that has too few partitions is reported and left as it is. Topics that are missing are
// created.
func TestTopicsAreNeverChanged(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		a := b.admin(t)
		other := b.named(t, "other")
		created, err := a.EnsureTopics(t.Context(), map[string]int{b.topic: 7, other: 1})
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != "topic_partitions" || !strings.Contains(e.Msg, b.topic+" has 2 partitions, but 7 are wanted") {
			t.Errorf("too few partitions: %v", err)
		}
		if !slices.Equal(created, []string{other}) {
			t.Errorf("created %v", created)
		}
		if created, err := a.EnsureTopics(t.Context(), map[string]int{b.topic: 1}); err != nil || created != nil {
			t.Errorf("more partitions than wanted: %v, %v", created, err)
		}
		if got, err := a.Partitions(t.Context(), b.topic); err != nil || got[b.topic] != 2 {
			t.Errorf("%v, %v", got, err)
		}
		if created, err := a.EnsureTopics(t.Context(), map[string]int{b.named(t, "c"): 0, b.named(t, "d"): 1}); notify.KindOf(err) != notify.KindInvalid || created != nil {
			t.Errorf("no partitions: %v, %v", created, err)
		}
	})
}

// Check finds no fault with the topics that EnsureTopics makes, and Describe shows them.
func TestDescribe(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		cfg := AdminConfig{Conn: b.conn, Replication: 1, MinInSync: 1}
		a, err := NewAdmin(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		name := b.named(t, "made")
		want := map[string]int{name: 3}
		if _, err := a.EnsureTopics(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		c, err := a.Describe(t.Context(), name, name+"-missing")
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Brokers) == 0 || c.Brokers[0].Addr == "" || c.Brokers[0].Version == "" || c.Brokers[0].Err != nil {
			t.Errorf("brokers %+v", c.Brokers)
		}
		if len(c.Topics) != 1 || c.Topics[0].Partitions != 3 || c.Topics[0].Replication != 1 || c.Topics[0].Settings["max.message.bytes"] != "1048000" {
			t.Errorf("topics %+v", c.Topics)
		}
		if c.OffsetsKept < time.Hour {
			t.Errorf("offsets are kept for %s", c.OffsetsKept)
		}
		for _, f := range c.Check(cfg, want) {
			t.Errorf("%+v", f)
		}
		if f := c.Check(cfg, map[string]int{name: 4, name + "-missing": 1}); len(f) != 2 || !f[0].Wrong || f[0].Topic != name || !f[1].Wrong {
			t.Errorf("%+v", f)
		}
	})
}

// Check finds every setting that would lose records or stop the log, and the repair names the
// setting.
func TestCheck(t *testing.T) {
	t.Parallel()
	cfg := AdminConfig{Replication: 3, MinInSync: 2, MaxRecordBytes: 1_000_000, Keep: 7 * 24 * time.Hour}
	fine := func() *Cluster {
		t := Topic{Name: "notifications-push", Partitions: 18, Replication: 3, InSync: 3, Settings: map[string]string{}}
		for k, v := range cfg.settings(t.Name) {
			t.Settings[k] = v
		}
		return &Cluster{Brokers: []Broker{{ID: 1}, {ID: 2}, {ID: 3}}, Topics: []Topic{t}, OffsetsKept: 7 * 24 * time.Hour}
	}
	want := map[string]int{"notifications-push": 18}
	if f := fine().Check(cfg, want); len(f) != 0 {
		t.Errorf("%+v", f)
	}
	longer := fine()
	longer.Topics[0].Settings["retention.ms"] = "-1"
	longer.Topics[0].Partitions = 36
	longer.OffsetsKept = 0 // not known
	if f := longer.Check(cfg, want); len(f) != 0 {
		t.Errorf("%+v", f)
	}
	for name, x := range map[string]struct {
		wrong  bool
		change func(*Cluster)
		says   string
	}{
		"gone":        {true, func(c *Cluster) { c.Topics = nil }, "does not exist"},
		"partitions":  {true, func(c *Cluster) { c.Topics[0].Partitions = 17 }, "17 partitions, but 18"},
		"leader":      {true, func(c *Cluster) { c.Topics[0].Leaderless = []int32{4} }, "without a leader: [4]"},
		"lag":         {false, func(c *Cluster) { c.Topics[0].UnderReplicated = []int32{5} }, "[5]"},
		"replication": {true, func(c *Cluster) { c.Topics[0].Replication = 1 }, "1 replicas, but 3"},
		"brokers":     {false, func(c *Cluster) { c.Brokers = c.Brokers[:2] }, "3 replicas are wanted, but there are only 2 brokers"},
		"one broker":  {true, func(c *Cluster) { c.Brokers = c.Brokers[:1] }, "there are only 1 brokers"},
		"refuses":     {true, func(c *Cluster) { c.Topics[0].InSync = 1 }, "refuse appends"},
		"dead":        {false, func(c *Cluster) { c.Brokers[1].Err = errors.New("refused") }, "broker 2"},
		"compact":     {true, func(c *Cluster) { c.Topics[0].Settings["cleanup.policy"] = "compact,delete" }, "cleanup.policy"},
		"unclean":     {true, func(c *Cluster) { c.Topics[0].Settings["unclean.leader.election.enable"] = "true" }, "unclean"},
		"in sync":     {true, func(c *Cluster) { c.Topics[0].Settings["min.insync.replicas"] = "1" }, "min.insync.replicas is 1, but 2"},
		"size":        {true, func(c *Cluster) { c.Topics[0].Settings["max.message.bytes"] = "1000000" }, "max.message.bytes"},
		"time":        {true, func(c *Cluster) { c.Topics[0].Settings["retention.ms"] = "3600000" }, "retention.ms"},
		"space":       {false, func(c *Cluster) { c.Topics[0].Settings["retention.bytes"] = "1000000" }, "retention.bytes"},
		"offsets":     {false, func(c *Cluster) { c.OffsetsKept = 24 * time.Hour }, "offsets.retention.minutes is 1440: if all workers are stopped for longer than 24h0m0s"},
		"unreadable":  {false, func(c *Cluster) { c.Topics[0].Settings = nil }, "cannot be read"},
	} {
		c := fine()
		x.change(c)
		f := c.Check(cfg, want)
		if len(f) != 1 || f[0].Wrong != x.wrong || !strings.Contains(f[0].Msg, x.says) || f[0].Repair == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	ts := Topics(map[notify.Channel]int{notify.SMS: 3})
	for name, n := range map[string]int{
		"notifications-push": 18, "notifications-push-bulk": 18, "notifications-push-dlq": 18, "notifications-push-bulk-dlq": 18,
		"notifications-sms": 3, "notifications-sms-bulk": 3, "notifications-sms-dlq": 3, "notifications-sms-bulk-dlq": 3,
		"notifications-email": 84, "notifications-email-bulk": 84, "notifications-email-dlq": 84, "notifications-email-bulk-dlq": 84,
		"notifications-failed": 6, "notifications-outcomes": 1, "notifications-poison": 1, "triggers-dlq": 1,
	} {
		if ts[name] != n {
			t.Errorf("%s: %d, want %d", name, ts[name], n)
		}
		delete(ts, name)
	}
	cfg := AdminConfig{}
	for name, ms := range map[string]string{"notifications-push-bulk-dlq": "-1", "notifications-sms": "-1", "notifications-failed": "-1", "notifications-outcomes": "-1", "notifications-poison": "2592000000"} {
		if got := cfg.settings(name)["retention.ms"]; got != ms {
			t.Errorf("%s is kept for %s ms, want %s", name, got, ms)
		}
	}
	if len(ts) > 0 {
		t.Errorf("and %v", ts)
	}
}
