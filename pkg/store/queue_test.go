package store_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// countRows counts what is stored in tables.
func countRows(t *testing.T, r rows.Rows, tables ...byte) (n int) {
	t.Helper()
	for _, table := range tables {
		must(t, r.Scan(t.Context(), rows.Partition{Table: table}, rows.Range{}, func(rows.Row) (bool, error) { n++; return true, nil }))
	}
	return n
}

// late holds one Write, before its fill, until it is released.
type late struct {
	rows.Rows
	release chan struct{}
}

func (l *late) Write(ctx context.Context, fill func(rows.Batch)) error {
	if release := l.release; release != nil {
		l.release = nil
		<-release
	}
	return l.Rows.Write(ctx, fill)
}

func receipts(ds []engine.Delivery) (out []string) {
	for _, d := range ds {
		out = append(out, d.Receipt)
	}
	return out
}

// TestQueueLeavesNothing: of a message that was acknowledged no row is left,
// also when a write about it comes late.
func TestQueueLeavesNothing(t *testing.T) {
	for _, max := range []int{9, store.RoughFrom} {
		synctest.Test(t, func(t *testing.T) {
			l := &late{Rows: memory.New().Rows()}
			q := store.OnRows(l).Queue("q", max)
			must(t, q.Enqueue(t.Context(), []engine.Message{{}, {}, {}}))
			must(t, q.Ack(t.Context(), receipts(val(q.Receive(t.Context(), 3, time.Hour))(t))))
			must(t, q.Enqueue(t.Context(), []engine.Message{{}, {}, {}}))
			for left := 3; left > 0; left-- { // acknowledged after two, three and four receives
				ds := val(q.Receive(t.Context(), left, time.Hour))(t)
				same(t, "received", len(ds), left)
				l.release = make(chan struct{})
				release := l.release
				go func() {
					if err := q.Release(context.Background(), ds[0].Receipt, 0); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait() // it waits before its write
				again := val(q.Receive(t.Context(), left, time.Hour))(t)
				same(t, "received again", len(again), 1)
				must(t, q.Ack(t.Context(), receipts(again)))
				close(release)
				synctest.Wait()
				for _, d := range ds[1:] {
					must(t, q.Release(t.Context(), d.Receipt, 0))
				}
			}
			same(t, "rows that are left", countRows(t, l, 'Q', 'V'), 0)
			same(t, "entries that are left", store.QueueEntries(q), 0)
		})
	}
}

// TestQueuesApart: queues of one store share nothing, and a name that begins
// with another's is another.
func TestQueuesApart(t *testing.T) {
	t.Parallel()
	s := onPebble(t)
	names := []string{"", "a", "ab", "a\x00", "b"}
	for i, name := range names {
		if s.Queue(name, 3) != s.Queue(name, 9) {
			t.Error("the same name is the same queue")
		}
		for range i + 1 {
			if err := s.Queue(name, 3).Enqueue(t.Context(), []engine.Message{{Body: []byte(name)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, err := s.Queue("b", 3).Receive(t.Context(), 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s.reopen()
	for i, name := range names {
		var ds []engine.Delivery
		for len(ds) <= i { // the last ones may be visible from the next millisecond on
			more, err := s.Queue(name, 3).Receive(t.Context(), 100, time.Hour)
			if ds = append(ds, more...); err != nil || len(ds) > i+1 {
				t.Fatalf("%q: %d messages, %v", name, len(ds), err)
			}
		}
		for n, d := range ds {
			again := 0
			if name == "b" && n == 0 {
				again = 1 // the receive before the restart
			}
			if !bytes.Equal(d.Body, []byte(name)) || d.Receives != 1+again {
				t.Errorf("%q: %+v", name, d)
			}
		}
	}
	if err := s.Queue("b", 3).Ack(t.Context(), []string{first[0].Receipt}); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Queue("b", 3).Depth(t.Context()); err != nil || d.InFlight != len(names) {
		t.Errorf("a receipt of the life before counts: %+v, %v", d, err)
	}
}

// TestRoughQueueStillCounts: a queue with a high limit does not write the first
// receive of a message. A message that ends the process each time ends dead all the same.
func TestRoughQueueStillCounts(t *testing.T) {
	t.Parallel()
	s := onPebble(t)
	if err := s.Queue("q", store.RoughFrom).Enqueue(t.Context(), []engine.Message{{}, {Delay: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= store.RoughFrom; want++ {
		ds, err := s.Queue("q", store.RoughFrom).Receive(t.Context(), 2, time.Hour)
		if err != nil || len(ds) != 1 || ds[0].Receives != want {
			t.Fatalf("start %d gave out %+v, %v", want, ds, err)
		}
		s.reopen()
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if ds, err := s.Queue("q", store.RoughFrom).Receive(ctx, 2, time.Hour); err != nil || len(ds) > 0 {
		t.Errorf("a dead message was given out: %+v, %v", ds, err)
	}
	if d, err := s.Queue("q", store.RoughFrom).Depth(t.Context()); err != nil || d.Dead != 1 || d.Delayed != 1 {
		t.Errorf("depth %+v, %v; want one dead and one delayed", d, err)
	}
}
