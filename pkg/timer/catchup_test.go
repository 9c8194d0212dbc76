package timer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// backlogSim returns a sim with n timers that became due in the hour before an engine starts, and
// with one timer that becomes due in each millisecond of the minute after that.
func backlogSim(t *testing.T, n int, change ...func(*Config)) *sim {
	s := newSim(t, append([]func(*Config){func(c *Config) { c.CatchUpRate = 2000 }}, change...)...)
	s.keeps = true
	w, _ := s.writer()
	var ts []engine.Timer
	for i := range n {
		ts = append(ts, timerIn(fmt.Sprintf("old%d", i), -time.Hour+time.Duration(i)*time.Hour/time.Duration(n)))
	}
	if err := s.rows.Put(context.Background(), notify.SpreadOver(s.base.Shards), ts); err != nil {
		t.Fatal(err)
	}
	ts = ts[:0]
	for i := range 60_000 {
		ts = append(ts, timerIn(fmt.Sprintf("new%d", i), 5*time.Second+time.Duration(i)*time.Millisecond))
	}
	if err := w.Park(context.Background(), ts); err != nil {
		t.Fatal(err)
	}
	return s
}

// The backlog of an outage is released at a limited pace, in the order of the due times, and within
// the time that Stats has estimated. Timers that are on time do not wait for it.
func TestCatchUpBesideOnTimeWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 60_000
		s := backlogSim(t, n)
		defer s.close()
		s.takes = 20 * time.Millisecond // duration of one Publish; two calls at a time would not be enough for both kinds of timers
		a := s.start("a")
		wait(time.Second)
		b := a.e.Stats().Backlog
		if b.Counting || b.Left < n*9/10 || b.Left > n || b.ETA < 25*time.Second || b.ETA > 40*time.Second {
			t.Errorf("backlog %+v", b)
		}
		began := time.Now()
		for a.e.Stats().Backlog.Left > 0 {
			wait(time.Second)
			if st := a.e.Stats(); st.Backlog.Rate > 2200 {
				t.Errorf("rate %v", st.Backlog.Rate)
			}
			if time.Since(began) > 5*time.Minute {
				t.Fatalf("backlog %+v", a.e.Stats().Backlog)
			}
		}
		took := time.Since(began)
		if took > b.ETA+5*time.Second {
			t.Errorf("drained in %v, told %v", took, b.ETA)
		}
		wait(time.Minute)
		s.mu.Lock()
		onTime, caught := slices.Clone(s.late[OnTime]), len(s.late[CatchUp])
		var order []time.Time
		for _, x := range s.log {
			if x.late > time.Minute {
				order = append(order, x.at.Add(-x.late))
			}
		}
		s.mu.Unlock()
		p99, worst := percentile(onTime, 0.99), percentile(onTime, 1)
		t.Logf("backlog=%d drained=%v told=%v on_time=%d p99=%v max=%v", caught, took, b.ETA, len(onTime), p99, worst)
		if len(onTime) < 60_000 || p99 > 50*time.Millisecond {
			t.Errorf("%d on time, p99 %v", len(onTime), p99)
		}
		// Timers that became due in the last 10 s do not count as backlog.
		if caught+len(onTime) != n+60_000 || caught < n-200 {
			t.Errorf("caught up with %d of %d", caught, n)
		}
		// The order is that of the due times. Only two publishers and the pages of the shards may
		// mix it.
		for i := range order {
			if i > 0 && order[i].Before(order[max(0, i-1)].Add(-2*time.Minute)) {
				t.Fatalf("released %v behind %v", order[i], order[i-1])
			}
		}
		wait(2 * time.Minute)
		if left := s.rows.left(); left != 0 {
			t.Errorf("%d rows left", left)
		}
	})
}

// With a backlog larger than memory, the number of loaded timers stays within its limit. The
// minutes of the backlog are dropped one by one, and the watermark follows.
func TestCatchUpInBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 30_000
		s := backlogSim(t, n, func(c *Config) { c.MaxPending = 4000; c.CatchUpRate = 500; c.Batch = 64 })
		defer s.close()
		a := s.start("a")
		most, moved := 0, 0
		var last int64
		for range 90 {
			wait(time.Second)
			st := a.e.Stats()
			most = max(most, st.Pending)
			low := st.Shards[0].Watermark
			for _, sh := range st.Shards {
				low = min(low, sh.Watermark)
			}
			if low < last {
				t.Errorf("the watermark went from %d to %d", last, low)
			}
			if low > last && last > 0 {
				moved++
			}
			last = low
		}
		// The limit is 4,000, plus a quarter, plus a page for each lane and shard.
		if most > 5000+2*4*64 {
			t.Errorf("%d timers in memory", most)
		}
		if moved < 20 {
			t.Errorf("the watermark moved %d times while the backlog was drained", moved)
		}
		for left := int64(1); left > 0; left = a.e.Stats().Backlog.Left {
			wait(time.Second)
		}
		for i := range n {
			if len(s.of(fmt.Sprintf("old%d", i))) != 1 {
				t.Fatalf("%d was released %d times", i, len(s.of(fmt.Sprintf("old%d", i))))
			}
		}
	})
}

