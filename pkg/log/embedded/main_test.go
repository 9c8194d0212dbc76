package embedded

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, cfg Config) *Broker {
	t.Helper()
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *Broker) client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.Addr()), kgo.Dialer(b.Dial), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// fill appends n records of size bytes to one partition, a batch each; their
// values begin with their numbers.
func (b *Broker) fill(t testing.TB, topic string, partition int32, from, n, size int) {
	t.Helper()
	cl := b.client(t)
	defer cl.Close()
	for i := range n {
		v := make([]byte, size)
		copy(v, strconv.Itoa(from+i)+" ")
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: v}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the offsets held by one partition, checking that each value is
// the number of its offset.
func (b *Broker) read(t testing.TB, topic string, partition int32) (offsets []int64) {
	t.Helper()
	cl := b.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, partition)
	starts, err := kadm.NewClient(cl).ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if start, _ := starts.Lookup(topic, partition); start.Offset == end.Offset {
		return nil
	}
	for {
		fs := cl.PollFetches(t.Context())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		for it := fs.RecordIter(); !it.Done(); {
			r := it.Next()
			var n int64
			if _, err := fmt.Sscanf(string(r.Value), "%d ", &n); err != nil || n != r.Offset {
				t.Fatalf("offset %d holds %q", r.Offset, r.Value[:10])
			}
			offsets = append(offsets, r.Offset)
			if r.Offset+1 == end.Offset {
				return offsets
			}
		}
	}
}

// crash copies the log as a kill would leave it and returns the copy's folder.
func crash(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func record(topic, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: []byte(value)}
}
