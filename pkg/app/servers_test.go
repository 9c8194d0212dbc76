package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// good is a configuration of servers without a fault.
const good = `
engines: distributed
kafka: {brokers: ["127.0.0.1:19092"]}
cassandra: {hosts: ["127.0.0.1:19042"]}
redis: {addresses: ["127.0.0.1:16379"]}
postgres: {dsn: "postgres://notifyd@127.0.0.1/notifyd"}
`

func loadText(t *testing.T, text string, environ ...string) (Loaded, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notifyd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load([]string{file}, environ, nil)
}

// TestServersAreChecked: an error in a section is reported with its key.
func TestServersAreChecked(t *testing.T) {
	t.Parallel()
	f := func(change, want string) {
		t.Helper()
		_, err := loadText(t, good+change)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", change, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", change, err, want)
		}
	}
	f("", "")
	f("roles: [api, 'worker:push', 'worker:sms-bulk']", "")
	f("roles: ['worker:fax']", `roles: "worker:fax": there is no channel or lane "fax"`)
	f("roles: ['api:push']", "only the role worker may be followed by a channel")
	f("roles: [boss]", "is not a role")
	f("sqs: {endpoint: 'http://127.0.0.1:19324'}", "sqs.region: is empty")
	f("sqs: {region: here, endpoint: 'ftp://x'}", "sqs.endpoint")
	f("sqs: {region: here, prefix: 'a b'}", `sqs.prefix: "a b"`)
	f("archive: {dir: /tmp/x}", "")
	f("archive: {dir: /tmp/x, after: 168h}", "kafka.keep: is 168h0m0s, but must be at least archive.after plus archive.every (169h0m0s)")
	replaced := func(old, now, want string) {
		t.Helper()
		_, err := loadText(t, strings.Replace(good, old, now, 1))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", now, err, want)
		}
	}
	replaced("engines: distributed", "engines: both", `engines: "both" is not embedded or distributed`)
	replaced(`"127.0.0.1:19092"`, `"127.0.0.1"`, `kafka.brokers: "127.0.0.1" is not host:port`)
	replaced(`["127.0.0.1:19092"]`, `[]`, "kafka.brokers: is empty")
	replaced(`["127.0.0.1:19092"]}`, `["a:1"], replication: 1, min_insync: 2}`, "kafka.min_insync: is 2, but must be from 0 to kafka.replication")
	replaced(`["127.0.0.1:19092"]}`, `["a:1"], sasl: {mechanism: GSSAPI, user: u}}`, `"GSSAPI" is not SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER`)
	replaced(`["127.0.0.1:19092"]}`, `["a:1"], sasl: {mechanism: PLAIN, user: u}}`, "kafka.sasl.mechanism: is PLAIN, which sends the password: set kafka.tls.enabled")
	replaced(`["127.0.0.1:19092"]}`, `["a:1"], sasl: {mechanism: OAUTHBEARER}}`, "kafka.sasl.mechanism: is OAUTHBEARER, which sends the password")
	replaced(`["127.0.0.1:19092"]}`, `["a:1"], sasl: {mechanism: SCRAM-SHA-512}}`, "kafka.sasl.user: is empty")
	replaced(`["127.0.0.1:19042"]}`, `["a:1"], keyspace: "No-Name"}`, "cassandra.keyspace")
	replaced(`["127.0.0.1:19042"]}`, `["a:1"], tls: {ca_file: x}}`, "cassandra.tls.enabled: is false")
	replaced(`["127.0.0.1:19042"]}`, `["a:1"], tls: {enabled: true, cert_file: x}}`, "cassandra.tls: cert_file and key_file must be set together")
	replaced(`["127.0.0.1:19042"]}`, `["a:1"], timers: {hosts: [b]}}`, `cassandra.timers.hosts: "b" is not host:port`)
	replaced(`["127.0.0.1:16379"]}`, `["a:1", "b:1"]}`, "2 addresses, but redis.mode is single")
	replaced(`["127.0.0.1:16379"]}`, `["a:1"], mode: sentinel}`, "redis.master: is empty")
	replaced(`["127.0.0.1:16379"]}`, `["a:1"], mode: cluster, db: 1}`, "redis.db: is 1")
	replaced(`dsn: "postgres://notifyd@127.0.0.1/notifyd"`, ``, "neither dsn nor dsn_file is set")
}

// TestSecretsStayHidden: a password is in a file of its own or in the environment, and is never
// shown.
func TestSecretsStayHidden(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-5d1f"
	l, err := loadText(t, good, "NOTIFYD__REDIS__PASSWORD="+canary, "NOTIFYD__CASSANDRA__PASSWORD="+canary, "NOTIFYD__POSTGRES__DSN=postgres://u:"+canary+"@h/db")
	if err != nil {
		t.Fatal(err)
	}
	if l.Config.Redis.Password != canary {
		t.Errorf("the environment's password is %q", l.Config.Redis.Password)
	}
	if text := l.Print(); strings.Contains(text, canary) || !strings.Contains(text, "(set, not shown)") {
		t.Errorf("config print shows a secret, or not that it is set:\n%s", text)
	}
	for key, text := range map[string]string{
		"redis.addresses": strings.Replace(good, "127.0.0.1:16379", "redis://u:"+canary+"@127.0.0.1:16379", 1),
		"postgres.dsn":    strings.Replace(good, "notifyd@127.0.0.1", "notifyd:"+canary+"@127.0.0.1:1x", 1),
	} {
		if _, err := loadText(t, text); err == nil || !strings.Contains(err.Error(), key+": ") || !strings.Contains(err.Error(), "is not") || strings.Contains(err.Error(), canary) {
			t.Errorf("%s that is damaged: %v", key, err)
		}
	}
	for key, text := range map[string]string{
		"redis.password":      strings.Replace(good, `["127.0.0.1:16379"]`, `["a:1"], password: `+canary, 1),
		"cassandra.password":  strings.Replace(good, `["127.0.0.1:19042"]`, `["a:1"], password: `+canary, 1),
		"kafka.sasl.password": strings.Replace(good, `["127.0.0.1:19092"]`, `["a:1"], sasl: {password: `+canary+`}`, 1),
		"postgres.dsn":        strings.Replace(good, "notifyd@127", "notifyd:"+canary+"@127", 1),
	} {
		_, err := loadText(t, text)
		if err == nil || !strings.Contains(err.Error(), key+": a secret must come from") || strings.Contains(err.Error(), canary) {
			t.Errorf("%s in a file: %v", key, err)
		}
	}
}

// TestEnginesFileIsGood: the configuration file for the servers of make engines can be loaded.
func TestEnginesFileIsGood(t *testing.T) {
	t.Parallel()
	l, err := Load([]string{"../../notifyd.engines.yaml"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Config.Engines != EnginesDistributed || l.Config.Kafka.Brokers[0] != "127.0.0.1:19092" {
		t.Errorf("%+v", l.Config.Kafka)
	}
}
