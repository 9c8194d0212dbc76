// Package product tests real notifyd processes over real servers. It starts its own servers, once
// for all tests: Kafka with SASL and TLS, Cassandra with TLS and a password, and Redis and
// PostgreSQL, each with TLS, a password and client certificates.
package product

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// estate has the servers, the roles (accounts) of notifyd on these servers, and the path of the
// notifyd binary.
type estate struct {
	dir, bin string
	ports    map[string]int // first port of each server
	stops    [][]string     // for each started server: its script, then environment variables

	cassandraRole, cassandraPassword string
	postgresRole, postgresPassword   string
}

var (
	once   sync.Once
	shared *estate
	broken error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		shared.close()
	}
	os.Exit(code)
}

// servers returns the servers that all tests share. The first call starts them. It skips the test
// with -short, or if the environment variable of an engine is not set ("make engines").
func servers(t *testing.T) *estate {
	t.Helper()
	for _, env := range []string{enginetest.KafkaEnv, enginetest.CassandraEnv, enginetest.RedisEnv, enginetest.PostgresEnv} {
		enginetest.Server(t, env)
	}
	if testing.Short() {
		t.Skip("starts servers")
	}
	once.Do(func() {
		shared = &estate{ports: map[string]int{}}
		broken = shared.start()
	})
	if broken != nil {
		t.Fatal(broken)
	}
	return shared
}

func (e *estate) start() (err error) {
	// t.TempDir would not work: the user that runs PostgreSQL cannot enter it.
	if e.dir, err = os.MkdirTemp("", "notifyd-product-"); err != nil {
		return err
	}
	if err := os.Chmod(e.dir, 0o755); err != nil {
		return err
	}
	for name, span := range map[string]int{"kafka": 2, "cassandra": 3, "redis": 40, "postgres": 1} {
		if e.ports[name], err = freeport.Find(span); err != nil {
			return err
		}
	}
	var g errgroup.Group
	g.Go(func() error {
		e.bin, err = rig.Build(context.Background(), "../../..", e.dir, nil)
		return err
	})
	c := e.ports["cassandra"]
	for _, s := range [][]string{
		{"kafka", "KAFKA_SECURE=1", "NODES=1", fmt.Sprint("NOTIFY_KAFKA_PORT=", e.ports["kafka"]), fmt.Sprint("NOTIFY_KAFKA_CONTROLLER_PORT=", e.ports["kafka"]+1)},
		{"cassandra", "CASSANDRA_TLS=1", "CASSANDRA_AUTH=1", "NODES=1", "CASSANDRA_HEAP=512M", "CASSANDRA_DIR=" + filepath.Join(e.dir, "cassandra"),
			fmt.Sprint("CASSANDRA_PORT=", c), fmt.Sprint("CASSANDRA_STORAGE_PORT=", c+1), fmt.Sprint("CASSANDRA_JMX_PORT=", c+2),
			fmt.Sprint("NOTIFY_CASSANDRA_PORT=", c), fmt.Sprint("NOTIFY_CASSANDRA_STORAGE_PORT=", c+1), fmt.Sprint("NOTIFY_CASSANDRA_JMX_PORT=", c+2)},
		{"redis", "REDIS_SECURE=1", fmt.Sprint("NOTIFY_REDIS_PORT=", e.ports["redis"])},
		{"postgres", "POSTGRES_TLS=1", "POSTGRES_NAME=postgres", fmt.Sprint("NOTIFY_POSTGRES_PORT=", e.ports["postgres"])},
	} {
		e.stops = append(e.stops, s)
		g.Go(func() error { return e.script("start", s) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return e.roles()
}

// script runs a script of scripts/engines with the argument verb. The parameter s has the name of
// the script, followed by environment variables for the script. The output goes to a file. With a
// pipe, script would wait until the server ends, because the server keeps the pipe open.
func (e *estate) script(verb string, s []string) error {
	name := filepath.Join(e.dir, s[0]+".script.log")
	out, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "..", "scripts", "engines", s[0]+".sh"), verb)
	cmd.Env = append(append(os.Environ(), s[1:]...), "NOTIFY_ENGINES_DIR="+e.dir)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		b, _ := os.ReadFile(name)
		return fmt.Errorf("%s.sh %s: %w\n%s", s[0], verb, err, b)
	}
	return nil
}

