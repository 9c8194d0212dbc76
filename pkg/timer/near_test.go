package timer

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
)

// consumer returns a node that owns no shard, because another owner has all leases. The node
// publishes near timers.
func consumer(s *sim) *node {
	for n := range s.base.Shards {
		if ok, err := s.lease.Acquire(context.Background(), lockName(uint16(n)), "somebody", 24*time.Hour); !ok || err != nil {
			s.t.Fatal("not free", err)
		}
	}
	return s.start("consumer")
}

func nearSim(t *testing.T) (*sim, *Engine, *node) {
	s := newSim(t)
	s.keeps = true
	w, _ := s.writer()
	return s, w, consumer(s)
}

func (s *sim) depth() engine.QueueDepth {
	d, err := s.mem.Queue("near", 0).Depth(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// A near timer is released on time by an engine that does not own its shard. A timer that is not
// near does not go through the queue.
func TestNearWithoutAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, c := nearSim(t)
		defer s.close()
		for id, in := range map[string]time.Duration{"past": -time.Hour, "now": 0, "soon": 3 * time.Second, "edge": 4400 * time.Millisecond, "far": 4600 * time.Millisecond} {
			if err := w.Park(t.Context(), []engine.Timer{timerIn(id, in)}); err != nil {
				t.Fatal(err)
			}
		}
		wait(10 * time.Second)
		for _, id := range []string{"past", "now", "soon", "edge"} {
			if got := s.of(id); len(got) != 1 || id != "past" && got[0].late > time.Millisecond {
				t.Errorf("%s: %v", id, got)
			}
		}
		if got := s.of("far"); len(got) != 0 {
			t.Errorf("far: %v", got)
		}
		if d := s.depth(); d != (engine.QueueDepth{}) {
			t.Errorf("queue %+v", d)
		}
		if n := c.e.Stats().Released[Near]; n != 4 {
			t.Errorf("%d released near", n)
		}
	})
}

// The owner of the shard puts a near timer from the queue into its wheel, and recognises the
// timer's row when it reads the row at the close of the minute.
func TestNearOfTheOwnerIsReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		s.start("a")
		w, _ := s.writer()
		wait(time.Second)
		if err := w.Park(t.Context(), []engine.Timer{timerIn("x", 500*time.Millisecond)}); err != nil {
			t.Fatal(err)
		}
		wait(3 * time.Minute)
		if got := s.of("x"); len(got) != 1 || got[0].late > time.Millisecond {
			t.Errorf("released %v", got)
		}
	})
}

// A payload that is too large for a message is read from the row. This also works if other rows
// have neighbouring ids.
func TestNearWithLargePayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		var got [][]byte
		s.seen = func(x *engine.Timer) { got = append(got, x.Payload) }
		at := time.Now().Add(time.Second).UnixMilli()
		payload := bytes.Repeat([]byte("p"), nearPayload+1)
		for _, id := range []string{"a", "a\x00", "b", string(bytes.Repeat([]byte{0xff}, 64))} {
			x := engine.Timer{FireAt: at, ID: []byte(id), Target: "topic", Payload: append(payload, id...)}
			if err := w.Park(t.Context(), []engine.Timer{x}); err != nil {
				t.Fatal(err)
			}
		}
		wait(2 * time.Second)
		if len(got) != 4 {
			t.Fatalf("%d released", len(got))
		}
		for _, p := range got {
			if !bytes.HasPrefix(p, payload) {
				t.Errorf("payload of %d bytes", len(p))
			}
		}
	})
}

// The owner has released the row of a message, and the row is gone. The message is not confused
// with the next row.
func TestNearWhoseRowIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		at := time.Now().UnixMilli()
		p := parked{engine.Timer{FireAt: at, ID: []byte("gone"), Payload: make([]byte, nearPayload+1)}, at}
		if err := s.rows.Put(t.Context(), notify.SpreadOver(4), []engine.Timer{{FireAt: at, ID: []byte("gonf"), Payload: []byte("other")}}); err != nil {
			t.Fatal(err)
		}
		if engine.ShardOf([]byte("gone"), notify.SpreadOver(4)) != engine.ShardOf([]byte("gonf"), notify.SpreadOver(4)) {
			t.Fatal("the ids lie in different shards")
		}
		if err := w.cfg.Queue.Enqueue(t.Context(), []engine.Message{nearMessage(&p, at)}); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		if got := s.arrivals(); len(got) != 0 {
			t.Errorf("released %v", got)
		}
		if d := s.depth(); d != (engine.QueueDepth{}) {
			t.Errorf("queue %+v", d)
		}
	})
}

// A message that is received before its time, because the timer is farther away than one hop, waits
// again.
func TestNearInHops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		p := parked{timerIn("x", 40*time.Minute), time.Now().Add(40 * time.Minute).UnixMilli()}
		if err := w.cfg.Queue.Enqueue(t.Context(), []engine.Message{nearMessage(&p, time.Now().UnixMilli())}); err != nil {
			t.Fatal(err)
		}
		wait(40*time.Minute - time.Second)
		if got := s.of("x"); len(got) != 0 {
			t.Errorf("released %v", got)
		}
		wait(1100 * time.Millisecond)
		if got := s.of("x"); len(got) != 1 {
			t.Errorf("released %v", got)
		}
	})
}

