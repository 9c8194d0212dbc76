package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// produced counts the produce requests that reach the broker, by version: the client library and
// direct use different versions.
func (b *broker) produced() (requests func() (direct, library int)) {
	var mu sync.Mutex
	var direct, library int
	b.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if r.GetVersion() == produceVersion {
			direct++
		} else {
			library++
		}
		return nil, nil, false
	})
	return func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return direct, library
	}
}

func one(conn Conn) ProducerConfig { return ProducerConfig{Conn: conn, Brokers: OneBroker} }

// A batch has the form of Kafka's protocol, whatever its records are.
func TestRawBatch(t *testing.T) {
	type in struct {
		key, value []byte
		at         int64
	}
	big := bytes.Repeat([]byte("x"), 4000)
	ins := []in{{[]byte("k"), []byte("v"), 1000}, {nil, []byte("no key"), 900}, {[]byte{}, big, 1 << 40}, {big, nil, 1000}}
	for i := range 200 { // offsets of two bytes
		ins = append(ins, in{fmt.Appendf(nil, "key-%d", i), fmt.Appendf(nil, "value-%d", i), int64(1000 + i)})
	}
	var b rawBatch
	for _, r := range ins {
		was := len(b.buf)
		b.add(r.key, r.value, r.at)
		if took := len(b.buf) - was; took > len(r.key)+len(r.value)+recordOverhead {
			t.Errorf("a record took %d bytes", took)
		}
	}
	raw := b.finish()
	var got kmsg.RecordBatch
	if err := got.ReadFrom(raw); err != nil {
		t.Fatal(err)
	}
	if int(got.Length) != len(raw)-12 || got.Magic != 2 || got.FirstOffset != 0 || int(got.NumRecords) != len(ins) ||
		int(got.LastOffsetDelta) != len(ins)-1 || got.FirstTimestamp != 1000 || got.MaxTimestamp != 1<<40 || got.Attributes != 0 ||
		got.ProducerID != -1 || got.ProducerEpoch != -1 || got.FirstSequence != -1 || got.PartitionLeaderEpoch != -1 {
		t.Errorf("%+v", got)
	}
	if want := crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)); uint32(got.CRC) != want {
		t.Errorf("checksum %x, want %x", uint32(got.CRC), want)
	}
	rest := got.Records
	for i, want := range ins {
		n, k := binary.Varint(rest)
		var rec kmsg.Record
		if err := rec.ReadFrom(rest[:int(n)+k]); err != nil {
			t.Fatal(i, err)
		}
		rest = rest[int(n)+k:]
		if !bytes.Equal(rec.Key, want.key) || (rec.Key == nil) != (want.key == nil) || !bytes.Equal(rec.Value, want.value) ||
			int(rec.OffsetDelta) != i || got.FirstTimestamp+rec.TimestampDelta64 != want.at || len(rec.Headers) != 0 {
			t.Fatalf("record %d: %+v", i, rec)
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes behind the last record", len(rest))
	}
}

// All callers that wait share one request. The records of each caller stay in order, within an
// append and from one append to the next.
func TestDirectSharesRequestsAndKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 3, "topic", "other")
		requests := b.produced()
		cfg := one(b.conn)
		var mu sync.Mutex
		ends := map[TopicPartition]int64{}
		cfg.Appended = func(tp TopicPartition, next int64) {
			mu.Lock()
			defer mu.Unlock()
			if next <= ends[tp] {
				t.Errorf("%v: %d after %d", tp, next, ends[tp])
			}
			ends[tp] = next
		}
		p := newProducer(t, cfg)
		const users, times = 20, 10
		sent := time.UnixMilli(1_700_000_000_000)
		var wg sync.WaitGroup
		for user := range users {
			ctx := t.Context()
			if user%2 == 0 {
				ctx = context.WithoutCancel(ctx)
			}
			topic := []string{"topic", "other"}[user%2]
			wg.Go(func() {
				recs := make([]Record, 5)
				for i := range times {
					for j := range recs {
						recs[j] = Record{Topic: topic, Partition: int32(user % 3), Key: []byte{byte(user)}, Value: []byte{byte(user), byte(5*i + j)}, Time: sent}
					}
					if err := p.Append(ctx, recs); err != nil {
						t.Error(err)
					}
					for j := range recs { // after Append nothing refers to these slices any more
						recs[j].Value[0], recs[j].Key[0] = 0xff, 0xff
					}
				}
			})
		}
		wg.Wait()
		if direct, library := requests(); direct != times || library != 0 {
			t.Errorf("%d requests, and %d of the library's; want %d, one for every append that each waited for", direct, library, times)
		}
		got := make(map[byte][]byte)
		for _, topic := range []string{"topic", "other"} {
			for _, r := range b.collect(t, topic) {
				got[r.Value[0]] = append(got[r.Value[0]], r.Value[1])
				if !r.Time.Equal(sent) || !bytes.Equal(r.Key, r.Value[:1]) {
					t.Errorf("%+v", r)
				}
				if end := ends[TopicPartition{topic, r.Partition}]; r.Offset >= end {
					t.Errorf("%s/%d@%d, and appended up to %d", topic, r.Partition, r.Offset, end)
				}
			}
		}
		for user := range byte(users) {
			if s := got[user]; len(s) != 5*times || !slices.IsSorted(s) {
				t.Errorf("user %d: %v", user, s)
			}
		}
	})
}

