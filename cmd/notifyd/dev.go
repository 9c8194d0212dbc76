package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
)

type devOptions struct {
	configFlags
	data      string
	port      int
	ephemeral bool
	fresh     bool
	seed      string
	context   string
	ledger    string
	simDir    string
	latency   time.Duration
}

// running is what a dev server leaves in its folder for the next one to find.
type running struct {
	PID   int    `json:"pid"`
	API   string `json:"api"`
	Inbox string `json:"inbox"`
}

func newDev(p *program) *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use: "dev", Short: "Run everything in one process, with simulated providers", Args: cobra.NoArgs,
		Long: `dev runs notifyd with its embedded log and store, and beside it simulated
providers that speak the real protocols of APNs, FCM, Twilio and SendGrid. It makes
a signing key and a token, and a context "dev" for notifyctl. Nothing listens
beyond loopback. Data is kept between runs; --fresh wipes it, --ephemeral keeps
none.`,
		RunE: func(c *cobra.Command, _ []string) error { return runDev(c.Context(), p, &o) },
	}
	o.add(c)
	f := c.Flags()
	f.StringVar(&o.data, "data-dir", "", "folder of the data (default: $XDG_DATA_HOME/notifyd/dev)")
	f.IntVar(&o.port, "port", 7420, "port of the API; 0: free ports for everything")
	f.BoolVar(&o.ephemeral, "ephemeral", false, "keep nothing: data in a temporary folder, removed at the end")
	f.BoolVar(&o.fresh, "fresh", false, "wipe the data first")
	f.StringVar(&o.seed, "seed", "demo", "users to begin with: demo or none")
	f.StringVar(&o.context, "context", "dev", "name of the notifyctl context to write; empty: none")
	f.StringVar(&o.ledger, "ledger-file", "", "the simulators append every receiver they were sent to this file")
	f.StringVar(&o.simDir, "simulator-dir", "", "use simulators that run elsewhere (notifyd simulate --dir)")
	f.DurationVar(&o.latency, "latency", 5*time.Millisecond, "how long simulated providers take to answer")
	return c
}

func runDev(ctx context.Context, p *program, o *devOptions) error {
	began := time.Now()
	dir, cleanup, err := devFolder(p, o)
	if err != nil {
		return err
	}
	defer cleanup()
	if r, ok := alreadyRunning(ctx, dir); ok {
		fmt.Fprintf(p.err, "notifyd dev is already running (pid %d) on this data\n  API    %s\n  Inbox  %s\nStop it with: kill %d\n", r.PID, r.API, r.Inbox, r.PID)
		return nil
	}
	ports, err := devPorts(ctx, o.port)
	if err != nil {
		return err
	}
	apiURL := "http://" + ports.api

	var sim *simulator.Simulator
	simDir := o.simDir
	control := ""
	if simDir == "" {
		simDir = filepath.Join(dir, "simulator")
		sim, err = simulator.New(simulator.Config{
			Dir: simDir, ControlAddr: ports.control, LedgerFile: o.ledger,
			APNs: simulator.APNsConfig{Latency: simulator.Constant(o.latency)},
			FCM:  simulator.FCMConfig{Latency: simulator.Constant(o.latency)},
			Twilio: simulator.TwilioConfig{
				Latency: simulator.Constant(o.latency), RetryAfter: time.Second,
			},
			SendGrid: simulator.SendGridConfig{Latency: simulator.Constant(o.latency)},
			Callback: simulator.CallbackConfig{Addr: ports.callback, Latency: simulator.Constant(o.latency)},
			Receipts: simulator.Receipts{Delay: simulator.Constant(200 * time.Millisecond), SendGridURL: apiURL + "/v1/receipts/sendgrid"},
		})
		if err != nil {
			return err
		}
		defer sim.Close()
	}
	extra, urls, secret, err := devConfig(dir, simDir, ports)
	if err != nil {
		return err
	}
	control = urls.Control
	l, err := o.load(p, extra)
	if err != nil {
		return err
	}
	var last recent
	log := logger(io.MultiWriter(p.err, &last), &l.Config)
	n, err := app.New(l.Config, log)
	if err != nil {
		return err
	}
	n.Describe(app.About{Config: l.Print(), Log: last.Lines})
	token, err := devContext(p, o, dir, apiURL, control)
	if err == nil {
		// Before anything runs: a callback that was left from an earlier start
		// must be signed as the simulated receiver expects.
		err = n.SeedCaller(ctx, "dev", []string{urls.Callback + "/"}, secret)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}

	g, gctx := errgroup.WithContext(ctx)
	simCtx, stopSim := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSim()
	if sim != nil {
		g.Go(func() error { return sim.Run(simCtx) })
	}
	g.Go(func() error {
		defer stopSim() // after notifyd has drained, which needs its providers
		return n.Run(gctx)
	})
	g.Go(func() error {
		if err := devReady(gctx, p, o, dir, apiURL, token, n, urls, began); err != nil && gctx.Err() == nil {
			return err
		}
		return nil
	})
	err = g.Wait()
	_ = os.Remove(filepath.Join(dir, "running.json"))
	if !interrupted(ctx, err) {
		return err
	}
	return nil
}

