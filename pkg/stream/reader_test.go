package stream

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

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
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		p0, p1 := TopicPartition{"topic", 0}, TopicPartition{"topic", 1}
		b.append(t, append(numbered("topic", 0, 0, 50), numbered("topic", 1, 0, 10)...))
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
		b.append(t, numbered("topic", 1, 10, 5))
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
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 1, "topic")
		tp := TopicPartition{"topic", 0}
		for i := range 20 {
			b.append(t, numbered("topic", 0, i, 1))
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
		// Trimmed while it reads: what it had fetched comes, then the error.
		err := r.Run(t.Context(), map[TopicPartition]int64{tp: 10}, func(_ TopicPartition, recs []Record) error {
			if recs[len(recs)-1].Offset == 19 {
				for i := range 5 {
					b.append(t, numbered("topic", 0, 20+i, 1))
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
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "topic")
		tp := TopicPartition{"topic", 1}
		b.append(t, numbered("topic", 1, 0, 20))
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
		ends, err := r.HighWater(t.Context(), "topic")
		if err != nil || ends[tp] != 20 || ends[TopicPartition{"topic", 0}] != 0 {
			t.Errorf("%v, %v", ends, err)
		}
	})
}

func TestAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, 2, "old")
		a := b.admin(t)
		want := map[string]int{"old": 7, "a": 3, "b": 5}
		for range 2 { // again changes nothing
			if err := a.EnsureTopics(t.Context(), want); err != nil {
				t.Fatal(err)
			}
		}
		got, err := a.Partitions(t.Context(), "old", "a", "b", "missing")
		if err != nil || len(got) != 3 || got["old"] != 2 || got["a"] != 3 || got["b"] != 5 {
			t.Errorf("%v, %v", got, err)
		}
		if err := a.EnsureTopics(t.Context(), map[string]int{"c": 0}); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("no partitions: %v", err)
		}
		if c, err := a.Committed(t.Context(), "nobody"); err != nil || len(c) != 0 {
			t.Errorf("%v, %v", c, err)
		}
		b.append(t, numbered("a", 2, 0, 10))
		if err := a.DeleteRecords(t.Context(), map[TopicPartition]int64{{"a", 2}: 4}); err != nil {
			t.Error(err)
		}
		starts, err1 := a.StartOffsets(t.Context(), "a")
		ends, err2 := a.EndOffsets(t.Context(), "a")
		if tp := (TopicPartition{"a", 2}); errors.Join(err1, err2) != nil || starts[tp] != 4 || ends[tp] != 10 {
			t.Errorf("%v, %v, %v, %v", starts, ends, err1, err2)
		}
		if err := a.DeleteRecords(t.Context(), map[TopicPartition]int64{{"a", 2}: 11}); notify.KindOf(err) != notify.KindGone {
			t.Errorf("beyond the end: %v", err)
		}
	})
}
