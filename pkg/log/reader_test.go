package log

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

func newReader(t testing.TB, b *broker) *Reader {
	t.Helper()
	r, err := NewReader(b.conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// A reader begins exactly where it is told, sees what comes later, and ends
// with its context or with its function's error.
func TestReaderFollows(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		p0, p1 := TopicPartition{b.topic, 0}, TopicPartition{b.topic, 1}
		b.append(t, append(numbered(b.topic, 0, 0, 50), numbered(b.topic, 1, 0, 10)...))
		r := newReader(t, b)
		ctx, stop := context.WithCancel(t.Context())
		next := map[TopicPartition]int64{p0: 30, p1: 10}
		from := map[TopicPartition]int64{p0: 30, p1: 10}
		got := make(chan int, 100)
		done := make(chan error, 1)
		go func() {
			done <- r.Run(ctx, from, func(tp TopicPartition, recs []Record) error {
				for _, rec := range recs {
					if rec.Offset != next[tp] || string(rec.Value) != strconv.Itoa(int(rec.Offset)) {
						t.Errorf("%s: %d with %q, want %d", tp, rec.Offset, rec.Value, next[tp])
					}
					next[tp]++
				}
				got <- len(recs)
				return nil
			})
		}()
		for n := 0; n < 20; {
			n += <-got
		}
		b.append(t, numbered(b.topic, 1, 10, 5))
		for n := 0; n < 5; {
			n += <-got
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		bad := errors.New("bad")
		if err := r.Run(t.Context(), from, func(TopicPartition, []Record) error { return bad }); !errors.Is(err, bad) {
			t.Errorf("%v, want the function's error", err)
		}
	})
}

func TestReaderSkipsNothing(t *testing.T) {
	onClusters(t, 1, func(t *testing.T, b *broker) {
		tp := TopicPartition{b.topic, 0}
		for i := range 20 {
			b.append(t, numbered(b.topic, 0, i, 1))
		}
		adm, r := b.admin(t), newReader(t, b)
		if err := adm.DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 10}); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{9, 21} {
			err := r.Run(t.Context(), map[TopicPartition]int64{tp: at}, func(TopicPartition, []Record) error { return errors.New("read") })
			if notify.KindOf(err) != notify.KindGone {
				t.Errorf("from %d: %v, want gone", at, err)
			}
		}
		if b.Cluster == nil {
			return // a real broker may have returned the next records already
		}
		// The partition is trimmed while the reader reads. The reader still passes on what it had
		// fetched, and then returns the error.
		err := r.Run(t.Context(), map[TopicPartition]int64{tp: 10}, func(_ TopicPartition, recs []Record) error {
			if recs[len(recs)-1].Offset == 19 {
				for i := range 5 {
					b.append(t, numbered(b.topic, 0, 20+i, 1))
				}
				return adm.DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 24})
			}
			if recs[0].Offset == 24 {
				return errors.New("skipped")
			}
			return nil
		})
		if notify.KindOf(err) != notify.KindGone {
			t.Errorf("%v, want gone", err)
		}
	})
}

func TestFetchOne(t *testing.T) {
	onClusters(t, 2, func(t *testing.T, b *broker) {
		tp := TopicPartition{b.topic, 1}
		b.append(t, numbered(b.topic, 1, 0, 20))
		r := newReader(t, b)
		if err := b.admin(t).DeleteRecords(t.Context(), map[TopicPartition]int64{tp: 5}); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{7, 5, 19, 7} {
			if rec, err := r.Fetch(t.Context(), tp, at); err != nil || rec.Offset != at || string(rec.Value) != strconv.Itoa(int(at)) {
				t.Errorf("%d: %+v, %v", at, rec, err)
			}
		}
		for at, want := range map[int64]notify.Kind{4: notify.KindGone, 20: notify.KindNotFound} {
			if _, err := r.Fetch(t.Context(), tp, at); notify.KindOf(err) != want {
				t.Errorf("%d: %v, want %v", at, err, want)
			}
		}
		if _, err := r.Fetch(t.Context(), TopicPartition{"missing", 0}, 0); notify.KindOf(err) != notify.KindUnavailable {
			t.Errorf("missing topic: %v", err)
		}
		ends, err := r.HighWater(t.Context(), b.topic)
		if err != nil || ends[tp] != 20 || ends[TopicPartition{b.topic, 0}] != 0 {
			t.Errorf("%v, %v", ends, err)
		}
	})
}
