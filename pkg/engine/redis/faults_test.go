package redis

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
)

var bg = context.Background()

// call is one method of a contract.
type call struct {
	name string
	do   func(ctx context.Context) error
}

// calls is one of everything, with arguments that are right.
func calls(t testing.TB, s *Store) []call {
	f := testFilter(t, s)
	q, l, h, lim, idem, sp := s.Queue("q", 3), s.Lease(), s.Heartbeats(), s.Limits(), s.Idem(), s.Spill()
	key := engine.IdemKey{Caller: "c", Route: "r", Key: prefix()}
	r := engine.Reservation{Key: key, Owner: "o", Expires: 1 << 40}
	return []call{
		{"Ping", s.Ping},
		{"Lease.Acquire", func(ctx context.Context) error { _, err := l.Acquire(ctx, "l", "a", time.Minute); return err }},
		{"Lease.Renew", func(ctx context.Context) error { _, err := l.Renew(ctx, "l", "a", time.Minute); return err }},
		{"Lease.Release", func(ctx context.Context) error { return l.Release(ctx, "l", "a") }},
		{"Heartbeats.Beat", func(ctx context.Context) error { _, err := h.Beat(ctx, "g", "a", "", time.Minute); return err }},
		{"Heartbeats.Alive", func(ctx context.Context) error { _, _, err := h.Alive(ctx, "g", 0); return err }},
		{"Heartbeats.Leave", func(ctx context.Context) error { return h.Leave(ctx, "g", "a") }},
		{"Broadcast.Send", func(ctx context.Context) error { return s.Broadcast().Send(ctx, "c", []byte("m")) }},
		{"Limits.Take", func(ctx context.Context) error { _, _, err := lim.Take(ctx, "b", 1, 1, 1); return err }},
		{"Limits.Block", func(ctx context.Context) error { return lim.Block(ctx, "a", time.Now().Add(time.Minute)) }},
		{"Limits.Blocked", func(ctx context.Context) error { _, err := lim.Blocked(ctx, []string{"a"}); return err }},
		{"Idem.Reserve", func(ctx context.Context) error { _, _, err := idem.Reserve(ctx, r, 0); return err }},
		{"Idem.TakeOver", func(ctx context.Context) error { _, err := idem.TakeOver(ctx, r, "o", 0); return err }},
		{"Idem.Freeze", func(ctx context.Context) error { return idem.Freeze(ctx, r) }},
		{"Idem.Finish", func(ctx context.Context) error { return idem.Finish(ctx, key, 201, nil, 1<<40) }},
		{"Idem.Purge", func(ctx context.Context) error { _, err := idem.Purge(ctx, 0); return err }},
		{"Spill.Push", func(ctx context.Context) error { return sp.Push(ctx, []engine.Spilled{{Topic: "t"}}, 1<<20) }},
		{"Spill.Peek", func(ctx context.Context) error { _, err := sp.Peek(ctx, 1); return err }},
		{"Spill.Drop", func(ctx context.Context) error { return sp.Drop(ctx, 1) }},
		{"Spill.Stats", func(ctx context.Context) error { _, _, _, err := sp.Stats(ctx); return err }},
		{"Durable", func(ctx context.Context) error { _, err := s.Durable(ctx); return err }},
		{"Filter.Add", func(ctx context.Context) error { return f.Add(ctx, []uint64{1}) }},
		{"Filter.Seen", func(ctx context.Context) error { _, _, err := f.Seen(ctx, []uint64{1}); return err }},
		{"Filter.Incomplete", f.Incomplete},
		{"Queue.Enqueue", func(ctx context.Context) error { return q.Enqueue(ctx, []engine.Message{{Body: []byte("m")}}) }},
		{"Queue.Receive", func(ctx context.Context) error { _, err := q.Receive(ctx, 1, time.Minute); return err }},
		{"Queue.Extend", func(ctx context.Context) error { return q.Extend(ctx, []string{"1-1"}, time.Minute) }},
		{"Queue.Ack", func(ctx context.Context) error { return q.Ack(ctx, []string{"1-1"}) }},
		{"Queue.Release", func(ctx context.Context) error { return q.Release(ctx, "1-1", 0) }},
		{"Queue.Depth", func(ctx context.Context) error { _, err := q.Depth(ctx); return err }},
	}
}

