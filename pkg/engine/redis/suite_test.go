package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/store"
)

// The keys of one run of the tests begin with run; the tests of others may use
// the same server.
var (
	run    = "test-" + rand.Text()[:10] + ":"
	opened atomic.Int64
)

func TestMain(m *testing.M) {
	code := m.Run()
	if addr := os.Getenv(enginetest.RedisEnv); addr != "" {
		if err := wipe(addr); err != nil {
			fmt.Fprintln(os.Stderr, "keys of the tests are left:", err)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func wipe(addr string) error {
	c := client.NewClient(&client.Options{Addr: addr})
	defer c.Close()
	ctx := context.Background()
	keys := c.Scan(ctx, 0, run+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := c.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// prefix is another one with each call.
func prefix() string { return run + strconv.FormatInt(opened.Add(1), 10) + ":" }

// testConfig is patient: the machine may be slow, and a timeout is an error.
func testConfig(addr string) Config {
	return Config{Addresses: []string{addr}, Prefix: prefix(), Timeout: 30 * time.Second, PoolSize: 200}
}

func mustConnect(t enginetest.T, cfg Config) *Store {
	t.Helper()
	s, err := Connect(cfg)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// open gives the suites contracts of a real server whose scripts take the time
// from us: bubbles of synctest make it jump. Sockets work in them; while one is
// waited for, time stands. reopen is another client of the same keys.
func open[E any](addr string, of func(*Store) E) enginetest.Opener[E] {
	return func(t enginetest.T) (E, func() E) {
		cfg := testConfig(addr)
		cfg.clock = time.Now
		return of(mustConnect(t, cfg)), func() E { return of(mustConnect(t, cfg)) }
	}
}

// lasting is open for suites whose reopen ends the receivers too: here they are
// other processes, and go on.
func lasting[E any](o enginetest.Opener[E]) enginetest.Opener[E] {
	return func(t enginetest.T) (E, func() E) {
		e, _ := o(t)
		return e, nil
	}
}

// realTime lets real time pass, also in a bubble. It waits a little longer than d, because
// the server counts whole milliseconds, and its clock may be adjusted meanwhile.
func realTime(d time.Duration) {
	d += 20 * time.Millisecond
	for end := syscall.NsecToTimespec(d.Nanoseconds()); ; {
		if syscall.Nanosleep(&end, &end) != syscall.EINTR {
			return
		}
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.LeaseFor(t, open(addr, (*Store).Lease), realTime, 2*time.Second)
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Heartbeats(t, open(addr, (*Store).Heartbeats), time.Sleep)
}

func TestBroadcast(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Broadcast(t, open(addr, (*Store).Broadcast))
}

// TestHeartbeatsOfAnEarlierRelease: a member that beats without a value and without a
// version is a member, changes the version when it comes and goes, and has no other
// members that are alive.
func TestHeartbeatsOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	cfg := testConfig(enginetest.Server(t, enginetest.RedisEnv))
	now := time.Now()
	cfg.clock = func() time.Time { return now }
	s, ctx := mustConnect(t, cfg), t.Context()
	h := s.Heartbeats()
	beat := func() int64 {
		t.Helper()
		version, err := h.Beat(ctx, "g", "new", "v", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	first := beat()
	key, us := s.key("beats:g"), now.UnixMicro()
	if err := s.c.HSet(ctx, key, "old", fmt.Sprintf("%d:%d", us, us+10e6)).Err(); err != nil {
		t.Fatal(err)
	}
	second := beat()
	hs, _, err := h.Alive(ctx, "g", first)
	if want := []engine.Heartbeat{{Owner: "new", Value: "v"}, {Owner: "old"}}; err != nil || second == first || !slices.Equal(hs, want) {
		t.Errorf("versions %d, %d: %+v, %v", first, second, hs, err)
	}
	now = now.Add(11 * time.Second)
	if third := beat(); third == second {
		t.Error("the old one has ended, and the version is the same")
	}
	// What the earlier release reads of each: it takes what beat less than 10 s ago.
	all, err := s.c.HGetAll(ctx, key).Result()
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	for owner, text := range all {
		var from, to int64
		if _, err := fmt.Sscanf(text, "%d:%d", &from, &to); err != nil || to <= now.UnixMicro() || (from > now.UnixMicro()-10e6) != (owner == "new") {
			t.Errorf("%q: %q", owner, text)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Limits(t, open(addr, (*Store).Limits), time.Sleep)
}

func TestIdem(t *testing.T) {
	t.Parallel()
	enginetest.Idem(t, open(enginetest.Server(t, enginetest.RedisEnv), (*Store).Idem))
}

func TestSpill(t *testing.T) {
	t.Parallel()
	enginetest.Spill(t, open(enginetest.Server(t, enginetest.RedisEnv), (*Store).Spill))
}

func testQueue(s *Store) engine.Queue { return s.Queue("q", enginetest.QueueReceives) }

func TestQueue(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Queue(t, lasting(open(addr, testQueue)))
}

func testFilter(t fataler, s *Store) store.Filter {
	f, err := s.Filter(FilterConfig{Name: "f", Rate: enginetest.FilterRate, Window: enginetest.FilterWindow})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

type fataler interface{ Fatal(args ...any) }

func TestFilter(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Filter(t, func(t enginetest.T) (store.Filter, func() store.Filter) {
		return open(addr, func(s *Store) store.Filter { return testFilter(t, s) })(t)
	})
}

// Keys that expire in the server must not stay in the index ends while no process purges:
// otherwise their names would fill Redis.
func TestEndsOfForgottenKeys(t *testing.T) {
	t.Parallel()
	s := mustConnect(t, testConfig(enginetest.Server(t, enginetest.RedisEnv)))
	ids, now := s.Idem(), time.Now().UnixMilli()
	reserve := func(i int) []string {
		t.Helper()
		k := engine.IdemKey{Caller: "shop", Route: "/", Key: strconv.Itoa(i)}
		if _, won, err := ids.Reserve(t.Context(), engine.Reservation{Key: k, Expires: now + 1}, now+int64(i)); err != nil || !won {
			t.Fatal(won, err)
		}
		keys, _ := Idem{s}.keys(k)
		return keys
	}
	const n = 2000
	for i := range n {
		keys := reserve(i)
		if err := s.c.Del(t.Context(), keys[0]).Err(); err != nil { // as its TTL does
			t.Fatal(err)
		}
	}
	left := int64(0)
	for part := range idemParts {
		k, err := s.c.ZCard(t.Context(), Idem{s}.prefix(part)+"ends").Result()
		if err != nil {
			t.Fatal(err)
		}
		left += k
	}
	if left > 2*idemParts {
		t.Errorf("the index holds %d of %d keys that are gone", left, n)
	}
}
