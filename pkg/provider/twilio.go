package provider

import (
	"cmp"
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TwilioAccount is one account of the pool.
type TwilioAccount struct {
	// SID of the account ("AC…"). Required.
	SID string
	// AuthToken. Required: it also signs the receipts.
	AuthToken string
	// APIKey and APISecret ("SK…") are used for calls where given.
	APIKey, APISecret string
	// From is the sender, or MessagingService ("MG…") picks one. One of them is
	// needed here or in TwilioConfig; a content's own From goes before both.
	From, MessagingService string
	// Rate of calls per second. Default TwilioConfig.Rate.
	Rate float64
	// Concurrency is the number of calls at a time. Default
	// TwilioConfig.Concurrency.
	Concurrency int
}

// TwilioConfig is how to reach Twilio's Programmable Messaging.
type TwilioConfig struct {
	// Endpoint; BaseURL defaults to https://api.twilio.com.
	Endpoint Endpoint
	// Accounts to spread calls over. At least one.
	Accounts []TwilioAccount
	// From and MessagingService: of accounts that name none.
	From, MessagingService string
	// Rate of calls per second and account. Default 1,000.
	Rate float64
	// Concurrency is the number of calls at a time and account: what Twilio
	// limits, reportedly to 100. Default 80, since a call ends there a little
	// after its answer.
	Concurrency int
	// PublicURL is where Twilio reaches us, for receipts. Default: none are
	// asked for.
	PublicURL string
	// BulkShare is the part of an account or pool that bulk may use, 0 to 1. Default 0.5.
	BulkShare float64
	// Breaker of each account. Default: limit's.
	Breaker limit.BreakerConfig
	// Blocks is shared by all workers. Default: this process alone.
	Blocks limit.Blocks
	// Confirm: default ConfirmReceipt.
	Confirm Confirmation
	// Log gets accounts that are refused. Default: nowhere.
	Log *slog.Logger
}

func (c TwilioConfig) withDefaults() TwilioConfig {
	c.Endpoint = c.Endpoint.withDefaults("https://api.twilio.com", 10*time.Second)
	if c.Rate == 0 {
		c.Rate = 1000
	}
	c.Concurrency = cmp.Or(c.Concurrency, 80)
	c.Confirm = c.Confirm.or(ConfirmReceipt)
	c.Log = orDiscard(c.Log).With("provider", "twilio")
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	c.Accounts = append([]TwilioAccount(nil), c.Accounts...)
	for i := range c.Accounts {
		a := &c.Accounts[i]
		if a.Rate == 0 {
			a.Rate = c.Rate
		}
		a.Concurrency = cmp.Or(a.Concurrency, c.Concurrency)
		if a.From == "" && a.MessagingService == "" {
			a.From, a.MessagingService = c.From, c.MessagingService
		}
	}
	return c
}

func (c TwilioConfig) validate() error {
	if len(c.Accounts) == 0 {
		return notify.Invalid("missing_setting", "twilio.accounts", "at least one account is needed")
	}
	for i, a := range c.Accounts {
		at := "twilio.accounts[" + strconv.Itoa(i) + "]"
		switch {
		case a.SID == "" || a.AuthToken == "":
			return notify.Invalid("missing_setting", at, "sid and auth_token are needed")
		case (a.APIKey == "") != (a.APISecret == ""):
			return notify.Invalid("missing_setting", at, "api_key and api_secret go together")
		case a.Rate <= 0 || a.Concurrency < 1:
			return notify.Invalid("bad_rate", at, "rate and concurrency are positive")
		}
	}
	return nil
}

// Twilio is the client of Twilio's Programmable Messaging: one call per message
// over kept connections, spread over a pool of accounts.
type Twilio struct {
	cfg      TwilioConfig
	accounts *accounts
	urls     []*url.URL // of each account
	auth     [][]string
	rt       *http.Transport
}

// NewTwilio checks cfg.
func NewTwilio(cfg TwilioConfig) (*Twilio, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	base, err := cfg.Endpoint.parse("twilio")
	if err != nil {
		return nil, err
	}
	t := &Twilio{cfg: cfg, rt: cfg.Endpoint.transport()}
	var slots []slot
	for _, a := range cfg.Accounts {
		// A burst of a tenth of a second: enough for a claim window of 50.
		slots = append(slots, slot{limit.Account{Name: "twilio:" + a.SID, Rate: a.Rate, Burst: max(2, int(a.Rate/10))}, a.Concurrency})
		t.urls = append(t.urls, under(base, "/2010-04-01/Accounts/"+a.SID+"/Messages.json"))
		user, secret := a.SID, a.AuthToken
		if a.APIKey != "" {
			user, secret = a.APIKey, a.APISecret
		}
		t.auth = append(t.auth, []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+secret))})
		t.rt.MaxIdleConnsPerHost += a.Concurrency
	}
	if t.accounts, err = newAccounts("twilio", slots, cfg.BulkShare, cfg.Breaker, cfg.Blocks, cfg.Log); err != nil {
		return nil, err
	}
	t.accounts.perCall, t.accounts.gather = true, 50*time.Millisecond
	return t, nil
}