// The closing of minutes leaves alone what the catch-up has not passed. So each row of the backlog
// is read once to be counted and once to be released, and never again.
func TestBacklogIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		s := backlogSim(t, n, func(c *Config) { c.CatchUpRate = 200; c.MaxPending = 400; c.Batch = 64; c.Shards = 1 })
		defer s.close()
		read := &reads{Timers: s.rows, until: time.Now().UnixMilli()}
		s.through = read
		s.start("a")
		wait(time.Minute)
		if got := read.n.Load(); got > 2*n+n/4 {
			t.Errorf("%d rows of the backlog were read in a minute, of %d", got, n)
		}
	})
}

// The log is away for an hour, and memory stays bounded. When the log is back, timers that become
// due are at once released on time, and the backlog is released beside them.
func TestLogOutageBecomesBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.MaxPending = 2000; c.CatchUpRate = 100 })
		s.keeps = true
		defer s.close()
		a := s.start("a")
		const n = 40_000
		var ts []engine.Timer
		for i := range n { // ten a second
			ts = append(ts, timerIn(fmt.Sprint(i), 10*time.Second+time.Duration(i)*100*time.Millisecond))
		}
		if err := a.e.Park(t.Context(), ts); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		s.setLogDown(true)
		for range 60 {
			wait(time.Minute)
			if p := a.e.Pending(); p > 2500+4*512 {
				t.Fatalf("%d timers in memory", p)
			}
		}
		s.setLogDown(false)
		back := time.Now()
		wait(3 * time.Second) // publishers pause for 2 s at most
		s.mu.Lock()
		s.late[OnTime] = nil
		s.mu.Unlock()
		wait(2 * time.Minute)
		s.mu.Lock()
		p99 := percentile(s.late[OnTime], 0.99)
		s.mu.Unlock()
		if p99 > 50*time.Millisecond {
			t.Errorf("p99 %v on time beside the backlog", p99)
		}
		for left := int64(1); left > 0; left = a.e.Stats().Backlog.Left {
			wait(time.Second)
			if time.Since(back) > 15*time.Minute {
				t.Fatalf("backlog %+v", a.e.Stats().Backlog)
			}
		}
		due := time.Now().Add(-2 * time.Second).UnixMilli()
		for i := range ts {
			if ts[i].FireAt < due && len(s.of(fmt.Sprint(i))) != 1 {
				t.Fatalf("%d was released %d times", i, len(s.of(fmt.Sprint(i))))
			}
		}
	})
}

// secondPage is a store that calls the function do before it returns the second page of the scan
// that closes the minute. From then on it delays every scan of that minute, so that the catch-up
// cannot read the minute in the meantime.
type secondPage struct {
	engine.Timers
	minute int64
	do     func()
	delay  atomic.Bool
	done   bool
	drops  atomic.Int64
}

func (s *secondPage) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, most int) ([]engine.Timer, error) {
	if p.Bucket == s.minute {
		if s.delay.Load() {
			wait(10 * time.Second)
		} else if len(after.ID) > 0 && time.Now().UnixMilli() > (s.minute+1)*60_000 && !s.done {
			s.done = true
			s.delay.Store(true)
			s.do()
		}
	}
	return s.Timers.Scan(ctx, p, after, until, most)
}

func (s *secondPage) Drop(ctx context.Context, p engine.TimerPartition) error {
	if p.Bucket == s.minute {
		s.drops.Add(1)
	}
	return s.Timers.Drop(ctx, p)
}

