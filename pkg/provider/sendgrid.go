package provider

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/mail"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// SendGridConfig is how to reach SendGrid's Mail Send API. The tagged fields are the
// section providers.sendgrid of the configuration file; the others are set by the program
// only.
type SendGridConfig struct {
	URL        string   `koanf:"url" default:"https://api.sendgrid.com" doc:"base URL"`
	KeyFile    string   `koanf:"key_file" doc:"file with the API key"`
	From       string   `koanf:"from" doc:"default sender"`
	Pools      []string `koanf:"pools" doc:"IP pools, each with a rate of its own"`
	Rate       float64  `koanf:"rate" default:"100" above:"0" doc:"mails a second a pool may send"`
	WebhookKey string   `koanf:"webhook_key_file" doc:"PEM or base64 public key of the event webhook"`

	// Endpoint; BaseURL defaults to URL.
	Endpoint Endpoint
	// APIKey ("SG.…") is what KeyFile holds. Required.
	APIKey string
	// Concurrency is the number of requests at a time and pool.
	Concurrency int `default:"8" min:"1"`
	// BulkShare is the part of an account or pool that bulk may use, 0 to 1. Default 0.5.
	BulkShare float64
	// Breaker of each pool. Default: limit's.
	Breaker limit.BreakerConfig
	// Blocks is shared by all workers. Default: this process alone.
	Blocks limit.Blocks
	// Log gets refusals of our credentials.
	Log *slog.Logger `default:"discard"`
}

func (c SendGridConfig) withDefaults() SendGridConfig {
	c = setting.Fill(c)
	c.Endpoint = c.Endpoint.withDefaults(c.URL, 30*time.Second)
	c.Log = c.Log.With("provider", "sendgrid")
	if len(c.Pools) == 0 {
		c.Pools = []string{""} // without a name
	}
	return c
}

func (c SendGridConfig) validate() error {
	if err := required("sendgrid", "api_key", c.APIKey, "from", c.From); err != nil {
		return err
	}
	if _, err := mail.ParseAddress(c.From); err != nil {
		return notify.Invalid("bad_from", "sendgrid.from", "an address, or a name and an address in angle brackets")
	}
	for _, name := range c.Pools {
		if len(name) > 64 {
			return notify.Invalid("bad_pool", "sendgrid.pools", "the name of a pool has at most 64 bytes")
		}
	}
	return nil
}

// SendGrid is the client of SendGrid's Mail Send API: one call carries up to
// 1,000 receivers of one content, by one IP pool.
type SendGrid struct {
	cfg      SendGridConfig
	url      *url.URL
	auth     []string
	accounts *accounts // the pools
	rt       *http.Transport
}

// NewSendGrid checks cfg.
func NewSendGrid(cfg SendGridConfig) (*SendGrid, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	base, err := cfg.Endpoint.parse("sendgrid")
	if err != nil {
		return nil, err
	}
	s := &SendGrid{cfg: cfg, url: under(base, "/v3/mail/send"), auth: []string{"Bearer " + cfg.APIKey},
		rt: cfg.Endpoint.transport()}
	var slots []slot
	for _, pool := range cfg.Pools {
		name := "sendgrid"
		if pool != "" {
			name += ":" + pool
		}
		// (bulk may use half of a burst: it still holds a whole batch)
		slots = append(slots, slot{limit.Account{Name: name, Rate: cfg.Rate, Burst: max(2*sendGridBatch, int(cfg.Rate))}, cfg.Concurrency})
		s.rt.MaxIdleConnsPerHost += cfg.Concurrency
	}
	if s.accounts, err = newAccounts("sendgrid", slots, cfg.BulkShare, cfg.Breaker, cfg.Blocks, cfg.Log); err != nil {
		return nil, err
	}
	s.accounts.gather = time.Second
	return s, nil
}

// Admit waits until up to n mails of a category may be sent, codes first, and
// returns the permit for as many as may be sent now in one request. With no pool
// in service it returns a *notify.Error with RetryAfter at once, and ctx's error
// if ctx ends first. Release the permit after Send.
func (s *SendGrid) Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error) {
	return s.accounts.permit(ctx, notify.Email, cat, min(n, sendGridBatch))
}

// Run waits for ctx and closes the connections.
func (s *SendGrid) Run(ctx context.Context) error {
	<-ctx.Done()
	s.rt.CloseIdleConnections()
	return nil
}

