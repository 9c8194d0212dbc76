// Package examples runs the examples against a whole notifyd.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/trigger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is the longest that a program or a delivery may take on a busy machine.
const limit = 3 * time.Minute

// TestShops: the shop in each language sends, falls back to email for a number that is dead,
// and turns a trigger into one push, however often it is called. It refuses a forged call.
func TestShops(t *testing.T) {
	// A dead number is suppressed once it has failed, so each language has a Bob of its own.
	n := startNode(t, "bob-go", "bob-python", "bob-typescript")
	// All shops are one caller, so each shop also reads what failed for the shops before it. It
	// sends those emails with the same keys as they did, but writes the JSON differently.
	for _, shops := range []struct {
		language string
		command  func(*testing.T) []string
	}{{"typescript", inTypeScript}, {"go", inGo}, {"python", inPython}} {
		language := shops.language
		t.Run(language, func(t *testing.T) {
			shop := n.start(t, shops.command(t))
			var ids []string
			for _, user := range []string{"ann", "bob-" + language, "ann"} { // ann's order comes twice
				name, _, _ := strings.Cut(user, "-")
				status, body := post(t, shop+"/orders", nil, `{"id":"`+language+`-`+name+`","user":"`+user+`","remind_in_seconds":1}`)
				var made struct {
					NotificationID string `json:"notification_id"`
					TriggerID      string `json:"trigger_id"`
				}
				if err := json.Unmarshal(body, &made); status != http.StatusOK || err != nil || made.TriggerID == "" {
					t.Fatalf("an order: %d %s", status, body)
				}
				ids = append(ids, made.NotificationID+" "+made.TriggerID)
			}
			if ids[0] != ids[2] || ids[0] == ids[1] {
				t.Errorf("the same order twice, and another one: %q", ids)
			}
			n.received(t, "sms", "Your order "+language+"-ann is on its way.")
			n.received(t, "email", "Your order "+language+"-bob is on its way.")
			n.received(t, "push", "Did order "+language+"-ann arrive?")

			// notifyd may call again under the id that it called with.
			_, called, _ := strings.Cut(ids[0], " ")
			body := `{"trigger_id":"` + called + `","payload":{"order":"` + language + `-ann","user":"ann"}}`
			good := n.signed(t, called, body)
			if status, b := post(t, shop+"/hooks/reminder", good, body); status != http.StatusNoContent {
				t.Errorf("the same call again: %d %s", status, b)
			}
			if status, _ := post(t, shop+"/hooks/reminder", good, strings.Replace(body, `"ann"`, `"bob"`, 1)); status != http.StatusUnauthorized {
				t.Errorf("a forged call: %d", status)
			}
			if status, _ := post(t, shop+"/hooks/reminder", nil, body); status != http.StatusUnauthorized {
				t.Errorf("a call without a signature: %d", status)
			}
			page, err := n.client(t).UserNotifications(t.Context(), "ann", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			pushes := 0
			for i := range page.Items {
				if c, err := n.client(t).NotificationContent(t.Context(), page.Items[i].NotificationID, ""); err == nil && strings.Contains(c.Content.Body, "Did order "+language+"-ann") {
					pushes++
				}
			}
			if pushes != 1 {
				t.Errorf("two calls of one trigger became %d pushes", pushes)
			}
		})
	}
}

func inGo(t *testing.T) []string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "shop")
	run(t, ".", "go", "build", "-o", bin, "./shop-go")
	return []string{bin}
}

func inPython(t *testing.T) []string {
	t.Helper()
	return []string{program(t, "python3"), filepath.Join("shop-python", "shop.py")}
}

func inTypeScript(t *testing.T) []string {
	t.Helper()
	node, npm, dir := program(t, "node"), program(t, "npm"), t.TempDir()
	for _, name := range []string{"shop.ts", "package.json", "package-lock.json", "tsconfig.json"} {
		b, err := os.ReadFile(filepath.Join("shop-typescript", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	install := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		without(t, "the compiler of TypeScript: %v\n%s", err, out)
	}
	run(t, dir, npm, "run", "build")
	return []string{node, filepath.Join(dir, "dist", "shop.js")}
}

// program finds a program of a language that the machine may lack.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		without(t, "%v", err)
	}
	return path
}

