package timer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig has an engine, a store that outlives the engine, and a Publish that records when each timer
// was released.
type rig struct {
	t     *testing.T
	cfg   Config
	store engine.Timers
	plan  *faulty.Plan
	e     *Engine
	stop  context.CancelFunc
	done  chan error

	mu   sync.Mutex
	came map[string][]time.Time
	seq  []string
	fail func(ts []engine.Timer) error
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	r := &rig{t: t, plan: faulty.NewPlan(1), came: map[string][]time.Time{}}
	r.store = memory.New().Timers()
	r.cfg = Config{Store: faulty.NewTimers(r.store, r.plan), Publish: r.publish, Shards: 4}
	for _, f := range change {
		f(&r.cfg)
	}
	r.e = New(r.cfg)
	return r
}

func (r *rig) publish(_ context.Context, ts []engine.Timer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail(ts); err != nil {
			return err
		}
	}
	for i := range ts {
		id := string(ts[i].ID)
		r.came[id] = append(r.came[id], time.Now())
		r.seq = append(r.seq, id)
		if now := time.Now().UnixMilli(); now < ts[i].FireAt {
			r.t.Errorf("%s released %d ms early", id, ts[i].FireAt-now)
		}
	}
	return nil
}

func (r *rig) setFail(f func([]engine.Timer) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = f
}

// run starts a life of the engine.
func (r *rig) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop, r.done = stop, make(chan error, 1)
	e, done := r.e, r.done
	go func() { done <- e.Run(ctx) }()
	synctest.Wait()
}

// crash ends the engine's life. The next life knows only what is in the store.
func (r *rig) crash() {
	r.stop()
	if err := <-r.done; err != nil {
		r.t.Errorf("Run: %v", err)
	}
	r.e = New(r.cfg)
}

func (r *rig) park(id string, in time.Duration) {
	r.t.Helper()
	if err := r.e.Park(r.t.Context(), []engine.Timer{timerIn(id, in)}); err != nil {
		r.t.Fatal(err)
	}
}

func timerIn(id string, in time.Duration) engine.Timer {
	return engine.Timer{FireAt: time.Now().Add(in).UnixMilli(), ID: []byte(id), Kind: KindEnvelope, Target: "topic", Payload: []byte(id)}
}

func (r *rig) times(id string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.came[id])
}

// left returns the number of rows in the store.
func (r *rig) left() int {
	n := 0
	if err := r.store.Pending(context.Background(), func(*engine.Timer) error { n++; return nil }); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func wait(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

func TestReleasesAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		began := time.Now()
		waits := map[string]time.Duration{}
		for i := range 500 {
			waits[fmt.Sprint(i)] = time.Duration(i*i) * time.Millisecond // 0 s to 4 min
		}
		for id, d := range waits {
			r.park(id, d)
		}
		wait(5 * time.Minute)
		for id, d := range waits {
			got := r.times(id)
			if len(got) != 1 {
				t.Fatalf("%s: released %d times", id, len(got))
			}
			if late := got[0].Sub(began) - d; late < 0 || late > 2*time.Millisecond {
				t.Fatalf("%s: %v late", id, late)
			}
		}
		wait(2 * time.Minute)
		if n := r.left(); n != 0 {
			t.Errorf("%d rows left behind the closes", n)
		}
		if n := len(r.e.tenures[0].minutes); n > 3 {
			t.Errorf("%d minutes remembered", n)
		}
		r.crash()
	})
}

// No scan reads a row that is written behind the load cursor. The row goes into the wheel when it
// is stored.
func TestParkBehindTheLoadCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Poll = time.Minute; c.Lookahead = time.Minute })
		r.run()
		r.park("soon", 20*time.Millisecond)
		r.park("past", -5*time.Second)
		wait(25 * time.Millisecond)
		for _, id := range []string{"soon", "past"} {
			if n := len(r.times(id)); n != 1 {
				t.Errorf("%s: released %d times", id, n)
			}
		}
		r.crash()
	})
}

func TestParkIntoAClosedMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		wait(5 * time.Minute)
		r.park("old", -3*time.Minute)
		wait(10 * time.Millisecond)
		if n := len(r.times("old")); n != 1 {
			t.Fatalf("released %d times", n)
		}
		wait(3 * time.Minute)
		if n := r.left(); n != 0 {
			t.Errorf("%d rows left", n)
		}
		r.crash()
	})
}

