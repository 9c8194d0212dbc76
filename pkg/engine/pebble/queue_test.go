package pebble

import (
	"context"
	"fmt"
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

// TestQueueFailsWithTheStore: a failure of the store ends waiting calls of Receive.
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
