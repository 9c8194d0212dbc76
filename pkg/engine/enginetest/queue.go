package enginetest

import (
	"cmp"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// QueueReceives is the MaxReceives that openers of the suite of engine.Queue must set.
const QueueReceives = 3

func message(body string, delay time.Duration) engine.Message {
	return engine.Message{Body: []byte(body), Delay: delay}
}

func bodies(ds []engine.Delivery) (out []string) {
	for i := range ds {
		out = append(out, string(ds[i].Body))
	}
	return out
}

// receiveNow receives ready messages and does not wait for other messages.
func receiveNow(t T, q engine.Queue, max int, visibility time.Duration) []engine.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, time.Millisecond)
	defer cancel()
	return val(q.Receive(ctx, max, visibility))(t)
}

func depth(t T, q engine.Queue) engine.QueueDepth {
	t.Helper()
	return val(q.Depth(bg))(t)
}

func receipts(ds []engine.Delivery) (out []string) {
	for i := range ds {
		out = append(out, ds[i].Receipt)
	}
	return out
}

// Queue runs the suite of engine.Queue in bubbles of synctest, where a sleep of hours takes
// no real time.
func Queue(t *testing.T, open Opener[engine.Queue]) {
	run := func(name string, fn func(t *testing.T, q engine.Queue, reopen func() engine.Queue)) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q, reopen := open(t)
				fn(t, q, reopen)
			})
		})
	}
	const hold = 30 * time.Second
	run("while messages wait in the other lane, one of BacklogShare comes from the backlog; otherwise all may", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		var ms []engine.Message
		for i := range 40 { // 24 messages are on time, so their lane does not become empty in the loop below
			ms = append(ms, engine.Message{Body: []byte{byte(i)}, Backlog: i < 16})
		}
		must(t, q.Enqueue(bg, ms))
		if reopen != nil {
			q = reopen()
		}
		same(t, "in the backlog", depth(t, q).Backlog, 16)
		late, n := 0, 0
		for n < 8 {
			ds := receiveNow(t, q, 3, time.Hour)
			for _, d := range ds {
				same(t, "lane", d.Backlog, d.Body[0] < 16)
				if d.Backlog {
					late++
				}
			}
			if n += len(ds); len(ds) == 0 {
				t.Fatalf("Receive returned no message; only %d of 40 messages were received", n)
			}
		}
		if share := n/engine.BacklogShare + 1; late == 0 || late > share {
			t.Errorf("%d of the first %d messages come from the backlog", late, n)
		}
		rest := receiveNow(t, q, 40, time.Hour)
		same(t, "the rest", n+len(rest), 40)
		last := rest[len(rest)-1]
		same(t, "lane", last.Backlog, true)
		must(t, q.Release(bg, last.Receipt, 0))
		again := receiveNow(t, q, 40, time.Hour)
		same(t, "released", len(again), 1)
		same(t, "its lane", again[0].Backlog, true)
		same(t, "held ones count", depth(t, q).Backlog, 16)
	})
	run("Enqueue stores messages; all are durable when it returns nil", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		before := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("", 0), message(string(make([]byte, 64<<10)), 0)}))
		must(t, q.Enqueue(bg, nil))
		after := time.Now()
		if reopen != nil {
			time.Sleep(time.Second)
			q = reopen()
		}
		got := receiveNow(t, q, 10, hold)
		same(t, "bodies", bodies(got), []string{"a", "", string(make([]byte, 64<<10))})
		for _, d := range got {
			same(t, "receives", d.Receives, 1)
			if d.Enqueued.Before(before.Truncate(time.Millisecond)) || d.Enqueued.After(after) {
				t.Fatalf("Enqueued is %v, want a time in [%v, %v]", d.Enqueued, before, after)
			}
		}
	})
	run("a delay out of range is notify.KindInvalid and stores nothing; so is a body of more than 64 KiB", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		for _, bad := range []engine.Message{
			message("x", -1), message("x", engine.MaxQueueDelay+1), message(string(make([]byte, 64<<10+1)), 0),
		} {
			wantKind(t, q.Enqueue(bg, []engine.Message{message("ok", 0), bad}), notify.KindInvalid)
		}
		same(t, "depth", depth(t, q), engine.QueueDepth{})
		must(t, q.Enqueue(bg, []engine.Message{message("ok", engine.MaxQueueDelay)}))
	})
	run("Receive waits until a message is ready", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		got := make(chan []engine.Delivery)
		for range 2 {
			go func() {
				ds, err := q.Receive(bg, 10, time.Hour)
				if err != nil {
					t.Error(err)
				}
				got <- ds
			}()
		}
		synctest.Wait()
		must(t, q.Enqueue(bg, []engine.Message{message("later", time.Minute)}))
		synctest.Wait() // one receiver waits for this message or an earlier message
		start := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("sooner", 2*time.Second)}))
		same(t, "first", bodies(<-got), []string{"sooner"})
		if d := time.Since(start); d < 2*time.Second || d > 3*time.Second {
			t.Fatalf("received %v after it was enqueued, want 2s", d)
		}
		same(t, "second", bodies(<-got), []string{"later"})
		if d := time.Since(start); d < time.Minute || d > time.Minute+time.Second {
			t.Fatalf("received after %v, want 1m", d)
		}
	})
	run("if ctx ends, Receive returns no message and no error", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", time.Hour/4)}))
		same(t, "with a ready message", bodies(val(q.Receive(endedContext(), 10, hold))(t)), []string(nil))
		same(t, "a", bodies(receiveNow(t, q, 10, time.Hour)), []string{"a"})
		ctx, cancel := context.WithCancel(bg)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if ds, err := q.Receive(ctx, 10, hold); len(ds) > 0 || err != nil {
				t.Errorf("Receive returned the messages %v and the error %v, want none", bodies(ds), err)
			}
		}()
		synctest.Wait()
		cancel()
		<-done
		same(t, "b", bodies(val(q.Receive(bg, 10, hold))(t)), []string{"b"})
	})
	run("every waiting receiver is woken, also if another one leaves", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		type got struct {
			who int
			ds  []engine.Delivery
			at  time.Duration
		}
		// An engine may let only one of the two receivers wait until the message becomes visible. So
		// the test runs twice: the first receiver leaves in one run, the second in the other.
		for leaves := range 2 {
			start := time.Now()
			all := make(chan got)
			var cancels [2]context.CancelFunc
			for i := range cancels {
				var ctx context.Context
				ctx, cancels[i] = context.WithCancel(bg)
				go func() {
					ds, err := q.Receive(ctx, 1, time.Hour)
					if err != nil {
						t.Error(err)
					}
					all <- got{i, ds, time.Since(start)}
				}()
			}
			synctest.Wait()
			must(t, q.Enqueue(bg, []engine.Message{message("a", 5*time.Second)}))
			synctest.Wait()
			cancels[leaves]()
			same(t, "of the receiver that left", len((<-all).ds), 0)
			rest := <-all
			if rest.who == leaves || len(rest.ds) != 1 || rest.at > 6*time.Second {
				t.Fatalf("the other receiver got %d messages after %v, want one message after 5s", len(rest.ds), rest.at)
			}
			must(t, q.Ack(bg, receipts(rest.ds)))
			cancels[1-leaves]()
		}
		// Two messages of one Enqueue wake two receivers.
		all := make(chan int)
		for range 2 {
			go func() {
				ds, err := q.Receive(bg, 1, time.Hour)
				if err != nil {
					t.Error(err)
				}
				all <- len(ds)
			}()
		}
		synctest.Wait()
		start := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("b", 0), message("c", 0)}))
		same(t, "deliveries", (<-all)+(<-all), 2)
		if d := time.Since(start); d > time.Second {
			t.Fatalf("received after %v, want at most 1s", d)
		}
	})
	run("Receive returns up to max messages, in the order in which they became visible", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("3s", 3*time.Second), message("1s", time.Second), message("0", 0), message("1s again", time.Second)}))
		must(t, q.Enqueue(bg, []engine.Message{message("0 again", 0)}))
		same(t, "max", bodies(receiveNow(t, q, 1, hold)), []string{"0"})
		same(t, "max 0", bodies(receiveNow(t, q, 0, hold)), []string(nil))
		time.Sleep(4 * time.Second)
		same(t, "order", bodies(receiveNow(t, q, 10, hold)), []string{"0 again", "1s", "1s again", "3s"})
	})
	run("a message is never received before its delay has passed", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		start := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("a", 10*time.Second)}))
		time.Sleep(4 * time.Second)
		if reopen != nil {
			q = reopen()
		}
		same(t, "early", bodies(receiveNow(t, q, 10, hold)), []string(nil))
		same(t, "delayed", depth(t, q), engine.QueueDepth{Delayed: 1})
		same(t, "received", bodies(val(q.Receive(bg, 10, hold))(t)), []string{"a"})
		if d := time.Since(start); d < 10*time.Second || d > 11*time.Second {
			t.Fatalf("received after %v, want 10s", d)
		}
	})
	run("the receiver owns a message until its visibility ends; then it can be received again", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0)}))
		first := receiveNow(t, q, 1, hold)
		second := receiveNow(t, q, 10, time.Minute)
		same(t, "the other", bodies(second), []string{"b"})
		start := time.Now()
		again := val(q.Receive(bg, 10, hold))(t)
		if d := time.Since(start); d < hold-100*time.Millisecond || d > hold+time.Second {
			t.Fatalf("received again after %v, want %v", d, hold)
		}
		same(t, "again", bodies(again), []string{"a"})
		same(t, "receives", again[0].Receives, 2)
		if again[0].Receipt == first[0].Receipt || again[0].Receipt == second[0].Receipt {
			t.Fatal("two deliveries have the same receipt")
		}
		same(t, "enqueued", again[0].Enqueued, first[0].Enqueued)
	})
	run("a visibility that is not positive is notify.KindInvalid", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		_, err := q.Receive(bg, 1, 0)
		wantKind(t, err, notify.KindInvalid)
		wantKind(t, q.Extend(bg, nil, -1), notify.KindInvalid)
	})
	run("it hands each message to one receiver at a time", func(t *testing.T, q engine.Queue, _ func() engine.Queue) { competingReceivers(t, q) })
	run("Extend sets the end of the deliveries' visibility to that long from now", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0), message("c", 0)}))
		ds := receiveNow(t, q, 10, 10*time.Second)
		time.Sleep(9 * time.Second)
		must(t, q.Extend(bg, receipts(ds[:2]), 10*time.Second)) // a and b
		must(t, q.Extend(bg, receipts(ds[1:2]), time.Second))   // b becomes visible sooner
		time.Sleep(5 * time.Second)
		late := receiveNow(t, q, 10, time.Hour)
		same(t, "not extended, or shortened", sorted(bodies(late), cmp.Compare[string]), []string{"b", "c"})
		// Extend ignores receipts that are not valid any more.
		must(t, q.Extend(bg, append(receipts(ds), "nonsense", ""), 20*time.Second))
		time.Sleep(15 * time.Second)
		same(t, "extended together with others that are over", bodies(receiveNow(t, q, 10, hold)), []string(nil))
		time.Sleep(6 * time.Second)
		same(t, "over", bodies(receiveNow(t, q, 10, hold)), []string{"a"})
	})
	run("Extend wakes waiting receivers if it makes a message visible sooner", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		ds := receiveNow(t, q, 1, time.Hour)
		got := make(chan time.Time)
		go func() {
			if _, err := q.Receive(bg, 1, hold); err != nil {
				t.Error(err)
			}
			got <- time.Now()
		}()
		synctest.Wait()
		must(t, q.Extend(bg, receipts(ds), time.Second))
		start := time.Now()
		if d := (<-got).Sub(start); d > 2*time.Second {
			t.Fatalf("received after %v, want 1s", d)
		}
	})
	ackSuite(run)
	releaseSuite(run)
	deadSuite(run)
	run("a restart keeps every message that was not acknowledged, and its number of receives", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		if reopen == nil {
			return // this engine has no durable state
		}
		must(t, q.Enqueue(bg, []engine.Message{message("held", 0), message("ready", 0), message("delayed", time.Minute)}))
		held := receiveNow(t, q, 1, time.Hour)
		q = reopen()
		got := receiveNow(t, q, 10, hold)
		same(t, "received again", bodies(got), []string{"held", "ready"})
		same(t, "receives", []int{got[0].Receives, got[1].Receives}, []int{2, 1})
		must(t, q.Ack(bg, receipts(held))) // ignored, because the receipt is from before the restart
		same(t, "depth", depth(t, q), engine.QueueDepth{InFlight: 2, Delayed: 1})
		q = reopen()
		same(t, "and again", receiveNow(t, q, 1, hold)[0].Receives, 3)
		must(t, q.Enqueue(bg, []engine.Message{message("new", 0)}))
		q = reopen()
		same(t, "a message that ends the process is dead", sorted(bodies(receiveNow(t, q, 10, hold)), cmp.Compare[string]), []string{"new", "ready"})
		same(t, "dead", depth(t, q).Dead, 1)
	})
	run("a receipt from before a restart is never valid again", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		if reopen == nil {
			return // this engine has no durable state
		}
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		old := receiveNow(t, q, 1, time.Hour)
		must(t, q.Ack(bg, receipts(old)))
		// One second is nearly always enough to make the Ack durable, so the queue is empty
		// after the restart.
		time.Sleep(time.Second)
		q = reopen()
		must(t, q.Enqueue(bg, []engine.Message{message("b", 0), message("c", 0)}))
		receiveNow(t, q, 10, time.Hour)
		before := depth(t, q)
		must(t, q.Ack(bg, receipts(old)))
		must(t, q.Release(bg, old[0].Receipt, 0))
		same(t, "depth", depth(t, q), before)
	})
	run("Depth counts the messages", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		same(t, "empty", depth(t, q), engine.QueueDepth{})
		start := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0)}))
		time.Sleep(time.Second)
		must(t, q.Enqueue(bg, []engine.Message{message("c", 0), message("d", time.Minute)}))
		f := func(want engine.QueueDepth, oldest time.Duration) {
			t.Helper()
			d := depth(t, q)
			if oldest >= 0 {
				if got := d.Oldest.Sub(start); got < oldest-2*time.Millisecond || got > oldest+100*time.Millisecond {
					t.Fatalf("the oldest message was enqueued %v after the start, want %v", got, oldest)
				}
				d.Oldest = time.Time{}
			}
			same(t, "depth", d, want)
		}
		f(engine.QueueDepth{Ready: 3, Delayed: 1}, 0)
		ds := receiveNow(t, q, 2, hold)
		f(engine.QueueDepth{Ready: 1, Delayed: 1, InFlight: 2}, time.Second)
		must(t, q.Ack(bg, receipts(ds[:1])))
		must(t, q.Release(bg, ds[1].Receipt, time.Minute))
		receiveNow(t, q, 1, time.Second)
		f(engine.QueueDepth{Delayed: 2, InFlight: 1}, -1)
		time.Sleep(2 * time.Minute)
		f(engine.QueueDepth{Ready: 3}, 0)
	})
	run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		m := message("abc", 0)
		must(t, q.Enqueue(bg, []engine.Message{m}))
		m.Body[0] = 'x'
		got := receiveNow(t, q, 1, time.Second)
		same(t, "body", bodies(got), []string{"abc"})
		got[0].Body[0] = 'y'
		same(t, "body again", bodies(val(q.Receive(bg, 1, time.Second))(t)), []string{"abc"})
	})
	t.Run("model", func(t *testing.T) { queueModel(t, open) })
}