// A minute is closed while a Put is in progress: the row lands in a partition that no engine reads
// any more, so it is written again.
func TestCloseOvertakesPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		hold := make(chan struct{})
		r.plan.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hold: hold})
		parked := make(chan error, 1)
		go func() { parked <- r.e.Park(context.Background(), []engine.Timer{timerIn("slow", time.Second)}) }()
		wait(3 * time.Minute)
		close(hold)
		if err := <-parked; err != nil {
			t.Fatal(err)
		}
		wait(10 * time.Millisecond)
		if n := len(r.times("slow")); n != 1 {
			t.Fatalf("released %d times", n)
		}
		r.crash()
	})
}

// Before the take-over the engine does not know which minutes an earlier owner has closed.
func TestParkBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		wait(10 * time.Minute)
		r.crash()
		r.park("due long ago", -5*time.Minute)
		r.park("later", time.Minute)
		r.run()
		wait(2 * time.Second)
		// The timer may be released twice: the row in the closed minute stays, and is found again
		// below the watermark.
		if n := len(r.times("due long ago")); n == 0 {
			t.Fatal("not released")
		}
		wait(time.Minute)
		if n := len(r.times("later")); n != 1 {
			t.Fatalf("released %d times", n)
		}
		r.crash()
	})
}

// A writer that dies between its two Puts leaves a row below the watermark. The row is released
// once more and removed.
func TestRowsBelowTheWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		wait(10 * time.Minute)
		if err := r.store.Put(t.Context(), notify.SpreadOver(r.cfg.Shards), []engine.Timer{timerIn("orphan", -5*time.Minute)}); err != nil {
			t.Fatal(err)
		}
		r.crash()
		r.run()
		wait(5 * time.Second)
		if n := len(r.times("orphan")); n != 1 {
			t.Fatalf("released %d times", n)
		}
		if n := r.left(); n != 0 {
			t.Errorf("%d rows left", n)
		}
		r.crash()
	})
}

// After a crash before the watermark has moved, the same ids are released again, and no others.
func TestCrashReleasesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		r.park("a", time.Second)
		wait(2 * time.Second)
		r.crash()
		r.run()
		wait(2 * time.Second)
		if n := len(r.times("a")); n != 2 {
			t.Fatalf("released %d times, want 2: the minute was open", n)
		}
		wait(3 * time.Minute)
		r.crash()
		r.run()
		wait(3 * time.Minute)
		if n := len(r.times("a")); n != 2 {
			t.Fatalf("released %d times, want 2: the minute was dropped", n)
		}
		r.crash()
	})
}

// The store or the log is away. When it is back, everything is released.
func TestOutages(t *testing.T) {
	for _, away := range []string{"store", "log"} {
		t.Run(away, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(c *Config) { c.MaxPending = 400 })
				r.run()
				const n = 2000
				for i := range n {
					r.park(fmt.Sprint(i), time.Duration(i)*100*time.Millisecond)
				}
				back := func() {}
				if away == "store" {
					back = r.plan.Add(faulty.Rule{Method: "Timers.*", Err: faulty.ErrDown})
				} else {
					r.setFail(func([]engine.Timer) error { return notify.Unavailable("log", 0, errors.New("down")) })
				}
				wait(5 * time.Minute)
				if p := r.e.Pending(); p > 400+4 {
					t.Errorf("%d timers in memory, the limit is 400", p)
				}
				back()
				r.setFail(nil)
				wait(20 * time.Second)
				for i := range n {
					if len(r.times(fmt.Sprint(i))) == 0 {
						t.Fatalf("%d was not released", i)
					}
				}
				wait(3 * time.Minute)
				if left := r.left(); left != 0 {
					t.Errorf("%d rows left", left)
				}
				r.crash()
			})
		})
	}
}

// If the log is away until after the close of a minute, and the process dies then, the minute was
// not dropped.
func TestCrashWhileTheLogIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.setFail(func([]engine.Timer) error { return faulty.ErrDown })
		r.run()
		r.park("a", time.Second)
		wait(10 * time.Minute)
		r.crash()
		r.setFail(nil)
		r.run()
		wait(2 * time.Second)
		if n := len(r.times("a")); n != 1 {
			t.Fatalf("released %d times", n)
		}
		r.crash()
	})
}

// While the shard is full, a row behind the load cursor is not forgotten.
func TestParkWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MaxPending = 40 })
		r.setFail(func([]engine.Timer) error { return faulty.ErrDown })
		r.run()
		for i := range 400 {
			r.park(fmt.Sprint(i), time.Duration(i)*time.Millisecond)
		}
		wait(10 * time.Second)
		if p := r.e.Pending(); p > 40 {
			t.Errorf("%d timers in memory, the limit is 40", p)
		}
		r.setFail(nil)
		wait(10 * time.Second)
		for i := range 400 {
			if len(r.times(fmt.Sprint(i))) != 1 {
				t.Fatalf("%d was released %d times", i, len(r.times(fmt.Sprint(i))))
			}
		}
		r.crash()
	})
}

