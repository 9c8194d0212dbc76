package log

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A record must go to the same partition as with every other Kafka client. The test compares with
// the default partitioner of kgo, which follows the Java client.
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
		if got := notify.Partition(key, n); int(got) != want {
			t.Fatalf("notify.Partition(%x, %d) = %d, want %d", key, n, got, want)
		}
		if got := notify.NewPartitioner(n).Partition(key); int(got) != want {
			t.Fatalf("notify.NewPartitioner(%d).Partition(%x) = %d, want %d", n, key, got, want)
		}
	})
}

func TestPartitionDoesNotAllocate(t *testing.T) {
	key := []byte("user-0000000000017")
	if n := testing.AllocsPerRun(100, func() { notify.Partition(key, 18) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// 9 ns, no allocation (2 cores, load 8).
func BenchmarkPartition(b *testing.B) {
	key := []byte("user-0000000000017")
	for b.Loop() {
		notify.Partition(key, 18)
	}
}

// The store of profiles computes the same hash by itself. enginetest.Prefs checks that it gives
// these parts, too.
func TestPartitionOfProfiles(t *testing.T) {
	for user, part := range map[string]int32{
		"a": 4, "ab": 14, "abc": 3, "abcd": 20, "ü": 2, "user-1": 32, "user-22": 15, "user-333": 32, "user0000017": 20, "0123456789abcdef0": 6, "日本語": 22, "abcde": 1, "abcdefg": 13, "zz": 6,
	} {
		if got := notify.Partition([]byte(user), 36); got != part {
			t.Errorf("%q is in part %d, want %d", user, got, part)
		}
	}
}
