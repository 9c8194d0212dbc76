package provider

import (
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
	"github.com/notifyd/notifyd/pkg/setting"
)

// TwilioAccount is one account of the pool.
type TwilioAccount struct {
	SID   string `koanf:"sid" json:"sid"`
	Token string `koanf:"token" json:"token"` // also signs the receipts
	From  string `koanf:"from" json:"from"`   // a number, or a messaging service ("MG...")
}

// TwilioConfig configures the client of Twilio's Programmable Messaging. The tagged fields are
// the section providers.twilio of the configuration file; only the program sets the other fields.
type TwilioConfig struct {
	URL          string          `koanf:"url" default:"https://api.twilio.com" doc:"base URL of the API of Twilio"`
	Accounts     []TwilioAccount `koanf:"accounts" doc:"accounts to send from, each with sid, token and from (a phone number or a messaging service)"`
	AccountsFile string          `koanf:"accounts_file" doc:"JSON file with the accounts, instead of accounts"`
	Rate         float64         `koanf:"rate" default:"1000" above:"0" doc:"messages a second that each account may send, over all processes"`
	Concurrency  int             `koanf:"parallel" default:"150" min:"1" doc:"highest number of concurrent requests of each account, over all processes"`

	// Endpoint is the provider's address. The default of its BaseURL is the field URL.
	Endpoint Endpoint
	// PublicURL is the URL at which Twilio reaches notifyd, for receipts. If it is empty, notifyd
	// requests no receipts.
	PublicURL string
	// BulkShare is the part of an account's rate and slots that bulk messages may use, 0 to 1. Default
	// 0.5.
	BulkShare float64
	// Breaker configures the breaker of each account. Default: the defaults of package limit.
	Breaker limit.BreakerConfig
	// Blocks tells the other processes which accounts are blocked, and until when. Default: a block
	// applies in this process only.
	Blocks limit.Blocks
	// Log gets errors when Twilio refuses an account.
	Log *slog.Logger `default:"discard"`
}

func (c TwilioConfig) withDefaults() TwilioConfig {
	c = setting.Fill(c)
	c.Endpoint = c.Endpoint.withDefaults(c.URL, 10*time.Second)
	c.Log = c.Log.With("provider", "twilio")
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	return c
}

func (c TwilioConfig) validate() error {
	if len(c.Accounts) == 0 {
		return notify.Invalid("missing_setting", "twilio.accounts", "must have at least one account")
	}
	for i, a := range c.Accounts {
		if a.SID == "" || a.Token == "" {
			return notify.Invalid("missing_setting", "twilio.accounts["+strconv.Itoa(i)+"]", `must have "sid" and "token"`)
		}
	}
	return nil
}

// Twilio is the client of Twilio's Programmable Messaging. It sends one request per message over
// open connections, and distributes the messages over several accounts.
type Twilio struct {
	cfg      TwilioConfig
	accounts *accounts
	urls     []*url.URL // by account
	auth     [][]string // by account
	rt       *http.Transport
}

// NewTwilio checks cfg and returns a client.
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
	var slots []accountConfig
	for _, a := range cfg.Accounts {
		// The burst is as many messages as the rate allows in a tenth of a second. With the default
		// rate that is 100 messages: enough for two claim windows of 50.
		slots = append(slots, accountConfig{limit.Account{Name: "twilio:" + a.SID, Rate: cfg.Rate, Burst: max(2, int(cfg.Rate/10))}, cfg.Concurrency})
		t.urls = append(t.urls, withPath(base, "/2010-04-01/Accounts/"+a.SID+"/Messages.json"))
		t.auth = append(t.auth, []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(a.SID+":"+a.Token))})
		t.rt.MaxIdleConnsPerHost += cfg.Concurrency
	}
	if t.accounts, err = newAccounts("twilio", slots, cfg.BulkShare, cfg.Breaker, cfg.Blocks, cfg.Log); err != nil {
		return nil, err
	}
	t.accounts.perCall, t.accounts.gather = true, 50*time.Millisecond
	return t, nil
}

// Admit waits until up to n messages of a category may be sent. Messages of the category "otp" go
// first. Admit returns a permit for as many messages as may be sent now over one account. If no
// account is in service, it does not wait and returns a *notify.Error with RetryAfter. If ctx ends
// first, it returns ctx's error. The caller releases the permit after Send.
func (t *Twilio) Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error) {
	return t.accounts.admitFor(ctx, notify.SMS, cat, n)
}

// Run waits until ctx ends and closes the connections.
func (t *Twilio) Run(ctx context.Context) error {
	<-ctx.Done()
	t.rt.CloseIdleConnections()
	return nil
}

// AuthToken returns the token that signs an account's receipts, or "" if the account is not
// ours.
func (t *Twilio) AuthToken(account string) string {
	for _, a := range t.cfg.Accounts {
		if a.SID == account {
			return a.Token
		}
	}
	return ""
}

