package pebble

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestQueueWhileTheDiskHangs: a delivery is given out when its receive is
// durable, and not at all if its receiver leaves before; an acknowledgement
// waits for nothing.
func TestQueueWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingFS(vfs.NewMem())
		s := mustOpen(t, testConfig(disk))
		q := s.Queue("q", 2)
		if err := q.Enqueue(t.Context(), []engine.Message{{Body: []byte("a")}, {Body: []byte("b")}}); err != nil {
			t.Fatal(err)
		}
		a, err := q.Receive(t.Context(), 1, time.Hour)
		if err != nil || len(a) != 1 {
			t.Fatal(a, err)
		}
		disk.hang()
		if err := q.Ack(t.Context(), []string{a[0].Receipt}); err != nil {
			t.Fatal(err)
		}
		for range 3 { // more often than it may be received
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if ds, err := q.Receive(ctx, 10, time.Hour); len(ds) > 0 || err != nil {
				t.Fatalf("%d deliveries, %v, while the disk hangs", len(ds), err)
			}
			cancel()
		}
		got := make(chan []engine.Delivery, 1)
		go func() {
			ds, err := q.Receive(t.Context(), 10, time.Hour)
			if err != nil {
				t.Error(err)
			}
			got <- ds
		}()
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("a delivery before its receive was durable")
		}
		disk.release()
		if ds := <-got; len(ds) != 1 || string(ds[0].Body) != "b" || ds[0].Receives != 1 {
			t.Fatalf("%+v", ds)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestQueueFailsWithTheStore: receivers that wait hear of it.
func TestQueueFailsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, testConfig(vfs.NewMem()))
		q := s.Queue("q", 2)
		failed := make(chan error)
		go func() {
			_, err := q.Receive(context.Background(), 1, time.Hour)
			failed <- err
		}()
		synctest.Wait()
		s.latch.trip(fmt.Errorf("disk"))
		if err := <-failed; notify.KindOf(err) != notify.KindUnavailable {
			t.Fatalf("error %v", err)
		}
		for what, err := range map[string]error{
			"Enqueue": q.Enqueue(t.Context(), []engine.Message{{}}), "Ack": q.Ack(t.Context(), []string{"x"}),
			"Release": q.Release(t.Context(), "x", 0), "Extend": q.Extend(t.Context(), nil, time.Second),
		} {
			if notify.KindOf(err) != notify.KindUnavailable {
				t.Errorf("%s: %v", what, err)
			}
		}
		s.commit.close()
		synctest.Wait()
		s.latch.armed.Store(false)
		if err := s.db.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestQueueIndex compares the heap with a search of everything.
func TestQueueIndex(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var x queueIndex
	live := map[uint32]bool{}
	some := func() uint32 {
		for slot := range live {
			return slot
		}
		return none
	}
	for seq := uint64(1); seq < 20_000; seq++ {
		slot, what := some(), rng.IntN(10)
		switch {
		case len(live) < 100 || what < 3:
			live[x.add(queued{seq: seq, visible: rng.Int64N(50), lane: laneOf(rng.IntN(2))})] = true
		case what < 6:
			x.forget(slot)
			delete(live, slot)
		case what < 7:
			x.remove(slot)
			x.push(slot)
		default:
			x.move(slot, rng.Int64N(50))
		}
		for slot := range live {
			if top, _ := x.first(x.slots[slot].lane); x.before(slot, top) {
				t.Fatalf("%+v is before %+v", x.slots[slot], x.slots[top])
			}
		}
		if x.live() != len(live) {
			t.Fatalf("%d of %d in the heaps", x.live(), len(live))
		}
	}
}

// TestQueueMemory is where the number in queueindex.go comes from.
func TestQueueMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const messages = 1_000_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var x queueIndex
	for seq := range uint64(messages) {
		x.add(queued{seq: seq + 1, visible: int64(seq % 1000)})
	}
	each := float64(heap()-before) / messages
	t.Logf("%.1f bytes a message", each)
	if each > 48 {
		t.Errorf("%.1f bytes a message", each)
	}
	for slot := range uint32(messages) {
		x.forget(slot)
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("an empty queue keeps %d bytes", after-before)
	}
	runtime.KeepAlive(&x)
}

// TestQueuesApart: queues of one store share nothing, and a name that begins
// with another's is another.
func TestQueuesApart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
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
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testConfig(fs))
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
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestQueueLeavesNothing: of a message that was acknowledged no row is left,
// also when a write about it comes late.
func TestQueueLeavesNothing(t *testing.T) {
	for _, max := range []int{3, roughFrom} {
		synctest.Test(t, func(t *testing.T) {
			s := mustOpen(t, testConfig(vfs.NewMem()))
			q := s.Queue("q", max).(*queue)
			if err := q.Enqueue(t.Context(), []engine.Message{{}, {}, {}}); err != nil {
				t.Fatal(err)
			}
			var names []string
			for range 3 { // acknowledged after one, two and three receives
				ds, err := q.Receive(t.Context(), 3, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, ds[0].Receipt)
				slot, m := q.named(ds[0].Receipt, q.now(), receiptHeld)
				seq := m.seq
				if err := q.Ack(t.Context(), names); err != nil {
					t.Fatal(err)
				}
				if err := s.commit.write(t.Context(), func(tx tx) { q.putReceived(tx, slot, seq) }, nil); err != nil {
					t.Fatal(err)
				}
				for _, d := range ds[1:] {
					if err := q.Release(t.Context(), d.Receipt, 0); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := countRows(t, s, tMessage, tReceived); n != 0 {
				t.Errorf("%d rows are left", n)
			}
			if n := q.index.live() + len(q.index.slots) - len(q.index.free); n != 0 {
				t.Errorf("%d entries are left", n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRoughQueueStillCounts: a queue with a high limit does not write the first
// receive of a message. A message that ends the process each time ends dead all the same.
func TestRoughQueueStillCounts(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
	if err := s.Queue("q", roughFrom).Enqueue(t.Context(), []engine.Message{{}, {Delay: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	for want := 1; want <= roughFrom; want++ {
		ds, err := s.Queue("q", roughFrom).Receive(t.Context(), 2, time.Hour)
		if err != nil || len(ds) != 1 || ds[0].Receives != want {
			t.Fatalf("start %d gave out %+v, %v", want, ds, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, testConfig(fs))
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if ds, err := s.Queue("q", roughFrom).Receive(ctx, 2, time.Hour); err != nil || len(ds) > 0 {
		t.Errorf("a dead message was given out: %+v, %v", ds, err)
	}
	if d, err := s.Queue("q", roughFrom).Depth(t.Context()); err != nil || d.Dead != 1 || d.Delayed != 1 {
		t.Errorf("depth %+v, %v; want one dead and one delayed", d, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
