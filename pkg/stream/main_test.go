package stream

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker is a cluster of one in memory, on a network that testing/synctest can
// see through.
type broker struct {
	*kfake.Cluster
	conn Conn
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
	return &broker{c, Conn{Brokers: c.ListenAddrs(), Dial: vn.DialContext}}
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
	p := newProducer(t, ProducerConfig{Conn: b.conn})
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
