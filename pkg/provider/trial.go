package provider

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Trial is what one test call found: of a provider, or of one of its accounts. A test
// makes a connection of its own, and neither breakers nor the tokenGuard learn of it.
type Trial struct {
	Account string // "apns", "twilio:AC…"
	Called  string // the method and the URL, without an address
	Status  int    // HTTP; 0: no answer came
	Class   notify.Class
	Code    string // as workers report it; empty: accepted
	Detail  string // what the provider or the network said; empty: all is well
	Took    time.Duration
	Verdict string // one of the Verdict constants
}

// Verdicts of a trial.
const (
	VerdictOK           = "ok"
	VerdictRefused      = "refused"             // credentials are good; the message, its address or the URL is not
	VerdictCredentials  = "credentials_refused" // the key, token or account
	VerdictWrongProject = "wrong_project"       // good credentials, of another project, topic or account
	VerdictThrottled    = "throttled"           // a rate limit, the provider's or ours
	VerdictUnreachable  = "unreachable"         // no answer, one that redirects, or no access token, as Detail says
	VerdictUnavailable  = "unavailable"         // the provider answers with 5xx
)

// wrongProject are the codes of credentials that are good for something else.
var wrongProject = []string{
	"fcm_permission_denied", "fcm_not_found", "apns_topic_disallowed", "apns_bad_topic", "apns_device_token_not_for_topic", "twilio_20404",
}

func verdictOf(r *notify.Result, status int, then action) string {
	switch {
	case then == otherProject || slices.Contains(wrongProject, r.Code):
		return VerdictWrongProject
	case r.Class == notify.ClassAccepted:
		return VerdictOK
	case r.Class == notify.ClassThrottled || status == http.StatusTooManyRequests:
		return VerdictThrottled
	case r.Code == "sendgrid_sender":
		return VerdictRefused
	case status == http.StatusUnauthorized, status == http.StatusForbidden, r.Class == notify.ClassConfig && status <= http.StatusOK:
		return VerdictCredentials
	case status == 0 && r.Class == notify.ClassPermanent:
		return VerdictRefused
	case status < 400:
		return VerdictUnreachable
	case status >= 500:
		return VerdictUnavailable
	}
	return VerdictRefused
}

// trial is the call of a test.
type trial struct {
	account, called string
	by              protocol
	url             *url.URL
	header          http.Header
	payload         []byte // nil: a GET
	judge           func(*answer) (notify.Result, action)
}

// notCalled is the Trial whose call could not be made.
func (t *trial) notCalled(ctx context.Context, start time.Time, err error) Trial {
	r := failed(ctx, t.account, err)
	return Trial{Account: t.account, Called: t.called, Class: r.Class, Code: r.Code, Detail: err.Error(), Took: time.Since(start), Verdict: verdictOf(&r, 0, 0)}
}

func (t *trial) run(ctx context.Context, e Endpoint, start time.Time) Trial {
	rt := e.transport(t.by)
	defer rt.CloseIdleConnections()
	out := Trial{Account: t.account, Called: t.called}
	var r notify.Result
	var then action
	ans, fail := exchange(ctx, rt, e.Timeout, t.url, t.header, t.payload)
	if fail != nil {
		r, out.Detail = fail.result(t.account), fail.err.Error()
	} else {
		r, then = t.judge(&ans)
		out.Status = ans.status
	}
	out.Class, out.Code, out.Took = r.Class, r.Code, time.Since(start)
	if out.Verdict = verdictOf(&r, out.Status, then); out.Verdict != VerdictOK && fail == nil {
		out.Detail = firstWords(ans.body)
	}
	return out
}

// firstWords is the beginning of an answer's body, on one line.
func firstWords(body []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(body[:min(len(body), 4*maxSaid)]), "")), " ")
	if utf8.RuneCountInString(s) > maxSaid {
		s = string([]rune(s)[:maxSaid]) + "…"
	}
	return s
}

const maxSaid = 300 // characters

// trialCall is the message that a test sends to a real address.
func trialCall(ch notify.Channel, to string, now time.Time) *notify.Call {
	return &notify.Call{
		Channel: ch, Category: notify.Transactional, Expires: now.Add(10 * time.Minute).UnixMilli(),
		Content: &notify.Content{Title: "Test", Body: "This is a test of notifyd. Nothing needs to be done."},
		Items:   []notify.Item{{Key: &notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(now)}}, Address: []byte(to), Given: true}},
	}
}

