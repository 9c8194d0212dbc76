package log

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// direct appends small records to a log of one broker. The client library takes
// every record through locks, a partitioner, a buffer and a promise of its own.
// Where one broker leads every partition, all that is needed is the batch: records
// are written into one a partition as they come, and one request carries those of
// everybody who waits. A record of a batch takes 309 ns, the broker's work
// included, against 697 (BenchmarkAppendSmall).
//
// It never tries again. Whoever is told that it failed appends once more through
// the library, which does; what was stored already is then there twice, as after
// a crash, and readers know a record that they have seen.
//
// One request is under way at a time: records of a partition that are in two of
// them are stored in their order.
//
// Records of bulk lanes are appended apart, a partition a request: the broker works on one
// request at a time and fsyncs each batch twice, so a code would wait for the batches of all
// partitions of a fan-out.
type direct struct {
	cl       *kgo.Client
	apart    bool // each batch in a request of its own; records may be large
	linger   time.Duration
	timeout  time.Duration
	most     int // bytes of a batch
	held     int // bytes that may wait
	appended func(tp TopicPartition, next int64)

	wake    chan struct{} // a round is full
	closing chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	filling *round   // takes what comes; nil: none has come since
	full    []*round // wait to be sent, the oldest first
	waiting int      // bytes in both
	spare   *round
	busy    bool // somebody runs
	closed  bool
}

const (
	// smallRecord is the largest record for direct, in bytes: the copy of a
	// larger one costs more than the library.
	smallRecord = 4 << 10
	// maxSpare is the most memory that is kept for the next round.
	maxSpare = 32 << 20
	// produceVersion of the protocol is the last that names topics.
	produceVersion = 12
)

func newDirect(cfg ProducerConfig, apart bool) (*direct, error) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), produceVersion)
	cl, err := cfg.Conn.client(kgo.MaxVersions(versions))
	if err != nil {
		return nil, fmt.Errorf("stream: producer: %w", err)
	}
	return &direct{
		cl: cl, apart: apart, linger: cfg.Linger, timeout: cfg.AppendTimeout, appended: cfg.Appended,
		most: cfg.MaxRecordBytes + batchOverhead, held: cfg.MaxBufferedBytes,
		wake: make(chan struct{}, 1), closing: make(chan struct{}),
	}, nil
}

// round is what one request holds.
type round struct {
	*verdict
	began  time.Time
	bytes  int
	topics []topicBatches
	req    kmsg.ProduceRequest
}

type topicBatches struct {
	topic string
	parts []rawBatch // by partition
}

// verdict is what becomes of a round; those who wait keep it longer than that.
type verdict struct {
	done chan struct{} // closed when err is set
	err  error
}

// takes reports whether direct is for all of recs.
func (d *direct) takes(recs []Record) bool {
	for i := range recs {
		if r := &recs[i]; r.Partition < 0 || r.Topic == "" || len(r.Headers) > 0 || len(r.Key)+len(r.Value) > smallRecord && !d.apart {
			return false
		}
	}
	return true
}

// append returns nil when every one of recs, which it takes, is acknowledged, and
// an error when ctx or turn has ended: a context that ends with either of them
// took 1% of a single request. Of recs nothing is referred to after its return,
// whatever it returns.
func (d *direct) append(ctx, turn context.Context, recs []Record) error {
	var few [2]*verdict
	all, err := d.add(few[:0], recs)
	if err != nil {
		return err
	}
	for _, v := range all {
		select {
		case <-v.done:
			err = errors.Join(err, v.err)
		case <-ctx.Done():
			return ctx.Err()
		case <-turn.Done():
			return turn.Err()
		}
	}
	return err
}

var (
	errDirectFull   = errors.New("as much waits for the log as may")
	errDirectClosed = errors.New("the producer is closed")
)

// add puts recs into rounds and returns their verdicts; an error: none of them.
func (d *direct) add(all []*verdict, recs []Record) ([]*verdict, error) {
	now := time.Now()
	ms := now.UnixMilli()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errDirectClosed
	case d.waiting >= d.held:
		return nil, errDirectFull
	}
	for i := 0; i < len(recs); {
		if d.filling == nil {
			d.begin(now)
		}
		n, bytes := d.filling.add(recs[i:], ms, d.most)
		d.waiting += bytes
		i += n
		all = append(all, d.filling.verdict)
		if i < len(recs) {
			d.full, d.filling = append(d.full, d.filling), nil
			select {
			case d.wake <- struct{}{}:
			default:
			}
		}
	}
	if !d.busy {
		d.busy = true
		d.running.Go(d.run)
	}
	return all, nil
}

// begin needs the lock.
func (d *direct) begin(now time.Time) {
	r := d.spare
	if d.spare = nil; r == nil {
		r = &round{req: kmsg.NewProduceRequest()}
		r.req.Acks, r.req.TimeoutMillis = -1, int32(d.timeout.Milliseconds())
	}
	r.verdict, r.began = &verdict{done: make(chan struct{})}, now
	d.filling = r
}

