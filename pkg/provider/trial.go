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

// Trial is the result of one test call to a provider or to one of its accounts. A test uses a
// separate connection. Breakers and the tokenGuard do not count test calls.
type Trial struct {
	Account string // for example "apns", "twilio:AC…"
	Called  string // method and URL, without an address
	Status  int    // HTTP status; 0: no answer
	Class   notify.Class
	Code    string // the same code as workers report; empty: accepted
	Detail  string // error text of the provider or the network; empty: no error
	Took    time.Duration
	Verdict string // one of the Verdict constants
}

// Verdicts of a trial.
const (
	VerdictOK           = "ok"
	VerdictRefused      = "refused"             // the credentials are good, but the message, its address or the URL was refused
	VerdictCredentials  = "credentials_refused" // the key, token or account was refused
	VerdictWrongProject = "wrong_project"       // the credentials are valid for another project, topic or account
	VerdictThrottled    = "throttled"           // a rate limit of the provider or of notifyd
	VerdictUnreachable  = "unreachable"         // no answer, a redirect, or no access token; see Detail
	VerdictUnavailable  = "unavailable"         // the provider answers 5xx
)

// wrongProject lists the codes that mean that the credentials are valid, but for another project, topic
// or account.
var wrongProject = []string{
	"fcm_permission_denied", "fcm_not_found", "apns_topic_disallowed", "apns_bad_topic", "apns_device_token_not_for_topic", "twilio_20404",
}

// verdictOf returns the verdict about a test call with this result and HTTP status (0: no
// answer).
func verdictOf(r *notify.Result, status int, then answerAction) string {
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

// run makes the test call, fills in the fields of t from its answer, and returns t.
func (t *Trial) run(send func() (providerAnswer, *failure), judge func(*providerAnswer) (notify.Result, answerAction)) Trial {
	start := time.Now()
	ans, fail := send()
	var r notify.Result
	var then answerAction
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

// firstWords returns the beginning of an answer's body, on one line.
func firstWords(body []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(body[:min(len(body), 4*maxSaid)]), "")), " ")
	if utf8.RuneCountInString(s) > maxSaid {
		s = string([]rune(s)[:maxSaid]) + "…"
	}
	return s
}

const maxSaid = 300 // characters

// trialCall returns the message that a test sends to a real address.
func trialCall(ch notify.Channel, to string) *notify.Call {
	now := time.Now()
	return &notify.Call{
		Channel: ch, Category: notify.Transactional, Expires: now.Add(10 * time.Minute).UnixMilli(),
		Content: &notify.Content{Title: "Test", Body: "This is a test of notifyd. Nothing needs to be done."},
		Items:   []notify.Item{{Key: &notify.RowKey{Chunk: notify.Chunk{Base: notify.NewBase(now)}}, Address: []byte(to), FromRequest: true}},
	}
}

// Test pushes to a device. APNs has no dry run. So if the parameter to is empty, Test pushes to a
// token of two digits, which no device has. APNs checks the signed token before the device token.
// So the answer BadDeviceToken means that the team and the key are right. InvalidProviderToken
// (403) means that the team or the key is wrong (Apple, "Handling notification responses from
// APNs"). Only a push to a device of the app proves that the topic is right.
func (a *APNs) Test(ctx context.Context, to string) []Trial {
	t := &Trial{Account: "apns", Called: "POST " + a.base.String() + "/3/device/{token}"}
	return []Trial{t.run(func() (providerAnswer, *failure) {
		// Use the current token. APNs refuses a key that signs more often than every 20 minutes.
		tok, err := a.token.get(ctx)
		if err != nil {
			return providerAnswer{}, failureOf(ctx, "apns", err)
		}
		return a.sendTest(ctx, cmp.Or(to, "00"), tok, nil)
	}, func(ans *providerAnswer) (notify.Result, answerAction) {
		r, then := apnsResult(ans, time.Now())
		if to == "" && r.Code == "apns_bad_device_token" {
			r.Class = notify.ClassAccepted
		}
		return r, then
	})}
}

// Test gets a separate access token and sends to a device. If the parameter to is empty, it sends
// to a topic with validate_only: FCM checks the message and does not deliver it (Firebase, REST
// resource projects.messages, send). Credentials of another project get PERMISSION_DENIED (403). A
// device of another project gets SENDER_ID_MISMATCH.
func (f *FCM) Test(ctx context.Context, to string) []Trial {
	t := &Trial{Account: "fcm", Called: "POST " + f.cfg.TokenURL}
	return []Trial{t.run(func() (providerAnswer, *failure) {
		value, _, _, err := f.mint(ctx)
		if err != nil {
			return providerAnswer{}, failureOf(ctx, "fcm", err)
		}
		t.Called = "POST " + f.url.String()
		var body []byte
		if to == "" {
			t.Called += " (validate_only)"
			body = []byte(`{"validate_only":true,"message":{"topic":"notifyd-test","data":{"test":"notifyd"}}}`)
		}
		return f.sendTest(ctx, to, &bearerToken{header: "Bearer " + value}, body)
	}, func(ans *providerAnswer) (notify.Result, answerAction) { return f.meaning(ans, time.Now()) })}
}

