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

// ProducerConfig configures a Producer. The zero value of a field means its default.
type ProducerConfig struct {
	Conn Conn
	// Linger is how long a record waits for other records of its partition. Default 5 ms. The embedded
	// log needs two fsyncs for each batch, on the goroutine that also serves reads. Without linger it
	// could not keep up with 5M receivers/s. Negative: no linger.
	Linger time.Duration `default:"5ms"`
	// MaxRecordBytes is the maximum size of key, value and headers together. It also determines the
	// size of the largest batch. Default 1,000,000, which a Kafka with default settings accepts. The
	// topics' max.message.bytes must be higher by at least 48,000: see AdminConfig.MaxRecordBytes. The
	// embedded broker accepts up to 8 MiB.
	MaxRecordBytes int `default:"1000000" min:"0"`
	// AppendTimeout is the longest time that an Append takes, including the client's retries. An
	// Append may stop earlier, by at most a sixteenth of this time. The default of 1 s is long
	// enough to notice a dead broker. The embedded log has a longer timeout: it cannot be
	// unavailable, but its disk can be slow.
	AppendTimeout time.Duration `default:"1s" min:"0"`
	// MaxBufferedBytes is the maximum size of all records that wait for the broker. If it is
	// reached, Append waits, but not longer than AppendTimeout.
	MaxBufferedBytes int `default:"128MiB" min:"0"`
	// Appended, if set, is called after records of a partition were acknowledged. The parameter
	// next is the offset after the last of these records. Appended must return quickly.
	Appended func(tp TopicPartition, next int64)
	// Brokers says whether the log has one broker or many. Default ManyBrokers.
	Brokers Brokers
	// Partitions, if set, returns the number of partitions over which the keys of a topic are spread
	// now. It returns 0 for a topic that it does not know. A record with a key in a known topic goes to
	// the partition of its key, and its field Partition is ignored. If Partitions returns an error,
	// Append returns the error and appends nothing. It can be set only with ManyBrokers.
	Partitions func(topic string) (int, error)
}

// Brokers says whether a log has one broker or many.
type Brokers string

const (
	// ManyBrokers: several brokers share the partitions. All records are appended through the client
	// library.
	ManyBrokers Brokers = ""
	// OneBroker: one broker leads every partition, as the embedded broker does. The producer then
	// sends small records and the records of bulk lanes itself. This needs fewer steps than the
	// client library and no idempotent producer. Do not use OneBroker with Kafka, where only the
	// client library can handle moved leaders and repeated requests.
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
		return fmt.Errorf("log: MaxBufferedBytes is %d; it must be at least MaxRecordBytes, which is %d", c.MaxBufferedBytes, c.MaxRecordBytes)
	case c.Brokers == OneBroker && (c.Partitions != nil || c.Conn.Prefix != "" || len(c.Conn.Brokers) > 1 || c.Conn.TLS.Enabled || c.Conn.SASL != nil):
		return errors.New("log: OneBroker is only for the embedded broker: it allows only one broker and no Partitions, prefix, TLS or SASL")
	}
	return errors.Join(setting.Err("producer", &c), c.Conn.validate())
}

const (
	maxRecordBytes = 1_000_000
	// A batch with one record is larger than the record, by at most batchOverhead bytes.
	batchOverhead = 48_000
	// maxPooledCall is the largest capacity, in records, of a call that goes back to the pool. A
	// larger call is not used again.
	maxPooledCall = 16 << 10
	// maxBufferedRecords limits the number of buffered records. It is so high that MaxBufferedBytes is
	// always reached first, even if all records are of the smallest size.
	maxBufferedRecords = 1 << 20
)

// Producer appends records. It may be used from any goroutine. It opens connections at the first
// append. Close frees the connections.
//
// Bulk lanes have their own connections. On a shared connection an otp code would wait for the bulk
// requests before it. The records of a topic stay in order, because a topic always uses the same
// producerPath.
type Producer struct {
	cfg        ProducerConfig
	fast, bulk producerPath
	calls      sync.Pool // *call
	deadlines  deadlineContexts
}

// producerPath holds the clients through which the records of some topics reach the brokers.
type producerPath struct {
	cl     *kgo.Client
	direct *direct // nil unless there is one broker
}

func (w *producerPath) close() {
	if w.direct != nil {
		w.direct.close()
	}
	if w.cl != nil {
		w.cl.Close()
	}
}