func devFolder(p *program, o *devOptions) (dir string, cleanup func(), err error) {
	cleanup = func() {}
	if o.ephemeral {
		if dir, err = os.MkdirTemp("", "notifyd-dev-"); err != nil {
			return "", cleanup, app.BadDataDir(os.TempDir(), err)
		}
		return dir, func() { _ = os.RemoveAll(dir) }, nil
	}
	if dir = o.data; dir == "" {
		dir = app.DataFolder(p.getenv, "dev")
	}
	if o.fresh {
		if _, busy := alreadyRunning(context.Background(), dir); busy {
			return "", cleanup, cli.Usage("--fresh: a server is running on %s; stop it first", dir)
		}
		// Only what notifyd made: a wrong --data-dir must not cost anybody a folder.
		for _, name := range []string{"data", "simulator", "key.pem", "token", "running.json"} {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return "", cleanup, err
			}
		}
	}
	return dir, cleanup, app.MakeDataDir(dir)
}

// alreadyRunning finds a live server on the same data.
func alreadyRunning(ctx context.Context, dir string) (r running, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, "running.json"))
	if err != nil || json.Unmarshal(b, &r) != nil {
		return r, false
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.API+"/healthz", nil)
	if err != nil {
		return r, false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, false
	}
	resp.Body.Close()
	return r, resp.StatusCode == http.StatusOK
}

type devAddrs struct{ api, admin, kafka, control, callback string }

// devPorts are five neighbours, so that they are easy to remember, or free ones.
func devPorts(ctx context.Context, port int) (a devAddrs, err error) {
	addr := func(n int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n)) }
	if port != 0 {
		return devAddrs{addr(port), addr(port + 1), addr(port + 2), addr(port + 3), addr(port + 4)}, nil
	}
	for _, to := range []*string{&a.api, &a.admin, &a.kafka} {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return a, err
		}
		defer l.Close() //nolint:gocritic // all are held until all are chosen
		*to = l.Addr().String()
	}
	a.control, a.callback = "127.0.0.1:0", "127.0.0.1:0"
	return a, nil
}