// While the log is away, messages stay with their consumer. When the log is back, no message was
// set apart as dead.
func TestNearThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		s.setLogDown(true)
		for i := range 200 {
			if err := w.Park(t.Context(), []engine.Timer{timerIn(fmt.Sprint(i), time.Second)}); err != nil {
				t.Fatal(err)
			}
		}
		wait(20 * time.Minute)
		s.setLogDown(false)
		wait(5 * time.Second)
		for i := range 200 {
			if n := len(s.of(fmt.Sprint(i))); n != 1 {
				t.Errorf("%d: released %d times", i, n)
			}
		}
		if d := s.depth(); d != (engine.QueueDepth{}) {
			t.Errorf("queue %+v", d)
		}
	})
}

// A timer that is refused for its content delays no other timer. An unreadable message is dropped,
// because the rows are stored.
func TestNearRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		s.refuse = func(x *engine.Timer) bool { return string(x.ID) == "3" }
		var ts []engine.Timer
		for i := range 10 {
			ts = append(ts, timerIn(fmt.Sprint(i), time.Second))
		}
		if err := w.Park(t.Context(), ts); err != nil {
			t.Fatal(err)
		}
		if err := w.cfg.Queue.Enqueue(t.Context(), []engine.Message{{Body: []byte("?")}, {}}); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		for i := range 10 {
			if got := len(s.of(fmt.Sprint(i))); (i == 3) != (got == 0) {
				t.Errorf("%d: released %d times", i, got)
			}
		}
		if d := s.depth(); d != (engine.QueueDepth{}) {
			t.Errorf("queue %+v", d)
		}
		if left := s.rows.left(); left != 10 {
			t.Errorf("%d rows", left)
		}
	})
}

// A near schedule that was moved is released as its head says, whichever engine publishes it. If the
// head is still behind the row's generation, the row is left to the owner.
func TestNearAsksTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, _ := nearSim(t)
		defer s.close()
		v := s.service()
		moved, ahead, cancelled := v.later(t, time.Hour, 1), v.later(t, time.Hour, 1), v.later(t, 10*time.Second, 1)
		if got := v.reschedule(moved, time.Now().Add(time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		if err := w.Park(t.Context(), ahead.timers(1, time.Now().Add(time.Second).UnixMilli())); err != nil {
			t.Fatal(err)
		}
		if got := v.cancel(cancelled); got != done {
			t.Fatal(got)
		}
		// Park the timers as if they had been near when they were stored.
		if err := w.Park(t.Context(), cancelled.timers(0, time.Now().Add(-time.Second).UnixMilli())); err != nil {
			t.Fatal(err)
		}
		wait(20 * time.Second)
		if n := s.firedAs(moved, 1); n != 1 {
			t.Errorf("a moved one was released %d times", n)
		}
		if n := s.firedAs(ahead, 1); n != 0 {
			t.Errorf("one ahead of its head was released %d times", n)
		}
		if d := s.depth(); d != (engine.QueueDepth{}) {
			t.Errorf("queue %+v", d)
		}
	})
}

// A consumer dies after it has received near timers. Another consumer receives them as soon as it
// would get the shards of the dead one.
func TestNearConsumerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, c := nearSim(t)
		defer s.close()
		c.plan.Add(faulty.Rule{Method: "Queue.Ack", Err: faulty.ErrDown})
		c.freeze()
		if err := w.Park(t.Context(), []engine.Timer{timerIn("x", 0)}); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		c.crash()
		s.start("other")
		wait(6 * time.Second)
		if got := s.of("x"); len(got) != 1 || got[0].late > 6*time.Second {
			t.Errorf("released %v", got)
		}
	})
}

func TestNearMessageKeepsATimer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		str := func(min, max int, label string) []byte {
			return rapid.SliceOfN(rapid.Byte(), min, max).Draw(rt, label)
		}
		want := parked{due: rapid.Int64Range(0, 1<<50).Draw(rt, "due")}
		want.FireAt = rapid.Int64Range(0, 1<<50).Draw(rt, "key")
		want.ID, want.Target = str(1, 64, "id"), string(str(0, 40, "target"))
		want.Kind = rapid.Uint8().Draw(rt, "kind")
		want.Gen, want.Weight = rapid.Uint32().Draw(rt, "gen"), rapid.Uint32().Draw(rt, "weight")
		copy(want.Head[:], str(16, 16, "head"))
		if rapid.Bool().Draw(rt, "payload") {
			want.Payload = str(1, 100, "bytes")
		}
		got, whole, err := readNear(nearMessage(&want, 0).Body)
		if err != nil || !whole || !reflect.DeepEqual(got, want) {
			rt.Fatalf("%+v became %+v, %v, %v", want, got, whole, err)
		}
	})
}

// FuzzReadNear reads any bytes without a panic. If they are read as a whole timer, the message of
// that timer is read as the same timer.
func FuzzReadNear(f *testing.F) {
	p := parked{engine.Timer{FireAt: 1, ID: []byte("id"), Head: notify.Base{1}, Target: "topic", Payload: []byte("p")}, 2}
	f.Add(nearMessage(&p, 0).Body)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, whole, err := readNear(b)
		if err != nil {
			return
		}
		again, wholeAgain, err := readNear(nearMessage(&p, 0).Body)
		if err != nil || whole && (!wholeAgain || !reflect.DeepEqual(again, p)) {
			t.Fatalf("%+v became %+v: %v", p, again, err)
		}
	})
}

func TestIDBefore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		id := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "id")
		other := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "other")
		b := timerIDBefore(id)
		if bytes.Compare(b, id) >= 0 || bytes.Compare(other, b) > 0 && bytes.Compare(other, id) < 0 {
			rt.Fatalf("%x lies between %x and %x", other, b, id)
		}
	})
}
