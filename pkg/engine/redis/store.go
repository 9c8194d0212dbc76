package redis

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	return s, nil
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