// devConfig points the providers at the simulators, by the files they keep.
func devConfig(dir, simDir string, ports devAddrs) (_ map[string]any, urls simulator.URLs, secret string, err error) {
	var s struct {
		URLs        simulator.URLs        `json:"urls"`
		Credentials simulator.Credentials `json:"credentials"`
	}
	b, err := os.ReadFile(filepath.Join(simDir, "simulator.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return nil, s.URLs, "", fmt.Errorf("simulators: %w", err)
	}
	secrets := filepath.Join(dir, "data")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		return nil, s.URLs, "", err
	}
	accounts, err := json.Marshal(s.Credentials.Twilio)
	if err != nil {
		return nil, s.URLs, "", err
	}
	files := map[string][]byte{
		"twilio.json": accounts, "sendgrid.key": []byte(s.Credentials.SendGrid.APIKey),
		"sendgrid-webhook.key": []byte(s.Credentials.SendGrid.WebhookPublicKey),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(secrets, name), data, 0o600); err != nil {
			return nil, s.URLs, "", err
		}
	}
	key := filepath.Join(dir, "key.pem")
	if _, err := os.Stat(key); errors.Is(err, os.ErrNotExist) {
		if err := makeKey(key); err != nil {
			return nil, s.URLs, "", err
		}
	}
	return map[string]any{
		"data_dir":   secrets,
		"api.listen": ports.api, "api.admin": ports.admin, "log.listen": ports.kafka,
		"auth.key_file":                       key,
		"providers.ca_file":                   filepath.Join(simDir, "ca.pem"),
		"providers.apns.url":                  s.URLs.APNs,
		"providers.apns.key_file":             filepath.Join(simDir, "apns.p8"),
		"providers.apns.key_id":               s.Credentials.APNs.KeyID,
		"providers.apns.team_id":              s.Credentials.APNs.TeamID,
		"providers.apns.topic":                s.Credentials.APNs.Topic,
		"providers.fcm.url":                   s.URLs.FCM,
		"providers.fcm.token_url":             s.URLs.FCMToken,
		"providers.fcm.credentials_file":      filepath.Join(simDir, "fcm-service-account.json"),
		"providers.twilio.url":                s.URLs.Twilio,
		"providers.twilio.accounts_file":      filepath.Join(secrets, "twilio.json"),
		"providers.sendgrid.url":              s.URLs.SendGrid,
		"providers.sendgrid.key_file":         filepath.Join(secrets, "sendgrid.key"),
		"providers.sendgrid.webhook_key_file": filepath.Join(secrets, "sendgrid-webhook.key"),
		"providers.sendgrid.from":             "notifyd <no-reply@example.com>",
		"providers.sendgrid.pools":            s.Credentials.SendGrid.Pools,
		"providers.sendgrid.rate":             20000,
		"triggers.plain":                      true,
		"triggers.allow":                      []string{"127.0.0.0/8", "::1/128"},
		"triggers.ports":                      []int{0},
		"logging.level":                       "warn",
		"logging.format":                      "text",
	}, s.URLs, s.Credentials.CallbackSecret, nil
}

// devContext signs a token for the developer and writes notifyctl's context.
func devContext(p *program, o *devOptions, dir, apiURL, control string) (token string, err error) {
	d := app.Default()
	token, err = sign(filepath.Join(dir, "key.pem"), "dev", d.Auth.Issuer, d.Auth.Audience, api.Scopes[:], 30*24*time.Hour)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	if o.context == "" {
		return token, nil
	}
	cs, err := cli.OpenContexts(p.getenv)
	if err != nil {
		return "", err
	}
	if err := cs.Set(o.context, cli.Context{Server: apiURL, TokenFile: file, Simulators: control}); err != nil {
		return "", err
	}
	return token, cs.Use(o.context)
}

// patience is how long a dev server may take to be ready before it says why it
// is not.
const patience = 5 * time.Second

