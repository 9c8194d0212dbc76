package log

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a Kafka cluster: either one broker in memory, on a network that works in a bubble of
// testing/synctest, or a real cluster.
type broker struct {
	*kfake.Cluster // nil: a real one
	conn           Conn
	topic, group   string // the topic exists; no other test uses the topic or the group
}

// onClusters runs fn on the broker in memory, in a bubble, and on a real Kafka if there is one.
func onClusters(t *testing.T, partitions int32, fn func(t *testing.T, b *broker)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { fn(t, newBroker(t, partitions, "topic")) })
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		fn(t, newKafka(t, Conn{Brokers: []string{enginetest.Server(t, enginetest.KafkaEnv)}}, partitions))
	})
}

func newBroker(t testing.TB, partitions int32, topics ...string) *broker {
	t.Helper()
	var vn kfake.VirtualNetwork
	c, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.ListenFn(vn.Listen), kfake.Ports(9092),
		kfake.SeedTopics(partitions, topics...),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &broker{Cluster: c, conn: Conn{Brokers: c.ListenAddrs(), Dial: vn.DialContext}, topic: topics[0], group: "g"}
}

// newKafka makes a topic on a real cluster for one test.
func newKafka(t testing.TB, conn Conn, partitions int32) *broker {
	t.Helper()
	b := &broker{conn: conn}
	b.topic, b.group = b.another(t, partitions), "test-"+rand.Text()
	return b
}

// another makes one more topic.
func (b *broker) another(t testing.TB, partitions int32) string {
	t.Helper()
	name := "test-" + rand.Text()
	adm := b.admin(t)
	b.deleteLater(t, name)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := adm.EnsureTopics(t.Context(), map[string]int{name: int(partitions)})
		if err == nil {
			return name
		}
		if time.Now().After(end) { // a busy machine takes long over a first handshake
			t.Fatal(err)
		}
	}
}

// deleteLater removes topics of a real cluster at the end of the test.
func (b *broker) deleteLater(t testing.TB, topics ...string) {
	if b.Cluster != nil {
		return
	}
	adm := b.admin(t)
	t.Cleanup(func() {
		if _, err := adm.adm.DeleteTopics(context.Background(), topics...); err != nil {
			t.Logf("%v stay: %v", topics, err)
		}
	})
}

func newProducer(t testing.TB, cfg ProducerConfig) *Producer {
	t.Helper()
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func numbered(topic string, partition int32, from, n int) []Record {
	recs := make([]Record, n)
	for i := range recs {
		recs[i] = Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "%d", from+i)}
	}
	return recs
}

func (b *broker) append(t testing.TB, recs []Record) {
	t.Helper()
	p := newProducer(t, ProducerConfig{Conn: b.conn, AppendTimeout: time.Minute})
	if err := p.Append(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
}

func (b *broker) admin(t testing.TB) *Admin {
	t.Helper()
	a, err := NewAdmin(AdminConfig{Conn: b.conn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func (b *broker) committed(t testing.TB, group string) map[TopicPartition]int64 {
	t.Helper()
	m, err := b.admin(t).Committed(context.WithoutCancel(t.Context()), group)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// waitCommitted waits until the group has committed the offset at. It also waits after an error,
// because a cluster that never had a group has no coordinator at first.
func (b *broker) waitCommitted(t testing.TB, tp TopicPartition, at int64) {
	t.Helper()
	adm := b.admin(t)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		c, err := adm.Committed(t.Context(), b.group)
		if err == nil && c[tp] == at {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("committed %d, want %d; %v", c[tp], at, err)
		}
	}
}

// handlerFunc is a handler whose partitions share one function.
type handlerFunc func(ctx context.Context, tp TopicPartition, msgs []*Msg) error

func (f handlerFunc) Assigned(_ context.Context, tp TopicPartition) PartitionHandler {
	return partitionFunc(func(ctx context.Context, msgs []*Msg) error { return f(ctx, tp, msgs) })
}

type partitionFunc func(ctx context.Context, msgs []*Msg) error

func (f partitionFunc) Handle(ctx context.Context, msgs []*Msg) error { return f(ctx, msgs) }

// member is a running Group.
type member struct {
	*Group
	stop context.CancelFunc
	done chan error
	once sync.Once
	err  error
}

func start(t testing.TB, cfg GroupConfig, h Handler) *member {
	t.Helper()
	g, err := NewGroup(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	m := &member{Group: g, stop: stop, done: make(chan error, 1)}
	go func() { m.done <- g.Run(ctx) }()
	t.Cleanup(func() { m.wait() })
	return m
}

func (m *member) wait() error {
	m.once.Do(func() {
		m.stop()
		m.err = <-m.done
	})
	return m.err
}