// allWork makes each call. It repeats a call that has no answer within the product's timeout,
// because a busy machine may not run the server for so long.
func allWork(t testing.TB, s *Store) {
	t.Helper()
	for _, c := range calls(t, s) {
		err := c.do(bg)
		for end := time.Now().Add(30 * time.Second); notify.KindOf(err) == notify.KindUnavailable && time.Now().Before(end); {
			err = c.do(bg)
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// allFail returns how long the slowest took.
func allFail(t testing.TB, s *Store) (worst time.Duration) {
	t.Helper()
	for _, c := range calls(t, s) {
		began := time.Now()
		wantUnavailable(t, c.name, c.do(bg))
		worst = max(worst, time.Since(began))
	}
	return worst
}

// shortly are the product's own timeouts.
func shortly(cfg *Config) { cfg.Timeout = 300 * time.Millisecond }

func TestDown(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect(shortly)
	allWork(t, s)
	srv.kill()
	began := time.Now()
	wantUnavailable(t, "the first call", s.Ping(bg))
	first := time.Since(began)
	worst := allFail(t, s)
	srv.start()
	srv.await(func() bool { return s.Ping(bg) == nil })
	allWork(t, s)
	t.Logf("down: first error after %v, slowest %v", first.Round(time.Millisecond), worst.Round(time.Millisecond))
}

func TestFrozen(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect(shortly)
	allWork(t, s)
	srv.freeze()
	began := time.Now()
	wantUnavailable(t, "the first call", s.Ping(bg))
	first := time.Since(began)
	worst := allFail(t, s)
	srv.thaw()
	srv.await(func() bool { return s.Ping(bg) == nil })
	allWork(t, s)
	t.Logf("frozen: first error after %v, slowest %v", first.Round(time.Millisecond), worst.Round(time.Millisecond))
}

// TestListenEnds: a listener gets an error when its server dies or hangs, and when the store
// is closed. The end of its context is none.
func TestListenEnds(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	listen := func(ctx context.Context, s *Store) chan error {
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- s.Broadcast().Listen(ctx, "c", func() { close(ready) }, func([]byte) {}) }()
		<-ready
		return ended
	}
	s := srv.connect(shortly)
	ctx, stop := context.WithCancel(bg)
	ended := listen(ctx, s)
	stop()
	must(t, <-ended)
	ended = listen(bg, s)
	srv.freeze()
	wantUnavailable(t, "a server that hangs", <-ended)
	srv.thaw()
	srv.await(func() bool { return s.Ping(bg) == nil })
	ended = listen(bg, s)
	srv.kill()
	wantUnavailable(t, "a server that died", <-ended)
	wantUnavailable(t, "a server that is away", s.Broadcast().Listen(bg, "c", func() { t.Error("it listens") }, func([]byte) {}))
	srv.start()
	srv.await(func() bool { return s.Ping(bg) == nil })
	ended = listen(bg, s)
	must(t, s.Close())
	wantUnavailable(t, "a store that was closed", <-ended)
}

// A server that answers too late counts as unavailable. A server that is a little slow does
// not.
func TestSlow(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	p := startProxy(t, srv.addr())
	s := srv.connect(shortly, func(cfg *Config) { cfg.Addresses = []string{p.addr()} })
	allWork(t, s)
	p.slow(5 * time.Millisecond)
	allWork(t, s)
	p.slow(2 * time.Second)
	for _, name := range []string{"Lease.Renew", "Limits.Take", "Idem.Reserve", "Spill.Push", "Filter.Seen", "Queue.Receive"} {
		for _, c := range calls(t, s) {
			if c.name == name {
				wantUnavailable(t, c.name, c.do(bg))
			}
		}
	}
	p.slow(0)
	p.drop() // also: connections that ended are replaced
	srv.await(func() bool { return s.Ping(bg) == nil })
	allWork(t, s)
}

func TestEnded(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for _, c := range calls(t, s) {
		if c.name == "Queue.Receive" {
			must(t, c.do(ctx))
			continue
		}
		wantUnavailable(t, c.name, c.do(ctx))
	}
}

// After Redis was emptied, no receipt, seq or version from before names anything that comes
// after.
func TestEmptied(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	allWork(t, s)
	q, sp, f := s.Queue("e", 3), s.Spill(), testFilter(t, s)
	must(t, q.Enqueue(bg, []engine.Message{{Body: []byte("old")}}))
	old, err := q.Receive(bg, 1, time.Hour)
	must(t, err)
	must(t, sp.Push(bg, []engine.Spilled{{Topic: "t", Value: []byte("old")}}, 1<<20))
	peeked, err := sp.Peek(bg, 10)
	must(t, err)
	must(t, f.Add(bg, []uint64{7}))
	got := make(chan []engine.Delivery)
	go func() {
		ds, err := q.Receive(bg, 10, time.Hour) // waits through it
		if err != nil {
			t.Error(err)
		}
		got <- ds
	}()
	srv.await(func() bool { return s.waiting("e") == 1 })
	before := time.Now().Add(-time.Millisecond)
	srv.empty()

	ok, err := s.Lease().Acquire(bg, "l", "b", time.Minute)
	if must(t, err); !ok {
		t.Error("a lease survived")
	}
	maybe, complete, err := f.Seen(bg, []uint64{7})
	must(t, err)
	if maybe[0] || complete.Before(before) {
		t.Errorf("known %v, complete since %v; emptied at %v", maybe[0], complete, before)
	}
	must(t, sp.Push(bg, []engine.Spilled{{Topic: "t", Value: []byte("new")}}, 1<<20))
	must(t, sp.Drop(bg, peeked[len(peeked)-1].Seq))
	if left, err := sp.Peek(bg, 10); err != nil || len(left) != 1 || string(left[0].Value) != "new" {
		t.Errorf("left in the buffer: %+v, %v", left, err)
	}
	must(t, q.Enqueue(bg, []engine.Message{{Body: []byte("new")}}))
	ds := <-got
	if len(ds) != 1 || string(ds[0].Body) != "new" {
		t.Fatalf("%+v", ds)
	}
	must(t, q.Ack(bg, []string{old[0].Receipt}))
	must(t, q.Release(bg, old[0].Receipt, 0))
	if d, err := q.Depth(bg); err != nil || d.InFlight != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	allWork(t, s)
}

func (s *Store) waiting(name string) int {
	q := s.Queue(name, 1).(*queue)
	q.wake.mu.Lock()
	defer q.wake.mu.Unlock()
	if q.wake.changed == nil {
		return 0
	}
	return q.wake.waiting
}

// killed gives the suites a server whose restarts are kills.
func killed[E any](srv *server, of func(*Store) E) enginetest.Opener[E] {
	return func(t enginetest.T) (E, func() E) {
		s := mustConnect(t, Config{Addresses: []string{srv.addr()}, Prefix: prefix(), Timeout: 30 * time.Second})
		return of(s), func() E {
			srv.restart()
			srv.await(func() bool { return s.Ping(bg) == nil })
			return of(s)
		}
	}
}

func TestIdemKilled(t *testing.T) {
	t.Parallel()
	enginetest.Idem(t, killed(startServer(t), (*Store).Idem))
}

func TestSpillKilled(t *testing.T) {
	t.Parallel()
	enginetest.Spill(t, killed(startServer(t), (*Store).Spill))
}

func TestQueueKilled(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	q := s.Queue("q", 3)
	var ms []engine.Message
	for i := range 200 {
		ms = append(ms, engine.Message{Body: []byte{byte(i)}, Delay: time.Duration(i%2) * time.Millisecond, Backlog: i%3 == 0})
	}
	must(t, q.Enqueue(bg, ms))
	held, err := q.Receive(bg, 20, time.Hour)
	must(t, err)
	must(t, q.Ack(bg, []string{held[0].Receipt}))
	srv.restart()
	srv.await(func() bool { return s.Ping(bg) == nil })
	d, err := q.Depth(bg)
	must(t, err)
	if d.Ready != 180 || d.InFlight != len(held)-1 || d.Delayed != 0 {
		t.Errorf("%+v of 200, %d held, one acknowledged", d, len(held))
	}
	for _, h := range held[1:] {
		must(t, q.Ack(bg, []string{h.Receipt})) // receivers live on
	}
	n := 0
	for n < 180 {
		ds, err := q.Receive(bg, 64, time.Hour)
		must(t, err)
		n += len(ds)
		for _, d := range ds {
			if d.Receives != 1 {
				t.Errorf("%+v", d)
			}
			must(t, q.Ack(bg, []string{d.Receipt}))
		}
	}
	if d, err := q.Depth(bg); err != nil || d != (engine.QueueDepth{}) {
		t.Errorf("%+v, %v", d, err)
	}
}

// The spill buffer acknowledges records only if they are durable.
func TestSpillOnlyWhereDurable(t *testing.T) {
	t.Parallel()
	recs := []engine.Spilled{{Topic: "t", Value: []byte("v")}}
	refused := func(t *testing.T, s *Store) {
		t.Helper()
		err := s.Spill().Push(bg, recs, 1<<20)
		wantUnavailable(t, "Push", err)
		if code := codeOf(err); code != "spill_not_durable" {
			t.Errorf("code %s", code)
		}
	}
	count := func(t *testing.T, s *Store, want int64) {
		t.Helper()
		if n, _, _, err := s.Spill().Stats(bg); err != nil || n != want {
			t.Errorf("%d records, %v; want %d", n, err, want)
		}
	}
	for _, args := range [][]string{
		{"--appendfsync", "everysec"}, {"--appendonly", "no"}, {"--no-appendfsync-on-rewrite", "yes"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			srv := startServer(t, args...)
			s := srv.connect()
			refused(t, s)
			count(t, s, 0)
			ok, err := s.Durable(bg)
			if must(t, err); ok {
				t.Error("durable")
			}
		})
	}
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		srv := startServer(t)
		s := srv.connect()
		must(t, s.Spill().Push(bg, recs, 1<<20))
		must(t, srv.client().ConfigSet(bg, "appendfsync", "everysec").Err()) // an operator changes the setting
		refused(t, s)
		count(t, s, 1)
	})
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		srv := startServer(t, "--appendfsync", "everysec", "--repl-diskless-sync-delay", "0")
		replica := startServer(t, "--replicaof", "127.0.0.1 "+srv.addr()[len("127.0.0.1:"):])
		s := srv.connect()
		srv.await(func() bool { ok, err := s.Durable(bg); return ok && err == nil })
		srv.await(func() bool { return s.Spill().Push(bg, recs, 1<<20) == nil })
		replica.freeze()
		refused(t, s)
		replica.thaw()
		srv.await(func() bool { return s.Spill().Push(bg, recs, 1<<20) == nil })
		if got := replica.client().XLen(bg, "notifyd:{spill}:records").Val(); got < 2 {
			t.Errorf("the replica has %d records", got)
		}
	})
}

