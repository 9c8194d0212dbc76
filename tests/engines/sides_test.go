package engines

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/engine/pebble"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/engine/redis"
)

// side is one engine to compare.
type side struct {
	name, env string // env: variable with the server's address; empty: runs in this process
	// open opens the engine. It calls the parameter later with the functions that must close the
	// engine at the end of all tests.
	open func(addr string, later func(func())) (*engines, error)
}

var (
	inMemory    = side{"memory", "", openMemory}
	inPebble    = side{"pebble", "", openPebble}
	onCassandra = side{"cassandra", enginetest.CassandraEnv, openCassandra}
	onRedis     = side{"redis", enginetest.RedisEnv, openRedis}
	onPostgres  = side{"postgres", enginetest.PostgresEnv, openPostgres}
)

// servers opens each engine once for all programs. Its method close closes the engines at the end
// of the run, and removes the keyspaces, databases and folders of this run.
var servers opener

type opener struct {
	mu      sync.Mutex
	opened  map[string]*engines
	closers []func()
}

// compared returns the names of the engines that were opened.
func compared() (out []string) {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	for name := range servers.opened {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (s *opener) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

func (s *opener) get(of side, addr string) (*engines, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.opened[of.name]; e != nil {
		return e, nil
	}
	e, err := of.open(addr, func(f func()) { s.closers = append(s.closers, f) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of.name, err)
	}
	if s.opened == nil {
		s.opened = map[string]*engines{}
	}
	e.name = of.name
	s.opened[of.name] = e
	return e, nil
}

// sides opens the engines to compare. It leaves out an engine whose environment variable is not
// set. If wanted has only two engines, sides skips the test instead. With NOTIFY_REQUIRE_ENGINES=1
// it fails the test.
func sides(t *testing.T, wanted []side) (out []*engines) {
	t.Helper()
	for _, one := range wanted {
		addr := ""
		if one.env != "" {
			if addr = os.Getenv(one.env); addr == "" && (len(wanted) == 2 || os.Getenv("NOTIFY_REQUIRE_ENGINES") == "1") {
				addr = enginetest.Server(t, one.env)
			} else if addr == "" {
				continue
			}
		}
		e, err := servers.get(one, addr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func openMemory(string, func(func())) (*engines, error) {
	s := memory.New()
	return &engines{
		status: s.Status(), timers: s.Timers(), cold: s.ColdTimers(), schedules: s.Schedules(), triggers: s.Triggers(), letters: s.DeadLetters(),
		jobs: s.Jobs(), audit: s.Audit(), campaigns: s.Campaigns(), cancels: s.Cancels(), holds: s.Holds(), meta: s.Meta(), prefs: s.Prefs(),
		callers: s.Callers(), idem: s.Idem(), spill: s.Spill(), limits: memory.NewLimits(), lease: memory.NewLease(), beats: memory.NewHeartbeats(),
		queue: s.Queue,
	}, nil
}

func openPebble(_ string, later func(func())) (*engines, error) {
	dir, err := os.MkdirTemp("", "engines-*")
	if err != nil {
		return nil, err
	}
	later(func() { _ = os.RemoveAll(dir) })
	s, err := pebble.Open(pebble.Config{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return nil, err
	}
	later(func() { _ = s.Close() })
	return &engines{
		status: s.Status(), timers: s.Timers(), cold: s.ColdTimers(), schedules: s.Schedules(), triggers: s.Triggers(), letters: s.DeadLetters(),
		jobs: s.Jobs(), audit: s.Audit(), campaigns: s.Campaigns(), cancels: s.Cancels(), holds: s.Holds(), meta: s.Meta(), prefs: s.Prefs(),
		callers: s.Callers(), idem: s.Idem(), spill: s.Spill(), queue: s.Queue,
	}, nil
}

// own is a random name for keyspaces, databases and prefixes. No other run uses it.
var own = strings.ToLower(rand.Text()[:12])

// patient is the time-out of a call to a server. It allows for a busy machine.
const patient = 30 * time.Second

func openCassandra(addr string, later func(func())) (*engines, error) {
	cfg := cassandra.Config{Hosts: []string{addr}, Keyspace: "engines_" + own, Replication: 1, Timeout: patient}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	if _, err := cassandra.Migrate(ctx, cfg, engine.Up); err != nil {
		return nil, err
	}
	s, err := cassandra.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	later(func() {
		_ = s.Close()
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
		defer stop()
		if _, err := cassandra.Migrate(ctx, cfg, engine.Down); err != nil {
			fmt.Fprintln(os.Stderr, "could not remove the keyspace of the tests:", err)
		}
	})
	return &engines{
		status: s.Status(), timers: s.Timers(), cold: s.ColdTimers(), schedules: s.Schedules(), triggers: s.Triggers(), letters: s.DeadLetters(),
		jobs: s.Jobs(), audit: s.Audit(), campaigns: s.Campaigns(), cancels: s.Cancels(), holds: s.Holds(), meta: s.Meta(),
	}, nil
}

func openRedis(addr string, later func(func())) (*engines, error) {
	s, err := redis.Open(context.Background(), redis.Config{Addresses: []string{addr}, Prefix: "engines-" + own + ":", Timeout: patient})
	if err != nil {
		return nil, err
	}
	later(func() { _ = s.Close() })
	return &engines{idem: s.Idem(), spill: s.Spill(), limits: s.Limits(), lease: s.Lease(), beats: s.Heartbeats(), queue: s.Queue}, nil
}

func openPostgres(dsn string, later func(func())) (*engines, error) {
	name := "engines_" + own
	admin := func(sql string) error { return exec(dsn, sql) }
	if err := admin("CREATE DATABASE " + name); err != nil {
		return nil, err
	}
	later(func() {
		if err := admin("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			fmt.Fprintln(os.Stderr, "could not remove the database of the tests:", err)
		}
	})
	at, err := withDatabase(dsn, name)
	if err != nil {
		return nil, err
	}
	s, err := postgres.Open(context.Background(), postgres.Config{DSN: at, Timeout: patient})
	if err != nil {
		return nil, err
	}
	later(func() { _ = s.Close() })
	if _, err := s.Migrate(context.Background(), engine.Up); err != nil {
		return nil, err
	}
	return &engines{prefs: s.Prefs(), callers: s.Callers(), meta: s.Meta()}, nil
}

// exec runs one SQL statement in the database dsn.
func exec(dsn, sql string) error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	_ = c.Close(ctx)
	return err
}

// withDatabase returns dsn with the name of its database replaced.
func withDatabase(dsn, name string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return dsn + " dbname=" + name, nil
	}
	u.Path = "/" + name
	return u.String(), nil
}
