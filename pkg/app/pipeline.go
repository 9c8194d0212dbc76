package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/worker"
)

// PipelineConfig configures a Pipeline.
type PipelineConfig struct {
	Dir      string             // folder of all data; the caller makes and removes it
	Stub     bool               // true: providers inside this process accept every item at once; false: simulators are used
	Taken    func(*notify.Call) // called with each call that a stub accepts, see WithTaken; may be nil
	Latency  time.Duration      // latency of the simulators
	Profiles int                // number of users u00000000.. whose profiles, with a push address of 64 bytes, are stored first
	Set      map[string]any     // configuration by key; overrides the settings of the Pipeline
	Log      *slog.Logger
}

// Pipeline is a complete notifyd in this process, with providers, for one load run. It has its own
// folder, its own key, its own token and free loopback ports.
type Pipeline struct {
	Node  *Node
	URL   string // URL of the API
	Token string // a token with every scope
	URLs  simulator.URLs

	sim *simulator.Simulator // nil if Stub is true
}

// pipelineCaller is the caller that sends the load.
const pipelineCaller = "load"

// WithTaken makes the node pass to f every call that a stub provider accepts. f runs on the
// goroutines of the workers. f must not keep the call after it returns.
func WithTaken(f func(*notify.Call)) Option { return func(n *Node) { n.onStubCall = f } }

// observedProvider passes each call of its provider first to the function taken, and then to the
// provider.
type observedProvider struct {
	worker.Provider
	taken func(*notify.Call)
}

func (t observedProvider) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	t.taken(call)
	t.Provider.Send(ctx, call, report)
}

// NewPipeline builds a Pipeline. The caller must call Run or Close.
func NewPipeline(ctx context.Context, cfg PipelineConfig) (_ *Pipeline, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pipeline{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	key := filepath.Join(cfg.Dir, "key.pem")
	pem, err := server.NewSigningKey()
	if err == nil {
		err = os.WriteFile(key, pem, 0o600)
	}
	if err != nil {
		return p, err
	}
	set := map[string]any{
		"data_dir": filepath.Join(cfg.Dir, "data"), "auth.key_file": key,
		"api.listen": "127.0.0.1:0", "api.admin": "127.0.0.1:0", "log.listen": "127.0.0.1:0",
		"api.rate": 1e6, "api.burst": 1_000_000, "log.cap_mib": 4096,
		"triggers.plain": true, "triggers.allow": []string{"127.0.0.0/8", "::1/128"}, "triggers.ports": []int{0},
		"timers.jitter": "0s", // lateness is measured against the requested time
		"logging.level": "warn",
	}
	listener, err := Listen(ctx, "api.listen", "127.0.0.1:0") // opened here, because the simulators must know the URL for receipts
	if err != nil {
		return p, err
	}
	opts := []Option{WithListener(listener)}
	if cfg.Stub {
		set["providers.stub"] = true
		if cfg.Taken != nil {
			opts = append(opts, WithTaken(cfg.Taken))
		}
	} else if err := p.simulate(cfg, "http://"+listener.Addr().String(), set); err != nil {
		return p, errors.Join(err, listener.Close())
	}
	maps.Copy(set, cfg.Set)
	l, err := Load(nil, nil, set)
	if err != nil {
		return p, errors.Join(err, listener.Close())
	}
	if p.Node, err = New(l.Config, cfg.Log, opts...); err != nil {
		return p, err
	}
	p.URL = "http://" + p.Node.Addr()
	signer, err := server.OpenSigner(key)
	if err != nil {
		return p, err
	}
	p.Token, err = signer.Sign(server.TokenSpec{
		Caller: pipelineCaller, Scopes: api.Scopes[:], Issuer: l.Config.Auth.Issuer, Audience: l.Config.Auth.Audience,
		TTL: 24 * time.Hour, Now: time.Now(),
	})
	if err == nil && p.sim != nil {
		err = p.Node.SeedCaller(ctx, pipelineCaller, []string{p.URLs.Callback + "/"}, p.sim.Credentials().CallbackSecret)
	}
	if err == nil {
		err = p.seed(ctx, cfg.Profiles)
	}
	return p, err
}

// simulate makes the simulators. It also adds the settings with which notifyd uses the simulators
// to the parameter values, which is a configuration by key.
func (p *Pipeline) simulate(cfg PipelineConfig, apiURL string, values map[string]any) (err error) {
	dir := filepath.Join(cfg.Dir, "simulator")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lat := simulator.Constant(cfg.Latency)
	p.sim, err = simulator.New(simulator.Config{
		Dir: dir, APNs: simulator.APNsConfig{Latency: lat}, FCM: simulator.FCMConfig{Latency: lat},
		Twilio: simulator.TwilioConfig{Latency: lat, RetryAfter: time.Second}, SendGrid: simulator.SendGridConfig{Latency: lat},
		Callback: simulator.CallbackConfig{Latency: lat},
		Receipts: simulator.Receipts{Delay: simulator.Constant(200 * time.Millisecond), SendGridURL: apiURL + "/v1/receipts/sendgrid"},
	})
	if err != nil {
		return err
	}
	p.URLs = p.sim.URLs()
	own, err := SimulatedProviders(dir, dir, p.URLs, p.sim.Credentials())
	maps.Copy(values, own)
	return err
}

// SimulatedProviders returns the settings that make the providers use simulators. The keys of the
// simulators are in simDir. Simulators do not keep some credentials in files, and
// SimulatedProviders writes these credentials to files in the folder dir.
func SimulatedProviders(simDir, dir string, u simulator.URLs, c simulator.Credentials) (map[string]any, error) {
	accounts, err := json.Marshal(c.Twilio)
	if err != nil {
		return nil, err
	}
	for name, b := range map[string][]byte{
		"twilio.json": accounts, "sendgrid.key": []byte(c.SendGrid.APIKey), "sendgrid-webhook.key": []byte(c.SendGrid.WebhookPublicKey),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return nil, err
		}
	}
	return map[string]any{
		"providers.simulated":                 true,
		"providers.ca_file":                   filepath.Join(simDir, "ca.pem"),
		"providers.apns.url":                  u.APNs,
		"providers.apns.key_file":             filepath.Join(simDir, "apns.p8"),
		"providers.apns.key_id":               c.APNs.KeyID,
		"providers.apns.team_id":              c.APNs.TeamID,
		"providers.apns.topic":                c.APNs.Topic,
		"providers.fcm.url":                   u.FCM,
		"providers.fcm.token_url":             u.FCMToken,
		"providers.fcm.credentials_file":      filepath.Join(simDir, "fcm-service-account.json"),
		"providers.twilio.url":                u.Twilio,
		"providers.twilio.accounts_file":      filepath.Join(dir, "twilio.json"),
		"providers.sendgrid.url":              u.SendGrid,
		"providers.sendgrid.key_file":         filepath.Join(dir, "sendgrid.key"),
		"providers.sendgrid.webhook_key_file": filepath.Join(dir, "sendgrid-webhook.key"),
		"providers.sendgrid.from":             "notifyd <no-reply@example.com>",
		"providers.sendgrid.pools":            c.SendGrid.Pools,
		"providers.sendgrid.rate":             20000,
		// Callbacks are sent to the receiver of the simulators on loopback.
		"triggers.plain": true,
		"triggers.allow": []string{"127.0.0.0/8", "::1/128"},
		"triggers.ports": []int{0},
	}, nil
}

