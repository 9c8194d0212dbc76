package product

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// plainRedis starts Redis servers without TLS, in addition to the Redis with TLS. The parameter
// form is "sentinel" or "cluster". It returns the addresses for the configuration.
func (e *estate) plainRedis(t *testing.T, form string) []string {
	t.Helper()
	s := []string{"redis", "REDIS_MODE=" + form, "REDIS_SECURE=", fmt.Sprint("NOTIFY_REDIS_PORT=", e.ports["redis"])}
	// estate.close stops these servers, too, because the script stops the servers of every form.
	if err := e.script("start", s); err != nil {
		t.Fatal(err)
	}
	var out []string
	first := map[string]int{"sentinel": 20, "cluster": 30}[form]
	for i := range 3 {
		out = append(out, e.at("redis", first+i))
	}
	return out
}

func plain(more values) values {
	return values{
		"redis.tls.enabled": false, "redis.tls.ca_file": "", "redis.tls.cert_file": "", "redis.tls.key_file": "", "redis.password_file": "",
	}.with(more)
}

// TestRedisFailsOver kills a Redis master under load. Three sentinels watch the master. Its replica
// must take over, and no message may be lost.
func TestRedisFailsOver(t *testing.T) {
	e := servers(t)
	sentinels := e.plainRedis(t, "sentinel")
	ask := func(args ...string) string {
		_, port, _ := strings.Cut(sentinels[0], ":")
		out, err := exec.CommandContext(t.Context(), "redis-cli", append([]string{"-p", port, "sentinel"}, args...)...).Output()
		if err != nil {
			return ""
		}
		return string(out)
	}
	// Wait until the sentinels know the replica and each other. Only then can they fail over.
	if err := rig.Until(t.Context(), "the sentinels know all", func() (bool, error) {
		m := ask("master", "notifyd")
		return strings.Contains(m, "num-slaves\n1") && strings.Contains(m, "num-other-sentinels\n2"), nil
	}); err != nil {
		t.Fatal(err)
	}
	master := strings.Fields(ask("get-master-addr-by-name", "notifyd"))
	f := e.fleet(t, e.main(t).with(plain(values{"redis.mode": "sentinel", "redis.master": "notifyd", "redis.addresses": sentinels})), "api,worker,operator")
	for _, name := range []string{"scheduler", "dispatcher"} {
		if _, err := f.Run(t.Context(), name, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Duration(0)
	s := load(t, f, "sentinel", func() {
		briefly(t)()
		out, err := exec.CommandContext(t.Context(), "redis-cli", "-p", master[1], "info", "server").Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(out), "process_id:")
		line, _, _ := strings.Cut(rest, "\r")
		pid, err := strconv.Atoi(line)
		if err != nil || pid <= 1 {
			t.Fatalf("the master's process: %q", line)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		if err := rig.Until(t.Context(), "the replica is the master", func() (bool, error) {
			now := strings.Fields(ask("get-master-addr-by-name", "notifyd"))
			return len(now) == 2 && now[1] != master[1], nil
		}); err != nil {
			t.Fatal(err)
		}
		took = time.Since(killed)
		for range 3 {
			briefly(t)()
		}
	})
	t.Logf("product case=sentinel failover_s=%.1f %s", took.Seconds(), s)
	// Do not limit how often a trigger is called. After a failover, the queue may return a message
	// a second time, and the receiver then sees the same trigger id twice.
	if s.Lost != 0 || s.Early != 0 || s.Duplicates != 0 || len(s.Errors) != 0 || s.Accepted == 0 || s.Triggers == 0 {
		t.Errorf("%s", s)
	}
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// TestRedisInACluster runs notifyd over a Redis cluster of three nodes. It checks that every
// message is delivered once and that each node has keys.
func TestRedisInACluster(t *testing.T) {
	e := servers(t)
	nodes := e.plainRedis(t, "cluster")
	f := e.fleet(t, e.main(t).with(plain(values{"redis.mode": "cluster", "redis.addresses": nodes[:2]})), "all")
	if _, err := f.Run(t.Context(), "second", "scheduler,dispatcher,worker", nil); err != nil {
		t.Fatal(err)
	}
	whole(t, load(t, f, "cluster", briefly(t)), "cluster")
	keys := 0
	for _, at := range nodes {
		_, port, _ := strings.Cut(at, ":")
		out, err := exec.CommandContext(t.Context(), "redis-cli", "-p", port, "dbsize").Output()
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := strconv.Atoi(strings.TrimSpace(string(out))); n > 0 {
			keys++
		}
	}
	if keys != len(nodes) {
		t.Errorf("%d of %d nodes have keys", keys, len(nodes))
	}
	e.healthy(t, f)
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}
