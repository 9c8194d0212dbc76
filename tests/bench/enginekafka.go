package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

const (
	kafkaPartitions = 12
	singleBytes     = 200       // a record of one notification
	chunkBytes      = 50_000    // a record of a fan-out
	batchBytes      = 1_048_000 // default of our producer: 1,000,000 B of records and the overhead of a batch
	lingerTime      = 5 * time.Millisecond
)

// kafkaBench has the connection to the brokers and makes the topics of this run.
type kafkaBench struct {
	*bench
	conn   log.Conn
	admin  *log.Admin
	name   string       // prefix of topic and group names
	topics int          // number of topics made so far
	remove *kadm.Client // removes topics; log.Admin has no method for it
}

// kafkaFigures measures the log of a Kafka cluster. On both sides (notifyd and the peer) the
// producer is idempotent, and all in-sync replicas acknowledge each record.
func kafkaFigures(ctx context.Context, b *bench, address string) {
	conn := log.Conn{Brokers: []string{address}}
	admin := rig.Must(log.NewAdmin(log.AdminConfig{Conn: conn}))
	defer admin.Close()
	k := &kafkaBench{bench: b, conn: conn, admin: admin, name: fmt.Sprintf("bench-%08x", rand.Uint32())}
	k.remove = kadm.NewClient(rig.Must(kgo.NewClient(kgo.SeedBrokers(address))))
	defer k.remove.Close()

	// A Java program needs some seconds until its hot code is compiled, so rounds are longer here.
	round, rounds := b.round, b.rounds
	b.round, b.rounds = b.length(8*time.Second, 1500*time.Millisecond), min(rounds, 3)
	defer func() { b.round, b.rounds = round, rounds }()
	for _, w := range []struct {
		key, work     string
		size          int
		callers, each int
	}{
		{"kafka_singles", "notifications of 200 B appended, 1,000 a request, 64 requests at a time", singleBytes, 64, 1000},
		{"kafka_chunks", "chunks of fan-outs, 50 KB each, appended, 12 a request, 32 requests at a time", chunkBytes, 32, kafkaPartitions},
	} {
		peer := &perfProducer{k: k, size: w.size, guess: 60e6 / float64(w.size)}
		k.compare(versus{
			key: w.key, work: w.work, unit: "records/s", peer: "kafka-producer-perf-test", need: engineNeed,
			ours:   func(d time.Duration) float64 { return k.produce(ctx, d, w.size, w.callers, w.each) },
			theirs: func(d time.Duration) float64 { return peer.run(ctx, d) },
		})
	}
	k.measureConsumers(ctx)
	b.round, b.rounds = round, rounds
	k.singleAppends(ctx)
}

// topic makes a new topic for one measurement and returns its name. The caller must call the
// returned function, which removes the topic.
func (k *kafkaBench) topic(ctx context.Context) (name string, remove func()) {
	k.topics++
	name = fmt.Sprintf("%s-%d", k.name, k.topics)
	rig.Must(k.admin.EnsureTopics(ctx, map[string]int{name: kafkaPartitions}))
	return name, func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer stop()
		rs, err := k.remove.DeleteTopics(ctx, name)
		if err = errors.Join(err, rs.Error()); err != nil {
			k.notef("could not remove the topic %s: %v", name, err)
		}
	}
}

// producer opens a producer as pkg/app does. Its timeout is longer, so that an append on a busy
// machine does not fail.
func (k *kafkaBench) producer() *log.Producer {
	return rig.Must(log.NewProducer(log.ProducerConfig{Conn: k.conn, AppendTimeout: 3 * time.Minute}))
}

// produce appends records to a new topic for about d and returns records per second. Each append
// has perAppend records of the given size in bytes.
func (k *kafkaBench) produce(ctx context.Context, d time.Duration, size, callers, perAppend int) float64 {
	topic, remove := k.topic(ctx)
	defer remove()
	return k.fill(ctx, topic, d, size, callers, perAppend)
}

func (k *kafkaBench) fill(ctx context.Context, topic string, d time.Duration, size, callers, perAppend int) float64 {
	p := k.producer()
	defer p.Close()
	requests := make([][]log.Record, callers)
	for c := range requests {
		requests[c] = make([]log.Record, perAppend)
		for i := range requests[c] {
			requests[c][i] = log.Record{Topic: topic, Partition: int32((c + i) % kafkaPartitions), Value: noise(size)}
		}
	}
	return flood(ctx, callers, d, func(ctx context.Context, c int) int { return rig.Must(perAppend, p.Append(ctx, requests[c])) })
}

func noise(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = 'a' + byte(rand.Uint32N(26)) // kafka-producer-perf-test also makes such values
	}
	return out
}

