package provider

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/mail"
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

// try makes the call of a test and completes t with what came of it.
func (t *Trial) try(send func() (answer, *failure), judge func(*answer) (notify.Result, action)) Trial {
	start := time.Now()
	ans, fail := send()
	var r notify.Result
	var then action
	if fail != nil {
		r, t.Detail = fail.result(t.Account), fail.err.Error()
	} else {
		r, then = judge(&ans)
	}
	t.Status, t.Class, t.Code, t.Took = ans.status, r.Class, r.Code, time.Since(start)
	if t.Verdict = verdictOf(&r, t.Status, then); t.Verdict != VerdictOK && fail == nil {
		t.Detail = firstWords(ans.body)
	}
	return *t
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
func trialCall(ch notify.Channel, to string) *notify.Call {
	now := time.Now()
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
	t := &Trial{Account: "apns", Called: "POST " + a.base.String() + "/3/device/{token}"}
	return []Trial{t.try(func() (answer, *failure) {
		// The token in use, for APNs refuses a key that signs more often than every 20 minutes.
		tok, err := a.token.get(ctx)
		if err != nil {
			return answer{}, failing(ctx, "apns", err)
		}
		return a.once(ctx, cmp.Or(to, "00"), tok, nil)
	}, func(ans *answer) (notify.Result, action) {
		r, then := apnsResult(ans, time.Now())
		if to == "" && r.Code == "apns_bad_device_token" {
			r.Class = notify.ClassAccepted
		}
		return r, then
	})}
}

// Test gets an access token of its own and sends to a device, or, with to empty, to a
// topic with validate_only, which FCM checks and does not deliver (Firebase, REST
// resource projects.messages, send). Another project answers PERMISSION_DENIED (403),
// and a device of another project SENDER_ID_MISMATCH.
func (f *FCM) Test(ctx context.Context, to string) []Trial {
	t := &Trial{Account: "fcm", Called: "POST " + f.cfg.TokenURL}
	return []Trial{t.try(func() (answer, *failure) {
		value, _, _, err := f.mint(ctx)
		if err != nil {
			return answer{}, failing(ctx, "fcm", err)
		}
		t.Called = "POST " + f.url.String()
		var body []byte
		if to == "" {
			t.Called += " (validate_only)"
			body = []byte(`{"validate_only":true,"message":{"topic":"notifyd-test","data":{"test":"notifyd"}}}`)
		}
		return f.once(ctx, to, &token{header: "Bearer " + value}, body)
	}, func(ans *answer) (notify.Result, action) { return f.meaning(ans, time.Now()) })}
}

// Test asks for each account, or for the one of that name, which costs nothing and
// sends nothing: GET /2010-04-01/Accounts/{Sid}.json answers 401 (20003) to a wrong
// token and names a status, active or not (Twilio, REST API: Accounts). With to it
// sends one message, by the first of them. It has no trial for an unknown name.
func (t *Twilio) Test(ctx context.Context, name, to string) []Trial {
	return t.accounts.test(ctx, name, to != "", t.cfg.Endpoint, func(a *account) (called string, send trialSend, judge trialJudge) {
		if to == "" {
			u := *t.urls[a.at]
			u.Path = strings.TrimSuffix(u.Path, "/Messages.json") + ".json"
			return "GET " + u.String(), func(rt *http.Transport) (answer, *failure) {
				h := http.Header{"Authorization": t.auth[a.at], "User-Agent": agentHeader, "Accept": jsonHeader}
				return exchange(ctx, rt, t.cfg.Endpoint.Timeout, &u, h, nil)
			}, twilioAccount
		}
		return "POST " + t.urls[a.at].String(), func(rt *http.Transport) (answer, *failure) {
			call := trialCall(notify.SMS, to)
			body := ParseTemplate(call.Content.Body, Plain)
			m := &sms{call: call, body: &body}
			form, err := m.form(&call.Items[0], time.Now())
			if err != nil {
				return answer{}, failing(ctx, a.name, err)
			}
			m.sender(form, &t.cfg.Accounts[a.at])
			return t.post(ctx, rt, a, m, form)
		}, func(ans *answer) (notify.Result, action) { return twilioResult(ans, time.Now()) }
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
	judge := func(ans *answer) (notify.Result, action) {
		v := sendGridResult(ans, 1, time.Now())
		if r, bad := v.bad[0]; bad {
			return r, 0
		}
		if v.sender {
			v.result.Code = "sendgrid_sender"
		}
		return v.result, 0
	}
	return s.accounts.test(ctx, name, to != "", s.cfg.Endpoint, func(a *account) (string, trialSend, trialJudge) {
		called, address := "POST "+s.url.String(), to
		if from, err := mail.ParseAddress(s.cfg.From); to == "" && err == nil {
			called, address = called+" (sandbox_mode)", from.Address
		}
		return called, func(rt *http.Transport) (answer, *failure) {
			m, err := s.newMailing(trialCall(notify.Email, address))
			if err != nil {
				return answer{}, failing(ctx, a.name, err)
			}
			m.test, m.sandbox = true, to == ""
			part, err := m.personalize(0)
			if err != nil {
				return answer{}, failing(ctx, a.name, err)
			}
			return s.post(ctx, rt, m, []personalization{part}, a)
		}, judge
	})
}

type (
	trialSend  func(rt *http.Transport) (answer, *failure)
	trialJudge func(*answer) (notify.Result, action)
)

// test makes the trials of the accounts of a name, the provider's own or an account's;
// one says that the first is enough.
func (p *accounts) test(ctx context.Context, name string, one bool, e Endpoint, prepare func(*account) (called string, send trialSend, judge trialJudge)) []Trial {
	var of []*account
	for _, a := range p.list {
		if (name == p.provider || name == a.name) && !(one && len(of) > 0) {
			of = append(of, a)
		}
	}
	out := make([]Trial, len(of))
	each(len(of), 8, func() func(int) {
		return func(i int) {
			called, send, judge := prepare(of[i])
			t := &Trial{Account: of[i].name, Called: called}
			out[i] = t.try(func() (answer, *failure) {
				if err := p.takeForTest(ctx, of[i]); err != nil {
					return answer{}, failing(ctx, of[i].name, err)
				}
				rt := e.transport()
				defer rt.CloseIdleConnections()
				return send(rt)
			}, judge)
		}
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
