package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// ProducerConfig configures a Producer. The zero value of a field means its
// default.
type ProducerConfig struct {
	Conn Conn
	// Linger is how long a record waits for others of its partition. Default
	// 5 ms: the embedded log pays two fsyncs a batch on the goroutine that also
	// serves reads, and without linger it fell behind at 5M receivers/s.
	// Negative: none.
	Linger time.Duration `default:"5ms"`
	// MaxRecordBytes is the largest key + value + headers, and so the largest
	// batch. Default 1,000,000, which a Kafka left at its defaults takes. The
	// topics' max.message.bytes must be at least 48,000 above it: see
	// AdminConfig.MaxRecordBytes; the embedded broker takes up to 8 MiB.
	MaxRecordBytes int `default:"1000000" min:"0"`
	// AppendTimeout bounds an Append, and how long the client itself tries; an
	// Append may give up a sixteenth sooner. Default 1 s, which is how soon a dead broker is noticed; the embedded log,
	// which cannot be away but whose disk can be slow, is given longer.
	AppendTimeout time.Duration `default:"1s" min:"0"`
	// MaxBufferedBytes is how much may wait for the broker; more makes Append wait, up to its
	// timeout.
	MaxBufferedBytes int `default:"128MiB" min:"0"`
	// Appended, when set, is told of every record that is acknowledged: the offset
	// behind it. It must be quick.
	Appended func(tp TopicPartition, next int64)
	// Brokers says how many there are. Default ManyBrokers.
	Brokers Brokers
	// Partitions, when set, says over how many partitions of a topic keys are spread at
	// the moment, 0 for topics that it does not know. A record of a topic that it knows goes
	// where its key says, if it has one, whatever its Partition is. An error is that of the
	// Append, and nothing is appended. With ManyBrokers only.
	Partitions func(topic string) (int, error)
}

// Brokers is how many brokers a log has.
type Brokers string

const (
	// ManyBrokers share the partitions: everything goes through the client library.
	ManyBrokers Brokers = ""
	// OneBroker leads every partition, as the embedded one does: small records
	// are then appended in fewer steps, and without the broker knowing the
	// producer. Not for Kafka: there a moved leader, and a copy of a request that was
	// sent again, are the library's to handle.
	OneBroker Brokers = "one"
)

func (c ProducerConfig) withDefaults() ProducerConfig {
	c = setting.Fill(c)
	c.Conn, c.Linger = setting.Fill(c.Conn), max(c.Linger, 0)
	return c
}

func (c ProducerConfig) validate() error {
	switch {
	case c.MaxBufferedBytes < c.MaxRecordBytes:
		return errors.New("stream: MaxBufferedBytes is smaller than one record")
	case c.Brokers == OneBroker && (c.Partitions != nil || c.Conn.Prefix != "" || len(c.Conn.Brokers) > 1 || c.Conn.TLS.Enabled || c.Conn.SASL != nil):
		return errors.New("stream: OneBroker is the embedded broker, and this is a cluster")
	}
	return errors.Join(setting.Err("producer", &c), c.Conn.validate())
}

const (
	maxRecordBytes = 1_000_000
	// batchOverhead is what a batch of one record may add to it.
	batchOverhead = 48_000
	// maxPooledCall is the most records a call may hold to be kept for reuse.
	maxPooledCall = 16 << 10
	// maxBufferedRecords stands above what MaxBufferedBytes allows of the
	// smallest records, so that bytes decide.
	maxBufferedRecords = 1 << 20
)

// Producer appends records. It may be used from any goroutine. It holds
// connections from the first append on; Close frees them.
//
// Bulk lanes have connections of their own: behind one connection, a code would wait for
// the bulk requests before it. Order holds within a topic, and a topic has one way.
type Producer struct {
	cfg        ProducerConfig
	fast, bulk way
	calls      sync.Pool // *call
	turns      turns
}

// way is how records of some topics reach the brokers.
type way struct {
	cl     *kgo.Client
	direct *direct // nil: there is more than one broker
}

func (w *way) close() {
	if w.direct != nil {
		w.direct.close()
	}
	if w.cl != nil {
		w.cl.Close()
	}
}

// of returns the way of a topic.
func (p *Producer) of(topic string) *way {
	if strings.Contains(topic, "-bulk") { // and its -dlq
		return &p.bulk
	}
	return &p.fast
}

