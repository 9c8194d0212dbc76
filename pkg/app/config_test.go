package app

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	one := file(t, "one.yaml", "api: {listen: 'one:1', burst: 11, body_mib: 201}\nworkers: {max_retries: 1}\nintake: {sms_categories: [otp]}")
	two := file(t, "two.yaml", "api: {listen: 'two:2', burst: 12}\nworkers: {drain: 7s}")
	l, err := Load([]string{one, two},
		[]string{"NOTIFYD__API__LISTEN=env:3", "PATH=/bin", "NOTIFYD_API_LISTEN=not:ours", "NOTIFYD__LOG__LINGER=9ms", "NOTIFYD__PROVIDERS__SENDGRID__POOLS=a,b"},
		map[string]any{"api.listen": "flag:4", "log.sync": "false"})
	if err != nil {
		t.Fatal(err)
	}
	f := func(key string, got, want any, origin string) {
		t.Helper()
		if !reflect.DeepEqual(got, want) || l.Origin[key] != origin {
			t.Errorf("%s: %v of %s, want %v of %s", key, got, l.Origin[key], want, origin)
		}
	}
	c := l.Config
	f("api.listen", c.API.Listen, "flag:4", "flag")
	f("api.burst", c.API.Burst, 12, two)
	f("api.body_mib", c.API.BodyMiB, 201, one)
	f("api.admin", c.API.Admin, "127.0.0.1:7421", "default")
	f("workers.max_retries", c.Workers.MaxRetries, 1, one)
	f("workers.drain", c.Workers.Drain, 7*time.Second, two)
	f("log.linger", c.Log.Linger, 9*time.Millisecond, "NOTIFYD__LOG__LINGER")
	f("log.sync", c.Log.Sync, false, "flag")
	f("intake.sms_categories", c.Intake.SMS, []string{"otp"}, one) // replaced, not merged
	f("providers.sendgrid.pools", c.Providers.SendGrid.Pools, []string{"a", "b"}, "NOTIFYD__PROVIDERS__SENDGRID__POOLS")
}

func TestMapsKeepTheirOtherKeys(t *testing.T) {
	t.Parallel()
	l, err := Load([]string{file(t, "a.yaml", "log: {partitions: {push: 12}}\nintake: {refuse: {sms: [marketing]}}")},
		[]string{"NOTIFYD__LOG__PARTITIONS__SMS=2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]int{"push": 12, "sms": 2, "email": 4}; !reflect.DeepEqual(l.Config.Log.Partitions, want) {
		t.Errorf("partitions %v, want %v", l.Config.Log.Partitions, want)
	}
	if want := map[string][]string{"sms": {"marketing"}}; !reflect.DeepEqual(l.Config.Intake.Refuse, want) {
		t.Errorf("refuse %v, want %v", l.Config.Intake.Refuse, want)
	}
	if d := Default().Log.Partitions; d["push"] != 6 || d["sms"] != 4 {
		t.Errorf("the defaults were changed: %v", d)
	}
}

func TestExampleIsTheDefault(t *testing.T) {
	t.Parallel()
	l, err := Load([]string{file(t, "example.yaml", Example())}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, got := flatten(Default()), flatten(l.Config)
	for key := range want {
		a, b := want[key].Value, got[key].Value
		if empty := a.Kind() == reflect.Slice || a.Kind() == reflect.Map; empty && a.Len() == 0 && b.Len() == 0 {
			continue
		}
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			t.Errorf("%s: the example says %v, the default is %v", key, b, a)
		}
	}
	for key, f := range want {
		if doc := documentation(f); f.Tag.Get("doc") == "" || !strings.Contains(Example(), "# "+doc+"\n") {
			t.Errorf("%s: its documentation %q is not in the example", key, doc)
		}
	}
}

// TestProblems: Load reports all problems at once, each with its key.
func TestProblems(t *testing.T) {
	t.Parallel()
	f := func(text string, want ...string) {
		t.Helper()
		_, err := Load([]string{file(t, "c.yaml", text)}, nil, nil)
		if err == nil {
			t.Errorf("%s: accepted", text)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", text, err, w)
			}
		}
	}
	f("api: {listne: 'a:1'}", `unknown key "api.listne"; did you mean "api.listen"?`, "c.yaml")
	f("workers: {push: {windows: 1}}", `unknown key "workers.push.windows"; did you mean "workers.push.window"?`)
	f("api: {kafka: x}", `unknown key "api.kafka"; there is kafka.append_timeout, `, " and others")
	f("nothing_like_it: 1", `unknown key "nothing_like_it"`)
	f("providers: {fcm: {rate: 5}}", `unknown key "providers.fcm.rate"`)
	f("api: {listen: '127.0.0.1:99999', admin: '127.0.0.1:-1'}\nlog: {listen: '127.0.0.1:x y'}", "api.listen", "api.admin", "log.listen")
	f("api: {listen: nowhere}\nlog: {cap_mib: 1, listen: '1.2.3.4'}\nlogging: {level: loud, format: xml}\nbogus: 1",
		"api.listen", "log.cap_mib", "log.listen", "logging.level", "logging.format", "bogus")
	for _, host := range []string{"0.0.0.0", "", "192.168.1.7", "[::]", "log.example"} {
		f("log: {listen: '"+host+":7422'}", "log.listen", "not a loopback address")
	}
	f("log: {partitions: {push: 0, fax: 2}}", "log.partitions.push", `no channel is called "fax"`)
	f("intake: {refuse: {fax: [otp], sms: [spam]}, sms_categories: [spam]}", `"fax"`, "intake.refuse.sms", "intake.sms_categories")
	f("workers: {strict: [fax]}", "workers.strict", `"fax"`)
	f("workers: {bulk_share: 2, email: {in_flight: 0}, drain: 0s, max_retries: -1}", "workers.bulk_share", "workers.email.in_flight", "workers.drain", "workers.max_retries")
	f("api: {rate: 0, burst: 0, body_mib: 5, plaintext: maybe, public_url: 'ftp://x'}", "api.rate", "api.burst", "api.body_mib", "api.plaintext", "api.public_url")
	f("providers: {config_open_for: 0s}\nhistory: {retention: 0s}\nintake: {idempotency: 0s, spill_mib: 0}\nlog: {linger: -1s}", "providers.config_open_for", "history.retention", "intake.idempotency", "intake.spill_mib", "log.linger")
	f("auth: {key_file: a, jwks_url: b}", "auth: only one of")
	f("providers: {apns: {client: frames}}", "providers.apns.client")
	f("workers: {drain: soon}", "drain")
	f("api: [1, 2", "c.yaml")
	f("log: {linger: 5}", `log.linger: "5" is not a length of time`)
	f("api: 3", `"api"`, "c.yaml")
	if _, err := Load([]string{"/no/such/file.yaml"}, []string{"NOTIFYD__API__LISTN=a:1"}, map[string]any{"log.snyc": "x"}); err == nil ||
		!strings.Contains(err.Error(), "/no/such/file.yaml") || !strings.Contains(err.Error(), "NOTIFYD__API__LISTN") || !strings.Contains(err.Error(), `did you mean "log.sync"?`) {
		t.Errorf("%v, want all three problems", err)
	}
}