// Send delivers every item of the call and reports each item once. Addresses are E.164 numbers. If
// call.Permit does not cover all items, Send waits for further permits.
func (t *Twilio) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	vars, err := SharedVariables(call.Content.Variables)
	if err != nil {
		report(0, len(call.Items), resultOf(ctx, "twilio", err))
		return
	}
	body := ParseTemplate(call.Content.Body, Plain)
	width := len(t.cfg.Accounts) * t.cfg.Concurrency
	along := traceOf(call)
	forEachIndex(len(call.Items), width, func() func(int) {
		m := &smsRenderer{call: call, body: &body, vars: vars.Fork(), public: t.cfg.PublicURL, trace: along}
		return func(i int) { report.One(i, t.send(ctx, m, &call.Items[i])) }
	})
}

// send delivers one item. If the account is throttled or refused, Twilio did not process the item.
// Then send tries another account. It makes at most as many requests as there are accounts.
func (t *Twilio) send(ctx context.Context, m *smsRenderer, it *notify.Item) notify.Result {
	form, err := m.form(it, time.Now())
	if err != nil {
		return resultOf(ctx, "twilio", err)
	}
	lane := laneOf(m.call)
	permit := t.accounts.permitOf(m.call)
	if permit == nil || permit.useTokens(1) == 0 {
		if permit, err = t.accounts.admit(ctx, lane, m.call.Category, 1); err != nil {
			return resultOf(ctx, "twilio", err)
		}
		permit.useTokens(1)
	}
	for tries := 1; ; tries++ {
		r, again := t.sendOver(ctx, permit, m, form)
		if !again || tries == len(t.cfg.Accounts) {
			return r
		}
		// A user may opt out during a wait for another account. A caller that gives a permit checks
		// opt-outs again before each call. So if the caller gave a permit, do not wait here, but
		// report the item as busy.
		if m.call.Permit != nil {
			permit, err = t.accounts.tryAdmit(ctx, lane)
		} else {
			permit, err = t.accounts.admit(ctx, lane, m.call.Category, 1)
		}
		switch {
		case err != nil && r.Class == notify.ClassConfig:
			return r
		case err != nil:
			return resultOf(ctx, "twilio", err)
		case permit == nil:
			return notify.Result{Class: notify.ClassBusy, Code: "accounts_busy", Provider: "twilio"}
		}
		permit.useTokens(1)
	}
}

// sendOver sends one item over the permit's account, and then gives the slot back. The caller must
// have taken one token of the permit. If the second result (again) is true, the account did not
// process the item, and the caller may try another account.
func (t *Twilio) sendOver(ctx context.Context, permit *permit, m *smsRenderer, form url.Values) (r notify.Result, again bool) {
	a := permit.account
	defer func() { t.accounts.callEnded(a, r.Class); permit.freeSlot() }()
	ours := m.setSender(form, &t.cfg.Accounts[a.index])
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
		r.RetryAfter = t.accounts.blockAccount(ctx, a, r.RetryAfter)
		return r, true
	case notify.ClassConfig:
		t.cfg.Log.Error("Twilio refused an account or its settings; the code says why", "account", a.name, "code", r.Code)
		return r, true // the account's breaker opens, so the next permit is for another account
	}
	return r, false
}

func (t *Twilio) post(ctx context.Context, rt *http.Transport, a *account, m *smsRenderer, form url.Values) (providerAnswer, *failure) {
	h := http.Header{
		"Authorization": t.auth[a.index], "User-Agent": agentHeader, "Accept": jsonHeader,
		"Content-Type": {"application/x-www-form-urlencoded"},
	}
	m.trace.put(h)
	return exchange(ctx, rt, t.cfg.Endpoint.Timeout, t.urls[a.index], h, []byte(form.Encode()))
}

// smsRenderer renders the items of a call, one after the other.
type smsRenderer struct {
	call   *notify.Call
	body   *Template
	vars   Variables
	public string // TwilioConfig.PublicURL
	trace  traceHeader
	buf    []byte
}

// Limits of a message.
const (
	twilioMaxBody     = 1600  // characters
	twilioMaxValidity = 36000 // seconds
)

// form returns the form of the request without the sender, because the sender may depend on the
// account.
func (m *smsRenderer) form(it *notify.Item, now time.Time) (url.Values, error) {
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
			return nil, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Msg: "the message has " + strconv.Itoa(utf8.RuneCount(m.buf)) + " characters; the maximum is 1600 characters"}
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

// TwilioCallback returns the URL to which Twilio sends an item's receipts.
func TwilioCallback(publicURL string, it *notify.Item) string {
	return publicURL + "/v1/receipts/twilio?ref=" + EncodeRef(RefOf(it)) + "&id=" + it.ID().String()
}

// setSender writes the sender into the form f. It returns true if the configuration chose the
// sender, and false if the request did.
func (m *smsRenderer) setSender(f url.Values, a *TwilioAccount) (ours bool) {
	from := m.call.Content.From
	if from == "" {
		ours, from = true, a.From
	}
	f.Del("From")
	f.Del("MessagingServiceSid")
	switch {
	case strings.HasPrefix(from, "MG") && len(from) == 34:
		f.Set("MessagingServiceSid", from)
	case from != "":
		f.Set("From", from)
	}
	return ours
}
