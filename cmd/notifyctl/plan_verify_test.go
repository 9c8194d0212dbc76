package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/capacity"
)

// shipped returns the configurations that notifyd comes with, by where they are.
func shipped(t *testing.T) map[string]app.Config {
	t.Helper()
	out := map[string]app.Config{"defaults, embedded": app.Default(), "defaults, distributed": app.DefaultFor(app.EnginesDistributed)}
	files, err := filepath.Glob("../../deploy/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../notifyd.engines.yaml") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if yaml.Unmarshal(b, &doc) != nil {
			continue // several documents of Kubernetes
		}
		if data, ok := doc["data"].(map[string]any); ok { // of a ConfigMap
			text, _ := data["notifyd.yaml"].(string)
			doc = nil
			if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
				t.Fatal(err)
			}
		}
		if doc["engines"] == nil {
			continue // no configuration of notifyd
		}
		// Of the rest, files that are not here would be read.
		figures := map[string]any{
			"engines": doc["engines"], "kafka": map[string]any{"brokers": []string{"127.0.0.1:1"}}, "cassandra": map[string]any{"hosts": []string{"127.0.0.1:1"}},
			"redis": map[string]any{"addresses": []string{"127.0.0.1:1"}}, "postgres": map[string]any{"dsn_file": "dsn"},
		}
		for _, section := range []string{"log", "timers", "workers"} {
			if doc[section] != nil {
				figures[section] = doc[section]
			}
		}
		if b, err = yaml.Marshal(figures); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "notifyd.yaml")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := app.Load([]string{name}, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		out[file] = loaded.Config
	}
	if len(out) < 5 {
		t.Fatalf("%d configurations", len(out))
	}
	return out
}

// plan --verify asks a server what it is set to and does. The one of the test may send
// 20,000 mails a second from a pool, and one process is too few for the source's load.
func TestPlanVerify(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	w := aimed(t, n)
	out, errs, code := w.ctl(t.Context(), "plan", "--verify", "-o", "json", "--jq", `[.measured, (.checks[] | select(.contradicts) | .check)] | tojson`)
	if code != term.ExitFindings || strings.TrimSpace(out) != `[true,"email pool rate"]` || !strings.Contains(errs, "load: 1/s, measured") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	out, errs, code = w.ctl(t.Context(), "plan", "--verify", "--rate", "5M")
	if code != term.ExitFindings || !strings.Contains(errs, "contradict the sheet at 5M/s") {
		t.Errorf("exit %d, %s", code, errs)
	}
	for _, want := range []string{"push workers +18 +1 +start more", "push partitions +18 +6 +raise log.partitions.push", "timer shards +600 +16 ", "sms account parallel +120 +150 +ok"} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	token, err := n.signer.Sign(server.TokenSpec{
		Caller: "sre", Scopes: []string{api.ScopeObserve}, Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	rates, err := (&api.Client{BaseURL: n.url, Token: func(context.Context) (string, error) { return token, nil }}).Rates(t.Context())
	if err != nil || len(rates.Settings) != 1 || len(rates.Settings[0].Channels) != 3 || rates.Settings[0].Channels[1].Accounts == 0 {
		t.Errorf("%+v, %v", rates.Settings, err)
	}
}

// No default and no file that notifyd comes with contradicts the sheet: that of the source's
// load where partitions and shards are the sheet's, and else that of 200,000/s, which one
// process is for.
func TestShippedSettingsAgreeWithTheSheet(t *testing.T) {
	t.Parallel()
	for name, cfg := range shipped(t) {
		in := capacity.Default()
		if cfg.Log.Partitions["push"] < 18 {
			in.Rate = 200e3
		}
		for _, c := range verifyConfig(t, in, &cfg) {
			if c.Contradicts {
				t.Errorf("%s, %s/s: %s", name, capacity.Number(in.Rate), &c)
			}
		}
	}
}

func verifyConfig(t *testing.T, in capacity.Input, cfg *app.Config) []capacity.Comparison {
	t.Helper()
	f := fleetOf([]api.ProcessSettings{cfg.Settings()})
	// How many processes and accounts there are is not for a default to say.
	f.Push.Workers, f.SMS.Workers, f.Email.Workers, f.SMS.Accounts, f.Email.Accounts = 0, 0, 0, 0, 0
	f.CatchUpRate, f.CallerRate = float64(cfg.Timers.CatchUpRate), cfg.API.Rate
	cs, err := capacity.Verify(in, &f, false)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// Each figure that is made worse is found, by its name.
func TestWorseSettingsAreFound(t *testing.T) {
	t.Parallel()
	for want, worsen := range map[string]func(*app.Config){
		"push in_flight":             func(c *app.Config) { c.Workers.Push.InFlight = 9000 },
		"push in_flight at once":     func(c *app.Config) { c.Workers.Push.InFlight = 20_000 },
		"push connections x streams": func(c *app.Config) { c.Providers.APNs.Connections = 9 },
		"push window":                func(c *app.Config) { c.Workers.Push.Window = 100 },
		"push partitions":            func(c *app.Config) { c.Log.Partitions["push"] = 17 },
		"sms partitions":             func(c *app.Config) { c.Log.Partitions["sms"] = 11 },
		"email partitions":           func(c *app.Config) { c.Log.Partitions["email"] = 83 },
		"sms in_flight":              func(c *app.Config) { c.Workers.SMS.InFlight = 4000 },
		"sms account rate":           func(c *app.Config) { c.Providers.Twilio.Rate = 1001 },
		"sms account parallel":       func(c *app.Config) { c.Providers.Twilio.Concurrency = 100 },
		"email pool rate":            func(c *app.Config) { c.Providers.SendGrid.Rate = 101 },
		"catch-up rate":              func(c *app.Config) { c.Timers.CatchUpRate = 60_000 },
		"caller rate":                func(c *app.Config) { c.API.Rate = 500_000 },
	} {
		cfg := app.DefaultFor(app.EnginesDistributed)
		worsen(&cfg)
		in := capacity.Default()
		in.APIRate = 400e3
		found := ""
		for _, c := range verifyConfig(t, in, &cfg) {
			if c.Contradicts {
				found += c.Check + ";"
			}
		}
		if !strings.Contains(";"+found, ";"+want+";") {
			t.Errorf("%s: found %q", want, found)
		}
	}
}
