package product

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/freeport"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// secrets returns all passwords. No process may print one of them.
func (e *estate) secrets(t *testing.T) []string {
	t.Helper()
	out := []string{e.cassandraPassword, e.postgresPassword, wrongPassword}
	for _, name := range []string{e.file("kafka", "certs", "notifyd.password"), e.file("redis-secure", "certs", "redis.password")} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSpace(string(b)))
	}
	return out
}

// environment returns the credentials of v as environment variables. The result without has
// settings that remove the files with these credentials from the configuration.
func (e *estate) environment(t *testing.T, v values) (env []string, without values) {
	t.Helper()
	s := e.secrets(t)
	dsn := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=verify-full", e.postgresRole, e.postgresPassword, e.at("postgres", 0), v["cassandra.keyspace"])
	return []string{
			"NOTIFYD__CASSANDRA__PASSWORD=" + s[0], "NOTIFYD__POSTGRES__DSN=" + dsn,
			"NOTIFYD__KAFKA__SASL__PASSWORD=" + s[3], "NOTIFYD__REDIS__PASSWORD=" + s[4],
		}, values{
			"cassandra.password_file": "", "postgres.password_file": "", "kafka.sasl.password_file": "", "redis.password_file": "",
		}
}

// TestSecure runs two processes over servers that require TLS and passwords. The first process has
// all roles and reads its credentials from files. The second process has the roles scheduler,
// dispatcher and worker:push and reads its passwords from its environment. All immediate and
// scheduled messages must be delivered, and no log may contain a password.
func TestSecure(t *testing.T) {
	e := servers(t)
	v := e.main(t)
	f := e.fleet(t, v, "all")
	env, without := e.environment(t, v)
	if _, err := f.Run(t.Context(), "by-environment", "scheduler,dispatcher,worker:push", env, without.set()...); err != nil {
		t.Fatal(err)
	}
	whole(t, load(t, f, "secure", briefly(t)), "secure")
	e.healthy(t, f)
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	e.tellsNothing(t, f, "")
}

// tellsNothing fails the test if a secret is in the logs of f or in text.
func (e *estate) tellsNothing(t *testing.T, f *rig.Fleet, text string) {
	t.Helper()
	logs, err := f.Logs()
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range e.secrets(t) {
		if strings.Contains(logs+text, s) {
			t.Errorf("secret %d is told", i)
		}
	}
}

// healthy fails the test if a check of the doctor fails, or if the doctor did not check one of the
// four servers.
func (e *estate) healthy(t *testing.T, f *rig.Fleet) {
	t.Helper()
	checks := []string{}
	for _, one := range doctor(t, f.V.Client()) {
		word, _, _ := strings.Cut(one.Check, " ")
		checks = append(checks, word)
		if one.Level == "fail" {
			t.Errorf("the doctor: %+v", one)
		}
	}
	for _, engine := range []string{"kafka", "cassandra", "redis", "postgres"} {
		if !slices.Contains(checks, engine) {
			t.Errorf("the doctor did not look at %s", engine)
		}
	}
}

// TestRefused starts processes with bad credentials: a wrong certificate authority, a wrong
// password, or a client certificate that is missing or not trusted. Each process must not start,
// and its error must name the setting.
func TestRefused(t *testing.T) {
	e := servers(t)
	v := e.main(t)
	f := e.fleet(t, v, "api")
	other := func(name string) string { return e.file("kafka", "certs", name) }
	wrong := e.file("wrong.password")
	var all strings.Builder
	refused := 0
	for _, c := range []struct {
		key string
		set values
		env []string
	}{
		{"kafka.tls.ca_file", values{"kafka.tls.ca_file": other("other-ca.pem")}, nil},
		{"kafka.tls.cert_file", values{"kafka.tls.cert_file": "", "kafka.tls.key_file": ""}, nil},
		{"kafka.tls.cert_file", values{"kafka.tls.cert_file": other("other-client.pem"), "kafka.tls.key_file": other("other-client.key")}, nil},
		{"kafka.tls.server_name", values{"kafka.tls.server_name": "kafka.example"}, nil},
		{"kafka.sasl.password_file", values{"kafka.sasl.password_file": wrong}, nil},
		{"kafka.sasl.password", values{"kafka.sasl.password_file": ""}, []string{"NOTIFYD__KAFKA__SASL__PASSWORD=" + wrongPassword}},
		{"kafka.sasl.password_file", values{"kafka.sasl.password_file": filepath.Join(e.dir, "nowhere")}, nil},
		{"cassandra.tls.ca_file", values{"cassandra.tls.ca_file": other("other-ca.pem")}, nil},
		{"cassandra.tls.cert_file", values{"cassandra.tls.cert_file": "", "cassandra.tls.key_file": ""}, nil},
		{"cassandra.password_file", values{"cassandra.password_file": wrong}, nil},
		{"cassandra.password", values{"cassandra.password_file": ""}, []string{"NOTIFYD__CASSANDRA__PASSWORD=" + wrongPassword}},
		{"redis.tls.ca_file", values{"redis.tls.ca_file": other("other-ca.pem")}, nil},
		{"redis.tls.ca_file", values{"redis.tls.ca_file": filepath.Join(e.dir, "nowhere")}, nil},
		{"redis.tls.cert_file", values{"redis.tls.cert_file": "", "redis.tls.key_file": ""}, nil},
		{"redis.tls.server_name", values{"redis.tls.server_name": "redis.example"}, nil},
		{"redis.password_file", values{"redis.password_file": wrong}, nil},
		{"redis.password", values{"redis.password_file": ""}, nil},
		{"postgres.ca_file", values{"postgres.ca_file": other("other-ca.pem")}, nil},
		{"postgres.cert_file", values{"postgres.cert_file": "", "postgres.key_file": ""}, nil},
		{"postgres.password_file", values{"postgres.password_file": wrong}, nil},
	} {
		args := []string{"serve", "--config", f.Engines(), "--config", f.Beside(), "--role", "worker", "--set", "api.listen=127.0.0.1:0", "--set", "api.admin="}
		for _, kv := range c.set.set() {
			args = append(args, "--set", kv)
		}
		out, err := f.Command(t.Context(), c.env, args...)
		all.WriteString(out)
		// The error of Cassandra may have the prefix "cassandra: ".
		if err == nil || !strings.Contains(out, "\nerror: "+c.key+": ") && !strings.Contains(out, "\nerror: cassandra: "+c.key+": ") {
			t.Errorf("%v: %v, want an error that names %s:\n%s", c.set, err, c.key, out)
			continue
		}
		refused++
	}
	t.Logf("product case=refused tried=%d", refused)
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
	e.tellsNothing(t, f, all.String())
}

// TestAwayAtTheStart checks that a process starts and delivers a message although Redis is down.
func TestAwayAtTheStart(t *testing.T) {
	e := servers(t)
	v := e.main(t)
	closed, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	f := e.fleet(t, v.with(values{"redis.addresses": []string{fmt.Sprintf("127.0.0.1:%d", closed)}}), "all")
	b := rig.NewBalancer(rig.HostOf(f.V.URL()))
	defer b.Close()
	cl := f.Client(b)
	began := time.Now()
	id, err := send(t, cl, "away-"+fmt.Sprint(began.UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.Delivered(t.Context(), cl, id); err != nil {
		t.Fatal(err)
	}
}