var refusal error = &notify.Error{Kind: notify.KindTooLarge, Code: "record_too_large"}

// If the log refuses a batch because of one timer, the other timers of the batch are published.
func TestRefusedTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		r := newRig(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
		var refuse atomic.Bool
		refuse.Store(true)
		r.setFail(func(ts []engine.Timer) error {
			if refuse.Load() && slices.ContainsFunc(ts, func(t engine.Timer) bool { return string(t.ID) == "7" }) {
				return refusal
			}
			return nil
		})
		r.run()
		var ts []engine.Timer
		for i := range 50 {
			ts = append(ts, timerIn(fmt.Sprint(i), time.Second))
		}
		if err := r.e.Park(t.Context(), ts); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		for i := range 50 {
			if got := len(r.times(fmt.Sprint(i))); (i == 7) != (got == 0) {
				t.Errorf("%d: released %d times", i, got)
			}
		}
		if !bytes.Contains(logged.Bytes(), []byte("refused")) {
			t.Error("nobody is told")
		}
		refuse.Store(false)
		wait(time.Minute)
		if got := len(r.times("7")); got != 1 {
			t.Errorf("released %d times", got)
		}
		r.crash()
	})
}

func TestCloseMovesTheWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		r.park("a", 30*time.Second)
		wait(time.Hour)
		now := time.Now().UnixMilli() / 60_000
		for n := range r.cfg.Shards {
			st, err := r.store.Shard(t.Context(), uint16(n))
			if err != nil {
				t.Fatal(err)
			}
			if st.Watermark != st.Closed || now-st.Watermark > 2 {
				t.Errorf("shard %d: closed %d, watermark %d, now %d", n, st.Closed, st.Watermark, now)
			}
			if m := len(r.e.tenures[n].minutes); m > 2 {
				t.Errorf("shard %d remembers %d minutes", n, m)
			}
		}
		if n := r.left(); n != 0 {
			t.Errorf("%d rows left", n)
		}
		r.crash()
	})
}

// A payload that cannot be read delays no other timer. A timer of a newer release is not appended,
// and the error allows the engine to put off only this timer.
func TestToLog(t *testing.T) {
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{User: []byte("ann")})
	env := notify.Envelope{
		Chunk: notify.Chunk{Base: notify.NewBase(time.Now()), Partition: 3}, Channel: notify.Push, Category: notify.OTP,
		Content: notify.Content{Body: "b"}, Count: 1, Receivers: w.Bytes(),
	}
	var log recorder
	err := ToLog(&log)(t.Context(), []engine.Timer{
		{ID: []byte("a"), Kind: KindEnvelope, Target: "topic", Payload: notify.AppendEnvelope(nil, &env)},
		{ID: []byte("b"), Kind: KindEnvelope, Target: "topic", Payload: []byte("garbage")},
	})
	if err != nil {
		t.Fatal(err)
	}
	newer := notify.AppendEnvelope(nil, &env)
	newer[1] = notify.EnvelopeVersion + 1
	for name, one := range map[string]engine.Timer{
		"kind":     {ID: []byte("c"), Kind: 9, Target: "topic", Payload: []byte("of tomorrow")},
		"envelope": {ID: []byte("d"), Kind: KindEnvelope, Target: "topic", Payload: newer},
	} {
		if err := ToLog(&log)(t.Context(), []engine.Timer{one}); !errors.Is(err, notify.ErrNewer) || !isRefused(err) {
			t.Errorf("%s of a newer release: %v", name, err)
		}
	}
	env.FanOut = true // its users share the partition
	if err := ToLog(&log)(t.Context(), []engine.Timer{{ID: []byte("e"), Kind: KindEnvelope, Target: "topic", Payload: notify.AppendEnvelope(nil, &env)}}); err != nil {
		t.Fatal(err)
	}
	want := []string{"topic/3 ann", "topic/0 ", "topic/3 "}
	if len(log) != len(want) {
		t.Fatalf("%d records, want %d", len(log), len(want))
	}
	for i, w := range want {
		if got := fmt.Sprintf("%s/%d %s", log[i].Topic, log[i].Partition, log[i].Key); got != w {
			t.Errorf("%d: %s, want %s", i, got, w)
		}
	}
}

type recorder []log.Record

func (r *recorder) Append(_ context.Context, recs []log.Record) error {
	*r = append(*r, recs...)
	return nil
}
