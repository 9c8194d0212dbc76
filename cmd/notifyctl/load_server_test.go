package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/term"
)

// aimed is a world whose context is a node.
func aimed(t *testing.T, n *node) *world {
	t.Helper()
	w := newWorld(t, "")
	delete(w.env, "NOTIFYCTL_SERVER")
	w.env["XDG_DATA_HOME"] = t.TempDir()
	token, err := n.signer.Sign(server.TokenSpec{
		Caller: "load", Scopes: api.Scopes[:], Issuer: n.cfg.Auth.Issuer, Audience: n.cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	cs, err := term.OpenContexts(func(name string) string { return w.env[name] })
	if err == nil {
		err = cs.Set("test", term.Context{Server: n.url, TokenFile: file, Simulators: n.control})
	}
	if err == nil {
		err = cs.Use("test")
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func scenarioFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// measure runs a scenario and returns its result; the run may exit with one of codes.
func measure(t *testing.T, w *world, file string, args ...string) load.Result {
	t.Helper()
	out, errs, code := w.ctl(t.Context(), append([]string{"load", "run", file, "--no-calibration", "--no-keep", "-q", "-o", "json"}, args...)...)
	var r load.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("exit %d, %s: %v\n%.500s", code, errs, err, out)
	}
	if code != 0 {
		t.Errorf("exit %d: %s, %+v", code, errs, r.Ledger)
	}
	return r
}

// TestLoadAServer: each test in it has the node, and so its ledger, for itself.
func TestLoadAServer(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	w := aimed(t, n)

	t.Run("kafka", func(t *testing.T) { //nolint:paralleltest // see above
		file := scenarioFile(t, `
name: records
steps: [{target: kafka, count: 1500, size: 50, workers: 4, users: 700, addresses: true, payload: {text: 'Say "hi" \ to Zoë'},
  mix: [{weight: 2, channel: push, category: transactional}, {weight: 1, channel: email, category: transactional}]}]
drain: 10m
thresholds: [lost == 0, duplicates == 0, unexpected == 0, failed == 0]
`)
		r := measure(t, w, file, "--kafka", n.kafka)
		if l := &r.Ledger; r.Totals.Acked != 1500 || l.Delivered != 1500 || l.Expected != 1500 || !l.Checked {
			t.Errorf("accepted %d, %+v", r.Totals.Acked, l)
		}
		if e := r.Steps[0].EndToEnd; e.Count != 1500 || e.Min <= 0 {
			t.Errorf("end to end: %+v", e)
		}
		_, errs, code := w.ctl(t.Context(), "load", "run", file, "--no-keep")
		if code != term.ExitUsage || !strings.Contains(errs, "--kafka HOST:PORT") {
			t.Errorf("without brokers: exit %d, %s", code, errs)
		}
		if _, errs, code = w.ctl(t.Context(), "load", "run", file, "--no-keep", "--kafka", "192.0.2.1:9092"); code != term.ExitUsage || !strings.Contains(errs, "loopback") {
			t.Errorf("elsewhere: exit %d, %s", code, errs)
		}
	})

	t.Run("record", func(t *testing.T) { testRecord(t, w, n) }) //nolint:paralleltest // see above

	t.Run("grant", func(t *testing.T) { //nolint:paralleltest // see above
		file := scenarioFile(t, `
name: granted
steps: [{target: http-single, rate: 100, count: 50, workers: 4, users: 100, addresses: true}]
drain: 10m
thresholds: [lost == 0, duplicates == 0, failed == 0]
`)
		token := filepath.Join(t.TempDir(), "grant")
		out, errs, code := w.ctl(t.Context(), "load", "grant", "--rate", "200", "--targets", "push", "--providers", "simulated", "--out", token, "-o", "json")
		var g api.LoadGrant
		if err := json.Unmarshal([]byte(out), &g); err != nil || code != 0 || g.State != api.GrantActive || g.Token != "" {
			t.Fatalf("exit %d, %v, %s%s", code, err, out, errs)
		}
		if r := measure(t, w, file, "--grant", token); r.Ledger.Delivered != 50 {
			t.Errorf("%+v", r.Ledger)
		}
		if _, errs, code := w.ctl(t.Context(), "load", "run", file, "--no-keep", "--grant", token, "--rate", "300"); code != term.ExitUsage || !strings.Contains(errs, "load_grant_exceeded") {
			t.Errorf("above its rate: exit %d, %s", code, errs)
		}
		if _, errs, code := w.ctl(t.Context(), "load", "grant", "--rate", "1", "--targets", "push", "--providers", "stub"); code == 0 || !strings.Contains(errs, "load_providers") {
			t.Errorf("less than what is called: exit %d, %s", code, errs)
		}
		if _, errs, code := w.ctl(t.Context(), "load", "revoke", g.ID); code != 0 {
			t.Errorf("exit %d, %s", code, errs)
		}
		if _, errs, code := w.ctl(t.Context(), "load", "run", file, "--no-keep", "--grant", token); code == 0 || !strings.Contains(errs, "load_grant_revoked") {
			t.Errorf("revoked: exit %d, %s", code, errs)
		}
		if out, errs, code := w.ctl(t.Context(), "load", "grants"); code != 0 || !strings.Contains(out, "revoked") {
			t.Errorf("exit %d, %s%s", code, out, errs)
		}
	})

	const objective = `
name: search
steps: [{target: http-single, rate: 100, users: 1k, addresses: true}]
duration: 3s
objective: {from: 50, most: 100, hold: 5s, confirm: 5s, within: 0.5, holds: [HOLDS]}
`
	holds := func(t *testing.T, conditions string) string {
		return scenarioFile(t, strings.Replace(objective, "HOLDS", conditions, 1))
	}
	t.Run("capacity", func(t *testing.T) { //nolint:paralleltest // see above
		file := holds(t, "lost == 0, failed == 0, backlog_slope < 0.5")
		for _, mode := range []string{"context", "pipeline"} {
			out, errs, code := w.ctl(t.Context(), "load", "capacity", file, "--mode", mode, "--no-calibration")
			if code != 0 || !strings.Contains(out, "capacity    100/s\nlimit       most: stopped at objective.most") || !strings.Contains(errs, "100/s  holds (confirmation)") {
				t.Errorf("%s: exit %d\n%s\n%s", mode, code, out, errs)
			}
		}
	})
	t.Run("capacity of nothing", func(t *testing.T) { //nolint:paralleltest // see above
		out, errs, code := w.ctl(t.Context(), "load", "capacity", holds(t, "response.p99 < 1ns"), "--no-calibration", "-o", "json")
		var found load.Capacity
		if err := json.Unmarshal([]byte(out), &found); err != nil || code != term.ExitSLO || found.Rate != 0 || found.Limit != load.LimitNothing {
			t.Errorf("exit %d, %v\n%s\n%s", code, err, out, errs)
		}
		if n := len(found.Trials); n == 0 || found.Trials[n-1].Rate < 20 || !strings.Contains(found.Trials[n-1].Why, "response.p99 < 1ns") {
			t.Errorf("%+v", found.Trials)
		}
	})
	t.Run("capacity without a ledger", func(t *testing.T) { //nolint:paralleltest // see above
		_, errs, code := w.ctl(t.Context(), "load", "capacity", holds(t, "lost == 0"), "--no-calibration", "--no-check")
		if code != term.ExitUsage || !strings.Contains(errs, `"lost == 0" has no value`) {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
}

// testRecord sends messages of several kinds and makes a scenario of each source that has
// them. Each sends as many again, and none has a user, a text or a caller.
func testRecord(t *testing.T, w *world, n *node) {
	for _, args := range [][]string{{"caller", "set", "load", "--callback-url", n.callback, "--yes"}, {"caller", "rotate-secret", "load", "--yes"}} {
		if _, errs, code := w.ctl(t.Context(), args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, errs)
		}
	}
	since := time.Now()
	r := measure(t, w, scenarioFile(t, `
name: day
duration: 2s
steps:
  - {name: singles, target: http-single, rate: 100, users: {count: 50, pick: zipf}, category: alert, addresses: true, payload: {bytes: 30, max: 70}}
  - {name: batches, target: http-batch, rate: 300, size: 60, users: 5k, category: digest, addresses: true}
  - {name: fans, target: http-fanout, rate: 1k, size: 500, users: 5k, addresses: true}
  - {name: hooks, target: trigger, rate: 10, scheduled: {after: 100ms}}
drain: 5m
`))
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Totals.Acked != s.Totals.Intended {
			t.Errorf("%s: %d of %d were accepted, %v", s.Name, s.Totals.Acked, s.Totals.Intended, r.Errors)
		}
	}
	for source, want := range map[string]struct {
		args  []string
		steps string
	}{
		"log":     {[]string{"--kafka", n.kafka}, "batch-push-digest 10 600 fanout-push-marketing 4 2000 single-push-alert 200 200"},
		"history": {nil, "batch-push-digest 10 600 fanout-push-marketing 4 2000 single-push-alert 200 200 trigger 20 20"},
	} {
		file := filepath.Join(t.TempDir(), source+".yaml")
		out, errs, code := w.ctl(t.Context(), append([]string{
			"load", "record", "--since", since.UTC().Format(time.RFC3339Nano), "--out", file,
			"-o", "json", "--jq", `[.items[] | "\(.step) \(.requests) \(.messages)"] | join(" ")`,
		}, want.args...)...)
		if strings.TrimSpace(out) != want.steps || code != 0 {
			t.Errorf("%s: exit %d, %s\n%s, want\n%s", source, code, errs, out, want.steps)
		}
		if _, errs, code := w.ctl(t.Context(), "load", "validate", file); code != 0 {
			t.Errorf("%s: exit %d, %s", source, code, errs)
		}
		names, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
		if err != nil || len(names) < 4 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"u0000", "apns:", "Hello", "on its way", "ntf_"} {
				if strings.Contains(string(b), secret) {
					t.Errorf("%s: %s has %q", source, filepath.Base(name), secret)
				}
			}
		}
	}
}