// An append that is larger than a batch continues in the next batch.
func TestDirectSplitsWhatABatchCannotHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		requests := b.produced()
		cfg := one(b.conn)
		cfg.MaxRecordBytes = 2000
		p := newProducer(t, cfg)
		recs := make([]Record, 600)
		for i := range recs {
			recs[i] = Record{Topic: "topic", Partition: int32(i % 2), Value: append(fmt.Appendf(nil, "%05d", i), make([]byte, 500)...)}
		}
		if err := p.Append(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
		if direct, library := requests(); direct != 4 || library != 0 {
			t.Errorf("%d requests, and %d of the library's; want 4 of %d KB", direct, library, (cfg.MaxRecordBytes+batchOverhead)/1000)
		}
		got := map[int32][]string{}
		for _, r := range b.collect(t, "topic") {
			got[r.Partition] = append(got[r.Partition], string(r.Value[:5]))
		}
		for p := range int32(2) {
			if len(got[p]) != 300 || !slices.IsSorted(got[p]) {
				t.Errorf("partition %d: %d records, in order: %v", p, len(got[p]), slices.IsSorted(got[p]))
			}
		}
	})
}

// Appends that direct is not made for go through the library. Appends that the broker refuses are
// tried again through the library.
func TestDirectLeavesTheRestToTheLibrary(t *testing.T) {
	for _, c := range []struct {
		name   string
		record Record
	}{
		{"a key that says where", Record{Topic: "topic", Partition: -1, Key: []byte("user")}},
		{"headers", Record{Topic: "topic", Headers: []Header{{Key: "k"}}}},
		{"a large value", Record{Topic: "topic", Value: make([]byte, smallRecord+1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBroker(t, 1, "topic")
				requests := b.produced()
				p := newProducer(t, one(b.conn))
				if err := p.Append(t.Context(), []Record{{Topic: "topic"}, c.record}); err != nil {
					t.Fatal(err)
				}
				if direct, library := requests(); direct != 0 || library == 0 {
					t.Errorf("%d requests, and %d of the library's", direct, library)
				}
				if got := b.collect(t, "topic"); len(got) != 2 {
					t.Errorf("%d records", len(got))
				}
			})
		})
	}
	t.Run("a refusal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(t, 2, "topic")
			b.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				if r.GetVersion() != produceVersion {
					t.Errorf("version %d is refused", r.GetVersion())
				}
				resp := r.ResponseKind().(*kmsg.ProduceResponse)
				part := kmsg.NewProduceResponseTopicPartition()
				part.Partition, part.ErrorCode = 1, kerr.NotLeaderForPartition.Code
				resp.Topics = []kmsg.ProduceResponseTopic{{Topic: "topic", Partitions: []kmsg.ProduceResponseTopicPartition{part}}}
				return resp, nil, true // the first one only
			})
			p := newProducer(t, one(b.conn))
			for i := range 2 {
				if err := p.Append(t.Context(), numbered("topic", 1, 10*i, 10)); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.collect(t, "topic"); len(got) != 20 || string(got[0].Value) != "0" || string(got[19].Value) != "19" {
				t.Errorf("%d records", len(got))
			}
		})
	})
	t.Run("an answer that is not whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(t, 1, "topic")
			b.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) { return r.ResponseKind(), nil, true })
			p := newProducer(t, one(b.conn))
			if err := p.Append(t.Context(), numbered("topic", 0, 0, 10)); err != nil {
				t.Fatal(err)
			}
			if got := b.collect(t, "topic"); len(got) != 10 {
				t.Errorf("%d records: an append was acknowledged that the broker did not answer for", len(got))
			}
		})
	})
}