func (e *estate) close() {
	var wg sync.WaitGroup
	for _, s := range e.stops {
		wg.Go(func() {
			if err := e.script("stop", s); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	wg.Wait()
	_ = os.RemoveAll(e.dir)
}

func (e *estate) at(name string, more int) string {
	return fmt.Sprintf("127.0.0.1:%d", e.ports[name]+more)
}

func (e *estate) file(parts ...string) string {
	return filepath.Join(append([]string{e.dir}, parts...)...)
}

// roles creates the accounts that notifyd uses on Cassandra and PostgreSQL, and writes their
// password files. The accounts are not superusers.
func (e *estate) roles() error {
	e.cassandraRole, e.cassandraPassword = "notifyd", rand.Text()
	e.postgresRole, e.postgresPassword = "product", rand.Text()
	return errorsOf(
		e.cql("CREATE ROLE "+e.cassandraRole+" WITH LOGIN = true AND PASSWORD = '"+e.cassandraPassword+"'", "GRANT ALL ON ALL KEYSPACES TO "+e.cassandraRole),
		e.sql("CREATE ROLE "+e.postgresRole+" LOGIN CREATEDB PASSWORD '"+e.postgresPassword+"'"),
		os.WriteFile(e.file("cassandra.password"), []byte(e.cassandraPassword+"\n"), 0o600),
		os.WriteFile(e.file("postgres.password"), []byte(e.postgresPassword+"\n"), 0o600),
		os.WriteFile(e.file("wrong.password"), []byte(wrongPassword+"\n"), 0o600),
	)
}

// wrongPassword is not the password of any account.
const wrongPassword = "CANARY-wrong-5d1f"

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// session opens a session with Cassandra as its default superuser.
func (e *estate) session() (*gocql.Session, error) {
	c := gocql.NewCluster(e.at("cassandra", 0))
	c.Timeout, c.ConnectTimeout = time.Minute, time.Minute
	c.Authenticator = gocql.PasswordAuthenticator{Username: "cassandra", Password: "cassandra"}
	c.SslOpts = &gocql.SslOptions{CaPath: e.file("cassandra", "tls", "ca.pem"), CertPath: e.file("cassandra", "tls", "client.pem"), KeyPath: e.file("cassandra", "tls", "client.key"), EnableHostVerification: true}
	var s *gocql.Session
	// Try again: Cassandra creates the superuser a moment after it begins to listen.
	err := rig.Until(context.Background(), "Cassandra takes its superuser", func() (bool, error) {
		var err error
		s, err = c.CreateSession()
		return err == nil, nil
	})
	return s, err
}

func (e *estate) cql(statements ...string) error {
	s, err := e.session()
	if err != nil {
		return err
	}
	defer s.Close()
	for _, cql := range statements {
		if err := s.Query(cql).Exec(); err != nil {
			return err
		}
	}
	return nil
}

func (e *estate) sql(statements ...string) error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	tls := e.file("postgres", "tls")
	c, err := pgx.Connect(ctx, fmt.Sprintf("postgres://notifyd@%s/postgres?sslmode=verify-full&sslrootcert=%s/ca.pem&sslcert=%s/client.pem&sslkey=%s/client.key", e.at("postgres", 0), tls, tls, tls))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	for _, sql := range statements {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// values is a configuration of notifyd: a value for each key, such as "redis.prefix".
type values map[string]any

func (v values) with(more values) values {
	out := maps.Clone(v)
	maps.Copy(out, more)
	return out
}

// yaml returns the content of a configuration file with these values. It is JSON, which is also
// valid YAML.
func (v values) yaml() string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return b.String()
}

// set returns the values in the form key=value, for the flag --set.
func (v values) set() (out []string) {
	for key, value := range v {
		out = append(out, fmt.Sprint(key, "=", value))
	}
	return out
}

// installation returns the configuration of the installation with this name. The credentials are
// in files.
func (e *estate) installation(name string) values {
	kafka, cassandra, redis, pg := e.file("kafka", "certs"), e.file("cassandra", "tls"), e.file("redis-secure", "certs"), e.file("postgres", "tls")
	v := values{
		"engines":       "distributed",
		"kafka.brokers": []string{e.at("kafka", 0)}, "kafka.replication": 1, "kafka.min_insync": 1, "kafka.append_timeout": "20s",
		"kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.user": "notifyd", "kafka.sasl.password_file": filepath.Join(kafka, "notifyd.password"),
		"cassandra.hosts": []string{e.at("cassandra", 0)}, "cassandra.keyspace": name, "cassandra.replication": 1, "cassandra.timeout": "1m",
		"cassandra.username": e.cassandraRole, "cassandra.password_file": e.file("cassandra.password"),
		"redis.addresses": []string{e.at("redis", 1)}, "redis.prefix": name + ":", "redis.password_file": filepath.Join(redis, "redis.password"),
		"postgres.dsn":           fmt.Sprintf("postgres://%s@%s/%s?sslmode=verify-full", e.postgresRole, e.at("postgres", 0), name),
		"postgres.password_file": e.file("postgres.password"), "postgres.ca_file": filepath.Join(pg, "ca.pem"),
		"postgres.cert_file": filepath.Join(pg, "client.pem"), "postgres.key_file": filepath.Join(pg, "client.key"),
		"log.partitions": map[string]int{"push": 2, "sms": 1, "email": 1}, "timers.shards": 4,
	}
	for section, dir := range map[string]string{"kafka": kafka, "cassandra": cassandra, "redis": redis} {
		v[section+".tls.enabled"], v[section+".tls.ca_file"] = true, filepath.Join(dir, "ca.pem")
		v[section+".tls.cert_file"], v[section+".tls.key_file"] = filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	}
	return v
}

// main returns the configuration of the installation that most tests use, one after the other. The
// first call creates its database.
func (e *estate) main(t *testing.T) values {
	t.Helper()
	mainOnce.Do(func() { mainErr = e.sql("CREATE DATABASE product OWNER " + e.postgresRole) })
	if mainErr != nil {
		t.Fatal(mainErr)
	}
	return e.installation("product")
}

var (
	mainOnce sync.Once
	mainErr  error
)

// fleet returns a new fleet with the configuration v and starts its first process. The parameter
// first is the list of roles of that process.
func (e *estate) fleet(t *testing.T, v values, first string, env ...string) *rig.Fleet {
	t.Helper()
	f, err := rig.NewFleet(t.Context(), rig.FleetConfig{Bin: e.bin, Dir: t.TempDir(), Engines: v.yaml(), First: first, Env: env})
	t.Cleanup(func() {
		if t.Failed() {
			if logs, err := f.Logs(); err == nil {
				t.Logf("the end of the logs:\n%s", logs[max(0, len(logs)-20_000):])
			}
		}
		f.End()
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// load starts a small load of each kind and calls action. Then it waits until at least 30 messages
// were accepted, ends the load, and waits until the messages are delivered. It returns the counts
// of accepted, lost and repeated messages.
func load(t *testing.T, f *rig.Fleet, prefix string, action func()) rig.Sums {
	t.Helper()
	ctx := t.Context()
	b := rig.NewBalancer(rig.HostOf(f.V.URL()))
	defer b.Close()
	l, err := f.Load(ctx, f.Client(b), rig.LoadConfig{Prefix: prefix + "-" + strings.ToLower(rand.Text()[:8]), Users: 2, Every: 250 * time.Millisecond, Ahead: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	action()
	// On a busy machine few messages may have been accepted while action ran.
	if err := rig.Until(ctx, "30 messages are accepted", func() (bool, error) { return l.Accepted() >= 30, nil }); err != nil {
		t.Error(err)
	}
	l.End()
	s, err := l.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range s.Errors[:min(len(s.Errors), 5)] {
		t.Log("refused:", err)
	}
	return s
}

// whole fails the test unless every message was delivered exactly once, in order and not early.
func whole(t *testing.T, s rig.Sums, what string) {
	t.Helper()
	t.Logf("product case=%s %s", what, s)
	if !s.Whole() {
		t.Errorf("%s: %s", what, s)
	}
}

// briefly returns a function for the parameter action of load. The function waits for two seconds.
func briefly(t *testing.T) func() {
	return func() {
		if err := rig.Pause(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}