// awaitReady waits until ready returns nil, and returns false when ctx ends
// before. After a while it says what is in the way, and again when that is
// another thing. It goes on waiting: room on a disk, say, may come back.
func awaitReady(ctx context.Context, w io.Writer, ready func(context.Context) error) bool {
	began, said := time.Now(), ""
	for {
		err := ready(ctx)
		if err == nil {
			return true
		}
		if took := time.Since(began); took >= patience {
			if text := reasonOf(err); text != said {
				fmt.Fprintf(w, "notifyd dev is not ready after %.0fs: %s\n  It goes on, and refuses requests until that is over; notifyctl doctor tells more.\n", took.Seconds(), text)
				said = text
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
}

// reasonOf is an error with its code, without what changes from one time to the
// next, like how long it has been so.
func reasonOf(err error) string {
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code == "" || e.Msg == "" {
		return err.Error()
	}
	return e.Msg + " (" + e.Code + ")"
}

// devReady waits for the API, seeds users and prints the banner.
func devReady(ctx context.Context, p *program, o *devOptions, dir, apiURL, token string, n *app.Node, urls simulator.URLs, began time.Time) error {
	cl := &api.Client{BaseURL: apiURL, Token: func(context.Context) (string, error) { return token, nil }, Retries: 3}
	// The node first: it knows why, and a server logs what it refuses.
	if !awaitReady(ctx, p.err, func(ctx context.Context) error {
		if err := n.Ready(ctx); err != nil {
			return err
		}
		return cl.Ready(ctx)
	}) {
		return nil
	}
	if o.seed == "demo" {
		for _, u := range demoUsers() {
			if _, err := cl.PutUser(ctx, u); err != nil {
				return fmt.Errorf("seed: %w", err)
			}
		}
	}
	b, err := json.Marshal(running{os.Getpid(), apiURL, urls.Inbox})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "running.json"), b, 0o600); err != nil {
		return err
	}
	kept := "kept; --fresh wipes it, --ephemeral keeps none"
	if o.ephemeral {
		kept = "temporary, removed at the end"
	}
	var w strings.Builder
	fmt.Fprintf(&w, "notifyd %s dev   ready in %.1fs   (simulated providers, loopback only)\n", version, time.Since(began).Seconds())
	fmt.Fprintf(&w, "  API       %s   description: %s/openapi.yaml\n", apiURL, apiURL)
	fmt.Fprintf(&w, "  Inbox     %s   what the simulated providers were sent\n", urls.Inbox)
	fmt.Fprintf(&w, "  Callbacks %s/   a URL for triggers; notifyctl sim callbacks shows its calls\n", urls.Callback)
	fmt.Fprintf(&w, "  Metrics   http://%s/metrics\n", n.Admin())
	fmt.Fprintf(&w, "  Kafka     %s   kcat -b %s -C -t notifications-push\n", n.Kafka(), n.Kafka())
	fmt.Fprintf(&w, "  Data      %s   (%s)\n", dir, kept)
	if o.seed == "demo" {
		fmt.Fprintf(&w, "  Seeded    %d users: ann, bob, cleo, dan (quiet hours), eve (no marketing), user-000 ... user-099\n", len(demoUsers()))
	}
	if o.context != "" {
		fmt.Fprintf(&w, "  Context   %q written and chosen for notifyctl\n", o.context)
	}
	fmt.Fprintf(&w, "Try:  notifyctl send --channel push --user ann --title Hello --body 'It works' --wait\n")
	fmt.Fprintf(&w, "      notifyctl ls --user ann        notifyctl tail\n")
	_, err = fmt.Fprint(p.out, w.String())
	return err
}

// demoUsers are the users a dev server begins with.
func demoUsers() []api.User {
	addresses := func(i uint64) map[string][]string {
		return map[string][]string{
			"push": {"apns:" + simulator.DeviceToken(i)}, "sms": {simulator.Phone(i)}, "email": {simulator.Mailbox(i)},
		}
	}
	us := []api.User{
		{UserID: "ann", Addresses: addresses(1)},
		{UserID: "bob", Addresses: map[string][]string{
			"push": {"apns:" + simulator.DeviceToken(2), "fcm:" + simulator.RegistrationToken(2)},
			"sms":  {simulator.Phone(2)}, "email": {simulator.Mailbox(2)},
		}},
		{UserID: "cleo", Addresses: map[string][]string{"push": {"fcm:" + simulator.RegistrationToken(3)}, "email": {simulator.Mailbox(3)}}},
		{UserID: "dan", Addresses: addresses(4), QuietHours: &api.QuietHours{From: "22:00", To: "07:00"}, TimeZone: "Europe/Berlin"},
		{UserID: "eve", Addresses: addresses(5), OptOut: []string{"marketing"}},
	}
	for i := range uint64(100) {
		us = append(us, api.User{UserID: fmt.Sprintf("user-%03d", i), Addresses: addresses(100 + i)})
	}
	return us
}

func makeKey(path string) error {
	key, err := server.NewSigningKey()
	if err != nil {
		return err
	}
	return writeDurably(path, key)
}

// writeDurably makes a file that is whole or not there after a power cut: half
// a key would keep notifyd from starting, and another key ends all tokens.
func writeDurably(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing is there once it was renamed
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func sign(key, caller, issuer, audience string, scopes []string, ttl time.Duration) (string, error) {
	s, err := server.OpenSigner(key)
	if err != nil {
		return "", err
	}
	return s.Sign(server.TokenSpec{Caller: caller, Scopes: scopes, Issuer: issuer, Audience: audience, TTL: ttl, Now: time.Now()})
}