// Test pushes to a device, or, with to empty, to a token of two digits, which no device
// has: APNs has no dry run. It checks the signed token before the device's, so that
// BadDeviceToken says that team and key are right, and InvalidProviderToken (403) that
// they are not (Apple, "Handling notification responses from APNs"). Whether the topic
// is the app's, only a push to one of its devices proves.
func (a *APNs) Test(ctx context.Context, to string) []Trial {
	start, dry := time.Now(), to == ""
	if dry {
		to = "00"
	}
	call := trialCall(notify.Push, to, start)
	t := &trial{account: "apns", called: "POST " + a.base.String() + "/3/device/{token}", by: http2Only, url: under(a.base, "/3/device/"+string(apnsToken([]byte(to))))}
	t.judge = func(ans *answer) (notify.Result, action) {
		r, then := apnsResult(ans, time.Now())
		if dry && r.Code == "apns_bad_device_token" {
			r.Class = notify.ClassAccepted
		}
		return r, then
	}
	c, err := a.newCall(call, start)
	if err == nil {
		t.payload, err = (&apnsWriter{call: c}).payload(&call.Items[0])
	}
	if err == nil {
		err = a.wire.held()
	}
	var tok *token
	if err == nil {
		// The token in use, for APNs refuses a key that signs more often than every 20 minutes.
		tok, err = a.token.get(ctx)
	}
	if err != nil {
		return []Trial{t.notCalled(ctx, start, err)}
	}
	t.header = c.header(&call.Items[0], tok)
	return []Trial{t.run(ctx, a.cfg.Endpoint, start)}
}

// Test gets an access token of its own and sends to a device, or, with to empty, to a
// topic with validate_only, which FCM checks and does not deliver (Firebase, REST
// resource projects.messages, send). Another project answers PERMISSION_DENIED (403),
// and a device of another project SENDER_ID_MISMATCH.
func (f *FCM) Test(ctx context.Context, to string) []Trial {
	start := time.Now()
	t := &trial{account: "fcm", called: "POST " + f.cfg.TokenURL, by: http2Only, url: f.url}
	t.judge = func(ans *answer) (notify.Result, action) { return fcmResult(ans, time.Now(), f.cfg.QuotaBlock) }
	t.payload = []byte(`{"validate_only":true,"message":{"topic":"notifyd-test","data":{"test":"notifyd"}}}`)
	err := f.pool.hold.err()
	if to != "" && err == nil {
		var c *fcmCall
		call := trialCall(notify.Push, to, start)
		if c, err = newFCMCall(call, start); err == nil {
			t.payload, err = (&fcmWriter{call: c}).message(&call.Items[0])
		}
	}
	var value string
	if err == nil {
		value, _, _, err = f.mint(ctx)
	}
	if err != nil {
		return []Trial{t.notCalled(ctx, start, err)}
	}
	t.called = "POST " + f.url.String()
	if to == "" {
		t.called += " (validate_only)"
	}
	t.header = http.Header{"Authorization": {"Bearer " + value}, "Content-Type": jsonHeader, "User-Agent": agentHeader}
	return []Trial{t.run(ctx, f.cfg.Endpoint, start)}
}

// Test asks for each account, or for the one of that name, which costs nothing and
// sends nothing: GET /2010-04-01/Accounts/{Sid}.json answers 401 (20003) to a wrong
// token and names a status, active or not (Twilio, REST API: Accounts). With to it
// sends one message, by the first of them. It has no trial for an unknown name.
func (t *Twilio) Test(ctx context.Context, name, to string) []Trial {
	return t.accounts.test(ctx, name, to != "", func(ctx context.Context, a *account, start time.Time) Trial {
		one := &trial{account: a.name, by: http1, url: t.urls[a.at], header: http.Header{"Authorization": t.auth[a.at], "User-Agent": agentHeader, "Accept": jsonHeader}}
		err := error(nil)
		if to == "" {
			u := *one.url
			u.Path = strings.TrimSuffix(u.Path, "/Messages.json") + ".json"
			one.url, one.judge, one.called = &u, twilioAccount, "GET "+u.String()
		} else {
			call := trialCall(notify.SMS, to, start)
			body := ParseTemplate(call.Content.Body, Plain)
			m := &sms{call: call, body: &body}
			var form url.Values
			if form, err = m.form(&call.Items[0], start); err == nil {
				m.sender(form, &t.cfg.Accounts[a.at])
				one.payload = []byte(form.Encode())
			}
			one.called = "POST " + one.url.String()
			one.header["Content-Type"] = []string{"application/x-www-form-urlencoded"}
			one.judge = func(ans *answer) (notify.Result, action) { return twilioResult(ans, time.Now()) }
		}
		if err == nil {
			err = t.accounts.takeForTest(ctx, a)
		}
		if err != nil {
			return one.notCalled(ctx, start, err)
		}
		return one.run(ctx, t.cfg.Endpoint, start)
	})
}