// While the broker is away, no more than MaxBufferedBytes wait in direct. Appends that were given
// up do not keep others out afterwards.
func TestDirectHoldsNoMoreThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		cfg := one(b.conn)
		cfg.MaxRecordBytes, cfg.MaxBufferedBytes = 4000, 100_000
		p := newProducer(t, cfg)
		thaw := b.freeze()
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if err := p.Append(t.Context(), []Record{{Topic: "topic", Value: make([]byte, 3000)}}); !isLogUnavailable(err) {
					t.Error(err)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		p.fast.direct.mu.Lock()
		if w := p.fast.direct.waiting; w > 104_000 {
			t.Errorf("%d bytes wait", w)
		}
		p.fast.direct.mu.Unlock()
		wg.Wait()
		thaw()
		for deadline := time.Now().Add(time.Minute); p.Append(t.Context(), numbered("topic", 0, 0, 1)) != nil; {
			if time.Now().After(deadline) {
				t.Fatal("appends still fail a minute after the thaw")
			}
		}
		synctest.Wait()
		p.fast.direct.mu.Lock()
		if w := p.fast.direct.waiting; w != 0 || len(p.fast.direct.full) != 0 {
			t.Errorf("%d bytes wait for nobody", w)
		}
		p.fast.direct.mu.Unlock()
	})
}

// A closed producer accepts nothing, and appends that wait get an error.
func TestDirectEndsWithItsProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		p, err := NewProducer(one(b.conn))
		if err != nil {
			t.Fatal(err)
		}
		defer b.freeze()()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := p.Append(t.Context(), numbered("topic", 0, 0, 1)); !isLogUnavailable(err) {
					t.Error(err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		p.Close()
		if p.fast.direct.sending {
			t.Error("somebody still sends")
		}
		wg.Wait()
		if err := p.Append(t.Context(), numbered("topic", 0, 0, 1)); !isLogUnavailable(err) {
			t.Error(err)
		}
	})
}

// Records of bulk lanes are appended separately, one partition in each request, also if they are
// large. So a code waits for at most one batch of a campaign. If a call has records of both kinds,
// each kind is appended in its own way.
func TestBulkIsAppendedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fast, bulk, parts = "notifications-push", "notifications-push-bulk", 3
		b := newBroker(t, parts, fast, bulk)
		var most int
		b.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
			b.KeepControl()
			batches := 0
			for _, topic := range r.(*kmsg.ProduceRequest).Topics {
				if batches += len(topic.Partitions); topic.Topic == bulk && batches > 1 {
					t.Errorf("a request has %d batches and records of %s", batches, topic.Topic)
				}
			}
			most = max(most, batches)
			return nil, nil, false
		})
		p := newProducer(t, one(b.conn))
		var recs []Record
		for i := range 60 {
			recs = append(recs,
				Record{Topic: bulk, Partition: int32(i % parts), Value: append([]byte{byte(i)}, make([]byte, 100_000)...)},
				Record{Topic: fast, Partition: int32(i % parts), Value: []byte{byte(i)}})
		}
		if err := p.Append(t.Context(), recs); err != nil {
			t.Fatal(err)
		}
		if most != parts {
			t.Errorf("a request for single records has %d batches at most, want %d", most, parts)
		}
		for _, topic := range []string{fast, bulk} {
			last := map[int32]int{}
			got := b.collect(t, topic)
			for _, r := range got {
				if was, ok := last[r.Partition]; ok && int(r.Value[0]) != was+parts {
					t.Errorf("%s/%d: %d follows %d", topic, r.Partition, r.Value[0], was)
				}
				last[r.Partition] = int(r.Value[0])
			}
			if len(got) != 60 {
				t.Errorf("%d records of %s", len(got), topic)
			}
		}
	})
}
