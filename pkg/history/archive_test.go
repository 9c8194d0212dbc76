package history

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestRangeThroughMerges reads the history piece by piece while it is sealed and
// merged: every receiver comes once.
func TestRangeThroughMerges(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir(), MergeCount: 2})
	at := map[Part]int64{}
	var got, want []string
	next := [2]int64{}
	for i := range 60 {
		p := int32(i % 2)
		user := fmt.Sprint("u", i)
		rec := record(p, next[p], envelope(baseAt(now+int64(i), uint64(i)), uint16(p), uint32(i), "c", receiver{0, user}))
		rec.Time = now + int64(i)
		must(t, s.Append(t.Context(), rec))
		next[p]++
		want = append(want, user)
		if i%7 != 6 {
			continue
		}
		sealNow(t, s)
		to := s.Settled(now + int64(i) - 4) // what is younger stays out
		for part, from := range at {
			to[part] = max(to[part], from)
		}
		got = append(got, receiversOf(t, s, at, to)...)
		for _, user := range got {
			var n int
			if _, err := fmt.Sscanf(user, "u%d", &n); err != nil || n >= i-4 {
				t.Fatalf("%s is younger than %d", user, i-4)
			}
		}
		at = to
		for {
			merged, err := s.mergeOnce(t.Context())
			must(t, err)
			if !merged {
				break
			}
		}
	}
	sealNow(t, s)
	got = append(got, receiversOf(t, s, at, s.Settled(now+1000))...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d receivers, want %d: %v", len(got), len(want), got)
	}
}

func receiversOf(t *testing.T, s *Store, from, to map[Part]int64) (out []string) {
	t.Helper()
	damaged, err := s.Range(t.Context(), from, to, func(env *notify.Envelope) error {
		rd, r := notify.ReadReceivers(env.Receivers), notify.Receiver{}
		for rd.Next(&r) {
			out = append(out, string(r.User))
		}
		return nil
	})
	if err != nil || damaged != 0 {
		t.Fatal(damaged, err)
	}
	return out
}

// TestExpireWaitsForTheArchive checks that unarchived segments are kept beyond their retention,
// but not for ever.
func TestExpireWaitsForTheArchive(t *testing.T) {
	t.Parallel()
	archived := map[Part]int64{}
	s, _ := open(t, Config{
		Dir: t.TempDir(), Retention: 24 * time.Hour, ArchiveWait: 48 * time.Hour,
		Archived: func() map[Part]int64 { return archived },
	})
	put := func(off int64) {
		rec := record(0, off, envelope(baseAt(now, uint64(off)), 0, uint32(off), "c", receiver{0, "ann"}))
		rec.Time = now
		must(t, s.Append(t.Context(), rec))
		sealNow(t, s)
	}
	put(0)
	put(1)
	at := func(age time.Duration, want int) {
		t.Helper()
		must(t, s.expire(time.UnixMilli(now).Add(age)))
		if n := s.Stats().Segments; n != want {
			t.Errorf("after %v: %d segments, want %d", age, n, want)
		}
	}
	at(25*time.Hour, 2)
	archived = map[Part]int64{{topic, 0}: 1}
	at(23*time.Hour, 2)
	at(25*time.Hour, 1)
	at(71*time.Hour, 1)
	at(73*time.Hour, 0)
}
