package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Store is a connection to Redis. Any goroutine may call the methods of the Store and the
// methods of the contracts that the Store returns.
type Store struct {
	cfg Config
	c   client.UniversalClient

	followers sync.WaitGroup // goroutines of queues (wake.go) and listeners; Close waits for them
	closing   chan struct{}  // closed when Close begins
	close     sync.Once
	queues    sync.Map // name -> *queue
	counts    counter
}

// Open connects to Redis and pings it once. It returns notify.KindInvalid with the name of
// the setting if a setting is wrong. It returns notify.KindUnavailable if no server answers
// before ctx ends, or within a few times Config.Timeout.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := Connect(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Connect does the same as Open but does not ping. A process that must start while Redis is
// unavailable calls Connect. Connect returns an error only if a setting is wrong.
func Connect(cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if cfg.Username != "" && cfg.Password == "" {
		return nil, notify.Invalid("bad_redis_config", "redis.password", "redis.username needs a password: set redis.password_file")
	}
	if cfg.Mode != "sentinel" {
		cfg.Master, cfg.SentinelUsername = "", ""
	}
	tlsConfig, err := cfg.TLS.Config("redis.tls")
	if err != nil {
		return nil, err
	}
	setClientLogger(cfg.Logger)
	s := &Store{cfg: cfg, closing: make(chan struct{})}
	s.c = client.NewUniversalClient(&client.UniversalOptions{
		Addrs: cfg.Addresses, MasterName: cfg.Master, IsClusterMode: cfg.Mode == "cluster", DB: cfg.DB, ClientName: "notifyd",
		Username: cfg.Username, Password: cfg.Password,
		SentinelUsername: cfg.SentinelUsername, SentinelPassword: cfg.SentinelPassword,
		TLSConfig: tlsConfig, PoolSize: cfg.PoolSize,
		// The client dials once and retries a command once. With the default values of 5
		// and 3, a call would return the error of an outage only after some seconds.
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		DialerRetries: 1, MaxRetries: 1, MinRetryBackoff: 8 * time.Millisecond, MaxRetryBackoff: 64 * time.Millisecond,
		ContextTimeoutEnabled: true,
		// The client does not send the name of the library to the server. It does not
		// request maintenance notifications, because the servers of the tests do not have
		// this feature.
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// Pipelines use the same pool as other commands, so that PoolSize is the only
		// limit.
		PipelinePoolSize: -1,
	})
	s.c.AddHook(&s.counts)
	return s, nil
}

// Counts returns the numbers of commands and round trips since Open, for metrics and
// benchmarks.
func (s *Store) Counts() Counts {
	return Counts{s.counts.commands.Load(), s.counts.trips.Load()}
}

// Ping returns an error if Redis does not answer.
func (s *Store) Ping(ctx context.Context) error { return translate(s.c.Ping(ctx).Err()) }

// Close closes all connections and waits until the goroutines of the Store have ended. A
// Receive or Listen that is waiting returns an error.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		close(s.closing)
		err = s.c.Close()
		s.followers.Wait()
	})
	return translate(err)
}

func (s *Store) key(name string) string { return s.cfg.Prefix + name }