// Send delivers every item of call and reports each once. Addresses are bare
// ("user@example.com"). It waits for a permit of its own for what call.Permit does
// not cover.
func (s *SendGrid) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	m, err := s.newMailing(call)
	if err != nil {
		report(0, len(call.Items), failed(ctx, "sendgrid", err))
		return
	}
	parts := make([]personalization, 0, len(call.Items))
	for i := range call.Items {
		p, err := m.personalize(i)
		if err != nil {
			report.One(i, failed(ctx, "sendgrid", err))
			continue
		}
		parts = append(parts, p)
	}
	if by := s.accounts.permitted(call); by != nil {
		n := by.use(len(parts))
		s.sendBatches(ctx, m, parts[:n:n], by.a, report)
		parts = parts[n:]
	}
	for len(parts) > 0 {
		by, err := s.accounts.admit(ctx, laneOf(call), call.Category, min(len(parts), sendGridBatch))
		if err != nil {
			reportAll(parts, failed(ctx, "sendgrid", err), report)
			return
		}
		func() {
			defer by.Release()
			n := by.use(len(parts))
			s.sendBatches(ctx, m, parts[:n:n], by.a, report)
			parts = parts[n:]
		}()
	}
}

// sendBatches sends the mails that a permit covers, one request after the other by
// the same slot: more than one only where an address is there twice.
func (s *SendGrid) sendBatches(ctx context.Context, m *mailing, parts []personalization, a *account, report notify.Report) {
	for len(parts) > 0 {
		var batch []personalization
		batch, parts = m.nextBatch(parts)
		s.sendBatch(ctx, m, batch, a, report)
	}
}

// sendBatch brings a batch to an answer. A request that is refused for one bad
// receiver was taken for none: the bad one is found, by what the answer says or
// by halves, and the others are sent again, with the tokens that no mail has used.
func (s *SendGrid) sendBatch(ctx context.Context, m *mailing, batch []personalization, a *account, report notify.Report) {
	for len(batch) > 0 {
		batch = s.sendPart(ctx, m, batch, a, report)
	}
}

// sendPart makes one request and reports what it settled. It returns what is to
// be sent again.
func (s *SendGrid) sendPart(ctx context.Context, m *mailing, part []personalization, a *account, report notify.Report) (again []personalization) {
	ans, fail := s.post(ctx, s.rt, m, part, a)
	var v sendGridVerdict
	if fail != nil {
		v.result = fail.result("")
	} else {
		v = sendGridResult(&ans, len(part), time.Now())
	}
	if v.sender && v.result.Class == notify.ClassConfig && m.call.Content.From != "" {
		// The request chose a sender the account does not have: that is no
		// reason to stop everybody else's mail.
		v.result.Class, v.result.Code = notify.ClassPermanent, "sendgrid_sender"
	}
	v.result.Provider = a.name
	s.accounts.done(a, v.result.Class)
	switch {
	case v.split && len(part) > 1:
		half := len(part) / 2
		s.sendBatch(ctx, m, part[:half:half], a, report)
		s.sendBatch(ctx, m, part[half:], a, report)
		return nil
	case len(v.bad) > 0:
		for i := range part {
			if r, bad := v.bad[i]; bad {
				r.Provider = a.name
				report.One(part[i].item, r)
			} else {
				again = append(again, part[i])
			}
		}
		return again
	case v.result.Class == notify.ClassThrottled:
		v.result.RetryAfter = s.blockAll(ctx, v.result.RetryAfter)
	case v.result.Class == notify.ClassConfig:
		s.cfg.Log.Error("account refused", "code", v.result.Code)
	}
	reportAll(part, v.result, report)
	return nil
}

func reportAll(batch []personalization, r notify.Result, report notify.Report) {
	for len(batch) > 0 { // nearly always the items of a batch follow one another
		n := 1
		for n < len(batch) && batch[n].item == batch[0].item+n {
			n++
		}
		report(batch[0].item, batch[0].item+n, r)
		batch = batch[n:]
	}
}

// blockAll blocks every pool: SendGrid's limits are of the account.
func (s *SendGrid) blockAll(ctx context.Context, d time.Duration) time.Duration {
	longest := time.Duration(0)
	for _, a := range s.accounts.list {
		longest = max(longest, s.accounts.block(ctx, a, d))
	}
	return longest
}

func (s *SendGrid) post(ctx context.Context, rt *http.Transport, m *mailing, batch []personalization, a *account) (answer, *failure) {
	var body bytes.Buffer
	if err := m.encode(&body, batch, s.cfg.Pools[a.at]); err != nil {
		return answer{}, &failure{class: notify.ClassPermanent, code: "encoding", err: err}
	}
	h := http.Header{
		"Authorization": s.auth, "User-Agent": agentHeader, "Accept": jsonHeader,
		"Content-Type": jsonHeader, "Content-Encoding": {"gzip"},
	}
	m.trace.put(h)
	return exchange(ctx, rt, s.cfg.Endpoint.Timeout, s.url, h, body.Bytes())
}
