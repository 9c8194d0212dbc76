package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/secrets"
	"github.com/notifyd/notifyd/pkg/worker"
)

// providers holds the provider clients of a process. If a channel has no configured provider, every
// call gets the answer ClassConfig. So the channel's circuit breaker opens and an alert is raised.
type providers struct {
	apns        *provider.APNs
	fcm         *provider.FCM
	twilio      *provider.Twilio
	sendgrid    *provider.SendGrid
	sendgridKey *ecdsa.PublicKey
	byChannel   map[notify.Channel]worker.Provider
}

func newProviders(cfg *Config, blocks limit.Blocks, log *slog.Logger) (*providers, error) {
	p := &providers{byChannel: map[notify.Channel]worker.Provider{}}
	if cfg.Providers.Stub {
		for _, ch := range notify.Channels {
			p.byChannel[ch] = newStub()
		}
		return p, nil
	}
	roots, err := rootCAs(cfg.Providers.CAFile)
	if err != nil {
		return nil, err
	}
	var apns, fcm provider.Sender
	if c := cfg.Providers.APNs; c.KeyFile != "" {
		pem, err := secrets.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("providers.apns.key_file: %w", err)
		}
		if c.Key, err = provider.ParseAPNsKey(pem); err != nil {
			return nil, fmt.Errorf("providers.apns.key_file: %s: %w", c.KeyFile, err)
		}
		c.Endpoint.RootCAs, c.Log = roots, log
		if p.apns, err = provider.NewAPNs(c); err != nil {
			return nil, err
		}
		apns = p.apns
	}
	if c := cfg.Providers.FCM; c.Credentials != "" {
		b, err := secrets.ReadFile(c.Credentials)
		if err != nil {
			return nil, fmt.Errorf("providers.fcm.credentials_file: %w", err)
		}
		if c.Account, err = provider.ParseServiceAccount(b); err != nil {
			return nil, fmt.Errorf("providers.fcm.credentials_file: %s: %w", c.Credentials, err)
		}
		c.Endpoint.RootCAs, c.Log = roots, log
		if p.fcm, err = provider.NewFCM(c); err != nil {
			return nil, err
		}
		fcm = p.fcm
	}
	if apns != nil || fcm != nil {
		p.byChannel[notify.Push] = provider.NewPush(apns, fcm)
	}
	if err := p.addTwilio(cfg, blocks, roots, log); err != nil {
		return nil, err
	}
	err = p.addSendGrid(cfg, blocks, roots, log)
	return p, err
}

func (p *providers) addTwilio(cfg *Config, blocks limit.Blocks, roots *x509.CertPool, log *slog.Logger) error {
	c := cfg.Providers.Twilio
	if c.AccountsFile != "" {
		b, err := secrets.ReadFile(c.AccountsFile)
		if err != nil {
			return fmt.Errorf("providers.twilio.accounts_file: %w", err)
		}
		if err := json.Unmarshal(b, &c.Accounts); err != nil {
			return fmt.Errorf(`providers.twilio.accounts_file: %s: it must be JSON like [{"sid": "AC...", "token": "...", "from": "+1555..."}]: %w`, c.AccountsFile, err)
		}
	}
	if len(c.Accounts) == 0 {
		return nil
	}
	c.Endpoint.RootCAs, c.PublicURL = roots, cfg.publicURL()
	c.BulkShare, c.Blocks, c.Breaker, c.Log = cfg.Workers.Bulk, blocks, cfg.breaker(), log
	var err error
	if p.twilio, err = provider.NewTwilio(c); err == nil {
		p.byChannel[notify.SMS] = p.twilio
	}
	return err
}