func TestPrintSaysWhereAValueComesFrom(t *testing.T) {
	t.Parallel()
	path := file(t, "c.yaml", "log: {partitions: {push: 12}}\nproviders: {twilio: {accounts: [{sid: AC123, token: canary-secret, from: '+15550001'}]}}")
	l, err := Load([]string{path}, []string{"NOTIFYD__API__ADMIN="}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := l.Print()
	for _, want := range []string{
		`api\.admin: +"" +# NOTIFYD__API__ADMIN`, `api\.listen: +"127\.0\.0\.1:7420" +# default`,
		`log\.partitions: +map\[email:4 push:12 sms:4\] +# ` + path, `workers\.drain: +20s +# default`, `AC123`,
	} {
		if !matches(out, want) {
			t.Errorf("no line is like %s in\n%s", want, out)
		}
	}
	if strings.Contains(out, "canary-secret") {
		t.Errorf("a secret is printed:\n%s", out)
	}
	if n := strings.Count(out, "\n"); n != len(flatten(Default())) {
		t.Errorf("%d lines for %d keys", n, len(flatten(Default())))
	}
}

// TestProblemsSayWhere: the error about a refused value names its key, the value, the rule, and the
// file or flag that has set it.
func TestProblemsSayWhere(t *testing.T) {
	t.Parallel()
	one, two := file(t, "one.yaml", "api: {burst: many, rate: -1}\nlog: {linger: soon}"), file(t, "two.yaml", "workers: {push: {window: 0}}\nlog: {cap_mib: 1}")
	_, err := Load([]string{one, two}, []string{"NOTIFYD__TIMERS__SHARDS=5000"}, map[string]any{"log.sync": "maybe", "workers.push.ahead": "0"})
	if err == nil {
		t.Fatal("accepted")
	}
	want := []string{
		`api.burst: "many" is not a whole number; set by ` + one,
		`api.rate: -1 is not above 0; set by ` + one,
		`log.cap_mib: 1 is not at least 64; set by ` + two,
		`log.linger: "soon" is not a length of time such as 500ms, 10s or 2h; set by ` + one,
		`log.sync: "maybe" is not true or false; set by flag`,
		`timers.shards: 5000 is not between 1 and 4096; set by NOTIFYD__TIMERS__SHARDS`,
		`workers.push.ahead: 0 is not at least 1; set by flag`,
		`workers.push.window: 0 is not at least 1; set by ` + two,
	}
	got := strings.Split(err.Error(), "\n")
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", err, strings.Join(want, "\n"))
	}
}

// TestProblemsHoldNoSecret: an error about a secret does not quote it.
func TestProblemsHoldNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"providers: {twilio: {accounts: canary-secret}}",
		"providers: {twilio: {accounts: [{sid: AC1, token: [canary-secret]}]}}",
		"providers: {twilio: {accounts: [{sid: AC1, token: {a: canary-secret}}]}}",
		"providers: {twilio: {accounts: {token: canary-secret}}}",
		"providers: {twilio: {accounts: [canary-secret]}}",
	} {
		if _, err := Load([]string{file(t, "c.yaml", text)}, nil, nil); err != nil && strings.Contains(err.Error(), "canary-secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDataFolder(t *testing.T) {
	t.Parallel()
	f := func(want string, env ...string) {
		t.Helper()
		got := DataFolder(func(name string) string {
			for i := 0; i < len(env); i += 2 {
				if env[i] == name {
					return env[i+1]
				}
			}
			return ""
		}, "dev")
		if got != want {
			t.Errorf("%v: %s, want %s", env, got, want)
		}
	}
	f("/x/notifyd/dev", "XDG_DATA_HOME", "/x", "HOME", "/home/me")
	f("/home/me/.local/share/notifyd/dev", "HOME", "/home/me")
}

func matches(text, pattern string) bool { return regexp.MustCompile(pattern).MatchString(text) }