// A replica must not be written, and says so.
func TestReplicaIsUnavailable(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	replica := startServer(t, "--replicaof", "127.0.0.1 "+srv.addr()[len("127.0.0.1:"):])
	s := replica.connect()
	_, err := s.Lease().Acquire(bg, "l", "a", time.Minute)
	wantUnavailable(t, "Acquire", err)
}

func TestFull(t *testing.T) {
	t.Parallel()
	srv := startServer(t, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
	s := srv.connect()
	q := s.Queue("q", 3)
	var err error
	for range 100 {
		if err = q.Enqueue(bg, []engine.Message{{Body: make([]byte, 60<<10)}}); err != nil {
			break
		}
	}
	wantUnavailable(t, "Enqueue", err)
	if code := codeOf(err); code != "redis_full" {
		t.Errorf("code %s", code)
	}
}

// A filter does not report an id as unseen if it may have lost it.
func TestFilterIsComplete(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	ids := make([]uint64, 500)
	for i := range ids {
		ids[i] = notify.Mix(uint64(i))
	}
	since := func(f *Filter) time.Time {
		t.Helper()
		_, complete, err := f.Seen(bg, ids)
		must(t, err)
		return complete
	}
	hourly := func(s *Store, rate float64) *Filter {
		f, err := s.Filter(FilterConfig{Name: "x", Rate: rate, Window: time.Hour})
		must(t, err)
		return f
	}
	f := hourly(s, 1)
	must(t, f.Add(bg, ids))
	first := since(f)
	if got := since(hourly(srv.connect(), 1)); !got.Equal(first) {
		t.Errorf("another process: complete since %v, want %v", got, first)
	}
	srv.restart() // what it had not written is lost, as far as anybody knows
	srv.await(func() bool { return s.Ping(bg) == nil })
	maybe, restarted, err := f.Seen(bg, ids)
	must(t, err)
	if !restarted.After(first) || slices.Contains(maybe, false) {
		t.Errorf("after a restart: complete since %v, before it %v", restarted, first)
	}
	if got := since(f); !got.Equal(restarted) {
		t.Errorf("later: complete since %v, want %v", got, restarted)
	}
	other := since(hourly(s, 2)) // a process with other settings
	if !other.After(restarted) {
		t.Errorf("with another size: complete since %v, before %v", other, restarted)
	}
	if got := since(f); !got.After(other) {
		t.Errorf("and back: complete since %v, before %v", got, other)
	}
	f = hourly(s, 3)
	must(t, f.Add(bg, ids))
	before := since(f)
	for _, key := range srv.client().Keys(bg, "*{seen:x}:0*").Val() {
		srv.client().Del(bg, key)
	}
	if got := since(f); !got.After(before) {
		t.Errorf("bitmaps are gone: complete since %v, before %v", got, before)
	}
}

// A filter of several bitmaps.
func TestFilterParts(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	f, err := s.Filter(FilterConfig{Name: "big", Rate: 10_000, Window: 1000 * time.Second})
	must(t, err)
	if n := f.parts; n < 2 {
		t.Fatalf("%d parts", n)
	}
	ids := make([]uint64, 2000)
	for i := range ids {
		ids[i] = notify.Mix(uint64(i))
	}
	must(t, f.Add(bg, ids[:1000]))
	maybe, _, err := f.Seen(bg, ids)
	must(t, err)
	for i, is := range maybe {
		if is != (i < 1000) {
			t.Errorf("id %d: %v", i, is)
		}
	}
	for _, bad := range []FilterConfig{{}, {Name: "{}", Rate: 1, Window: time.Hour}, {Name: "x", Window: time.Hour}, {Name: "x", Rate: 1}, {Name: "x", Rate: 1e9, Window: time.Hour}} {
		if _, err := s.Filter(bad); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
