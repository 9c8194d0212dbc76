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

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestTimersOfFormat1: timers that an earlier build stored are read.
func TestTimersOfFormat1(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
	old := append([]byte{1}, appendLen(nil, "notifications-push")...) // kind, target, payload
	if err := s.db.Merge(timerKey(nil, tTimer, 0, 1000, []byte("a")), append(old, "payload"...), pebbledb.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Set(key(tFormat, "format"), []byte("1"), pebbledb.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testConfig(fs))
	got, err := s.Timers().Scan(t.Context(), engine.TimerPartition{}, engine.TimerCursor{}, 1<<40, 10)
	want := engine.Timer{FireAt: 1000, ID: []byte("a"), Kind: 1, Target: "notifications-push", Payload: []byte("payload")}
	if err != nil || len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Fatalf("%+v, %v", got, err)
	}
	// The earlier build would not understand what this one writes.
	if v, err := s.get(key(tFormat, "format")); err != nil || string(v) != "2" {
		t.Fatalf("format %q, %v", v, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReadersWaitForTheDisk: a state that is not durable yet is shown to nobody.
func TestReadersWaitForTheDisk(t *testing.T) {
	row := engine.Trigger{ID: "trg_1", Caller: "shop", State: engine.TriggerPending}
	base := notify.Base{1}
	for name, read := range map[string]func(context.Context, *Store) (string, error){
		"Get": func(ctx context.Context, s *Store) (string, error) {
			got, err := s.Triggers().Get(ctx, []string{row.ID})
			return fmt.Sprint(len(got) == 1 && got[0].State == engine.TriggerCancelled), err
		},
		"List": func(ctx context.Context, s *Store) (string, error) {
			got, err := s.Triggers().List(ctx, "shop", engine.TriggerCancelled, engine.TriggerCursor{}, 10)
			return fmt.Sprint(len(got) == 1), err
		},
		"Head": func(ctx context.Context, s *Store) (string, error) {
			h, _, err := s.Schedules().Head(ctx, base)
			return fmt.Sprint(h.State == engine.ScheduleCancelled), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newHangingFS(vfs.NewMem())
				s := mustOpen(t, testConfig(disk))
				if _, err := s.Triggers().Create(t.Context(), []engine.Trigger{row}); err != nil {
					t.Fatal(err)
				}
				disk.hang()
				go func() {
					next := row
					next.State = engine.TriggerCancelled
					if won, err := s.Triggers().Swap(context.Background(), []engine.TriggerSwap{{Old: 1, New: next}}); err != nil || !won[0] {
						t.Error(won, err)
					}
				}()
				go func() {
					if _, won, err := s.Schedules().Swap(context.Background(), 0, engine.ScheduleHead{Base: base, State: engine.ScheduleCancelled}); err != nil || !won {
						t.Error(won, err)
					}
				}()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if got, err := read(ctx, s); err == nil {
					t.Fatalf("read %s while the disk hangs", got)
				}
				disk.release()
				synctest.Wait()
				if got, err := read(t.Context(), s); err != nil || got != "true" {
					t.Fatalf("%s, %v", got, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

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
			live[x.add(queued{seq: seq, visible: rng.Int64N(50)})] = true
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
			if x.before(slot, x.heap[0]) {
				t.Fatalf("%+v is before %+v", x.slots[slot], x.slots[x.heap[0]])
			}
		}
		if len(x.heap) != len(live) {
			t.Fatalf("%d of %d in the heap", len(x.heap), len(live))
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
		ds, err := s.Queue(name, 3).Receive(t.Context(), 100, time.Hour)
		if err != nil || len(ds) != i+1 {
			t.Fatalf("%q: %d messages, %v", name, len(ds), err)
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
