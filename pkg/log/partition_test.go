package log

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// A record must land where every other Kafka client would put it: compared with
// the partitioner kgo uses by default, which follows the Java client.
func TestPartitionIsKafkas(t *testing.T) {
	t.Parallel()
	theirs := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "key")
		n := rapid.IntRange(1, 1<<16).Draw(t, "n")
		if key == nil {
			key = []byte{}
		}
		want := theirs.Partition(&kgo.Record{Key: key}, n)
		if got := Partition(key, n); int(got) != want {
			t.Fatalf("Partition(%x, %d) = %d, want %d", key, n, got, want)
		}
		if got := NewPartitioner(n).Partition(key); int(got) != want {
			t.Fatalf("NewPartitioner(%d).Partition(%x) = %d, want %d", n, key, got, want)
		}
	})
}

func TestPartitionDoesNotAllocate(t *testing.T) {
	key := []byte("user-0000000000017")
	if n := testing.AllocsPerRun(100, func() { Partition(key, 18) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// 9 ns, no allocation (2 cores, load 8).
func BenchmarkPartition(b *testing.B) {
	key := []byte("user-0000000000017")
	for b.Loop() {
		Partition(key, 18)
	}
}
