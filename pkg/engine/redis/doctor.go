package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
)

// oldest is the first major version this is tested with.
const oldest = 7

// ClockOffset returns how far the server's clock is ahead of this process's; it
// is wrong by at most half of how long the question took, which it returns too.
func (s *Store) ClockOffset(ctx context.Context) (offset, took time.Duration, err error) {
	offset, took, err = engine.AskClock(func() (time.Time, error) { return s.c.Time(ctx).Result() })
	return offset, took, translate(err)
}

// Doctor looks at every master: does it answer, may it forget what it was asked
// to keep, and what does an answer of it mean. It takes at most 10 s.
func (s *Store) Doctor(ctx context.Context) (fs engine.Findings) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	add := fs.Add
	masters, err := s.masters(ctx)
	if err == nil && len(masters) == 0 {
		err = errors.New("no master is known")
	}
	if err != nil {
		repair := "start Redis, or correct redis.addrs"
		if codeIs(err, "redis_refused") {
			repair = "correct redis.username and redis.password"
		}
		add("redis", true, "fail", repair, "nobody answers at %s: %v", s.where(), err)
		return fs
	}
	for _, m := range masters {
		s.examine(ctx, m, &fs)
	}
	if c, ok := s.c.(*client.ClusterClient); ok {
		info, err := c.ClusterInfo(ctx).Result()
		state := strings.TrimSpace(infoField(info, "cluster_state"))
		add("redis cluster", err != nil || state != "ok", "fail", "see cluster info and cluster nodes: every slot needs a master that lives", "state %s, %d masters%s", state, len(masters), suffix(err))
	}
	return fs
}

func (s *Store) examine(ctx context.Context, m *client.Client, fs *engine.Findings) {
	add := fs.Add
	addr := m.Options().Addr
	if s.cfg.Master != "" {
		addr = s.cfg.Master // whichever it is
	}
	offset, took, err := engine.AskClock(func() (time.Time, error) { return m.Time(ctx).Result() })
	var info string
	if err == nil {
		info, err = m.Info(ctx).Result()
	}
	if err != nil {
		add("redis "+addr, true, "fail", "look at the log of this server", "does not answer: %v", translate(err))
		return
	}
	get := func(name string) string { return infoField(info, name) }
	version, role := get("redis_version"), get("role")
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	add("redis "+addr, n < oldest, "warn", fmt.Sprintf("run Redis %d or later", oldest), "version %s, answers in %s", version, took.Round(10*time.Microsecond))
	add("redis role "+addr, role != "master" || get("loading") == "1", "fail", "name the master in redis.addrs, or its sentinels and redis.master: a replica cannot be written", "%s, %s replicas, loading %s", role, get("connected_slaves"), get("loading"))

	policy, limit := get("maxmemory_policy"), get("maxmemory")
	add("redis memory "+addr, policy != "noeviction", "fail", "set maxmemory-policy noeviction: else leases, idempotency keys, messages and spilled records may be removed", "%s of %s bytes, policy %s", get("used_memory"), limit, policy)
	used, _ := strconv.ParseFloat(get("used_memory"), 64)
	if most, _ := strconv.ParseFloat(limit, 64); most > 0 {
		add("redis room "+addr, used > 0.8*most, "warn", "raise maxmemory, or find what fills it: at the limit every write is refused", "%.0f%% of maxmemory", 100*used/most)
	}

	d, err := durability(ctx, m)
	switch {
	case err != nil:
		add("redis durability "+addr, true, "fail", "look at the log of this server", "%v", err)
	case d.Always():
		add("redis durability "+addr, false, "", "", "appendonly yes, appendfsync always: an answer is on disk")
	case d.Unknown:
		add("redis durability "+addr, d.Replicas == 0, "warn", "have a replica: without one the spill buffer refuses, for the settings cannot be read", "the settings cannot be read; %d replicas", d.Replicas)
	case d.Replicas > 0:
		add("redis durability "+addr, !d.AOF, "warn", "set appendonly yes: a restart of all forgets idempotency keys, messages and blocked accounts", "an answer is in memory; %d replicas confirm what is spilled", d.Replicas)
	default:
		add("redis durability "+addr, true, "warn", "set appendonly yes and appendfsync always, and no-appendfsync-on-rewrite no, or have a replica: until then the spill buffer refuses", "an answer may be lost with the machine: appendonly %v, fsync always %v, no replica", d.AOF, d.Fsync)
	}
	if last := get("aof_last_write_status"); last != "" {
		add("redis disk "+addr, last != "ok", "fail", "look at the volume of this server: it refuses writes", "last write %s", last)
	}
	fs.AddClock("redis clock "+addr, "warn", "", offset, took)
}

// masters returns a client of each server that takes writes, or should.
func (s *Store) masters(ctx context.Context) (out []*client.Client, err error) {
	switch c := s.c.(type) {
	case *client.Client:
		return []*client.Client{c}, s.Ping(ctx)
	case *client.ClusterClient:
		var mu sync.Mutex
		err = c.ForEachMaster(ctx, func(_ context.Context, m *client.Client) error {
			mu.Lock()
			defer mu.Unlock()
			out = append(out, m)
			return nil
		})
	}
	return out, translate(err)
}

// where names the servers, and nothing secret.
func (s *Store) where() string {
	at := strings.Join(s.cfg.Addresses, ", ")
	if s.cfg.Master != "" {
		return "master " + s.cfg.Master + " of sentinels " + at
	}
	return at
}

func suffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