// Admit waits until up to n messages of a category may be sent, codes first, and
// returns the permit for as many as may be sent now, all over one account. With
// no account in service it returns a *notify.Error with RetryAfter at once, and
// ctx's error if ctx ends first. Release the permit after Send.
func (t *Twilio) Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error) {
	return t.accounts.permit(ctx, notify.SMS, cat, n)
}

// Run waits for ctx and closes the connections.
func (t *Twilio) Run(ctx context.Context) error {
	<-ctx.Done()
	t.rt.CloseIdleConnections()
	return nil
}

// AuthToken returns the token that signs an account's receipts; empty: not ours.
func (t *Twilio) AuthToken(account string) string {
	for _, a := range t.cfg.Accounts {
		if a.SID == account {
			return a.AuthToken
		}
	}
	return ""
}

// Send delivers every item of call and reports each once. Addresses are E.164. It
// waits for a permit of its own for what call.Permit does not cover.
func (t *Twilio) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	vars, err := SharedVariables(call.Content.Variables)
	if err != nil {
		report(0, len(call.Items), failed(ctx, "twilio", err))
		return
	}
	body := ParseTemplate(call.Content.Body, Plain)
	width := 0
	for _, a := range t.cfg.Accounts {
		width += a.Concurrency
	}
	along := traceOf(call)
	each(len(call.Items), width, func() func(int) {
		m := &sms{call: call, body: &body, vars: vars.Fork(), public: t.cfg.PublicURL, trace: along}
		return func(i int) { report.One(i, t.send(ctx, m, &call.Items[i])) }
	})
}

// send brings one item to an answer. An account that is throttled or refused
// did not process it, so the next one may, once each.
func (t *Twilio) send(ctx context.Context, m *sms, it *notify.Item) notify.Result {
	form, err := m.form(it, time.Now())
	if err != nil {
		return failed(ctx, "twilio", err)
	}
	lane := laneOf(m.call)
	by := t.accounts.permitted(m.call)
	if by == nil || by.use(1) == 0 {
		if by, err = t.accounts.admit(ctx, lane, m.call.Category, 1); err != nil {
			return failed(ctx, "twilio", err)
		}
		by.use(1)
	}
	for tries := 1; ; tries++ {
		r, again := t.try(ctx, by, m, form)
		if !again || tries == len(t.cfg.Accounts) {
			return r
		}
		// Whoever came with a permit looks at opt-outs once more before it waits
		// for another account, and does not wait here.
		if m.call.Permit != nil {
			by, err = t.accounts.tryAdmit(ctx, lane)
		} else {
			by, err = t.accounts.admit(ctx, lane, m.call.Category, 1)
		}
		switch {
		case err != nil && r.Class == notify.ClassConfig:
			return r
		case err != nil:
			return failed(ctx, "twilio", err)
		case by == nil:
			return notify.Result{Class: notify.ClassBusy, Code: "accounts_busy", Provider: "twilio"}
		}
		by.use(1)
	}
}

