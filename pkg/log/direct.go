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

// direct appends small records to a log that has only one broker. The client library passes every
// record through locks, a partitioner, a buffer and a promise. With one broker these steps are not
// needed: direct writes the records of each partition into one batch as they arrive. One request
// then carries the records of all waiting callers. A record takes 309 ns with direct, including the
// broker's work, and 697 ns with the client library (BenchmarkAppendSmall).
//
// direct never retries. If it fails, the caller appends the records again through the client
// library, which retries. Records that were already stored are then stored a second time, as after
// a crash. Readers recognise the second copy.
//
// Only one request runs at a time, so that the records of a partition stay in order.
//
// For bulk lanes (splitRequests) records may be large, and each partition has its own request. The
// broker handles one request at a time and fsyncs each batch twice. With one common request, an otp
// code would have to wait for the batches of all partitions of a fan-out.
type direct struct {
	cl            *kgo.Client
	splitRequests bool // true: each batch is sent in its own request, and records may be large
	linger        time.Duration
	timeout       time.Duration
	maxBatch      int // maximum size of a batch, bytes
	maxWaiting    int // limit of the bytes that wait; if it is reached, the method append fails
	appended      func(tp TopicPartition, next int64)

	roundFull chan struct{} // tells the goroutine of the method run that a round is full
	closing   chan struct{} // closed by the method close
	running   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	filling *round     // gets new records; nil: no record arrived after the last round
	full    []*round   // rounds that wait to be sent; oldest first
	waiting int        // number of bytes in filling and full
	spare   *round
	sending bool // true: the goroutine of the method run exists
	closed  bool
}

const (
	// smallRecord is the size in bytes of the largest record that direct accepts, unless splitRequests
	// is set. Copying a larger record into the batch costs more than the steps of the client library.
	smallRecord = 4 << 10
	// maxSpare is the largest size of the buffers of a sent round that is kept for the next round
	// (the field spare), in bytes.
	maxSpare = 32 << 20
	// produceVersion is the last version of produce requests that identifies topics by their names.
	produceVersion = 12
)

func newDirect(cfg ProducerConfig, apart bool) (*direct, error) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), produceVersion)
	cl, err := cfg.Conn.client(kgo.MaxVersions(versions))
	if err != nil {
		return nil, fmt.Errorf("log: creating the client of the producer: %w", err)
	}
	return &direct{
		cl: cl, splitRequests: apart, linger: cfg.Linger, timeout: cfg.AppendTimeout, appended: cfg.Appended,
		maxBatch: cfg.MaxRecordBytes + batchOverhead, maxWaiting: cfg.MaxBufferedBytes,
		roundFull: make(chan struct{}, 1), closing: make(chan struct{}),
	}, nil
}

// round holds the records that are sent together. They are sent in one request, or with
// splitRequests in one request for each partition. While the round is filling, direct.mu guards it.
// After that only the goroutine of the method direct.run uses the round.
type round struct {
	*roundResult
	began  time.Time
	bytes  int
	topics []topicBatches
	req    kmsg.ProduceRequest
}

type topicBatches struct {
	topic string
	parts []rawBatch // indexed by partition
}

// roundResult is the result of a round. It is a separate value because the round is reused while
// waiting callers still read the result.
type roundResult struct {
	done chan struct{} // closed when err is set
	err  error
}

// accepts reports whether direct can append all records of recs.
func (d *direct) accepts(recs []Record) bool {
	for i := range recs {
		if r := &recs[i]; r.Partition < 0 || r.Topic == "" || len(r.Headers) > 0 || len(r.Key)+len(r.Value) > smallRecord && !d.splitRequests {
			return false
		}
	}
	return true
}

// append writes the records and waits until the broker has acknowledged all of them. The caller
// must have checked them with the method accepts. If one of the contexts ctx and turn ends first,
// append returns an error. They are two contexts because joining them to one took 1% of the time of
// a single request. After append has returned, even with an error, it keeps no reference to recs.
func (d *direct) append(ctx, turn context.Context, recs []Record) error {
	var few [2]*roundResult
	results, err := d.addToRounds(few[:0], recs)
	if err != nil {
		return err
	}
	for _, v := range results {
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
	errDirectFull   = errors.New("too many bytes wait for the log")
	errDirectClosed = errors.New("the producer is closed")
)

// addToRounds adds recs to rounds. It appends the roundResult of each of these rounds to the slice
// results and returns that slice. If it returns an error, it has added no record. If the goroutine
// of the method run does not exist, addToRounds starts it.
func (d *direct) addToRounds(results []*roundResult, recs []Record) ([]*roundResult, error) {
	now := time.Now()
	ms := now.UnixMilli()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errDirectClosed
	case d.waiting >= d.maxWaiting:
		return nil, errDirectFull
	}
	for i := 0; i < len(recs); {
		if d.filling == nil {
			d.startRoundLocked(now)
		}
		n, bytes := d.filling.addRecords(recs[i:], ms, d.maxBatch)
		d.waiting += bytes
		i += n
		results = append(results, d.filling.roundResult)
		if i < len(recs) {
			d.full, d.filling = append(d.full, d.filling), nil
			select {
			case d.roundFull <- struct{}{}:
			default:
			}
		}
	}
	if !d.sending {
		d.sending = true
		d.running.Go(d.run)
	}
	return results, nil
}

