package enginetest

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// patience is how long a test waits for a server. It is long because the server runs on the
// same busy machine.
const patience = 2 * time.Minute

// gather receives until it has n messages. It fails the test if it does not get n messages
// within patience.
func gather(t T, q engine.Queue, n int, visibility time.Duration) (out []engine.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	for len(out) < n {
		ds := val(q.Receive(ctx, n-len(out), visibility))(t)
		if out = append(out, ds...); ctx.Err() != nil {
			t.Fatalf("only %d of %d messages were received within %v", len(out), n, patience)
		}
	}
	return out
}

// receiveNone fails the test if it receives a message within the given time.
func receiveNone(t T, q engine.Queue, duration time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, duration)
	defer cancel()
	same(t, "received", bodies(val(q.Receive(ctx, 10, time.Minute))(t)), []string(nil))
}

func sortedBodies(ds []engine.Delivery) []string { return sorted(bodies(ds), cmp.Compare[string]) }

// eventually waits until condition returns true. Tests use it because the counts of a service are
// delayed.
func eventually(t T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: the condition was not true within %v", what, patience)
		}
	}
}

// checkElapsed fails the test if the time that has passed since start differs too much from
// want.
func checkElapsed(t T, start time.Time, want time.Duration) {
	t.Helper()
	// The time may be longer than want, because the engine and SQS both round a visibility up.
	if d := time.Since(start); d < want-10*time.Millisecond || d > want+patience {
		t.Fatalf("received after %v, want %v", d, want)
	}
}

