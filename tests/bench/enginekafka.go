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
	batchBytes      = 1_048_000 // the producer's default: 1,000,000 and what a batch adds
	lingerTime      = 5 * time.Millisecond
)

// kafkaBench is one broker, or more, and the topics made for this run.
type kafkaBench struct {
	*bench
	conn   log.Conn
	admin  *log.Admin
	name   string
	topics int
	remove *kadm.Client // log.Admin has no reason to remove topics
}

// kafkaFigures measures the log of a cluster: what is appended is acknowledged by
// all in-sync replicas, by an idempotent producer, on both sides.
func kafkaFigures(ctx context.Context, b *bench, at string) {
	conn := log.Conn{Brokers: []string{at}}
	admin := rig.Must(log.NewAdmin(log.AdminConfig{Conn: conn}))
	defer admin.Close()
	k := &kafkaBench{bench: b, conn: conn, admin: admin, name: fmt.Sprintf("bench-%08x", rand.Uint32())}
	k.remove = kadm.NewClient(rig.Must(kgo.NewClient(kgo.SeedBrokers(at))))
	defer k.remove.Close()

	// A Java program takes seconds to be compiled where it matters.
	round, rounds := b.round, b.rounds
	b.round, b.rounds = b.length(8*time.Second, 1500*time.Millisecond), min(rounds, 3)
	defer func() { b.round, b.rounds = round, rounds }()
	for _, w := range []struct {
		key, work     string
		size          int
		callers, each int
	}{
		{"kafka_singles", "notifications of 200 B appended, requests of 1,000, 64 at a time", singleBytes, 64, 1000},
		{"kafka_chunks", "chunks of fan-outs of 50 KB appended, requests of 12, 32 at a time", chunkBytes, 32, kafkaPartitions},
	} {
		peer := &perfProducer{k: k, size: w.size, guess: 60e6 / float64(w.size)}
		k.against(versus{
			key: w.key, work: w.work, unit: "records/s", peer: "kafka-producer-perf-test", need: engineNeed,
			ours:   func(d time.Duration) float64 { return k.produce(ctx, d, w.size, w.callers, w.each) },
			theirs: func(d time.Duration) float64 { return peer.run(ctx, d) },
		})
	}
	k.consumers(ctx)
	b.round, b.rounds = round, rounds
	k.alone(ctx)
}

// topic makes a topic that a measurement has for itself.
func (k *kafkaBench) topic(ctx context.Context) (name string, remove func()) {
	k.topics++
	name = fmt.Sprintf("%s-%d", k.name, k.topics)
	rig.Must(k.admin.EnsureTopics(ctx, map[string]int{name: kafkaPartitions}))
	return name, func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer stop()
		rs, err := k.remove.DeleteTopics(ctx, name)
		if err = errors.Join(err, rs.Error()); err != nil {
			k.notef("the topic %s is left behind: %v", name, err)
		}
	}
}

// producer is the product's, as pkg/app opens it. The timeout is longer: a busy
// machine must not end a measurement.
func (k *kafkaBench) producer() *log.Producer {
	return rig.Must(log.NewProducer(log.ProducerConfig{Conn: k.conn, AppendTimeout: 3 * time.Minute}))
}

// produce appends requests of each records in a topic of its own.
func (k *kafkaBench) produce(ctx context.Context, d time.Duration, size, callers, each int) float64 {
	topic, remove := k.topic(ctx)
	defer remove()
	return k.fill(ctx, topic, d, size, callers, each)
}

func (k *kafkaBench) fill(ctx context.Context, topic string, d time.Duration, size, callers, each int) float64 {
	p := k.producer()
	defer p.Close()
	requests := make([][]log.Record, callers)
	for c := range requests {
		requests[c] = make([]log.Record, each)
		for i := range requests[c] {
			requests[c][i] = log.Record{Topic: topic, Partition: int32((c + i) % kafkaPartitions), Value: noise(size)}
		}
	}
	return flood(ctx, callers, d, func(ctx context.Context, c int) int { return rig.Must(each, p.Append(ctx, requests[c])) })
}

func noise(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = 'a' + byte(rand.Uint32N(26)) // as the perf test makes them
	}
	return out
}

// consumers measures the reader and a member of a group on one filled topic.
func (k *kafkaBench) consumers(ctx context.Context) {
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
		{key: "kafka_read", work: "records of 200 B read by a Reader", ours: func(time.Duration) float64 { return k.read(ctx, ends, total) }},
		{key: "kafka_group", work: "records of 200 B read by a Group, each marked, marks committed", ours: func(time.Duration) float64 { return k.group(ctx, topic, total) }},
	} {
		v.unit, v.peer, v.need = "records/s", "kafka-consumer-perf-test, its fetch rate", engineNeed
		v.theirs = func(time.Duration) float64 { return k.perfConsumer(ctx, topic, total) }
		k.against(v)
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

// group reads as a worker does that has nothing to do with the records. As with
// the peer's rate, time begins when the partitions are assigned.
func (k *kafkaBench) group(ctx context.Context, topic string, total int64) float64 {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h := &counting{total: total, stop: stop}
	g := rig.Must(log.NewGroup(log.GroupConfig{
		Conn: k.conn, Group: fmt.Sprintf("%s-%08x", k.name, rand.Uint32()), Topics: []string{topic},
		Events: log.GroupEvents{Assigned: func(log.TopicPartition) { h.once.Do(func() { h.began = time.Now() }) }},
	}, h))
	rig.Ok(g.Run(ctx))
	if h.seen.Load() < total {
		panic(fmt.Errorf("%d of %d records were read", h.seen.Load(), total))
	}
	return float64(total) / h.took.Seconds()
}

// counting marks every record it is handed.
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

// alone measures a request of one notification that waits for its answer, beside
// the client library alone: no tool of Kafka's does that.
func (k *kafkaBench) alone(ctx context.Context) {
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
	k.floods(ctx, versus{
		key: "kafka_single", work: fmt.Sprintf("single notifications of 200 B appended, %d requests at a time", callers),
		unit: "records/s", peer: "the client library alone", need: engineNeed, callers: callers,
	}, func(ctx context.Context, c int) int {
		return rig.Must(1, p.Append(ctx, []log.Record{{Topic: topic, Partition: int32(c % kafkaPartitions), Value: value}}))
	}, func(ctx context.Context, c int) int {
		return rig.Must(1, cl.ProduceSync(ctx, &kgo.Record{Partition: int32(c % kafkaPartitions), Value: value}).FirstErr())
	})
}
