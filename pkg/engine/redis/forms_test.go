package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// authority makes certificates for a test: files ca, NAME.pem and NAME.key.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{dir: t.TempDir()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.write(t, "ca", a.cert, &a.key.PublicKey)
	return a
}

func (a *authority) write(t testing.TB, name string, c *x509.Certificate, key *ecdsa.PublicKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key, a.key)
	must(t, err)
	must(t, os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(t testing.TB, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	a.write(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, &key.PublicKey)
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}

// captured collects the log messages.
type captured struct {
	mu sync.Mutex
	b  strings.Builder
}

func (c *captured) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *captured) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// Not parallel: the client has one logger for the whole process.
func TestSecure(t *testing.T) {
	const password = "canary-9f3b17"
	ours, others := newAuthority(t), newAuthority(t)
	ours.issue(t, "server")
	ours.issue(t, "client")
	others.issue(t, "client")
	srv := startServer(t, "--port", "0", "--requirepass", password, "--tls-auth-clients", "yes",
		"--tls-cert-file", ours.file("server.pem"), "--tls-key-file", ours.file("server.key"), "--tls-ca-cert-file", ours.file("ca.pem"),
		"--tls-port", strconv.Itoa(freePort(t)))
	srv.port, _ = strconv.Atoi(srv.args[len(srv.args)-1])
	logged := &captured{}
	good := func() Config {
		return Config{
			Addresses: []string{srv.addr()}, Password: password, Timeout: 5 * time.Second,
			TLS:    secrets.TLS{Enabled: true, CAFile: ours.file("ca.pem"), CertFile: ours.file("client.pem"), KeyFile: ours.file("client.key")},
			Logger: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
	}
	s := mustConnect(t, good())
	srv.await(func() bool { return s.Ping(bg) == nil })
	allWork(t, s)
	var failed strings.Builder
	for name, change := range map[string]func(*Config){
		"another authority":             func(c *Config) { c.TLS.CAFile = others.file("ca.pem") },
		"no client certificate":         func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" },
		"another's client certificate":  func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = others.file("client.pem"), others.file("client.key") },
		"another server's name":         func(c *Config) { c.TLS.ServerName = "redis.example" },
		"a wrong password":              func(c *Config) { c.Password = password + "x" },
		"no password":                   func(c *Config) { c.Password = "" },
		"a user that there is not":      func(c *Config) { c.Username = "nobody" },
		"the system's authorities":      func(c *Config) { c.TLS.CAFile = "" },
		"no TLS":                        func(c *Config) { c.TLS.Enabled = false },
		"a password in another's place": func(c *Config) { c.Username, c.Password = password, "x" },
	} {
		cfg := good()
		cfg.Timeout = time.Second
		change(&cfg)
		st, err := Open(bg, cfg)
		if err == nil {
			t.Errorf("%s: it opens", name)
			_ = st.Close()
			continue
		}
		wantUnavailable(t, name, err)
		fmt.Fprintln(&failed, name, err)
		if strings.Contains(name, "password") && codeOf(err) != "redis_refused" {
			t.Errorf("%s: code %s: %v", name, codeOf(err), err)
		}
		if st, err := Connect(cfg); err == nil {
			fs := st.Doctor(bg)
			if len(fs) != 1 || fs[0].Level != "fail" || fs[0].Repair == "" {
				t.Errorf("%s: %+v", name, fs)
			}
			fmt.Fprintf(&failed, "%+v\n", fs)
			_ = st.Close()
		}
	}
	if all := failed.String() + logged.String(); strings.Contains(all, password) {
		t.Errorf("the password is told: %s", all)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]Config{
		"redis.password":    {Addresses: []string{"a:1"}, Username: "u"},
		"redis.tls":         {Addresses: []string{"a:1"}, TLS: secrets.TLS{Enabled: true, CertFile: "x"}},
		"redis.tls.ca_file": {Addresses: []string{"a:1"}, TLS: secrets.TLS{Enabled: true, CAFile: "/nowhere"}},
	} {
		_, err := Connect(cfg)
		e, ok := err.(*notify.Error)
		if !ok || e.Kind != notify.KindInvalid || e.Field != field {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := Open(bg, Config{Addresses: []string{"127.0.0.1:1"}}); notify.KindOf(err) != notify.KindUnavailable {
		t.Error(err)
	}
}

// offClock answers every command itself: PING, INFO and CONFIG with nothing, TIME
// with the clock of this process and offset. No server is needed.
type offClock struct{ offset time.Duration }

func (offClock) DialHook(next client.DialHook) client.DialHook { return next }

func (offClock) ProcessPipelineHook(client.ProcessPipelineHook) client.ProcessPipelineHook {
	return func(context.Context, []client.Cmder) error { return nil }
}

func (c offClock) ProcessHook(client.ProcessHook) client.ProcessHook {
	return func(_ context.Context, cmd client.Cmder) error {
		if reply, ok := cmd.(*client.TimeCmd); ok {
			reply.SetVal(time.Now().Add(c.offset))
		}
		return nil
	}
}

// TestDoctorClock: a difference of the clocks beyond 500 ms is a warning.
func TestDoctorClock(t *testing.T) {
	t.Parallel()
	for offset, want := range map[time.Duration]string{
		0: "ok", 250 * time.Millisecond: "ok", -250 * time.Millisecond: "ok", time.Hour: "warn", -time.Hour: "warn",
	} {
		s, err := Connect(Config{Addresses: []string{"127.0.0.1:1"}})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		s.c.AddHook(offClock{offset})
		got := ""
		for _, f := range s.Doctor(bg) {
			if strings.HasPrefix(f.Check, "redis clock ") {
				got = f.Level
			}
		}
		if got != want {
			t.Errorf("the server's clock is off by %v: redis clock is %q, want %s", offset, got, want)
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	s := srv.connect()
	levels := func() map[string]string {
		out := map[string]string{}
		for _, f := range s.Doctor(bg) {
			out[strings.TrimSuffix(f.Check, " "+srv.addr())] = f.Level
			if (f.Level == "ok") != (f.Repair == "") {
				t.Errorf("%+v", f)
			}
		}
		return out
	}
	for check, level := range levels() {
		if level != "ok" {
			t.Errorf("%s is %s", check, level)
		}
	}
	c := srv.client()
	for _, x := range []struct{ name, value, back, check, level string }{
		{"maxmemory-policy", "allkeys-lru", "noeviction", "redis memory", "fail"},
		{"appendfsync", "everysec", "always", "redis durability", "warn"},
		{"maxmemory", "1100000", "0", "redis room", "warn"},
	} {
		must(t, c.ConfigSet(bg, x.name, x.value).Err())
		if got := levels()[x.check]; got != x.level {
			t.Errorf("%s %s: %s is %q, want %s", x.name, x.value, x.check, got, x.level)
		}
		must(t, c.ConfigSet(bg, x.name, x.back).Err())
	}
	replica := startServer(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(srv.port))
	for _, f := range replica.connect().Doctor(bg) {
		if strings.HasPrefix(f.Check, "redis role") && f.Level != "fail" {
			t.Errorf("a replica: %+v", f)
		}
	}
	offset, took, err := s.ClockOffset(bg)
	if err != nil || offset.Abs() > took+100*time.Millisecond {
		t.Errorf("the clock of this machine is off by %v in %v: %v", offset, took, err)
	}
	srv.kill()
	if fs := s.Doctor(bg); len(fs) != 1 || fs[0].Level != "fail" {
		t.Errorf("%+v", fs)
	}
}

// Three sentinels, a master and a replica: the master is killed, the replica takes
// over, and what a replica had confirmed is there.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := startServer(t, "--appendfsync", "everysec", "--repl-diskless-sync-delay", "0")
	replica := startServer(t, "--appendfsync", "everysec", "--replicaof", "127.0.0.1 "+strconv.Itoa(master.port))
	var addrs []string
	for range 3 {
		dir := t.TempDir()
		conf := filepath.Join(dir, "sentinel.conf")
		must(t, os.WriteFile(conf, fmt.Appendf(nil, "dir %s\nsentinel monitor m 127.0.0.1 %d 2\nsentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 5000\n", dir, master.port), 0o600))
		sentinel := &server{t: t, dir: dir, port: freePort(t)}
		sentinel.args = []string{"--sentinel"}
		sentinel.startWith(conf)
		t.Cleanup(sentinel.kill)
		addrs = append(addrs, sentinel.addr())
	}
	s, err := Connect(Config{Addresses: addrs, Mode: "sentinel", Master: "m", Prefix: "notifyd:"})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	push := func(v string) error {
		return s.Spill().Push(bg, []engine.Spilled{{Topic: "t", Value: []byte(v)}}, 1<<20)
	}
	master.await(func() bool { return push("first") == nil })
	// The sentinels must know the replica before the master goes.
	master.await(func() bool {
		out, err := exec.Command("redis-cli", "-p", addrs[0][len("127.0.0.1:"):], "sentinel", "master", "m").Output()
		return err == nil && strings.Contains(string(out), "num-slaves\n1") && strings.Contains(string(out), "num-other-sentinels\n2")
	})
	acknowledged := 0
	for i := range 50 {
		if push(strconv.Itoa(i)) == nil {
			acknowledged++
		}
	}
	ok, err := s.Lease().Acquire(bg, "l", "a", time.Hour)
	must(t, err)
	if !ok {
		t.Fatal("the lease is not free")
	}
	master.kill()
	began := time.Now()
	replica.await(func() bool { ok, err := s.Lease().Acquire(bg, "after", "a", time.Minute); return ok && err == nil })
	gap := time.Since(began)
	got, err := s.Spill().Peek(bg, 1000)
	must(t, err)
	if len(got) < acknowledged+1 {
		t.Errorf("%d of %d acknowledged records are there", len(got), acknowledged+1)
	}
	wantUnavailable(t, "no replica is left", push("last"))
	t.Logf("failover: writes again after %v, acknowledged=%d lost=0", gap.Round(10*time.Millisecond), acknowledged)
}

// The suites on three masters.
func TestCluster(t *testing.T) {
	t.Parallel()
	var nodes []*server
	args := []string{"--cluster", "create"}
	for range 3 {
		n := startServer(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
		nodes = append(nodes, n)
		args = append(args, n.addr())
	}
	out, err := exec.Command("redis-cli", append(args, "--cluster-replicas", "0", "--cluster-yes")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, n := range nodes {
		n.await(func() bool {
			return strings.Contains(n.client().ClusterInfo(bg).Val(), "cluster_state:ok")
		})
	}
	in := func(t enginetest.T, prefix string) *Store {
		return mustConnect(t, Config{Addresses: []string{nodes[0].addr(), nodes[1].addr()}, Mode: "cluster", Prefix: prefix, Timeout: 30 * time.Second})
	}
	connect := func(t enginetest.T) *Store { return in(t, prefix()) }
	allWork(t, connect(t))
	s := connect(t)
	accounts := make([]string, 50)
	for i := range accounts {
		accounts[i] = strconv.Itoa(i)
		must(t, s.Limits().Block(bg, accounts[i], time.Now().Add(time.Hour)))
	}
	blocked, err := s.Limits().Blocked(bg, accounts)
	must(t, err)
	for i, until := range blocked {
		if until.IsZero() {
			t.Errorf("account %d is not blocked", i)
		}
	}
	masters := 0
	for _, f := range s.Doctor(bg) {
		if strings.HasPrefix(f.Check, "redis role") {
			masters++
		}
		if f.Level != "ok" {
			t.Errorf("%+v", f)
		}
	}
	if masters != 3 {
		t.Errorf("%d masters", masters)
	}
	t.Run("Idem", func(t *testing.T) {
		enginetest.Idem(t, func(t enginetest.T) (Idem, func() Idem) { return connect(t).Idem(), nil })
	})
	t.Run("Spill", func(t *testing.T) {
		enginetest.Spill(t, func(t enginetest.T) (Spill, func() Spill) { return connect(t).Spill(), nil })
	})
	t.Run("Queue", func(t *testing.T) { workThrough(t, in(t, "work:"), in(t, "work:")) })
}

// workThrough passes messages from one process to another in real time.
func workThrough(t *testing.T, from, to *Store) {
	const n = 200
	qf, qt := from.Queue("q", 3), to.Queue("q", 3)
	go func() {
		for i := range n {
			err := qf.Enqueue(bg, []engine.Message{{Body: []byte(strconv.Itoa(i)), Delay: time.Duration(i%5) * 20 * time.Millisecond, Backlog: i%2 == 0}})
			if err != nil {
				t.Error(err)
			}
		}
	}()
	seen := map[string]bool{}
	for len(seen) < n {
		ds, err := qt.Receive(bg, 10, time.Hour)
		must(t, err)
		for _, d := range ds {
			if seen[string(d.Body)] {
				t.Errorf("%s again", d.Body)
			}
			seen[string(d.Body)] = true
			must(t, qt.Ack(bg, []string{d.Receipt}))
		}
	}
	if d, err := qf.Depth(bg); err != nil || d != (engine.QueueDepth{}) {
		t.Errorf("%+v, %v", d, err)
	}
}
