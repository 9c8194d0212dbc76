package provider

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/mail"
	"net/url"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// SendGridConfig configures the client of SendGrid's Mail Send API. The tagged fields are the
// section providers.sendgrid of the configuration file; only the program sets the other fields.
type SendGridConfig struct {
	URL        string   `koanf:"url" default:"https://api.sendgrid.com" doc:"base URL of the API of SendGrid"`
	KeyFile    string   `koanf:"key_file" doc:"file with the API key"`
	From       string   `koanf:"from" doc:"sender of mails whose request names no sender: an address, or Name <address>"`
	Pools      []string `koanf:"pools" doc:"names of the IP pools, each with its own rate; empty: one pool without a name"`
	Rate       float64  `koanf:"rate" default:"100" above:"0" doc:"mails a second that each pool may send, over all processes"`
	WebhookKey string   `koanf:"webhook_key_file" doc:"file with the public key that verifies SendGrid's receipts (event webhook), PEM or base64; empty: no receipts of SendGrid are accepted"`

	// Endpoint is the provider's address. The default of its BaseURL is the field URL.
	Endpoint Endpoint
	// APIKey ("SG.…") is read from KeyFile. Required.
	APIKey string
	// Concurrency is the number of concurrent requests per pool.
	Concurrency int `default:"8" min:"1"`
	// BulkShare is the part of a pool's rate and slots that bulk mails may use, 0 to 1. Default 0.5.
	BulkShare float64
	// Breaker configures the breaker of each pool. Default: the defaults of package limit.
	Breaker limit.BreakerConfig
	// Blocks tells the other processes which accounts are blocked, and until when. Default: a block
	// applies in this process only.
	Blocks limit.Blocks
	// Log gets errors when SendGrid refuses our credentials.
	Log *slog.Logger `default:"discard"`
}

func (c SendGridConfig) withDefaults() SendGridConfig {
	c = setting.Fill(c)
	c.Endpoint = c.Endpoint.withDefaults(c.URL, 30*time.Second)
	c.Log = c.Log.With("provider", "sendgrid")
	if len(c.Pools) == 0 {
		c.Pools = []string{""} // one pool without a name
	}
	return c
}

func (c SendGridConfig) validate() error {
	if err := requireFields("sendgrid", "api_key", c.APIKey, "from", c.From); err != nil {
		return err
	}
	if _, err := mail.ParseAddress(c.From); err != nil {
		return notify.Invalid("bad_from", "sendgrid.from", "must be an address, or a name and an address in angle brackets")
	}
	for _, name := range c.Pools {
		if len(name) > 64 {
			return notify.Invalid("bad_pool", "sendgrid.pools", "the name "+strconv.Quote(name)+" has "+strconv.Itoa(len(name))+" bytes; the maximum is 64 bytes")
		}
	}
	return nil
}

// SendGrid is the client of SendGrid's Mail Send API. One request has one content, up to 1,000
// receivers and one IP pool.
type SendGrid struct {
	cfg      SendGridConfig
	url      *url.URL
	auth     []string
	accounts *accounts // the pools
	rt       *http.Transport
}

// NewSendGrid checks cfg and returns a client.
func NewSendGrid(cfg SendGridConfig) (*SendGrid, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	base, err := cfg.Endpoint.parse("sendgrid")
	if err != nil {
		return nil, err
	}
	s := &SendGrid{cfg: cfg, url: withPath(base, "/v3/mail/send"), auth: []string{"Bearer " + cfg.APIKey},
		rt: cfg.Endpoint.transport()}
	var slots []accountConfig
	for _, pool := range cfg.Pools {
		name := "sendgrid"
		if pool != "" {
			name += ":" + pool
		}
		// With the default BulkShare, bulk mails may use half of the burst. That half must be enough
		// for a whole batch.
		slots = append(slots, accountConfig{limit.Account{Name: name, Rate: cfg.Rate, Burst: max(2*sendGridBatch, int(cfg.Rate))}, cfg.Concurrency})
		s.rt.MaxIdleConnsPerHost += cfg.Concurrency
	}
	if s.accounts, err = newAccounts("sendgrid", slots, cfg.BulkShare, cfg.Breaker, cfg.Blocks, cfg.Log); err != nil {
		return nil, err
	}
	s.accounts.gather = time.Second
	return s, nil
}

// Admit waits until up to n mails of a category may be sent. Mails of the category "otp" go first.
// Admit returns a permit for as many mails as may be sent now in one request. If no pool is in
// service, it does not wait and returns a *notify.Error with RetryAfter. If ctx ends first, it
// returns ctx's error. The caller releases the permit after Send.
func (s *SendGrid) Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error) {
	return s.accounts.admitFor(ctx, notify.Email, cat, min(n, sendGridBatch))
}

// Run waits until ctx ends and closes the connections.
func (s *SendGrid) Run(ctx context.Context) error {
	<-ctx.Done()
	s.rt.CloseIdleConnections()
	return nil
}