// While the engine scans a minute to close it, the engine gives up an entry that stands on an
// earlier page of the scan. The owner must not regard the minute as complete. Otherwise it would
// drop the partition with a timer in it that was never released.
func TestForgottenWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, released := make(chan struct{}), map[string]int{}
		var mu sync.Mutex
		store := &secondPage{Timers: memory.New().Timers()}
		first := true
		e := New(Config{Store: store, Shards: 1, Publish: func(_ context.Context, ts []engine.Timer) error {
			mu.Lock()
			stuck := first && slices.ContainsFunc(ts, func(x engine.Timer) bool { return string(x.ID) == "stuck" })
			if stuck {
				first = false
			}
			mu.Unlock()
			if stuck {
				<-refused
				return notify.Unavailable("log", time.Second, errors.New("away"))
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range ts {
				released[string(ts[i].ID)]++
			}
			return nil
		}})
		store.do = func() {
			close(refused)
			untilForgotten(e)
		}
		start := time.Now().Truncate(time.Minute).Add(time.Minute)
		store.minute = start.UnixMilli() / 60_000
		ts := []engine.Timer{{ID: []byte("stuck"), FireAt: start.Add(time.Second).UnixMilli(), Target: "t"}}
		for i := range firstPage + 4 {
			ts = append(ts, engine.Timer{ID: fmt.Append(nil, i), FireAt: start.Add(time.Duration(10+i) * time.Second).UnixMilli(), Target: "t"})
		}
		if err := e.Park(t.Context(), ts); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		wait(10 * time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !store.delay.Load() {
			t.Fatal("nothing was given up during the scan")
		}
		if n := store.drops.Load(); n != 1 {
			t.Errorf("the minute was dropped %d times", n)
		}
		for i := range ts {
			if released[string(ts[i].ID)] == 0 {
				t.Errorf("%s is lost", ts[i].ID)
			}
		}
	})
}

// untilForgotten waits until the engine has given up an entry.
func untilForgotten(e *Engine) {
	for given := false; !given; {
		wait(time.Millisecond)
		e.mu.Lock()
		for _, m := range e.tenures[0].minutes {
			given = given || m.forgotten > 0
		}
		e.mu.Unlock()
	}
}

// A refused timer in the backlog does not stop the release of the others.
func TestRefusedInTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Shards = 1 })
		var ts []engine.Timer
		for i := range 100 {
			ts = append(ts, timerIn(fmt.Sprint(i), -time.Hour+time.Duration(i)*time.Second))
		}
		if err := r.store.Put(t.Context(), notify.SpreadOver(1), ts); err != nil {
			t.Fatal(err)
		}
		r.setFail(func(ts []engine.Timer) error {
			if slices.ContainsFunc(ts, func(x engine.Timer) bool { return string(x.ID) == "7" }) {
				return notify.Invalid("bad", "payload", "nobody takes it")
			}
			return nil
		})
		r.run()
		wait(time.Minute)
		for i := range 100 {
			if got := len(r.times(fmt.Sprint(i))); (i == 7) != (got == 0) {
				t.Errorf("%d: released %d times", i, got)
			}
		}
		r.crash()
	})
}

// Engines share the rate of the catch-up: three engines together release no more than one engine
// alone may, even while one dies or another joins. When the shards of the dead engine have other
// owners, the engines use the full rate again.
func TestEnginesShareTheCatchUpRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond = 400
		s := backlogSim(t, 80_000, func(c *Config) { c.CatchUpRate = perSecond; c.Shards = 12 })
		s.keeps = false // shards go to the engines that should have them
		defer s.close()
		// caught returns how many timers of the backlog are released in each of the next seconds.
		caught := func(seconds int) (each []int) {
			for range seconds {
				was := s.caught()
				wait(time.Second)
				each = append(each, s.caught()-was)
			}
			return each
		}
		within := func(when string, each []int) {
			t.Helper()
			for _, n := range each {
				// A second may also contain what was saved up (100 ms), and one batch of each
				// engine.
				if n > perSecond*13/10 {
					t.Errorf("%s: %d in one second of %v at %d a second", when, n, each, perSecond)
				}
			}
			if n := sum(each); n > perSecond*len(each)+perSecond/2 {
				t.Errorf("%s: %d in %d s at %d a second", when, n, len(each), perSecond)
			}
		}
		full := func(when string, each []int) {
			t.Helper()
			within(when, each)
			if n := sum(each); n < perSecond*len(each)*9/10 {
				t.Errorf("%s: only %d in %d s at %d a second: %v", when, n, len(each), perSecond, each)
			}
		}
		s.start("a")
		full("alone", caught(5))
		s.start("b")
		c := s.start("c")
		within("while shards move", caught(60))
		if owners := s.owners(); len(owners) != 3 {
			t.Fatalf("owners %v", owners)
		}
		full("three", caught(10))
		c.crash()
		within("after a death", caught(15))
		full("when its shards have owners", caught(10))
		s.start("d")
		within("a newcomer", caught(30))
	})
}

// caught returns how many timers the catch-up has released.
func (s *sim) caught() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.late[CatchUp])
}

func sum(of []int) (n int) {
	for _, k := range of {
		n += k
	}
	return n
}
