package enginetest

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type runQueue func(name string, fn func(t *testing.T, q engine.Queue, reopen func() engine.Queue))

func ackSuite(run runQueue) {
	run("Ack removes messages", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		var ms []engine.Message
		for i := range 100 {
			ms = append(ms, message(strconv.Itoa(i), 0))
		}
		must(t, q.Enqueue(bg, ms))
		ds := receiveNow(t, q, 60, time.Second)
		must(t, q.Ack(bg, receipts(ds)))
		must(t, q.Ack(bg, receipts(ds))) // the second Ack changes nothing
		must(t, q.Ack(bg, []string{"nonsense", ""}))
		must(t, q.Ack(bg, nil))
		time.Sleep(time.Hour)
		same(t, "left", depth(t, q).Ready, 40)
		same(t, "the next", bodies(receiveNow(t, q, 100, time.Second))[0], "60")
		if reopen == nil {
			return
		}
		// When a message is durable, every acknowledgement before it is durable too.
		must(t, q.Enqueue(bg, []engine.Message{message("new", 0)}))
		q = reopen()
		same(t, "left after a restart", depth(t, q).Ready, 41)
	})
	run("Ack ignores receipts that are not valid any more; their messages are received again", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		first := receiveNow(t, q, 1, time.Second)
		time.Sleep(time.Second)
		must(t, q.Ack(bg, receipts(first))) // its visibility has ended
		second := receiveNow(t, q, 1, time.Hour)
		same(t, "received again", bodies(second), []string{"a"})
		must(t, q.Ack(bg, receipts(first))) // another receiver owns the message
		same(t, "in flight", depth(t, q).InFlight, 1)
		must(t, q.Ack(bg, receipts(second)))
		same(t, "gone", depth(t, q), engine.QueueDepth{})
	})
}

func releaseSuite(run runQueue) {
	run("Release makes a message ready again after delay; the receive still counts", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		first := receiveNow(t, q, 1, time.Hour)
		got := make(chan []engine.Delivery)
		go func() {
			ds, err := q.Receive(bg, 1, time.Hour)
			if err != nil {
				t.Error(err)
			}
			got <- ds
		}()
		synctest.Wait()
		start := time.Now()
		must(t, q.Release(bg, first[0].Receipt, 10*time.Second))
		second := <-got
		if d := time.Since(start); d < 10*time.Second || d > 11*time.Second {
			t.Fatalf("received after %v, want 10s", d)
		}
		same(t, "receives", second[0].Receives, 2)
		must(t, q.Release(bg, second[0].Receipt, 0))
		third := receiveNow(t, q, 1, time.Hour)
		same(t, "at once", bodies(third), []string{"a"})
		if reopen == nil {
			return
		}
		must(t, q.Enqueue(bg, []engine.Message{message("b", 0)}))
		must(t, q.Release(bg, receiveNow(t, q, 1, time.Hour)[0].Receipt, 20*time.Second))
		time.Sleep(15 * time.Second)
		q = reopen()
		same(t, "early after a restart", bodies(receiveNow(t, q, 10, time.Hour)), []string(nil))
		time.Sleep(5 * time.Second)
		same(t, "receives after a restart", receiveNow(t, q, 1, time.Hour)[0].Receives, 2)
	})
	run("Release ignores a receipt that is not valid any more; a delay out of range is notify.KindInvalid", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		first := receiveNow(t, q, 1, time.Second)
		time.Sleep(time.Second)
		must(t, q.Release(bg, first[0].Receipt, engine.MaxQueueDelay))
		second := receiveNow(t, q, 1, time.Hour)
		same(t, "received all the same", bodies(second), []string{"a"})
		must(t, q.Release(bg, first[0].Receipt, 0))
		must(t, q.Release(bg, "nonsense", 0))
		same(t, "in flight", depth(t, q), engine.QueueDepth{InFlight: 1})
		for _, bad := range []time.Duration{-1, engine.MaxQueueDelay + 1} {
			wantKind(t, q.Release(bg, second[0].Receipt, bad), notify.KindInvalid)
		}
		same(t, "still in flight", depth(t, q), engine.QueueDepth{InFlight: 1})
	})
}

func deadSuite(run runQueue) {
	run("Receive returns a message at most MaxReceives times; if it is not acknowledged by then, it is dead", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("dies late", 0)}))
		must(t, q.Enqueue(bg, []engine.Message{message("dies", 0)}))
		must(t, q.Enqueue(bg, []engine.Message{message("lives", 0)}))
		var last []engine.Delivery
		for i := range QueueReceives {
			last = receiveNow(t, q, 10, time.Hour)
			for _, d := range last {
				same(t, "receives", d.Receives, i+1)
				switch string(d.Body) {
				case "lives":
					if i == QueueReceives-1 {
						must(t, q.Ack(bg, []string{d.Receipt}))
						continue
					}
					must(t, q.Release(bg, d.Receipt, 0))
				case "dies late":
					must(t, q.Extend(bg, []string{d.Receipt}, 2*time.Second)) // the visibility ends in 2 s
				default:
					must(t, q.Release(bg, d.Receipt, time.Second))
				}
			}
			time.Sleep(2 * time.Second)
		}
		must(t, q.Enqueue(bg, []engine.Message{message("another", 0)}))
		same(t, "received", bodies(receiveNow(t, q, 10, time.Hour)), []string{"another"})
		check := func() {
			t.Helper()
			same(t, "dead", depth(t, q).Dead, 2)
		}
		check()
		if reopen != nil {
			q = reopen()
			check()
		}
		for _, d := range last {
			must(t, q.Extend(bg, []string{d.Receipt}, time.Second))
			must(t, q.Release(bg, d.Receipt, 0))
		}
		must(t, q.Ack(bg, receipts(last)))
		time.Sleep(time.Minute)
		check() // calls with old receipts do not change dead messages
	})
	run("a message whose last visibility has not ended is not dead", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		var last []engine.Delivery
		for range QueueReceives {
			last = val(q.Receive(bg, 1, time.Minute))(t)
		}
		same(t, "in flight", depth(t, q), engine.QueueDepth{InFlight: 1})
		must(t, q.Ack(bg, receipts(last)))
		time.Sleep(time.Hour)
		same(t, "acknowledged", depth(t, q), engine.QueueDepth{})
	})
}
