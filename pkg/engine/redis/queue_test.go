package redis

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Receivers of one process are woken by what another one does, at the server's
// time, and look no more often than they must.
func TestQueueBetweenProcesses(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	workThrough(t, srv.connect(), srv.connect())
	a, b := srv.connect(), srv.connect()
	q := b.Queue("w", 3)
	got := make(chan []engine.Delivery)
	go func() {
		ds, err := q.Receive(bg, 1, time.Hour)
		if err != nil {
			t.Error(err)
		}
		got <- ds
	}()
	srv.await(func() bool { return b.waiting("w") == 1 })
	scripts := func() string { return infoField(srv.client().Info(bg, "commandstats").Val(), "cmdstat_evalsha") }
	before := scripts()
	time.Sleep(300 * time.Millisecond) // shorter than it looks by itself
	if after := scripts(); after != before {
		t.Errorf("a receiver that waits runs scripts: %s, then %s", before, after)
	}
	must(t, a.Queue("w", 3).Enqueue(bg, []engine.Message{{Body: []byte("m"), Delay: 100 * time.Millisecond}}))
	enqueued := time.Now()
	ds := <-got
	if d := time.Since(enqueued); d > longestWait-time.Second || len(ds) != 1 {
		t.Errorf("%d deliveries after %v: it was not woken", len(ds), d)
	}
}

func TestCloseEndsReceivers(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	ended := make(chan error)
	go func() {
		_, err := s.Queue("q", 3).Receive(bg, 1, time.Hour)
		ended <- err
	}()
	srv.await(func() bool { return s.waiting("q") == 1 })
	must(t, s.Close())
	wantUnavailable(t, "Receive", <-ended)
	wantUnavailable(t, "Ping", s.Ping(bg))
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	ctx, cancel := context.WithCancel(bg)
	ended := make(chan error)
	go func() {
		ds, err := s.Queue("q", 3).Receive(ctx, 1, time.Hour)
		if len(ds) > 0 {
			t.Error(ds)
		}
		ended <- err
	}()
	srv.await(func() bool { return s.waiting("q") == 1 })
	cancel()
	must(t, <-ended)
}

// If an answer is lost and the client sends the command again, the caller is not refused by
// its own first command.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	p := startProxy(t, srv.addr())
	s := srv.connect(shortly, func(cfg *Config) { cfg.Addresses = []string{p.addr()} })
	idem := s.Idem()
	allWork(t, s) // the scripts are known to the server
	r := engine.Reservation{Key: engine.IdemKey{Caller: "c", Key: "lost"}, Owner: "me", LeaseUntil: 1, Expires: 1 << 40}
	p.lose()
	_, won, err := idem.Reserve(bg, r, 0)
	if err != nil || !won {
		t.Errorf("Reserve: won %v, %v", won, err)
	}
	if p.left() {
		t.Error("no answer was lost")
	}
	p.lose()
	won, err = idem.TakeOver(bg, r, "me too", 2)
	if err != nil || !won {
		t.Errorf("TakeOver: won %v, %v", won, err)
	}
	if _, won, _ := idem.Reserve(bg, r, 0); won {
		t.Error("another one won too")
	}
	p.lose()
	must(t, idem.Finish(bg, r.Key, 201, []byte("x"), 1<<40))
	p.lose()
	ok, err := s.Lease().Acquire(bg, "lost", "me", time.Hour)
	if err != nil || !ok {
		t.Errorf("Acquire: %v, %v", ok, err)
	}
	if err := idem.Release(bg, r); notify.KindOf(err) != notify.KindConflict {
		t.Error(err)
	}
}

// TestQueueBodies: QueueBodies returns every message of a queue, also messages that are not
// due or that a process holds, and none that was acknowledged.
func TestQueueBodies(t *testing.T) {
	t.Parallel()
	s := startServer(t).connect()
	q := s.Queue("bodies", 3)
	want := map[string]bool{"late": true, "held": true}
	must(t, q.Enqueue(bg, []engine.Message{{Body: []byte("done")}}))
	ds, err := q.Receive(bg, 1, time.Hour)
	must(t, err)
	must(t, q.Ack(bg, []string{ds[0].Receipt}))
	must(t, q.Enqueue(bg, []engine.Message{{Body: []byte("held")}}))
	_, err = q.Receive(bg, 1, time.Hour)
	must(t, err)
	ms := []engine.Message{{Body: []byte("late"), Delay: time.Minute}}
	for i := range 3000 { // more than a page
		b := fmt.Sprint(i)
		want[b] = true
		ms = append(ms, engine.Message{Body: []byte(b)})
	}
	must(t, q.Enqueue(bg, ms))
	got := map[string]bool{}
	must(t, s.QueueBodies(bg, "bodies", func(b []byte) error { got[string(b)] = true; return nil }))
	if !maps.Equal(got, want) {
		t.Errorf("%d bodies, want %d", len(got), len(want))
	}
}