// Send delivers every item of the call and reports each item once. Addresses have no name
// ("user@example.com"). If call.Permit does not cover all items, Send waits for further permits.
func (s *SendGrid) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	m, err := s.newMailing(call)
	if err != nil {
		report(0, len(call.Items), resultOf(ctx, "sendgrid", err))
		return
	}
	parts := make([]personalization, 0, len(call.Items))
	for i := range call.Items {
		p, err := m.personalize(i)
		if err != nil {
			report.One(i, resultOf(ctx, "sendgrid", err))
			continue
		}
		parts = append(parts, p)
	}
	if permit := s.accounts.permitOf(call); permit != nil {
		n := permit.useTokens(len(parts))
		s.sendBatches(ctx, m, parts[:n:n], permit.account, report)
		parts = parts[n:]
	}
	for len(parts) > 0 {
		permit, err := s.accounts.admit(ctx, laneOf(call), call.Category, min(len(parts), sendGridBatch))
		if err != nil {
			reportAll(parts, resultOf(ctx, "sendgrid", err), report)
			return
		}
		func() {
			defer permit.Release()
			n := permit.useTokens(len(parts))
			s.sendBatches(ctx, m, parts[:n:n], permit.account, report)
			parts = parts[n:]
		}()
	}
}

// sendBatches sends the mails that a permit covers. It makes one request after the other, in the
// same slot. Normally one request is enough. More are needed if an address occurs twice, or if a
// mail needs a separate request.
func (s *SendGrid) sendBatches(ctx context.Context, m *mailing, parts []personalization, a *account, report notify.Report) {
	for len(parts) > 0 {
		var batch []personalization
		batch, parts = m.nextBatch(parts)
		s.sendBatch(ctx, m, batch, a, report)
	}
}

// sendBatch sends a batch until every mail has a result. If one receiver is bad, SendGrid refuses the
// whole request. Then sendBatch finds the bad receiver, from the answer or by splitting the batch in
// halves, and sends the other mails again. It takes no new tokens for these mails, because SendGrid
// did not count the refused mails.
func (s *SendGrid) sendBatch(ctx context.Context, m *mailing, batch []personalization, a *account, report notify.Report) {
	for len(batch) > 0 {
		batch = s.sendRequest(ctx, m, batch, a, report)
	}
}

// sendRequest makes one request and reports the mails that have a result. It returns the mails
// that must be sent again.
func (s *SendGrid) sendRequest(ctx context.Context, m *mailing, part []personalization, a *account, report notify.Report) (again []personalization) {
	ans, fail := s.post(ctx, s.rt, m, part, a)
	var v sendGridOutcome
	if fail != nil {
		v.result = fail.result("")
	} else {
		v = sendGridResult(&ans, len(part), time.Now())
	}
	if v.sender && v.result.Class == notify.ClassConfig && m.call.Content.From != "" {
		// The caller of notifyd chose a sender that the account may not use. Other requests are not
		// affected, so this error must not open the circuit breaker.
		v.result.Class, v.result.Code = notify.ClassPermanent, "sendgrid_sender"
	}
	v.result.Provider = a.name
	s.accounts.callEnded(a, v.result.Class)
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
		s.cfg.Log.Error("SendGrid refused the account or its settings; the code says why", "code", v.result.Code)
	}
	reportAll(part, v.result, report)
	return nil
}

// reportAll reports the same result for every mail of a batch.
func reportAll(batch []personalization, r notify.Result, report notify.Report) {
	for len(batch) > 0 { // report each run of consecutive items in one call; nearly always the whole batch is one run
		n := 1
		for n < len(batch) && batch[n].item == batch[0].item+n {
			n++
		}
		report(batch[0].item, batch[0].item+n, r)
		batch = batch[n:]
	}
}

// blockAll blocks every pool, because SendGrid's limits apply to the whole account.
func (s *SendGrid) blockAll(ctx context.Context, d time.Duration) time.Duration {
	longest := time.Duration(0)
	for _, a := range s.accounts.list {
		longest = max(longest, s.accounts.blockAccount(ctx, a, d))
	}
	return longest
}

func (s *SendGrid) post(ctx context.Context, rt *http.Transport, m *mailing, batch []personalization, a *account) (providerAnswer, *failure) {
	var body bytes.Buffer
	if err := m.encode(&body, batch, s.cfg.Pools[a.index]); err != nil {
		return providerAnswer{}, &failure{class: notify.ClassPermanent, code: "encoding", err: err}
	}
	h := http.Header{
		"Authorization": s.auth, "User-Agent": agentHeader, "Accept": jsonHeader,
		"Content-Type": jsonHeader, "Content-Encoding": {"gzip"},
	}
	m.trace.put(h)
	return exchange(ctx, rt, s.cfg.Endpoint.Timeout, s.url, h, body.Bytes())
}