// measureConsumers fills a topic. Then it measures how fast a log.Reader and a log.Group read the
// topic.
func (k *kafkaBench) measureConsumers(ctx context.Context) {
	topic, remove := k.topic(ctx)
	defer remove()
	rate := k.fill(ctx, topic, min(k.round, 5*time.Second), singleBytes, 64, 1000)
	ends := rig.Must(k.admin.EndOffsets(ctx, topic))
	total := int64(0)
	for _, end := range ends {
		total += end
	}
	k.notef("%d records to read, appended at %s/s", total, number(rate))
	for _, v := range []versus{
		{key: "kafka_read", work: "records of 200 B read without a consumer group", ours: func(time.Duration) float64 { return k.read(ctx, ends, total) }},
		{key: "kafka_group", work: "records of 200 B read by a consumer group, which marks each record and commits the marks", ours: func(time.Duration) float64 { return k.measureGroup(ctx, topic, total) }},
	} {
		v.unit, v.peer, v.need = "records/s", "kafka-consumer-perf-test, its fetch rate", engineNeed
		v.theirs = func(time.Duration) float64 { return k.perfConsumer(ctx, topic, total) }
		k.compare(v)
	}
}

func (k *kafkaBench) read(ctx context.Context, ends map[log.TopicPartition]int64, total int64) float64 {
	r := rig.Must(log.NewReader(k.conn))
	defer r.Close()
	from := make(map[log.TopicPartition]int64, len(ends))
	for tp := range ends {
		from[tp] = 0
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	began, seen, took := time.Now(), int64(0), time.Duration(0)
	rig.Ok(r.Run(ctx, from, func(_ log.TopicPartition, recs []log.Record) error {
		if seen += int64(len(recs)); seen >= total {
			took = time.Since(began)
			stop()
		}
		return nil
	}))
	if seen < total {
		rig.Ok(ctx.Err())
	}
	return float64(seen) / took.Seconds()
}

// measureGroup reads the given number of records (total) with a log.Group, does nothing with them,
// and returns records per second. The time begins when the first partition is assigned, because the
// peer's rate does not include the rebalance either.
func (k *kafkaBench) measureGroup(ctx context.Context, topic string, total int64) float64 {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h := &counting{total: total, stop: stop}
	g := rig.Must(log.NewGroup(log.GroupConfig{
		Conn: k.conn, Group: fmt.Sprintf("%s-%08x", k.name, rand.Uint32()), Topics: []string{topic},
		Events: log.GroupEvents{Assigned: func(log.TopicPartition) { h.once.Do(func() { h.began = time.Now() }) }},
	}, h))
	rig.Ok(g.Run(ctx))
	if h.seen.Load() < total {
		panic(fmt.Errorf("only %d of %d records were read", h.seen.Load(), total))
	}
	return float64(total) / h.took.Seconds()
}

// counting is a handler that marks every record as done at once. It stops the group when the number
// of records in the field total is reached.
type counting struct {
	total int64
	stop  func()
	once  sync.Once
	began time.Time
	seen  atomic.Int64
	took  time.Duration
}

func (c *counting) Assigned(context.Context, log.TopicPartition) log.PartitionHandler { return c }

func (c *counting) Handle(_ context.Context, msgs []*log.Msg) error {
	for _, m := range msgs {
		m.Done()
	}
	n := int64(len(msgs))
	if seen := c.seen.Add(n); seen >= c.total && seen-n < c.total {
		c.took = time.Since(c.began)
		c.stop()
	}
	return nil
}

// singleAppends measures appends of one notification each. Each caller waits for the answer before
// its next append. The peer is the client library alone, because Kafka has no tool for this.
func (k *kafkaBench) singleAppends(ctx context.Context) {
	const callers = 512
	topic, remove := k.topic(ctx)
	defer remove()
	p := k.producer()
	defer p.Close()
	cl := rig.Must(kgo.NewClient(
		kgo.SeedBrokers(k.conn.Brokers...), kgo.DefaultProduceTopic(topic), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(lingerTime),
		kgo.ProducerBatchMaxBytes(batchBytes), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	))
	defer cl.Close()
	value := noise(singleBytes)
	k.compareFloods(ctx, versus{
		key: "kafka_single", work: fmt.Sprintf("single notifications of 200 B appended, %d requests at a time", callers),
		unit: "records/s", peer: "the client library alone", need: engineNeed, callers: callers,
	}, func(ctx context.Context, c int) int {
		return rig.Must(1, p.Append(ctx, []log.Record{{Topic: topic, Partition: int32(c % kafkaPartitions), Value: value}}))
	}, func(ctx context.Context, c int) int {
		return rig.Must(1, cl.ProduceSync(ctx, &kgo.Record{Partition: int32(c % kafkaPartitions), Value: value}).FirstErr())
	})
}