// startRoundLocked starts a new filling round. The caller holds the lock.
func (d *direct) startRoundLocked(now time.Time) {
	r := d.spare
	if d.spare = nil; r == nil {
		r = &round{req: kmsg.NewProduceRequest()}
		r.req.Acks, r.req.TimeoutMillis = -1, int32(d.timeout.Milliseconds())
	}
	r.roundResult, r.began = &roundResult{done: make(chan struct{})}, now
	d.filling = r
}

// addRecords adds recs in order. It stops when a batch would have more than maxBytes bytes. It
// returns how many records and how many bytes it added. A record without a time gets the time in
// the parameter ms, in ms since 1970.
func (r *round) addRecords(recs []Record, ms int64, maxBytes int) (n, bytes int) {
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
		if was+len(rec.Key)+len(rec.Value)+recordOverhead > maxBytes && was > 0 {
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

// run sends rounds until no round is left. addToRounds starts it again in a new goroutine.
func (d *direct) run() {
	for {
		r := d.nextRound()
		if r == nil {
			return
		}
		err := d.sendRound(r)
		r.err = err
		close(r.done)
		d.mu.Lock()
		if err == nil && d.spare == nil && r.reset() <= maxSpare { // after an error the client may still read the buffers, so they are not reused
			d.spare = r
		}
		d.mu.Unlock()
	}
}

// nextRound waits until a round is full, or until the filling round is older than d.linger. It
// removes that round from d and returns it. If there is no round, it returns nil.
func (d *direct) nextRound() *round {
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
			d.sending = false
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
		case <-d.roundFull:
		case <-d.closing:
		}
		lingers.Stop()
	}
}

// sendRound sends the requests of a round and checks the responses.
func (d *direct) sendRound(r *round) error {
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
			if d.splitRequests {
				req.Topics = append(req.Topics[:0], kmsg.ProduceRequestTopic{Topic: t.topic, Partitions: ps})
				if err := d.sendRequest(r, 1); err != nil {
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
	return d.sendRequest(r, batches)
}

// sendRequest sends the request of a round. The parameter batches is the number of batches in the
// request.
func (d *direct) sendRequest(r *round, batches int) error {
	ctx, stop := context.WithTimeout(context.Background(), d.timeout)
	defer stop()
	answer, err := d.cl.SeedBrokers()[0].Request(ctx, &r.req)
	if err != nil {
		return err
	}
	resp, ok := answer.(*kmsg.ProduceResponse)
	if !ok {
		return fmt.Errorf("log: the broker answered a produce request with a %T instead of a produce response", answer)
	}
	return r.checkResponse(resp, batches, d.appended)
}

// checkResponse returns an error unless resp acknowledges all batches of the request. It calls the
// function appended, if set, for each acknowledged batch.
func (r *round) checkResponse(resp *kmsg.ProduceResponse, batches int, appended func(tp TopicPartition, next int64)) (err error) {
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
				return fmt.Errorf("log: the broker answered for partition %s/%d, which was not in the request", rt.Topic, p.Partition)
			}
			batches--
			if appended != nil {
				appended(TopicPartition{rt.Topic, p.Partition}, p.BaseOffset+int64(t.parts[p.Partition].count))
			}
		}
	}
	if err == nil && batches != 0 {
		err = fmt.Errorf("log: the broker's answer to a produce request omits %d batches of the request", batches)
	}
	return err
}

// reset empties a round, so that it can be filled again. It returns the size of the buffers that
// the round keeps, in bytes.
func (r *round) reset() (kept int) {
	for i := range r.topics {
		for p := range r.topics[i].parts {
			b := &r.topics[i].parts[p]
			*b = rawBatch{buf: b.buf[:0]}
			kept += cap(b.buf)
		}
	}
	r.roundResult, r.bytes = nil, 0
	return kept
}

// close makes the waiting rounds fail and waits until the goroutine of the method run has ended.
func (d *direct) close() {
	d.mu.Lock()
	d.closed = true
	close(d.closing)
	d.mu.Unlock()
	d.cl.Close()
	d.running.Wait()
}