// seed stores the profiles of the users u00000000, u00000001 and so on. The parameter users is their
// number.
func (p *Pipeline) seed(ctx context.Context, users int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	const step = 10_000
	for from := 0; from < users; from += step {
		g.Go(func() error {
			list := make([]engine.Profile, 0, step)
			for u := from; u < min(from+step, users); u++ {
				list = append(list, engine.Profile{
					User:      fmt.Sprintf("u%08d", u),
					Addresses: map[string][]string{"push": {fmt.Sprintf("apns:%064x", uint64(u)*0x9e3779b97f4a7c15)}},
				})
			}
			return p.Node.embedded.store.Prefs().PutMany(ctx, list)
		})
	}
	return g.Wait()
}

// Run runs notifyd until ctx ends. The simulators run until notifyd has stopped, because notifyd calls
// them while it drains. Run closes everything that NewPipeline opened.
func (p *Pipeline) Run(ctx context.Context) error {
	simCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var g errgroup.Group
	if p.sim != nil {
		g.Go(func() error { return p.sim.Run(simCtx) })
	}
	err := p.Node.Run(ctx)
	stop()
	return errors.Join(err, g.Wait())
}

// Ready waits until the API accepts requests.
func (p *Pipeline) Ready(ctx context.Context) error {
	cl := &api.Client{BaseURL: p.URL, Token: func(context.Context) (string, error) { return p.Token, nil }}
	for {
		err := cl.Ready(ctx)
		if err == nil {
			return nil
		}
		if !notify.Sleep(ctx, 20*time.Millisecond) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Close closes everything that NewPipeline opened. Call it only if Run was not called.
func (p *Pipeline) Close() error {
	var errs []error
	if p.Node != nil {
		errs = append(errs, p.Node.Close())
	}
	if p.sim != nil {
		errs = append(errs, p.sim.Close())
	}
	return errors.Join(errs...)
}