// try sends one item by a permit that it has used, and gives its slot back.
func (t *Twilio) try(ctx context.Context, by *permit, m *sms, form url.Values) (r notify.Result, again bool) {
	a := by.a
	defer func() { t.accounts.done(a, r.Class); by.free() }()
	ours := m.sender(form, &t.cfg.Accounts[a.at])
	ans, fail := t.post(ctx, t.rt, a, m, form)
	if fail != nil {
		return fail.result(a.name), false
	}
	r, then := twilioResult(&ans, time.Now())
	r.Provider = a.name
	if then == senderFault && ours {
		r.Class = notify.ClassConfig
	}
	switch r.Class {
	case notify.ClassThrottled:
		r.RetryAfter = t.accounts.block(ctx, a, r.RetryAfter)
		return r, true
	case notify.ClassConfig:
		t.cfg.Log.Error("account refused", "account", a.name, "code", r.Code)
		return r, true // its breaker opens
	case notify.ClassAccepted:
		r.Confirmed = t.cfg.Confirm == ConfirmAccepted
	}
	return r, false
}

func (t *Twilio) post(ctx context.Context, rt *http.Transport, a *account, m *sms, form url.Values) (answer, *failure) {
	h := http.Header{
		"Authorization": t.auth[a.at], "User-Agent": agentHeader, "Accept": jsonHeader,
		"Content-Type": {"application/x-www-form-urlencoded"},
	}
	m.trace.put(h)
	return exchange(ctx, rt, t.cfg.Endpoint.Timeout, t.urls[a.at], h, []byte(form.Encode()))
}

// sms renders the items of a call one after the other.
type sms struct {
	call   *notify.Call
	body   *Template
	vars   Variables
	public string
	trace  traceHeader
	buf    []byte
}

// Limits of a message.
const (
	twilioMaxBody     = 1600 // characters
	twilioMaxValidity = 36000
)

// form is the request but for the sender, which the account may decide.
func (m *sms) form(it *notify.Item, now time.Time) (url.Values, error) {
	f := url.Values{"To": {string(it.Address)}}
	if err := m.vars.SetOwn(it.Variables); err != nil {
		return nil, err
	}
	if sid := m.call.Content.Template; sid != "" {
		f.Set("ContentSid", sid)
		var any bool
		if m.buf, any = m.vars.appendObject(m.buf[:0], asStrings); any {
			f.Set("ContentVariables", string(m.buf))
		}
	} else {
		var err error
		if m.buf, err = m.body.Append(m.buf[:0], &m.vars, utf8.UTFMax*twilioMaxBody); err != nil {
			return nil, err
		}
		if utf8.RuneCount(m.buf) > twilioMaxBody {
			return nil, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the message is longer than 1600 characters"}
		}
		f.Set("Body", string(m.buf))
	}
	if m.call.Expires > 0 {
		left := (m.call.Expires - now.UnixMilli()) / 1000
		f.Set("ValidityPeriod", strconv.FormatInt(min(max(left, 1), twilioMaxValidity), 10))
	}
	if m.public != "" {
		f.Set("StatusCallback", TwilioCallback(m.public, it))
	}
	return f, nil
}

// TwilioCallback is the URL Twilio sends an item's receipts to.
func TwilioCallback(publicURL string, it *notify.Item) string {
	return publicURL + "/v1/receipts/twilio?ref=" + EncodeRef(RefOf(it)) + "&id=" + it.ID().String()
}

// sender sets who it is from, and reports whether our configuration chose.
func (m *sms) sender(f url.Values, a *TwilioAccount) (ours bool) {
	from, service := m.call.Content.From, ""
	if from == "" {
		ours = true
		from, service = a.From, a.MessagingService
	}
	if strings.HasPrefix(from, "MG") && len(from) == 34 {
		from, service = "", from
	}
	f.Del("From")
	f.Del("MessagingServiceSid")
	if service != "" {
		f.Set("MessagingServiceSid", service)
	}
	if from != "" {
		f.Set("From", from)
	}
	return ours
}