// add adds recs until a batch would grow above most bytes, and returns how many
// records and bytes it took. ms is the time of those that have none.
func (r *round) add(recs []Record, ms int64, most int) (n, bytes int) {
	var t *topicBatches
	for i := range recs {
		rec := &recs[i]
		if t == nil || t.topic != rec.Topic {
			t = r.topic(rec.Topic)
		}
		for int(rec.Partition) >= len(t.parts) {
			t.parts = append(t.parts, rawBatch{})
		}
		b := &t.parts[rec.Partition]
		was := len(b.buf)
		if was+len(rec.Key)+len(rec.Value)+recordOverhead > most && was > 0 {
			break
		}
		at := ms
		if !rec.Time.IsZero() {
			at = rec.Time.UnixMilli()
		}
		b.add(rec.Key, rec.Value, at)
		bytes += len(b.buf) - was
		n++
	}
	r.bytes += bytes
	return n, bytes
}

func (r *round) topic(name string) *topicBatches {
	for i := range r.topics {
		if r.topics[i].topic == name {
			return &r.topics[i]
		}
	}
	r.topics = append(r.topics, topicBatches{topic: name})
	return &r.topics[len(r.topics)-1]
}

// run sends rounds until there is none.
func (d *direct) run() {
	for {
		r := d.next()
		if r == nil {
			return
		}
		err := d.send(r)
		r.err = err
		close(r.done)
		d.mu.Lock()
		if err == nil && d.spare == nil && r.reset() <= maxSpare { // after an error the client may still read it
			d.spare = r
		}
		d.mu.Unlock()
	}
}

// next waits until a round is full or has lingered, and takes it; nil: none waits.
func (d *direct) next() *round {
	for {
		d.mu.Lock()
		if len(d.full) > 0 {
			r := d.full[0]
			d.full = d.full[1:]
			d.waiting -= r.bytes
			d.mu.Unlock()
			return r
		}
		r := d.filling
		if r == nil {
			d.busy = false
			d.mu.Unlock()
			return nil
		}
		wait := d.linger
		if wait > 0 {
			wait -= time.Since(r.began)
		}
		if wait <= 0 || d.closed {
			d.filling = nil
			d.waiting -= r.bytes
			d.mu.Unlock()
			return r
		}
		d.mu.Unlock()
		lingers := time.NewTimer(wait)
		select {
		case <-lingers.C:
		case <-d.wake:
		case <-d.closing:
		}
		lingers.Stop()
	}
}

// send appends a round.
func (d *direct) send(r *round) error {
	req, batches := &r.req, 0
	req.Topics = req.Topics[:0]
	for i := range r.topics {
		t := &r.topics[i]
		var ps []kmsg.ProduceRequestTopicPartition
		for p := range t.parts {
			b := &t.parts[p]
			if b.count == 0 {
				continue
			}
			ps = append(ps, kmsg.ProduceRequestTopicPartition{Partition: int32(p), Records: b.finish()})
			if d.apart {
				req.Topics = append(req.Topics[:0], kmsg.ProduceRequestTopic{Topic: t.topic, Partitions: ps})
				if err := d.request(r, 1); err != nil {
					return err
				}
				ps = ps[:0]
			}
		}
		if len(ps) > 0 {
			req.Topics = append(req.Topics, kmsg.ProduceRequestTopic{Topic: t.topic, Partitions: ps})
			batches += len(ps)
		}
	}
	if batches == 0 {
		return nil
	}
	return d.request(r, batches)
}

// request sends a round's request, which has so many batches.
func (d *direct) request(r *round, batches int) error {
	ctx, stop := context.WithTimeout(context.Background(), d.timeout)
	defer stop()
	answer, err := d.cl.SeedBrokers()[0].Request(ctx, &r.req)
	if err != nil {
		return err
	}
	resp, ok := answer.(*kmsg.ProduceResponse)
	if !ok {
		return fmt.Errorf("stream: %T answers a produce request", answer)
	}
	return r.stored(resp, batches, d.appended)
}

// stored reads the answer to a request of so many batches.
func (r *round) stored(resp *kmsg.ProduceResponse, batches int, appended func(tp TopicPartition, next int64)) (err error) {
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		t := r.topic(rt.Topic)
		for j := range rt.Partitions {
			p := &rt.Partitions[j]
			if e := kerr.ErrorForCode(p.ErrorCode); e != nil {
				err = errors.Join(err, e)
				continue
			}
			if int(p.Partition) >= len(t.parts) || p.Partition < 0 {
				return fmt.Errorf("stream: an answer for %s/%d, which was not asked", rt.Topic, p.Partition)
			}
			batches--
			if appended != nil {
				appended(TopicPartition{rt.Topic, p.Partition}, p.BaseOffset+int64(t.parts[p.Partition].count))
			}
		}
	}
	if err == nil && batches != 0 {
		err = fmt.Errorf("stream: %d batches without an answer", batches)
	}
	return err
}

// reset empties a round for its next use, and returns how many bytes it keeps.
func (r *round) reset() (kept int) {
	for i := range r.topics {
		for p := range r.topics[i].parts {
			b := &r.topics[i].parts[p]
			*b = rawBatch{buf: b.buf[:0]}
			kept += cap(b.buf)
		}
	}
	r.verdict, r.bytes = nil, 0
	return kept
}

// close fails what waits, and returns when nobody runs any more.
func (d *direct) close() {
	d.mu.Lock()
	d.closed = true
	close(d.closing)
	d.mu.Unlock()
	d.cl.Close()
	d.running.Wait()
}
