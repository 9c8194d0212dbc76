package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/pkg/log/embedded"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// rawLog has a new embedded broker and a plain kgo client. It measures the log without a node, with
// records of the same size and durability.
type rawLog struct {
	broker *embedded.Broker
	client *kgo.Client
	*background
}

const (
	rawTopic = "raw"
	inFlight = 64_000 // records under way at the same time, as in the batches of P3
)

func (b *bench) rawLog(ctx context.Context, d embedded.Durability, partitions int) *rawLog {
	broker := rig.Must(embedded.Open(embedded.Config{Dir: b.folder("raw"), Durability: d, Topics: map[string]int{rawTopic: partitions}, CapBytes: 16 << 30}))
	client := rig.Must(kgo.NewClient(
		kgo.SeedBrokers(broker.Addr()), kgo.Dialer(broker.Dial), kgo.DefaultProduceTopic(rawTopic), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(inFlight), kgo.MaxBufferedBytes(64<<20), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	))
	return &rawLog{broker, client, inBackground(ctx, broker.Run)} // as in a node, Run paces the write-back of the page cache
}

func (r *rawLog) close() {
	r.client.Close()
	r.end()
	_ = r.broker.Close()
}

// produce appends the values in turn, again and again, for about d. It returns acknowledged records
// per second.
func (r *rawLog) produce(ctx context.Context, d time.Duration, values [][]byte) float64 {
	partitions := r.broker.Partitions(rawTopic)
	var acked atomic.Int64
	var failed atomic.Pointer[error]
	began := time.Now()
	n := 0
	for ; time.Since(began) < d && failed.Load() == nil; n += 64 {
		for i := range 64 { // the clock is read once for 64 records
			r.client.Produce(ctx, &kgo.Record{Partition: int32((n + i) % partitions), Value: values[(n+i)%len(values)]}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				acked.Add(1)
			})
		}
	}
	rig.Ok(r.client.Flush(ctx))
	if err := failed.Load(); err != nil {
		panic(*err)
	}
	return float64(acked.Load()) / time.Since(began).Seconds()
}

// envelopes makes n log records in the same way as the intake of a node. Each record has the given
// number of receivers.
func envelopes(n, receivers int, body string) [][]byte {
	out := make([][]byte, n)
	var w notify.ReceiverWriter
	for i := range out {
		w.Reset()
		for k := range receivers {
			w.Append(notify.Receiver{Index: uint32(k), User: fmt.Appendf(nil, "u%08d", (i*receivers+k)%5_000_000)})
		}
		e := notify.Envelope{
			Chunk: notify.Chunk{Base: notify.NewBase(time.Now())}, Channel: notify.Push, Category: notify.Marketing, FanOut: receivers > 1,
			Accepted: time.Now().UnixMilli(), Caller: "bench", Content: notify.Content{Title: "Hello", Body: body},
			Count: uint32(receivers), Receivers: w.Bytes(),
		}
		out[i] = notify.AppendEnvelope(nil, &e)
	}
	return out
}

// removeFolders removes the folders of nodes that have ended, so that the disk does not fill.
func removeFolders(dirs ...string) {
	for _, d := range dirs {
		_ = os.RemoveAll(d)
	}
}
