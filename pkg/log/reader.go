package log

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Reader reads partitions from given offsets, without a group. It commits nothing, and several readers
// may read the same partition. It may be used from any goroutine.
type Reader struct {
	conn Conn
	adm  *kadm.Client

	mu   sync.Mutex  // guards the field once; held during Fetch, which reads one record at a time
	once *kgo.Client // client of Fetch; nil before the first Fetch
}

// NewReader returns a reader. It does not connect.
func NewReader(conn Conn) (*Reader, error) {
	conn = setting.Fill(conn)
	if err := conn.validate(); err != nil {
		return nil, err
	}
	cl, err := conn.client()
	if err != nil {
		return nil, fmt.Errorf("log: creating the client of the reader: %w", err)
	}
	return &Reader{conn: conn, adm: kadm.NewClient(cl)}, nil
}

// Close frees the connections of HighWater and Fetch. A running Run ends only when its context ends.
func (r *Reader) Close() {
	r.adm.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.once != nil {
		r.once.Close()
		r.once = nil
	}
}

// Run reads partitions. The map starts holds the offset at which each of them begins to be read.
// Run calls the function fn with the records of a partition in order. Calls of this function do not
// overlap, and it must not write to records, keys or values. Run returns nil when ctx ends, or the
// error that the function returned. It never skips records: if the log does not hold the next
// offset, Run returns notify.KindGone. While brokers are unavailable, Run waits.
func (r *Reader) Run(ctx context.Context, starts map[TopicPartition]int64, fn func(tp TopicPartition, recs []Record) error) error {
	if r.conn.Local != nil {
		return r.runLocal(ctx, starts, fn)
	}
	at := make(map[TopicPartition]kgo.Offset, len(starts))
	for tp, offset := range starts {
		at[tp] = kgo.NewOffset().At(offset)
	}
	cl, err := r.clientFrom(nestByTopic(&r.conn, at))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fs := cl.PollRecords(ctx, 0)
		if ctx.Err() != nil {
			return nil
		}
		var failure error
		fs.EachPartition(func(p kgo.FetchTopicPartition) {
			tp := r.conn.fromWire(p.Topic, p.Partition)
			if failure == nil && len(p.Records) > 0 {
				failure = fn(tp, fromKgos(tp.Topic, p.Records))
			}
			if failure == nil && p.Err != nil {
				failure = readFailure(tp, p.Err)
			}
		})
		if failure != nil {
			return failure
		}
	}
}

// clientFrom returns a client that reads from exactly the given offsets. If the log does not have
// an offset, the client reports an error and does not continue at another offset.
func (r *Reader) clientFrom(offsets map[string]map[int32]kgo.Offset) (*kgo.Client, error) {
	cl, err := r.conn.client(
		kgo.ConsumePartitions(offsets),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxPartitionBytes(4<<20),
		kgo.FetchMaxBytes(32<<20),
	)
	if err != nil {
		return nil, fmt.Errorf("log: creating the client of the reader: %w", err)
	}
	return cl, nil
}

// readFailure returns nil for an error from which the client library recovers itself. It translates
// any other error into a notify.Error and returns that.
func readFailure(tp TopicPartition, err error) error {
	if _, lost := errors.AsType[*kgo.ErrDataLoss](err); lost {
		return translate(fmt.Errorf("%s: %w: %w", tp, kerr.OffsetOutOfRange, err))
	}
	_, broker := errors.AsType[*kerr.Error](err)
	if errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, kerr.OffsetOutOfRange) || broker && !kerr.IsRetriable(err) {
		return translate(fmt.Errorf("%s: %w", tp, err))
	}
	return nil
}

// HighWater returns the end of each partition of the given topics. The end is the offset of the
// next record.
func (r *Reader) HighWater(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	listed, err := r.adm.ListEndOffsets(ctx, r.conn.wireNames(topics)...)
	return offsetsOf(&r.conn, listed, err)
}

// Fetch reads one record. It returns notify.KindGone if the record was trimmed, and notify.KindNotFound
// if the record is not written yet. It needs a few round trips, so it is meant for people and checks
// only.
func (r *Reader) Fetch(ctx context.Context, tp TopicPartition, offset int64) (Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends, err := r.HighWater(ctx, tp.Topic) // without this check the client would wait for a record that is not written yet
	if err != nil {
		return Record{}, err
	}
	if offset >= ends[tp] {
		return Record{}, notify.NotFound("record")
	}
	if r.once == nil {
		if r.once, err = r.clientFrom(nil); err != nil {
			return Record{}, err
		}
	}
	r.once.AddConsumePartitions(nestByTopic(&r.conn, map[TopicPartition]kgo.Offset{tp: kgo.NewOffset().At(offset)}))
	defer r.once.RemoveConsumePartitions(r.conn.nestOne(tp))
	for {
		fs := r.once.PollRecords(ctx, 1)
		if err := ctx.Err(); err != nil {
			return Record{}, translate(err)
		}
		for _, e := range fs.Errors() {
			if err := readFailure(tp, e.Err); err != nil {
				return Record{}, err
			}
		}
		for it := fs.RecordIter(); !it.Done(); {
			rec := it.Next()
			if r.conn.fromWire(rec.Topic, rec.Partition) == tp && rec.Offset >= offset {
				r := fromKgo(tp.Topic, rec)
				if rec.Offset > offset || r.Lost() { // the record was compacted, is a control record, or was lost
					return Record{}, notify.NotFound("record")
				}
				return r, nil
			}
		}
	}
}

func fromKgos(topic string, rs []*kgo.Record) []Record {
	out := make([]Record, len(rs))
	for i, r := range rs {
		out[i] = fromKgo(topic, r)
	}
	return out
}

func offsetsOf(c *Conn, listed kadm.ListedOffsets, err error) (map[TopicPartition]int64, error) {
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, translate(err)
	}
	out := make(map[TopicPartition]int64)
	listed.Each(func(o kadm.ListedOffset) { out[c.fromWire(o.Topic, o.Partition)] = o.Offset })
	return out, nil
}
