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

// Store is a Redis. Its methods, and those of the contracts it returns, may be
// called from any goroutine.
type Store struct {
	cfg Config
	c   client.UniversalClient

	followers sync.WaitGroup // of queues, see wake.go
	closing   chan struct{}
	close     sync.Once
	queues    sync.Map // name -> *queue
	counts    counter
}

// Open connects to Redis and asks it once. The error is a notify.KindInvalid
// that names the setting, or a notify.KindUnavailable when nobody answers until
// ctx ends or within a few timeouts; the store of a Redis that is away for now
// would be of no use to whoever starts.
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

// Connect is Open without asking: for a process that must start while Redis is
// away. Errors are of the settings only.
func Connect(cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	if cfg.Username != "" && cfg.Password == "" {
		return nil, notify.Invalid("bad_redis_config", "redis.password", "a username needs one")
	}
	if cfg.Mode != "sentinel" {
		cfg.Master, cfg.SentinelUsername = "", ""
	}
	tlsConfig, err := cfg.TLS.Config("redis.tls")
	if err != nil {
		return nil, err
	}
	logTo(cfg.Logger)
	s := &Store{cfg: cfg, closing: make(chan struct{})}
	s.c = client.NewUniversalClient(&client.UniversalOptions{
		Addrs: cfg.Addresses, MasterName: cfg.Master, IsClusterMode: cfg.Mode == "cluster", DB: cfg.DB, ClientName: "notifyd",
		Username: cfg.Username, Password: cfg.Password,
		SentinelUsername: cfg.SentinelUsername, SentinelPassword: cfg.SentinelPassword,
		TLSConfig: tlsConfig, PoolSize: cfg.PoolSize,
		// One dial and one retry of the command: the defaults, 5 and 3, make an
		// outage visible after seconds.
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		DialerRetries: 1, MaxRetries: 1, MinRetryBackoff: 8 * time.Millisecond, MaxRetryBackoff: 64 * time.Millisecond,
		ContextTimeoutEnabled: true,
		// Less to say when a connection begins: libraries' names, and upgrades of a
		// kind of server that this is not tested with.
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// Pipelines share the pool: two would be two limits to think of.
		PipelinePoolSize: -1,
	})
	s.c.AddHook(&s.counts)
	return s, nil
}

// Counts returns how much was asked since Open, for metrics and benchmarks.
func (s *Store) Counts() Counts {
	return Counts{s.counts.commands.Load(), s.counts.trips.Load()}
}

// Ping asks Redis for a sign of life.
func (s *Store) Ping(ctx context.Context) error { return translate(s.c.Ping(ctx).Err()) }

// Close ends all connections; waiting receivers get an error.
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

// serverClock begins every script that needs the time: now is in µs since 1970,
// by the server's clock unless a test gives another as the first argument.
const serverClock = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if ARGV[1] ~= '' then now = tonumber(ARGV[1]) end
`

// script is a Lua script whose first argument is the clock.
func script(lua string) *client.Script { return client.NewScript(serverClock + lua) }

// now is the first argument of every script.
func (s *Store) now() string {
	if s.cfg.clock == nil {
		return ""
	}
	return strconv.FormatInt(s.cfg.clock().UnixMicro(), 10)
}

// run runs a script; translate has been applied to its error. A context that
// has ended runs nothing.
func (s *Store) run(ctx context.Context, sc *client.Script, keys []string, args ...any) (any, error) {
	if ctx.Err() != nil {
		return nil, translate(context.Cause(ctx))
	}
	v, err := sc.Run(ctx, s.c, keys, append([]any{s.now()}, args...)...).Result()
	if errors.Is(err, client.Nil) {
		return nil, nil
	}
	return v, translate(err)
}

// The answers of scripts, whatever they hold: an answer of another shape is not
// ours and reads as zero values.

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

// at returns element i, nil if there is none.
func at(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return nil
}

func micros(d time.Duration) int64 { return d.Microseconds() }

// ceilMicros rounds up, so that what is promised for a time is not there before.
func ceilMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

func conflict(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// Filter returns the shared seen-filter of a name. Rate*Window is at most 2^31
// ids; each takes 2.5 bytes of Redis's memory. Small filters have a part of
// their own size.
func (s *Store) Filter(cfg FilterConfig) (*Filter, error) {
	n := cfg.Rate * cfg.Window.Seconds()
	switch {
	case cfg.Name == "" || strings.ContainsAny(cfg.Name, "{}"):
		return nil, notify.Invalid("bad_filter", "name", "a filter needs a name without braces")
	case !(cfg.Rate > 0) || cfg.Window < time.Second || n > 1<<31:
		return nil, notify.Invalid("bad_filter", "rate", "a filter needs a rate above 0, a window of at least 1s, and at most 2^31 ids in it")
	}
	f := &Filter{s: s, window: cfg.Window, hashes: int(math.Ceil(math.Log2(2 / falsePositives)))}
	bits := math.Max(n*float64(f.hashes)/math.Ln2, 1024)
	f.parts = uint64(math.Ceil(bits / partBits))
	f.bits = uint64(math.Ceil(bits / float64(f.parts)))
	f.size = fmt.Sprintf("%d x %d bits, %d each, %v", f.parts, f.bits, f.hashes, f.window)
	f.tag = s.key("{seen:" + cfg.Name + "}:")
	return f, nil
}

// Broadcast returns the contract of messages to listeners.
func (s *Store) Broadcast() engine.Broadcast { return broadcast{s} }

// Heartbeats returns the contract of signs of life.
func (s *Store) Heartbeats() engine.Heartbeats { return heartbeats{s} }

// Idem returns the contract of idempotency keys. Every transition is one
// script. Times in it are the caller's, as everywhere in the contract; the
// server only forgets a key by itself an hour after it should have been purged.
func (s *Store) Idem() Idem { return Idem{s} }

// Lease returns the contract of leases: SET NX PX, and compare before anything
// else. Their ttl runs on the server, with a precision of a millisecond.
func (s *Store) Lease() engine.Lease { return lease{s} }

// Limits returns the contract of shared token buckets and blocked accounts.
func (s *Store) Limits() Limits { return Limits{s} }

// Queue returns the delay queue of a name, whose messages are given out at most
// maxReceives times (1 or more). Processes that share it agree about that.
func (s *Store) Queue(name string, maxReceives int) engine.Queue {
	q := &queue{s: s, name: name, maxReceives: max(maxReceives, 1)}
	for _, k := range [...]string{"due:0", "due:1", "held", "last", "dead", "bodies", "rows", "head", "wake"} {
		q.keys = append(q.keys, s.key("{queue:"+name+"}:"+k))
	}
	q.wake = wake{q: q, seen: "0-0"}
	known, _ := s.queues.LoadOrStore(name, q)
	return known.(*queue)
}

// Spill returns the contract of the spill buffer.
func (s *Store) Spill() Spill { return Spill{s} }