// Test queries the account with this name. If name is "twilio", it queries every account. The query is
// free and sends nothing. GET /2010-04-01/Accounts/{Sid}.json answers 401 (20003) if the token is
// wrong. Otherwise the answer contains the account's status (Twilio, REST API: Accounts). If the
// parameter to is set, Test sends one message to that number over the first of these accounts
// instead. For an unknown name Test returns no trial.
func (t *Twilio) Test(ctx context.Context, name, to string) []Trial {
	return t.accounts.testAccounts(ctx, name, to != "", t.cfg.Endpoint, func(a *account) (called string, send trialSend, judge trialJudge) {
		if to == "" {
			u := *t.urls[a.index]
			u.Path = strings.TrimSuffix(u.Path, "/Messages.json") + ".json"
			return "GET " + u.String(), func(rt *http.Transport) (providerAnswer, *failure) {
				h := http.Header{"Authorization": t.auth[a.index], "User-Agent": agentHeader, "Accept": jsonHeader}
				return exchange(ctx, rt, t.cfg.Endpoint.Timeout, &u, h, nil)
			}, twilioAccount
		}
		return "POST " + t.urls[a.index].String(), func(rt *http.Transport) (providerAnswer, *failure) {
			call := trialCall(notify.SMS, to)
			body := ParseTemplate(call.Content.Body, Plain)
			m := &smsRenderer{call: call, body: &body}
			form, err := m.form(&call.Items[0], time.Now())
			if err != nil {
				return providerAnswer{}, failureOf(ctx, a.name, err)
			}
			m.setSender(form, &t.cfg.Accounts[a.index])
			return t.post(ctx, rt, a, m, form)
		}, func(ans *providerAnswer) (notify.Result, answerAction) { return twilioResult(ans, time.Now()) }
	})
}

// twilioAccount classifies the answer to a GET of an account. A suspended or closed account also
// gives 200.
func twilioAccount(ans *providerAnswer) (notify.Result, answerAction) {
	r, then := twilioResult(ans, time.Now())
	var body struct {
		Status string `json:"status"`
	}
	if r.Class == notify.ClassAccepted && (json.Unmarshal(ans.body, &body) != nil || body.Status != "active") {
		r.Class, r.Code = notify.ClassConfig, twilioCode(20005)
	}
	return r, then
}

// Test sends one mail over the pool with this name. If name is "sendgrid", it sends one mail over
// each pool. It sets mail_settings.sandbox_mode: SendGrid checks the key and the request, answers
// 200 and delivers nothing (Twilio SendGrid, Mail Send: sandbox mode). If the parameter to is set,
// Test sends a real mail to that address over the first of these pools instead. The mail has no
// reference, so that notifyd does not treat the mail's events as receipts. For an unknown name Test
// returns no trial.
func (s *SendGrid) Test(ctx context.Context, name, to string) []Trial {
	judge := func(ans *providerAnswer) (notify.Result, answerAction) {
		v := sendGridResult(ans, 1, time.Now())
		if r, bad := v.bad[0]; bad {
			return r, 0
		}
		if v.sender {
			v.result.Code = "sendgrid_sender"
		}
		return v.result, 0
	}
	return s.accounts.testAccounts(ctx, name, to != "", s.cfg.Endpoint, func(a *account) (string, trialSend, trialJudge) {
		called, address := "POST "+s.url.String(), to
		if from, err := mail.ParseAddress(s.cfg.From); to == "" && err == nil {
			called, address = called+" (sandbox_mode)", from.Address
		}
		return called, func(rt *http.Transport) (providerAnswer, *failure) {
			m, err := s.newMailing(trialCall(notify.Email, address))
			if err != nil {
				return providerAnswer{}, failureOf(ctx, a.name, err)
			}
			m.test, m.sandbox = true, to == ""
			part, err := m.personalize(0)
			if err != nil {
				return providerAnswer{}, failureOf(ctx, a.name, err)
			}
			return s.post(ctx, rt, m, []personalization{part}, a)
		}, judge
	})
}

type (
	trialSend  func(rt *http.Transport) (providerAnswer, *failure)
	trialJudge func(*providerAnswer) (notify.Result, answerAction)
)

// testAccounts tests the account with this name. The provider's own name selects all accounts. If
// firstOnly is true, only the first selected account is tested. The function prepare returns the
// test call of an account.
func (p *accounts) testAccounts(ctx context.Context, name string, firstOnly bool, e Endpoint, prepare func(*account) (called string, send trialSend, judge trialJudge)) []Trial {
	var selected []*account
	for _, a := range p.list {
		if (name == p.provider || name == a.name) && !(firstOnly && len(selected) > 0) {
			selected = append(selected, a)
		}
	}
	out := make([]Trial, len(selected))
	forEachIndex(len(selected), 8, func() func(int) {
		return func(i int) {
			called, send, judge := prepare(selected[i])
			t := &Trial{Account: selected[i].name, Called: called}
			out[i] = t.run(func() (providerAnswer, *failure) {
				if err := p.takeForTest(ctx, selected[i]); err != nil {
					return providerAnswer{}, failureOf(ctx, selected[i].name, err)
				}
				rt := e.transport()
				defer rt.CloseIdleConnections()
				return send(rt)
			}, judge)
		}
	})
	return out
}

// takeForTest waits until an account's rate allows one message. It ignores an open breaker, because
// an open breaker is often the reason for a test. It respects a block, because the provider asked
// for the block. It uses no slot, because tests make only a few calls.
func (p *accounts) takeForTest(ctx context.Context, a *account) error {
	for {
		p.readBlocks(ctx)
		now := time.Now()
		if until := p.pool.Status(now)[a.index].Blocked; until.After(now) {
			return &notify.Error{Kind: notify.KindThrottled, Code: p.provider + "_blocked", Msg: "the account " + a.name + " is blocked", RetryAfter: until.Sub(now)}
		}
		ok, at := p.pool.Take(now, a.name)
		wait := at.Sub(now)
		if ok {
			var got int
			if got, wait = p.takeShared(ctx, now, a, 1); got > 0 {
				return nil
			}
			p.pool.Return(now, a.name, limit.Fast, 1)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return &notify.Error{Kind: notify.KindThrottled, Code: "accounts_busy", Msg: "the rate of the account " + a.name + " is used up", RetryAfter: wait}
		case <-t.C:
		}
	}
}