// NewProducer returns a producer. It does not connect.
func NewProducer(cfg ProducerConfig) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Producer{cfg: cfg, turns: turns{length: cfg.AppendTimeout}}
	for _, w := range []*way{&p.fast, &p.bulk} {
		if err := w.open(cfg, w == &p.bulk); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

func (w *way) open(cfg ProducerConfig, bulk bool) (err error) {
	// With the defaults an idempotent producer reports nothing for as long as
	// the broker is away: the promises hang. These settings make it fail
	// records after AppendTimeout, and keep their order, which giving up
	// idempotence would not.
	w.cl, err = cfg.Conn.client(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.RecordDeliveryTimeout(max(cfg.AppendTimeout, time.Second)+cfg.Linger),
		kgo.ProduceRequestTimeout(max(cfg.AppendTimeout, time.Second)),
		kgo.ProducerLinger(cfg.Linger),
		kgo.ProducerBatchMaxBytes(int32(cfg.MaxRecordBytes+batchOverhead)),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // the records are dense
		// A broker works on one request at a time, or its disk does: one of the library's
		// 100 MiB would keep codes waiting.
		kgo.BrokerMaxWriteBytes(int32(2*(cfg.MaxRecordBytes+batchOverhead))),
		kgo.MaxBufferedRecords(maxBufferedRecords),
		kgo.MaxBufferedBytes(cfg.MaxBufferedBytes+maxBufferedRecords),
		kgo.RecordPartitioner(partitioner(&cfg)),
		kgo.UnknownTopicRetries(1),
	)
	if err != nil {
		return fmt.Errorf("stream: producer: %w", err)
	}
	if cfg.Brokers == OneBroker {
		w.direct, err = newDirect(cfg, bulk)
	}
	return err
}

// partitioner spreads keys as ProducerConfig.Partitions says. Of topics that it does not
// know, it honours Record.Partition and hashes keys for the rest. Records without a key go
// round the partitions.
func partitioner(cfg *ProducerConfig) kgo.Partitioner {
	return kgo.BasicConsistentPartitioner(func(wire string) func(*kgo.Record, int) int {
		var turn atomic.Uint32
		topic := cfg.Conn.own(wire)
		return func(r *kgo.Record, n int) int {
			if cfg.Partitions != nil && r.Key != nil {
				if spread, err := cfg.Partitions(topic); err == nil && spread > 0 {
					return int(notify.Partition(r.Key, spread))
				}
			}
			switch {
			case r.Partition >= 0:
				return int(r.Partition)
			case r.Key == nil:
				return int(turn.Add(1) % uint32(n))
			}
			return int(notify.Partition(r.Key, n))
		}
	})
}

// call is one Append under way. It goes back to the pool only after every
// promise was kept, so nobody else can still refer to its records.
type call struct {
	recs []kgo.Record
	left atomic.Int64
	err  atomic.Pointer[error] // the first
	kept func(*kgo.Record, error)
	all  func([]kgo.Record) // told when every promise was kept, before who waits
	done func(error)        // nil: whoever waits reads answer
	// answer takes the end of an Append. One that gave up leaves it to the
	// collector with the call.
	answer chan error
}

func (p *Producer) newCall() *call {
	c, _ := p.calls.Get().(*call)
	if c == nil {
		c = &call{all: p.appended, answer: make(chan error, 1)}
		c.kept = c.keep
	}
	return c
}

// giveBack keeps c, whose records are written over by their next use: to clear
// them too took 3% of a batch. The pool forgets what is not used again.
func (p *Producer) giveBack(c *call) {
	c.done = nil
	if cap(c.recs) <= maxPooledCall {
		p.calls.Put(c)
	}
}

func (c *call) keep(r *kgo.Record, err error) {
	if err != nil {
		r.Offset = -1
		c.fail(err)
	}
	if c.left.Add(-1) == 0 {
		c.finish()
	}
}

// fail is not part of keep: there, err would escape for every record.
func (c *call) fail(err error) { c.err.CompareAndSwap(nil, &err) }

func (c *call) finish() {
	c.all(c.recs)
	var err error
	if e := c.err.Load(); e != nil {
		err = *e
	}
	if c.done != nil {
		c.done(err)
		return
	}
	c.answer <- err
}

// Append appends records, in the order given per partition, and returns nil
// when every one is acknowledged; nothing of recs is referred to any more then.
//
// Any error means that each of them may or may not be stored, and, unless it is
// of notify.KindTooLarge, that keys and values may still be read for a while:
// the caller must not write to them. A slice may be split in several batches
// and requests, so some may be stored and others not. KindTooLarge comes before
// anything is appended. KindUnavailable with code "log": the broker is away,
// slow beyond AppendTimeout, or ctx ended.
func (p *Producer) Append(ctx context.Context, recs []Record) error {
	if len(recs) == 0 {
		return nil
	}
	if err := p.check(recs); err != nil {
		return err
	}
	if err := p.known(recs); err != nil {
		return err
	}
	w := p.of(recs[0].Topic)
	for i := range recs {
		if recs[i].Topic != recs[0].Topic && p.of(recs[i].Topic) != w {
			return p.appendBoth(ctx, recs)
		}
	}
	turn := p.turns.current()
	if w.direct != nil && w.direct.takes(recs) {
		err := w.direct.append(ctx, turn, recs)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return p.failure(ctx, ctx.Err())
		case turn.Err() != nil:
			return p.failure(turn, turn.Err())
		}
	}
	if ctx.Done() == nil {
		ctx = turn
	} else {
		end, _ := turn.Deadline()
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, end, errTooSlow)
		defer stop()
	}
	c := p.newCall()
	p.produce(ctx, c, recs)
	select {
	case err := <-c.answer:
		p.giveBack(c)
		return p.failure(ctx, err)
	case <-ctx.Done():
	}
	select {
	case err := <-c.answer: // both were ready
		return p.failure(ctx, err)
	default:
		return p.failure(ctx, ctx.Err())
	}
}