// without skips a language that this machine lacks. CI, which installs all, fails.
func without(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("NOTIFY_REQUIRE_LANGUAGES") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

type node struct {
	url, token, secret string
	sim                *simulator.Simulator
}

// start runs a shop until the test is over, and returns its URL. The shop's caller may have
// callbacks to it.
func (n *node) start(t *testing.T, command []string) string {
	t.Helper()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(n.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(command[0], command[1:]...) //nolint:gosec // the example; the cleanup kills it
	c.Env = append(os.Environ(), "NOTIFYD_URL="+n.url, "NOTIFYD_TOKEN_FILE="+token, "WEBHOOK_SECRET="+n.secret, "SHOP_STATE="+filepath.Join(dir, "place"))
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt) // after Kill, the reason why a shop ended could be missing
		<-read                             // Wait closes the pipe
		_ = c.Wait()
		if t.Failed() {
			t.Logf("the shop's standard error:\n%s", &errs)
		}
	})
	lines, first := bufio.NewScanner(out), make(chan string, 1)
	go func() {
		defer close(read)
		defer close(first)
		if lines.Scan() {
			first <- lines.Text()
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	url, ok := strings.CutPrefix(<-first, "listening on ")
	if !ok {
		t.Fatalf("the shop did not start: %v", lines.Err())
	}
	cl := n.client(t)
	cl.Reason = "the shop's port is known"
	caller, err := cl.Caller(t.Context(), "shop")
	if err == nil {
		caller.CallbackURLs = append(caller.CallbackURLs, url+"/hooks/")
		_, err = cl.PutCaller(t.Context(), caller)
	}
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func (n *node) signed(t *testing.T, id, body string) http.Header {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(n.secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := hook.Sign(id, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	h.Set("webhook-signature", signature)
	return h
}

func post(t *testing.T, url string, h http.Header, body string) (status int, answer []byte) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if h != nil {
		req.Header = h.Clone()
	}
	req.Close = true // no connection is left for goleak
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func (n *node) client(t *testing.T) *api.Client {
	transport := api.NewTransport(0)
	t.Cleanup(transport.CloseIdleConnections)
	return &api.Client{
		BaseURL: n.url, HTTPClient: &http.Client{Transport: transport}, Retries: 5000, Backoff: 10 * time.Millisecond,
		Token: func(context.Context) (string, error) { return n.token, nil },
	}
}

// received waits until the simulated providers took a text.
func (n *node) received(t *testing.T, channel, text string) {
	t.Helper()
	over := time.After(limit)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if slices.ContainsFunc(n.sim.Inbox(), func(m simulator.Message) bool {
			return m.Channel == channel && strings.Contains(m.Body, text) && m.Outcome == "accepted"
		}) {
			return
		}
		select {
		case <-look.C:
		case <-over:
			t.Fatalf("no %s said %q: %+v", channel, text, n.sim.Inbox())
		}
	}
}

// startNode runs a notifyd and simulated providers until the test is over. It has Ann, and
// users whose phone numbers Twilio calls invalid.
func startNode(t *testing.T, unreachable ...string) *node {
	t.Helper()
	dir := t.TempDir()
	sim, err := simulator.New(simulator.Config{Dir: dir})
	for i := range unreachable {
		if err == nil {
			_, err = sim.AddRule(simulator.Rule{Provider: simulator.Twilio, Prefix: simulator.Phone(uint64(i + 1)), Do: simulator.Fail, Code: "21211"})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	set, err := app.SimulatedProviders(dir, dir, sim.URLs(), sim.Credentials())
	if err != nil {
		t.Fatal(err)
	}
	key, err := server.NewSigningKey()
	keyFile := filepath.Join(dir, "key.pem")
	if err == nil {
		err = os.WriteFile(keyFile, key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]any{
		"data_dir": filepath.Join(dir, "data"), "auth.key_file": keyFile, "api.listen": "127.0.0.1:0", "api.admin": "", "log.listen": "127.0.0.1:0", "log.sync": false,
		"triggers.plain": true, "triggers.allow": []string{"127.0.0.0/8"}, "triggers.ports": []int{0},
	} {
		set[k] = v
	}
	loaded, err := app.Load(nil, nil, set)
	if err != nil {
		t.Fatal(err)
	}
	cfg := loaded.Config
	nd, err := app.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	simCtx, stopSim := context.WithCancel(context.Background())
	ended, simEnded := make(chan error, 1), make(chan error, 1)
	go func() { ended <- nd.Run(ctx) }()
	go func() { simEnded <- sim.Run(simCtx) }()
	t.Cleanup(func() {
		stop() // a drain still needs the providers
		err := <-ended
		stopSim()
		if err := errors.Join(err, <-simEnded); err != nil {
			t.Error(err)
		}
	})

	n := &node{url: "http://" + nd.Addr(), sim: sim, secret: trigger.NewSecret()}
	signer, err := server.OpenSigner(keyFile)
	if err == nil {
		n.token, err = signer.Sign(server.TokenSpec{
			Caller: "shop", Scopes: api.Scopes[:], Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience, TTL: time.Hour, Now: time.Now(),
		})
	}
	if err == nil {
		err = n.client(t).Ready(t.Context())
	}
	if err == nil { // with no URL yet: the shops take free ports
		err = nd.SeedCaller(t.Context(), "shop", nil, n.secret)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, user := range append([]string{"ann"}, unreachable...) {
		_, err := n.client(t).PutUser(t.Context(), api.User{UserID: user, Addresses: map[string][]string{
			"sms": {simulator.Phone(uint64(i))}, "email": {simulator.Mailbox(uint64(i))}, "push": {"apns:" + simulator.DeviceToken(uint64(i))},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}
