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

// oldestMajor is the oldest major version of Redis with which the tests run.
const oldestMajor = 7

// ClockOffset reads the server's clock. offset is the time of the server's clock minus the
// time of this process's clock. roundTrip is how long the request ran. The true offset
// differs from offset by at most roundTrip/2.
func (s *Store) ClockOffset(ctx context.Context) (offset, roundTrip time.Duration, err error) {
	offset, roundTrip, err = engine.AskClock(func() (time.Time, error) { return s.c.Time(ctx).Result() })
	return offset, roundTrip, translate(err)
}

// Doctor checks every master: whether it answers and accepts writes, whether it may evict keys when
// its memory is full, whether an acknowledged write is durable, and whether its clock is right.
// Doctor takes at most 10 s.
func (s *Store) Doctor(ctx context.Context) (fs engine.Findings) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	add := fs.Add
	masters, err := s.masters(ctx)
	if err == nil && len(masters) == 0 {
		err = errors.New("no master was returned by Redis")
	}
	if err != nil {
		repair := "start Redis, or correct redis.addresses"
		if codeIs(err, "redis_refused") {
			repair = "correct redis.username and redis.password"
		}
		add("redis", true, "fail", repair, "no server answers at %s: %v", s.serverNames(), err)
		return fs
	}
	for _, m := range masters {
		s.checkMaster(ctx, m, &fs)
	}
	if c, ok := s.c.(*client.ClusterClient); ok {
		info, err := c.ClusterInfo(ctx).Result()
		state := strings.TrimSpace(infoField(info, "cluster_state"))
		add("redis cluster", err != nil || state != "ok", "fail", "see cluster info and cluster nodes: every slot needs a live master", "the state of the cluster is %q, with %d masters%s", state, len(masters), errSuffix(err))
	}
	return fs
}

// checkMaster adds the findings about one master.
func (s *Store) checkMaster(ctx context.Context, m *client.Client, fs *engine.Findings) {
	add := fs.Add
	addr := m.Options().Addr
	if s.cfg.Master != "" {
		addr = s.cfg.Master // the address of the master changes with each failover
	}
	offset, roundTrip, err := engine.AskClock(func() (time.Time, error) { return m.Time(ctx).Result() })
	var info string
	if err == nil {
		info, err = m.Info(ctx).Result()
	}
	if err != nil {
		add("redis "+addr, true, "fail", "look at the log of this server", "the server does not answer: %v", translate(err))
		return
	}
	get := func(name string) string { return infoField(info, name) }
	version, role := get("redis_version"), get("role")
	major, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(major)
	add("redis "+addr, n < oldestMajor, "warn", fmt.Sprintf("run Redis %d or later", oldestMajor), "version %s, answers in %s", version, roundTrip.Round(10*time.Microsecond))
	add("redis role "+addr, role != "master" || get("loading") == "1", "fail", "name the master in redis.addresses, or its sentinels there and redis.master: a replica refuses writes", "the role is %s, with %s replicas; loading is %s", role, get("connected_slaves"), get("loading"))

	policy, limit := get("maxmemory_policy"), get("maxmemory")
	add("redis memory "+addr, policy != "noeviction", "fail", "set maxmemory-policy noeviction: otherwise Redis may remove leases, idempotency keys, messages and spilled records", "%s bytes are used, maxmemory is %s bytes, maxmemory-policy is %s", get("used_memory"), limit, policy)
	used, _ := strconv.ParseFloat(get("used_memory"), 64)
	if most, _ := strconv.ParseFloat(limit, 64); most > 0 {
		add("redis room "+addr, used > 0.8*most, "warn", "raise maxmemory, or find what fills the memory: at the limit Redis refuses every write", "%.0f%% of maxmemory is used", 100*used/most)
	}

	d, err := durability(ctx, m)
	switch {
	case err != nil:
		add("redis durability "+addr, true, "fail", "look at the log of this server", "%v", err)
	case d.Always():
		add("redis durability "+addr, false, "", "", "appendonly yes, appendfsync always: an acknowledged write is on disk")
	case d.Unknown:
		add("redis durability "+addr, d.Replicas == 0, "warn", "add a replica: without one the spill buffer refuses records, because the settings cannot be read", "the settings cannot be read; %d replicas", d.Replicas)
	case d.Replicas > 0:
		add("redis durability "+addr, !d.AOF, "warn", "set appendonly yes: otherwise a restart of all servers loses idempotency keys, messages and blocked accounts", "an acknowledged write is in memory; %d replicas confirm spilled records", d.Replicas)
	default:
		add("redis durability "+addr, true, "warn", "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no, or add a replica: until then the spill buffer refuses records", "an acknowledged write may be lost with the machine: appendonly %v, fsync always %v, no replica", d.AOF, d.Fsync)
	}
	if last := get("aof_last_write_status"); last != "" {
		add("redis disk "+addr, last != "ok", "fail", "look at the volume of this server: it refuses writes", "the status of the last write to disk is %q", last)
	}
	fs.AddClock("redis clock "+addr, "warn", "", offset, roundTrip)
}

// masters returns a client for each master. If the configuration has a single server and
// that server does not answer, masters returns an error.
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

// serverNames returns the names of the configured servers for an error message. The result
// contains no secret.
func (s *Store) serverNames() string {
	addresses := strings.Join(s.cfg.Addresses, ", ")
	if s.cfg.Master != "" {
		return "master " + s.cfg.Master + " of sentinels " + addresses
	}
	return addresses
}

func errSuffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