// twilioAccount classifies the answer to a GET of an account: one that is suspended or
// closed answers 200 as well.
func twilioAccount(ans *answer) (notify.Result, action) {
	r, then := twilioResult(ans, time.Now())
	var body struct {
		Status string `json:"status"`
	}
	if r.Class == notify.ClassAccepted && (json.Unmarshal(ans.body, &body) != nil || body.Status != "active") {
		r.Class, r.Code = notify.ClassConfig, twilioCode(20005)
	}
	return r, then
}

// Test sends one mail by each pool, or by the one of that name, with
// mail_settings.sandbox_mode: SendGrid checks key and request, answers 200 and delivers
// to nobody (Twilio SendGrid, Mail Send: sandbox mode). With to the mail is real, by the
// first of them. It carries no reference, so that its events are no receipts of ours.
// It has no trial for an unknown name.
func (s *SendGrid) Test(ctx context.Context, name, to string) []Trial {
	return s.accounts.test(ctx, name, to != "", func(ctx context.Context, a *account, start time.Time) Trial {
		one := &trial{account: a.name, by: http1, url: s.url, called: "POST " + s.url.String(), header: http.Header{
			"Authorization": s.auth, "User-Agent": agentHeader, "Accept": jsonHeader, "Content-Type": jsonHeader,
		}}
		one.judge = func(ans *answer) (notify.Result, action) {
			v := sendGridResult(ans, 1, time.Now())
			if r, bad := v.bad[0]; bad {
				return r, 0
			}
			if v.sender {
				v.result.Code = "sendgrid_sender"
			}
			return v.result, 0
		}
		from, err := sender(s.cfg.From)
		text := trialCall(notify.Email, to, start).Content
		mail := map[string]any{
			"from": json.RawMessage(from), "subject": text.Title, "content": []any{map[string]string{"type": "text/plain", "value": text.Body}},
			"personalizations": []any{map[string]any{"to": []any{map[string]string{"email": to}}}},
			"categories":       []string{notify.Transactional.String()},
		}
		if to == "" {
			one.called += " (sandbox_mode)"
			mail["personalizations"] = []any{map[string]any{"to": []json.RawMessage{from}}}
			mail["mail_settings"] = map[string]any{"sandbox_mode": map[string]bool{"enable": true}}
		}
		if pool := s.cfg.Pools[a.at].Name; pool != "" {
			mail["ip_pool_name"] = pool
		}
		if err == nil {
			one.payload, err = json.Marshal(mail)
		}
		if err == nil {
			err = s.accounts.takeForTest(ctx, a)
		}
		if err != nil {
			return one.notCalled(ctx, start, err)
		}
		return one.run(ctx, s.cfg.Endpoint, start)
	})
}

// test makes the trials of the accounts of a name, the provider's own or an account's;
// one says that the first is enough.
func (p *accounts) test(ctx context.Context, name string, one bool, try func(context.Context, *account, time.Time) Trial) []Trial {
	var of []*account
	for _, a := range p.list {
		if (name == p.provider || name == a.name) && !(one && len(of) > 0) {
			of = append(of, a)
		}
	}
	out := make([]Trial, len(of))
	each(len(of), 8, func() func(int) {
		return func(i int) { out[i] = try(ctx, of[i], time.Now()) }
	})
	return out
}

// takeForTest waits for one message of an account's rate, whatever its breaker says: an
// open one is why somebody tests. It keeps to a block, which the provider asked for,
// but takes none of the slots: the few calls of tests fit beside them.
func (p *accounts) takeForTest(ctx context.Context, a *account) error {
	for {
		p.view(ctx)
		now := time.Now()
		if until := p.pool.Status(now)[a.at].Blocked; until.After(now) {
			return &notify.Error{Kind: notify.KindThrottled, Code: p.provider + "_blocked", Msg: "the account is blocked", RetryAfter: until.Sub(now)}
		}
		ok, at := p.pool.Take(now, a.name)
		wait := at.Sub(now)
		if ok {
			var got int
			if got, wait = p.agreed(ctx, now, a, 1); got > 0 {
				return nil
			}
			p.pool.Return(now, a.name, limit.Fast, 1)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return &notify.Error{Kind: notify.KindThrottled, Code: "accounts_busy", Msg: "the account's rate is used up", RetryAfter: wait}
		case <-t.C:
		}
	}
}