// serverClock is the first part of every script that needs the time. It sets the Lua variable
// "now", in µs since 1970. Normally this variable gets the time of the server's clock. But if the
// first argument is not empty, the variable gets that argument, the time of a test's clock.
const serverClock = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if ARGV[1] ~= '' then now = tonumber(ARGV[1]) end
`

// newScript returns a Lua script that begins with serverClock. The first argument of the
// script must be clockArg.
func newScript(lua string) *client.Script { return client.NewScript(serverClock + lua) }

// clockArg returns the first argument of every script that newScript has made: the time of
// a test's clock in µs, or "" if the script must use the server's clock.
func (s *Store) clockArg() string {
	if s.cfg.clock == nil {
		return ""
	}
	return strconv.FormatInt(s.cfg.clock().UnixMicro(), 10)
}

// run runs a script that newScript has made, with clockArg before args. It translates the
// error. If ctx has ended, it does not run the script. If the script returns no value, run
// returns nil and no error.
func (s *Store) run(ctx context.Context, sc *client.Script, keys []string, args ...any) (any, error) {
	if ctx.Err() != nil {
		return nil, translate(context.Cause(ctx))
	}
	v, err := sc.Run(ctx, s.c, keys, append([]any{s.clockArg()}, args...)...).Result()
	if errors.Is(err, client.Nil) {
		return nil, nil
	}
	return v, translate(err)
}

// The functions below read the answers of scripts. If an answer does not have the expected
// type or length, they return zero values.

func asInt(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

func asString(v any) string {
	s, _ := v.(string)
	return s
}

// element returns element i of l. It returns nil if l has no element i.
func element(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return nil
}

func micros(d time.Duration) int64 { return d.Microseconds() }

// ceilMicros converts to µs and rounds up, so that nothing happens earlier than requested.
func ceilMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

func conflict(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// Filter returns the shared seen-filter with the name cfg.Name. It returns
// notify.KindInvalid if a value of cfg is out of range, or if Rate*Window is more than 2^31
// ids. Each id takes 2.5 bytes of memory in Redis. A filter with fewer bits than partBits
// has one part, which is only as large as needed.
func (s *Store) Filter(cfg FilterConfig) (*Filter, error) {
	n := cfg.Rate * cfg.Window.Seconds()
	switch {
	case cfg.Name == "" || strings.ContainsAny(cfg.Name, "{}"):
		return nil, notify.Invalid("bad_filter", "name", "a filter must have a name without braces")
	case !(cfg.Rate > 0) || cfg.Window < time.Second || n > 1<<31:
		return nil, notify.Invalid("bad_filter", "rate", fmt.Sprintf("a filter must have a rate above 0, a window of at least 1s, and at most 2^31 ids in a window; the rate is %g ids per second, the window %s", cfg.Rate, cfg.Window))
	}
	f := &Filter{s: s, window: cfg.Window, hashes: int(math.Ceil(math.Log2(2 / falsePositives)))}
	bits := math.Max(n*float64(f.hashes)/math.Ln2, 1024)
	f.parts = uint64(math.Ceil(bits / partBits))
	f.bits = uint64(math.Ceil(bits / float64(f.parts)))
	f.size = fmt.Sprintf("%d x %d bits, %d each, %v", f.parts, f.bits, f.hashes, f.window)
	f.tag = s.key("{seen:" + cfg.Name + "}:")
	return f, nil
}

// Broadcast returns the Broadcast of this Redis.
func (s *Store) Broadcast() engine.Broadcast { return broadcast{s} }

// Heartbeats returns the Heartbeats of this Redis.
func (s *Store) Heartbeats() engine.Heartbeats { return heartbeats{s} }

// Idem returns the idempotency keys of this Redis. Every change is one script. The scripts use
// the times of the caller, not the server's clock, as the contract says. If Purge does not remove
// a key, the server removes it one hour after its time of expiry (Expires).
func (s *Store) Idem() Idem { return Idem{s} }

// Lease returns the leases of this Redis. The server measures their ttl, with a precision
// of a millisecond.
func (s *Store) Lease() engine.Lease { return lease{s} }

// Limits returns the shared token buckets and blocked accounts of this Redis.
func (s *Store) Limits() Limits { return Limits{s} }

// Queue returns the delay queue with this name. Each message is received at most
// maxReceives times (1 or more). All processes that share the queue must use the same
// maxReceives. The first call for a name creates the queue of this process. Later calls for
// the same name return the same queue and ignore maxReceives.
func (s *Store) Queue(name string, maxReceives int) engine.Queue {
	q := &queue{s: s, name: name, maxReceives: max(maxReceives, 1)}
	for _, k := range [...]string{"due:0", "due:1", "held", "last", "dead", "bodies", "rows", "head", "wake"} {
		q.keys = append(q.keys, s.key("{queue:"+name+"}:"+k))
	}
	q.wake = wake{q: q, streamEnd: "0-0"}
	stored, _ := s.queues.LoadOrStore(name, q)
	return stored.(*queue)
}

// Spill returns the spill buffer of this Redis.
func (s *Store) Spill() Spill { return Spill{s} }