// appendBoth appends the records of each way at once, in their order.
func (p *Producer) appendBoth(ctx context.Context, recs []Record) error {
	var of [2][]Record
	for _, r := range recs {
		k := 0
		if p.of(r.Topic) == &p.bulk {
			k = 1
		}
		of[k] = append(of[k], r)
	}
	bulk := make(chan error, 1)
	go func() { bulk <- p.Append(ctx, of[1]) }()
	return cmp.Or(p.Append(ctx, of[0]), <-bulk)
}

// turns hands out contexts that end errTooSlow after length, or up to a
// sixteenth of it sooner: those who ask within the same sixteenth share one. A
// context and a timer of its own took 2% of a single request.
type turns struct {
	length time.Duration

	mu   sync.Mutex
	ctx  context.Context
	stop context.CancelFunc // of ctx; those before end by their deadline, for some may still wait
	next time.Time          // when ctx is too old to be handed out
}

const turnsOf = 16

func (t *turns) current() context.Context {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil || !now.Before(t.next) {
		t.next = now.Add(t.length / turnsOf)
		t.ctx, t.stop = context.WithDeadlineCause(context.Background(), now.Add(t.length), errTooSlow)
	}
	return t.ctx
}

func (t *turns) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil {
		t.stop()
	}
}

// AppendFunc appends like Append and calls done once with what Append would
// return, from a goroutine of the client that done must not hold up. It waits
// only while the buffer is full. Where ctx has no deadline, AppendTimeout does
// not apply: a frozen broker is then reported after about two seconds.
func (p *Producer) AppendFunc(ctx context.Context, recs []Record, done func(error)) {
	if len(recs) == 0 {
		done(nil)
		return
	}
	if err := cmp.Or(p.check(recs), p.known(recs)); err != nil {
		done(err)
		return
	}
	c := p.newCall()
	c.done = func(err error) {
		p.giveBack(c)
		done(p.failure(ctx, err))
	}
	p.produce(ctx, c, recs)
}

// check refuses recs whole if one of them is too large.
func (p *Producer) check(recs []Record) error {
	for i := range recs {
		if n := recs[i].size(); n > p.cfg.MaxRecordBytes {
			return &notify.Error{
				Kind: notify.KindTooLarge, Code: "record_too_large",
				Msg: fmt.Sprintf("a record of %d bytes; the log takes %d", n, p.cfg.MaxRecordBytes),
			}
		}
	}
	return nil
}

// known refuses recs if it is not known where keys of one of their topics go.
func (p *Producer) known(recs []Record) error {
	if p.cfg.Partitions == nil {
		return nil
	}
	for i := range recs {
		if i > 0 && recs[i].Topic == recs[i-1].Topic {
			continue
		}
		if _, err := p.cfg.Partitions(recs[i].Topic); err != nil {
			return err
		}
	}
	return nil
}

// produce hands recs to the client; c ends once all promises are kept.
func (p *Producer) produce(ctx context.Context, c *call, recs []Record) {
	if cap(c.recs) < len(recs) {
		c.recs = make([]kgo.Record, len(recs))
	}
	c.recs = c.recs[:len(recs)]
	c.err.Store(nil)
	c.left.Store(int64(len(recs)))
	now := time.Now() // else the client asks the clock for each record
	w := p.of(recs[0].Topic)
	for i := range recs {
		r, k := &recs[i], &c.recs[i]
		*k = kgo.Record{Topic: p.cfg.Conn.wire(r.Topic), Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: now}
		if !r.Time.IsZero() {
			k.Timestamp = r.Time
		}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if i > 0 && r.Topic != recs[i-1].Topic {
			w = p.of(r.Topic)
		}
		w.cl.Produce(ctx, k, c.kept)
	}
}

// appended tells of the records of a call that were acknowledged.
func (p *Producer) appended(recs []kgo.Record) {
	if p.cfg.Appended == nil {
		return
	}
	for i := range recs {
		r := &recs[i]
		if i+1 < len(recs) && recs[i+1].Partition == r.Partition && recs[i+1].Offset > r.Offset && recs[i+1].Topic == r.Topic {
			continue
		}
		if r.Offset >= 0 {
			p.cfg.Appended(p.cfg.Conn.at(r.Topic, r.Partition), r.Offset+1)
		}
	}
}

func (p *Producer) failure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	return translate(err)
}

// Close fails what is still buffered and frees the connections.
func (p *Producer) Close() {
	p.fast.close()
	p.bulk.close()
	p.turns.close()
}