// pathOf returns the path of a topic.
func (p *Producer) pathOf(topic string) *producerPath {
	if strings.Contains(topic, "-bulk") { // also the topics with the suffix -dlq
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
	p := &Producer{cfg: cfg, deadlines: deadlineContexts{length: cfg.AppendTimeout}}
	for _, w := range []*producerPath{&p.fast, &p.bulk} {
		if err := w.open(cfg, w == &p.bulk); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

func (w *producerPath) open(cfg ProducerConfig, bulk bool) (err error) {
	// By default an idempotent producer never reports a record as failed while the broker is
	// unavailable. With these settings it reports records as failed after AppendTimeout and still
	// keeps their order. A producer that is not idempotent would not keep the order.
	w.cl, err = cfg.Conn.client(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.AllowIdempotentProduceCancellation(),
		kgo.RecordDeliveryTimeout(max(cfg.AppendTimeout, time.Second)+cfg.Linger),
		kgo.ProduceRequestTimeout(max(cfg.AppendTimeout, time.Second)),
		kgo.ProducerLinger(cfg.Linger),
		kgo.ProducerBatchMaxBytes(int32(cfg.MaxRecordBytes+batchOverhead)),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // the records are dense, so compression would save little
		// A broker and its disk handle one request at a time. The client library would allow
		// requests of 100 MiB. Behind such a request, otp codes would wait.
		kgo.BrokerMaxWriteBytes(int32(2*(cfg.MaxRecordBytes+batchOverhead))),
		kgo.MaxBufferedRecords(maxBufferedRecords),
		kgo.MaxBufferedBytes(cfg.MaxBufferedBytes+maxBufferedRecords),
		kgo.RecordPartitioner(partitioner(&cfg)),
		kgo.UnknownTopicRetries(1),
	)
	if err != nil {
		return fmt.Errorf("log: creating the client of the producer: %w", err)
	}
	if cfg.Brokers == OneBroker {
		w.direct, err = newDirect(cfg, bulk)
	}
	return err
}

// partitioner returns a partitioner that spreads keys over the number of partitions that
// ProducerConfig.Partitions returns. In a topic that Partitions does not know, it uses Record.Partition
// if that is not negative, and otherwise the hash of the key. Records without a key go to the
// partitions in turn.
func partitioner(cfg *ProducerConfig) kgo.Partitioner {
	return kgo.BasicConsistentPartitioner(func(wire string) func(*kgo.Record, int) int {
		var turn atomic.Uint32
		topic := cfg.Conn.productName(wire)
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

// call is the state of one running Append. It returns to the pool only after the client library has
// reported the result of every record. After that the library does not use the records any more.
type call struct {
	recs       []kgo.Record
	left       atomic.Int64          // number of records that the client has not reported yet
	err        atomic.Pointer[error] // the first error
	onRecord   func(*kgo.Record, error)
	onComplete func([]kgo.Record) // called when the client has reported every record, before the result is passed on
	done       func(error)        // called with the result; nil: the channel answer gets the result
	// The channel answer gets the result of the Append. If Append returned before the result came,
	// the call is not used again, and the garbage collector frees it.
	answer chan error
}

func (p *Producer) newCall() *call {
	c, _ := p.calls.Get().(*call)
	if c == nil {
		c = &call{onComplete: p.reportAppended, answer: make(chan error, 1)}
		c.onRecord = c.recordDone
	}
	return c
}

// recycle returns a call to the pool. It does not clear the records of the call: the next Append
// overwrites them, and clearing took 3% of the time of a batch. The pool frees calls that are not
// used again.
func (p *Producer) recycle(c *call) {
	c.done = nil
	if cap(c.recs) <= maxPooledCall {
		p.calls.Put(c)
	}
}

func (c *call) recordDone(r *kgo.Record, err error) {
	if err != nil {
		r.Offset = -1
		c.setErr(err)
	}
	if c.left.Add(-1) == 0 {
		c.finish()
	}
}

// setErr stores err if it is the first error. It is a separate function because otherwise err would
// move to the heap for every record.
func (c *call) setErr(err error) { c.err.CompareAndSwap(nil, &err) }

func (c *call) finish() {
	c.onComplete(c.recs)
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

// Append appends records. In each partition they have the given order. Append returns nil when every
// record is acknowledged. After it has returned nil, it keeps no reference to recs.
//
// After an error each record may be stored or not, because recs may be split into several batches and
// requests. The client may read keys and values for a while after the error, so the caller must not
// write to them. KindTooLarge is an exception: nothing was appended, and the client keeps no reference.
// KindUnavailable with the error code "log" means that the broker is unavailable or slower than
// AppendTimeout, or that ctx has ended.
func (p *Producer) Append(ctx context.Context, recs []Record) error {
	if len(recs) == 0 {
		return nil
	}
	if err := p.checkSizes(recs); err != nil {
		return err
	}
	if err := p.checkPartitionsKnown(recs); err != nil {
		return err
	}
	w := p.pathOf(recs[0].Topic)
	for i := range recs {
		if recs[i].Topic != recs[0].Topic && p.pathOf(recs[i].Topic) != w {
			return p.appendBoth(ctx, recs)
		}
	}
	turn := p.deadlines.current()
	if w.direct != nil && w.direct.accepts(recs) {
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
		p.recycle(c)
		return p.failure(ctx, err)
	case <-ctx.Done():
	}
	select {
	case err := <-c.answer: // both channels were ready
		return p.failure(ctx, err)
	default:
		return p.failure(ctx, ctx.Err())
	}
}

// appendBoth appends records that belong partly to the fast path and partly to the bulk path. It
// uses both paths at the same time and keeps the order within each of them.
func (p *Producer) appendBoth(ctx context.Context, recs []Record) error {
	var of [2][]Record
	for _, r := range recs {
		k := 0
		if p.pathOf(r.Topic) == &p.bulk {
			k = 1
		}
		of[k] = append(of[k], r)
	}
	bulk := make(chan error, 1)
	go func() { bulk <- p.Append(ctx, of[1]) }()
	return cmp.Or(p.Append(ctx, of[0]), <-bulk)
}

// deadlineContexts returns contexts with a timeout. The timeout is the field length, or up to a
// sixteenth less, because all calls within such a sixteenth share one context. A context that has
// timed out has the cause errTooSlow. Making a context and a timer for each call took 2% of the
// time of a single request.
type deadlineContexts struct {
	length time.Duration

	mu   sync.Mutex
	ctx  context.Context
	stop context.CancelFunc // ends ctx; earlier contexts end at their deadlines, because calls may still use them
	next time.Time          // from this time on, the method current makes a new context
}

// deadlineShare is the largest number of contexts that are made in one timeout.
const deadlineShare = 16

func (d *deadlineContexts) current() context.Context {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || !now.Before(d.next) {
		d.next = now.Add(d.length / deadlineShare)
		d.ctx, d.stop = context.WithDeadlineCause(context.Background(), now.Add(d.length), errTooSlow)
	}
	return d.ctx
}

func (d *deadlineContexts) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
	}
}

// AppendFunc appends records as Append does, but does not wait for the result. It calls the
// function done once with the result. Normally this function runs on a goroutine of the client, so
// it must not block. If recs is empty or refused, AppendFunc calls done itself before it returns.
// AppendFunc waits only while the buffer is full. If ctx has no deadline, AppendTimeout does not
// apply: a frozen broker is then reported after about two seconds.
func (p *Producer) AppendFunc(ctx context.Context, recs []Record, done func(error)) {
	if len(recs) == 0 {
		done(nil)
		return
	}
	if err := cmp.Or(p.checkSizes(recs), p.checkPartitionsKnown(recs)); err != nil {
		done(err)
		return
	}
	c := p.newCall()
	c.done = func(err error) {
		p.recycle(c)
		done(p.failure(ctx, err))
	}
	p.produce(ctx, c, recs)
}

// checkSizes returns KindTooLarge if a record in recs is larger than MaxRecordBytes.
func (p *Producer) checkSizes(recs []Record) error {
	for i := range recs {
		if n := recs[i].size(); n > p.cfg.MaxRecordBytes {
			return &notify.Error{
				Kind: notify.KindTooLarge, Code: "record_too_large",
				Msg: fmt.Sprintf("a record has %d bytes; the log accepts at most %d bytes", n, p.cfg.MaxRecordBytes),
			}
		}
	}
	return nil
}

// checkPartitionsKnown returns an error if the number of partitions of a topic in recs is not known.
// Without this check, keys would go to wrong partitions.
func (p *Producer) checkPartitionsKnown(recs []Record) error {
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

// produce passes records to the client library. The call c ends when the library has reported the
// result of every record.
func (p *Producer) produce(ctx context.Context, c *call, recs []Record) {
	if cap(c.recs) < len(recs) {
		c.recs = make([]kgo.Record, len(recs))
	}
	c.recs = c.recs[:len(recs)]
	c.err.Store(nil)
	c.left.Store(int64(len(recs)))
	now := time.Now() // read once: for a record without a timestamp the client would read the clock
	w := p.pathOf(recs[0].Topic)
	for i := range recs {
		r, k := &recs[i], &c.recs[i]
		*k = kgo.Record{Topic: p.cfg.Conn.wireName(r.Topic), Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: now}
		if !r.Time.IsZero() {
			k.Timestamp = r.Time
		}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if i > 0 && r.Topic != recs[i-1].Topic {
			w = p.pathOf(r.Topic)
		}
		w.cl.Produce(ctx, k, c.onRecord)
	}
}

// reportAppended passes the offsets of acknowledged records to ProducerConfig.Appended. If
// consecutive records are in the same partition, it calls Appended only for the last of them.
func (p *Producer) reportAppended(recs []kgo.Record) {
	if p.cfg.Appended == nil {
		return
	}
	for i := range recs {
		r := &recs[i]
		if i+1 < len(recs) && recs[i+1].Partition == r.Partition && recs[i+1].Offset > r.Offset && recs[i+1].Topic == r.Topic {
			continue
		}
		if r.Offset >= 0 {
			p.cfg.Appended(p.cfg.Conn.fromWire(r.Topic, r.Partition), r.Offset+1)
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

// Close makes the waiting appends fail and frees the connections.
func (p *Producer) Close() {
	p.fast.close()
	p.bulk.close()
	p.deadlines.close()
}