func (p *providers) addSendGrid(cfg *Config, blocks limit.Blocks, roots *x509.CertPool, log *slog.Logger) error {
	c := cfg.Providers.SendGrid
	if c.KeyFile == "" {
		return nil
	}
	key, err := secrets.ReadFile(c.KeyFile)
	if err != nil {
		return fmt.Errorf("providers.sendgrid.key_file: %w", err)
	}
	c.Endpoint.RootCAs, c.APIKey = roots, strings.TrimSpace(string(key))
	c.BulkShare, c.Blocks, c.Breaker, c.Log = cfg.Workers.Bulk, blocks, cfg.breaker(), log
	if p.sendgrid, err = provider.NewSendGrid(c); err != nil {
		return err
	}
	p.byChannel[notify.Email] = p.sendgrid
	if c.WebhookKey == "" {
		return nil
	}
	b, err := os.ReadFile(c.WebhookKey) // a public key, so other users may read the file
	if err == nil {
		p.sendgridKey, err = provider.ParseSendGridKey(strings.TrimSpace(string(b)))
	}
	if err != nil {
		return fmt.Errorf("providers.sendgrid.webhook_key_file: %w", err)
	}
	return nil
}

// lane returns the provider of a lane's channel, or unconfigured if the channel has no provider.
func (p *providers) lane(l notify.Lane) worker.Provider {
	if s, ok := p.byChannel[l.Channel]; ok {
		return s
	}
	return unconfigured{}
}

// unconfigured is the provider of a channel without a configured provider.
type unconfigured struct{}

func (unconfigured) Send(_ context.Context, call *notify.Call, report notify.Report) {
	report(0, len(call.Items), notify.Result{Class: notify.ClassConfig, Code: "provider_not_configured"})
}

// stub accepts every item at once, so that benchmarks measure notifyd without the cost of a provider.
// It copies each address, as a real client does when it writes a request, because the worker owns the
// buffers.
type stub struct{ requests *sync.Pool }

func newStub() stub { return stub{&sync.Pool{New: func() any { return new([]byte) }}} }

func (s stub) Send(_ context.Context, call *notify.Call, report notify.Report) {
	res := notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "stub"}
	request := s.requests.Get().(*[]byte)
	defer s.requests.Put(request)
	for i := range call.Items {
		*request = append((*request)[:0], call.Items[i].Address...)
	}
	report(0, len(call.Items), res)
}

// routes returns the names of a channel's providers, and a function that finds the provider of an
// address.
func (p *providers) routes(ch notify.Channel) worker.Routes {
	switch ch {
	case notify.Push:
		return worker.Routes{Names: []string{"apns", "fcm"}, Of: func(a []byte) int {
			if len(a) > 4 && string(a[:4]) == "fcm:" { // one comparison of bytes; bytes.HasPrefix would be a function call
				return 1
			}
			return 0
		}}
	case notify.SMS:
		return worker.Routes{Names: []string{"twilio"}, Of: func([]byte) int { return 0 }}
	}
	return worker.Routes{Names: []string{"sendgrid"}, Of: func([]byte) int { return 0 }}
}

// routeNames returns the names of the providers of all channels.
func (p *providers) routeNames() (names []string) {
	for _, ch := range notify.Channels {
		names = append(names, p.routes(ch).Names...)
	}
	return names
}

// backgroundParts returns the Run functions of the clients, by the name of the provider.
func (p *providers) backgroundParts() map[string]func(context.Context) error {
	out := map[string]func(context.Context) error{}
	if p.apns != nil {
		out["apns"] = p.apns.Run
	}
	if p.fcm != nil {
		out["fcm"] = p.fcm.Run
	}
	if p.twilio != nil {
		out["twilio"] = p.twilio.Run
	}
	if p.sendgrid != nil {
		out["sendgrid"] = p.sendgrid.Run
	}
	return out
}

// rootCAs returns the system's CAs together with the CAs in a PEM file. It returns nil if no file
// is given.
func rootCAs(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("providers.ca_file: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("providers.ca_file: the file %s contains no certificate", file)
	}
	return pool, nil
}

// withBody returns a copy of a request. The copy has the parameter body as its body, so the body
// can be read again.
func withBody(r *http.Request, body []byte) *http.Request {
	c := r.Clone(r.Context())
	c.Body = io.NopCloser(bytes.NewReader(body))
	c.ContentLength = int64(len(body))
	return c
}