// QueueService runs the suite of engine.Queue for a queue that is a service with its own
// clock. The suite runs in real time and uses whole seconds. It does not check the order of
// messages within a lane. It expects that counts are correct only after some time.
func QueueService(t *testing.T, open Opener[engine.Queue]) {
	run := func(name string, fn func(t *testing.T, q engine.Queue, reopen func() engine.Queue)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the tests mostly wait
			q, reopen := open(t)
			fn(t, q, reopen)
		})
	}
	const hold = time.Minute
	run("Enqueue stores messages; all are durable when it returns nil", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		long := string(make([]byte, 64<<10))
		before := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("", 0), message("\x00\xff<&>\n", 0), message(long, 0), message(long, 0), message(long, 0), message(long, 0)}))
		must(t, q.Enqueue(bg, nil))
		q = reopen()
		got := gather(t, q, 7, hold)
		same(t, "bodies", sortedBodies(got), sorted([]string{"a", "", "\x00\xff<&>\n", long, long, long, long}, cmp.Compare[string]))
		for _, d := range got {
			same(t, "receives", d.Receives, 1)
			same(t, "lane", d.Backlog, false)
			if d.Enqueued.Before(before.Add(-patience)) || d.Enqueued.After(time.Now().Add(patience)) {
				t.Fatalf("Enqueued is %v, want about %v", d.Enqueued, before)
			}
		}
	})
	run("more messages than fit into one request are stored and received", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		var ms []engine.Message
		var want []string
		for i := range 137 {
			ms = append(ms, message(strconv.Itoa(i), time.Duration(i%2)*time.Second))
			want = append(want, strconv.Itoa(i))
		}
		must(t, q.Enqueue(bg, ms))
		got := gather(t, q, len(ms), hold)
		same(t, "bodies", sortedBodies(got), sorted(want, cmp.Compare[string]))
		must(t, q.Ack(bg, receipts(got)))
		eventually(t, "empty", func() bool { return depth(t, q) == engine.QueueDepth{} })
	})
	run("a delay out of range is notify.KindInvalid and stores nothing; so is a body of more than 64 KiB", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		for _, bad := range []engine.Message{
			message("x", -1), message("x", engine.MaxQueueDelay+1), message(string(make([]byte, 64<<10+1)), 0),
		} {
			wantKind(t, q.Enqueue(bg, []engine.Message{message("ok", 0), bad}), notify.KindInvalid)
		}
		receiveNone(t, q, time.Second)
		must(t, q.Enqueue(bg, []engine.Message{message("ok", engine.MaxQueueDelay)}))
		eventually(t, "delayed", func() bool { return depth(t, q).Delayed == 1 })
	})
	run("while messages wait in the other lane, one of BacklogShare comes from the backlog; otherwise all may", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		var ms []engine.Message
		for i := range 60 {
			ms = append(ms, engine.Message{Body: []byte{byte(i)}, Backlog: i < 40})
		}
		must(t, q.Enqueue(bg, ms))
		eventually(t, "all are there", func() bool { return depth(t, q).Ready == 60 })
		same(t, "in the backlog", depth(t, q).Backlog, 40)
		late, n := 0, 0
		var last engine.Delivery
		for n < 20 {
			for _, d := range val(q.Receive(bg, 3, time.Hour))(t) {
				same(t, "lane", d.Backlog, d.Body[0] < 40)
				if n++; d.Backlog {
					late++
					last = d
				}
			}
		}
		if share := n/engine.BacklogShare + 1; late == 0 || late > share {
			t.Errorf("%d of the first %d messages come from the backlog", late, n)
		}
		must(t, q.Release(bg, last.Receipt, 0))
		n += len(gather(t, q, 61-n, time.Hour)) // the released message is received twice
		same(t, "all", n, 61)
	})
	run("Receive waits until a message is ready", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		for _, late := range []bool{false, true} {
			got := make(chan []engine.Delivery)
			go func() {
				ds, err := q.Receive(bg, 10, time.Hour)
				if err != nil {
					t.Error(err)
				}
				got <- ds
			}()
			start := time.Now()
			must(t, q.Enqueue(bg, []engine.Message{{Body: []byte("a"), Delay: time.Second, Backlog: late}}))
			same(t, "received", bodies(<-got), []string{"a"})
			checkElapsed(t, start, time.Second)
		}
	})
	run("if ctx ends, Receive returns no message and no error", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		same(t, "with a ready message", bodies(val(q.Receive(endedContext(), 10, hold))(t)), []string(nil))
		same(t, "a", bodies(gather(t, q, 1, time.Hour)), []string{"a"})
		ctx, cancel := context.WithCancel(bg)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if ds, err := q.Receive(ctx, 10, time.Hour); len(ds) > 0 || err != nil {
				t.Errorf("Receive returned the messages %v and the error %v, want none", bodies(ds), err)
			}
		}()
		time.Sleep(200 * time.Millisecond) // until the request waits at the server
		cancel()
		<-done
		// If the server gives a message to the request of the cancelled Receive, the
		// message must not stay invisible for an hour.
		must(t, q.Enqueue(bg, []engine.Message{message("b", 0)}))
		same(t, "b", bodies(gather(t, q, 1, time.Hour)), []string{"b"})
	})
	run("a message is never received before its delay has passed", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		start := time.Now()
		must(t, q.Enqueue(bg, []engine.Message{message("a", 2500*time.Millisecond), {Body: []byte("late"), Delay: 2500 * time.Millisecond, Backlog: true}}))
		q = reopen()
		same(t, "received", sortedBodies(gather(t, q, 2, hold)), []string{"a", "late"})
		checkElapsed(t, start, 2500*time.Millisecond)
	})
	run("the receiver owns a message until its visibility ends; then it can be received again", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		first := gather(t, q, 1, 1500*time.Millisecond)
		start := time.Now()
		again := gather(t, q, 1, hold)
		checkElapsed(t, start, 1500*time.Millisecond)
		same(t, "again", bodies(again), []string{"a"})
		same(t, "receives", again[0].Receives, 2)
		same(t, "enqueued", again[0].Enqueued, first[0].Enqueued)
		if again[0].Receipt == first[0].Receipt {
			t.Fatal("two deliveries have the same receipt")
		}
	})
	run("a visibility that is not positive is notify.KindInvalid", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		_, err := q.Receive(bg, 1, 0)
		wantKind(t, err, notify.KindInvalid)
		wantKind(t, q.Extend(bg, nil, -1), notify.KindInvalid)
	})
	run("it hands each message to one receiver at a time", func(t *testing.T, q engine.Queue, _ func() engine.Queue) { competeForService(t, q) })
	run("Extend sets the end of the deliveries' visibility to that long from now", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0), message("c", 0)}))
		ds := gather(t, q, 3, time.Minute)
		slices.SortFunc(ds, func(a, b engine.Delivery) int { return cmp.Compare(string(a.Body), string(b.Body)) })
		must(t, q.Extend(bg, receipts(ds[:1]), time.Hour))   // a
		must(t, q.Extend(bg, receipts(ds[1:]), time.Second)) // b and c become visible sooner
		same(t, "shortened", sortedBodies(gather(t, q, 2, time.Hour)), []string{"b", "c"})
		// Extend ignores receipts that are not valid any more.
		must(t, q.Extend(bg, append(receipts(ds), "nonsense", ""), 2*time.Second))
		same(t, "a, and not the others", bodies(gather(t, q, 1, hold)), []string{"a"})
		receiveNone(t, q, 3*time.Second)
	})
	run("Ack removes messages; it ignores receipts that are not valid any more", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0)}))
		first := gather(t, q, 2, time.Second)
		time.Sleep(1100 * time.Millisecond) // the visibility of a and b ends
		must(t, q.Ack(bg, receipts(first)))
		second := gather(t, q, 2, time.Hour)
		same(t, "received again", sortedBodies(second), []string{"a", "b"})
		must(t, q.Ack(bg, receipts(first)))
		must(t, q.Ack(bg, []string{"nonsense", ""}))
		must(t, q.Ack(bg, nil))
		eventually(t, "in flight", func() bool { return depth(t, q).InFlight == 2 })
		must(t, q.Ack(bg, receipts(second)))
		must(t, q.Ack(bg, receipts(second)))
		q = reopen()
		eventually(t, "gone", func() bool { return depth(t, q) == engine.QueueDepth{} })
	})
	run("Release makes a message ready again after delay; the receive still counts", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0)}))
		first := gather(t, q, 1, time.Hour)
		for _, bad := range []time.Duration{-1, engine.MaxQueueDelay + 1} {
			wantKind(t, q.Release(bg, first[0].Receipt, bad), notify.KindInvalid)
		}
		start := time.Now()
		must(t, q.Release(bg, first[0].Receipt, 2*time.Second))
		second := gather(t, q, 1, time.Hour)
		checkElapsed(t, start, 2*time.Second)
		same(t, "receives", second[0].Receives, 2)
		must(t, q.Release(bg, first[0].Receipt, 0)) // ignored, because the receipt is not valid any more
		must(t, q.Release(bg, "nonsense", 0))
		receiveNone(t, q, 2*time.Second)
		must(t, q.Ack(bg, receipts(second)))
		must(t, q.Enqueue(bg, []engine.Message{message("b", 0)}))
		must(t, q.Release(bg, gather(t, q, 1, time.Hour)[0].Receipt, 0))
		same(t, "at once", bodies(gather(t, q, 1, time.Hour)), []string{"b"})
	})
	run("Receive returns a message at most MaxReceives times; if it is not acknowledged by then, it is dead", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("dies first", 0)}))
		time.Sleep(50 * time.Millisecond)
		must(t, q.Enqueue(bg, []engine.Message{message("dies", 0), message("lives", 0), {Body: []byte("dies late"), Backlog: true}}))
		var last []engine.Delivery
		for i := range QueueReceives {
			last = gather(t, q, 4, time.Hour)
			for _, d := range last {
				same(t, "receives", d.Receives, i+1)
				if string(d.Body) == "lives" && i == QueueReceives-1 {
					must(t, q.Ack(bg, []string{d.Receipt}))
					continue
				}
				must(t, q.Release(bg, d.Receipt, 0))
			}
		}
		receiveNone(t, q, time.Second)
		eventually(t, "dead", func() bool { return depth(t, q).Dead == 3 })
		q = reopen()
		eventually(t, "left", func() bool { return depth(t, q) == engine.QueueDepth{Dead: 3} })
		for _, d := range last { // calls with old receipts do not change dead messages
			must(t, q.Extend(bg, []string{d.Receipt}, time.Second))
			must(t, q.Release(bg, d.Receipt, 0))
		}
		must(t, q.Ack(bg, receipts(last)))
		receiveNone(t, q, time.Second)
		eventually(t, "still left", func() bool { return depth(t, q) == engine.QueueDepth{Dead: 3} })
	})
	run("a restart keeps every message that was not acknowledged, and its number of receives", func(t *testing.T, q engine.Queue, reopen func() engine.Queue) {
		must(t, q.Enqueue(bg, []engine.Message{message("held", 0)}))
		held := gather(t, q, 1, 2*time.Second)
		must(t, q.Enqueue(bg, []engine.Message{message("ready", 0), message("delayed", time.Second)}))
		q = reopen()
		got := gather(t, q, 3, hold)
		same(t, "received", sortedBodies(got), []string{"delayed", "held", "ready"})
		for _, d := range got {
			want := 1
			if string(d.Body) == "held" {
				want = 2
			}
			same(t, "receives", d.Receives, want)
		}
		must(t, q.Ack(bg, receipts(held))) // ignored, because the receipt is from before the restart
		eventually(t, "in flight", func() bool { return depth(t, q).InFlight == 3 })
	})
	run("Depth counts the messages", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		same(t, "empty", depth(t, q), engine.QueueDepth{})
		must(t, q.Enqueue(bg, []engine.Message{message("a", 0), message("b", 0), {Body: []byte("c"), Backlog: true}, message("d", time.Minute), {Body: []byte("e"), Delay: time.Minute, Backlog: true}}))
		eventually(t, "ready", func() bool { return depth(t, q) == engine.QueueDepth{Ready: 3, Delayed: 2, Backlog: 2} })
		ds := gather(t, q, 3, time.Hour)
		eventually(t, "in flight", func() bool { return depth(t, q) == engine.QueueDepth{InFlight: 3, Delayed: 2, Backlog: 2} })
		must(t, q.Ack(bg, receipts(ds)))
		eventually(t, "acknowledged", func() bool { return depth(t, q) == engine.QueueDepth{Delayed: 2, Backlog: 1} })
	})
	run("slices passed in may be reused, slices returned belong to the caller", func(t *testing.T, q engine.Queue, _ func() engine.Queue) {
		m := message("abc", 0)
		must(t, q.Enqueue(bg, []engine.Message{m}))
		m.Body[0] = 'x'
		got := gather(t, q, 1, time.Second)
		same(t, "body", bodies(got), []string{"abc"})
		got[0].Body[0] = 'y'
		same(t, "body again", bodies(gather(t, q, 1, time.Second)), []string{"abc"})
	})
}

// competeForService lets 4 producers enqueue 200 messages and 4 receivers receive them. The
// receivers acknowledge some deliveries and release others. Two receivers must never own
// the same message at the same time.
func competeForService(t *testing.T, q engine.Queue) {
	const producers, receivers, each = 4, 4, 50
	type holding struct {
		from, to time.Time
		done     bool
	}
	var mu sync.Mutex
	held, done := map[string][]holding{}, 0
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	together(producers+receivers, func(i int) {
		if i < producers {
			for n := 0; n < each; n += 10 {
				var ms []engine.Message
				for k := range 10 {
					ms = append(ms, message(strconv.Itoa(i*each+n+k), time.Duration(k%2)*time.Second))
				}
				if err := q.Enqueue(bg, ms); err != nil {
					t.Error(err)
				}
			}
			return
		}
		for n := 0; ctx.Err() == nil; n++ {
			ds, err := q.Receive(ctx, 7, time.Minute)
			if err != nil {
				t.Error(err)
			}
			from := time.Now()
			for k, d := range ds {
				e := holding{from, time.Now(), d.Receives == QueueReceives || (n+k)%5 != 0}
				if e.done {
					err = q.Ack(bg, []string{d.Receipt})
				} else {
					err = q.Release(bg, d.Receipt, 0)
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				held[string(d.Body)] = append(held[string(d.Body)], e)
				if e.done {
					if done++; done == producers*each {
						cancel()
					}
				}
				mu.Unlock()
			}
		}
	})
	same(t, "messages", len(held), producers*each)
	for body, es := range held {
		slices.SortFunc(es, func(a, b holding) int { return a.from.Compare(b.from) })
		for i := range es {
			if i > 0 && es[i].from.Before(es[i-1].to) {
				t.Fatalf("message %s was received while another receiver owned it", body)
			}
			if es[i].done != (i == len(es)-1) {
				t.Fatalf("message %s was received after it was acknowledged, or it was never acknowledged", body)
			}
		}
	}
	eventually(t, "empty", func() bool { return depth(t, q) == engine.QueueDepth{} })
}
