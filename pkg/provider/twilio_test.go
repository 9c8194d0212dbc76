package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func phone(i int) string { return fmt.Sprintf("+1555%07d", i) }

// twilioServer answers by account.
type twilioServer struct {
	mu    sync.Mutex
	calls map[string]int // by account SID
	forms []url.Values
	busy  map[string]int
	peak  map[string]int
	reply func(sid string, form url.Values) (status int, body string, header http.Header)
	delay time.Duration
}

func (s *twilioServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sid := strings.Split(r.URL.Path, "/")[3]
	if user, pass, _ := r.BasicAuth(); user != sid || pass != "tok-"+sid {
		w.WriteHeader(401)
		io.WriteString(w, `{"code":20003}`)
		return
	}
	r.ParseForm()
	s.mu.Lock()
	s.calls[sid]++
	s.forms = append(s.forms, r.PostForm)
	s.busy[sid]++
	s.peak[sid] = max(s.peak[sid], s.busy[sid])
	reply := s.reply
	s.mu.Unlock()
	sleep(r.Context(), s.delay)
	s.mu.Lock()
	s.busy[sid]--
	s.mu.Unlock()
	if reply != nil {
		if status, body, h := reply(sid, r.PostForm); status != 0 {
			for k, v := range h {
				w.Header()[k] = v
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			return
		}
	}
	w.WriteHeader(201)
	fmt.Fprintf(w, `{"sid":"SM%s","status":"queued"}`, r.PostForm.Get("To"))
}

func testTwilio(t testing.TB, accounts int, change func(*twilioServer, *TwilioConfig)) (*Twilio, *twilioServer) {
	t.Helper()
	s := &twilioServer{calls: map[string]int{}, busy: map[string]int{}, peak: map[string]int{}}
	_, e := tlsServer(t, s, nil)
	cfg := TwilioConfig{Endpoint: e, PublicURL: "https://notify.example.com/"}
	for i := range accounts {
		sid := fmt.Sprintf("AC%032d", i)
		cfg.Accounts = append(cfg.Accounts, TwilioAccount{SID: sid, Token: "tok-" + sid, From: "+15550000000"})
	}
	if change != nil {
		change(s, &cfg)
	}
	tw, err := NewTwilio(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, tw)
	return tw, s
}

func TestTwilioRequest(t *testing.T) {
	t.Parallel()
	tw, s := testTwilio(t, 1, nil)
	f := func(c notify.Content, expires time.Duration, variables string, want url.Values) {
		t.Helper()
		s.forms = nil
		call := testCall(notify.SMS, c, 1, phone)
		if expires > 0 {
			call.Expires = time.Now().Add(expires).UnixMilli()
		}
		call.Items[0].Variables = []byte(variables)
		r := collect(t, t.Context(), tw, call)[0]
		if r.Class != notify.ClassAccepted || r.Confirmed || r.ProviderID != "SM"+phone(0) || !strings.HasPrefix(r.Provider, "twilio:AC") {
			t.Fatalf("%+v", r)
		}
		want.Set("To", phone(0))
		want.Set("StatusCallback", TwilioCallback("https://notify.example.com", &call.Items[0]))
		if got := s.forms[0]; got.Encode() != want.Encode() {
			t.Errorf("%v\nwant %v", got, want)
		}
	}
	from := func(kv ...string) url.Values {
		v := url.Values{"From": {"+15550000000"}}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return v
	}
	f(notify.Content{Body: "Code {{c}} & more"}, 0, `{"c":"1<2"}`, from("Body", "Code 1<2 & more"))
	f(notify.Content{Body: "b"}, 24*time.Hour, "", from("Body", "b", "ValidityPeriod", "36000"))
	f(notify.Content{Body: "b"}, 1500*time.Millisecond, "", from("Body", "b", "ValidityPeriod", "1"))
	f(notify.Content{Template: "HX1", Body: "no", Variables: []byte(`{"1":2}`)}, 0, `{"2":"x"}`, from("ContentSid", "HX1", "ContentVariables", `{"2":"x","1":"2"}`))
	f(notify.Content{Template: "HX1"}, 0, "", from("ContentSid", "HX1"))
	f(notify.Content{Body: "b", From: "Shop"}, 0, "", from("Body", "b", "From", "Shop"))
	mg := "MG" + strings.Repeat("0", 32)
	f(notify.Content{Body: "b", From: mg}, 0, "", url.Values{"Body": {"b"}, "MessagingServiceSid": {mg}})

	call := testCall(notify.SMS, notify.Content{Body: "{{x}}"}, 1, phone)
	if r := collect(t, t.Context(), tw, call)[0]; r.Class != notify.ClassPermanent || r.Code != "missing_variable" {
		t.Errorf("%+v", r)
	}
	call.Content.Body = strings.Repeat("é", 1601)
	if r := collect(t, t.Context(), tw, call)[0]; r.Class != notify.ClassPermanent || r.Code != "payload_too_large" {
		t.Errorf("%+v", r)
	}
}

// blocks is a shared store.
type blocks struct {
	mu    sync.Mutex
	until map[string]time.Time
	err   error
}

func (b *blocks) Block(_ context.Context, account string, until time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = map[string]time.Time{}
	}
	if until.After(b.until[account]) {
		b.until[account] = until
	}
	return b.err
}

func (b *blocks) Blocked(_ context.Context, accounts []string) ([]time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []time.Time
	for _, a := range accounts {
		out = append(out, b.until[a])
	}
	return out, b.err
}

// An account that is throttled is left alone by everybody; its items go to the
// next, and the healthy ones keep to their own limits.
func TestTwilioBlockedAccount(t *testing.T) {
	t.Parallel()
	shared := &blocks{}
	const limit = 4
	first := fmt.Sprintf("AC%032d", 0)
	tw, s := testTwilio(t, 3, func(s *twilioServer, c *TwilioConfig) {
		s.delay = time.Millisecond
		s.reply = func(sid string, _ url.Values) (int, string, http.Header) {
			if sid == first {
				return 429, `{"code":20429}`, http.Header{"Retry-After": {"60"}}
			}
			return 0, "", nil
		}
		c.Concurrency, c.Blocks = limit, shared
	})
	call := testCall(notify.SMS, notify.Content{Body: "b"}, 300, phone)
	for i, r := range collect(t, t.Context(), tw, call) {
		if r.Class != notify.ClassAccepted {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	if n := s.calls[first]; n > limit {
		t.Errorf("%d calls to a blocked account", n)
	}
	for sid, n := range s.peak {
		if n > limit {
			t.Errorf("%s: %d calls at once", sid, n)
		}
	}
	left := time.Until(shared.until["twilio:"+first])
	if left < 50*time.Second || left > 60*time.Second {
		t.Errorf("blocked for everyone for %v", left)
	}

	// Another worker learns it from the store and never asks.
	other, s2 := testTwilio(t, 3, func(_ *twilioServer, c *TwilioConfig) { c.Blocks = shared })
	collect(t, t.Context(), other, call)
	if s2.calls[first] != 0 || len(s2.calls) != 2 {
		t.Errorf("%v", s2.calls)
	}
	// A store that is away blocks nobody.
	away, s3 := testTwilio(t, 2, func(_ *twilioServer, c *TwilioConfig) { c.Blocks = &blocks{err: errors.New("away")} })
	collect(t, t.Context(), away, call)
	if len(s3.calls) != 2 {
		t.Errorf("%v", s3.calls)
	}
}

func TestTwilioAllBlocked(t *testing.T) {
	t.Parallel()
	tw, s := testTwilio(t, 2, func(s *twilioServer, c *TwilioConfig) {
		s.reply = func(sid string, _ url.Values) (int, string, http.Header) {
			after := "60"
			if strings.HasSuffix(sid, "1") {
				after = "20"
			}
			return 429, `{"code":20429}`, http.Header{"Retry-After": {after}}
		}
		c.Concurrency = 2
	})
	call := testCall(notify.SMS, notify.Content{Body: "b"}, 100, phone)
	throttled := 0
	for _, r := range collect(t, t.Context(), tw, call) {
		if r.Class != notify.ClassThrottled || r.RetryAfter <= 0 || r.RetryAfter > time.Minute {
			t.Fatalf("%+v", r)
		}
		if r.Code == "twilio_blocked" && r.RetryAfter <= 20*time.Second {
			throttled++ // told when the earliest is free
		}
	}
	if throttled < 90 {
		t.Errorf("%d were told the earliest time", throttled)
	}
	if n := s.calls[tw.cfg.Accounts[0].SID] + s.calls[tw.cfg.Accounts[1].SID]; n > 8 {
		t.Errorf("%d calls", n)
	}
}

// Without a Retry-After the block is a second, and doubles with each refusal.
func TestTwilioBlockDoubles(t *testing.T) {
	t.Parallel()
	tw, _ := testTwilio(t, 1, nil)
	a := tw.accounts.list[0]
	if d := tw.accounts.blockAccount(t.Context(), a, 0); d != time.Second {
		t.Errorf("first %v", d)
	}
	if d := tw.accounts.blockAccount(t.Context(), a, 0); d > time.Second {
		t.Errorf("one that was under way: %v", d)
	}
	a.refusals = 3
	tw2, _ := testTwilio(t, 1, nil)
	tw2.accounts.list[0].refusals = 3
	if d := tw2.accounts.blockAccount(t.Context(), tw2.accounts.list[0], 0); d != 8*time.Second {
		t.Errorf("fourth %v", d)
	}
}

// A refused account is out; the others carry on. With none left it is a
// configuration error.
func TestTwilioRefusedAccount(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tw, s := testTwilio(t, 2, func(_ *twilioServer, c *TwilioConfig) {
		c.Accounts[0].Token = "wrong"
		c.Log = slog.New(slog.NewTextHandler(&syncWriter{w: &log}, nil))
	})
	call := testCall(notify.SMS, notify.Content{Body: "b"}, 50, phone)
	for _, r := range collect(t, t.Context(), tw, call) {
		if r.Class != notify.ClassAccepted {
			t.Fatalf("%+v", r)
		}
	}
	if s.calls[tw.cfg.Accounts[1].SID] != 50 {
		t.Errorf("%v", s.calls)
	}
	if !strings.Contains(log.String(), "refused an account") || strings.Contains(log.String(), "wrong") || strings.Contains(log.String(), "+1555") {
		t.Errorf("log: %s", log.String())
	}
	alone, _ := testTwilio(t, 1, func(_ *twilioServer, c *TwilioConfig) { c.Accounts[0].Token = "wrong" })
	for range 2 {
		for _, r := range collect(t, t.Context(), alone, call) {
			if r.Class != notify.ClassConfig {
				t.Fatalf("%+v", r)
			}
		}
	}
}

// A sender that is refused is the configuration's fault only where the
// configuration chose it.
func TestTwilioSenderRefused(t *testing.T) {
	t.Parallel()
	tw, _ := testTwilio(t, 1, func(s *twilioServer, c *TwilioConfig) {
		s.reply = func(string, url.Values) (int, string, http.Header) { return 400, `{"code":21606}`, nil }
	})
	own := testCall(notify.SMS, notify.Content{Body: "b", From: "Shop"}, 1, phone)
	if r := collect(t, t.Context(), tw, own)[0]; r.Class != notify.ClassPermanent {
		t.Errorf("%+v", r)
	}
	ours := testCall(notify.SMS, notify.Content{Body: "b"}, 1, phone)
	if r := collect(t, t.Context(), tw, ours)[0]; r.Class != notify.ClassConfig {
		t.Errorf("%+v", r)
	}
}

// Each account keeps to its rate.
func TestTwilioRate(t *testing.T) {
	t.Parallel()
	tw, s := testTwilio(t, 2, func(_ *twilioServer, c *TwilioConfig) { c.Rate = 100 })
	start := time.Now()
	collect(t, t.Context(), tw, testCall(notify.SMS, notify.Content{Body: "b"}, 80, phone))
	// 2 x (burst of 10 + 100/s)
	if d := time.Since(start); d < 250*time.Millisecond {
		t.Errorf("80 messages in %v: %v", d, s.calls)
	}
}

func TestTwilioOutage(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	tw, _ := testTwilio(t, 1, func(s *twilioServer, c *TwilioConfig) {
		s.reply = func(string, url.Values) (int, string, http.Header) { n.Add(1); return 503, "", nil }
		c.Concurrency = 4
	})
	call := testCall(notify.SMS, notify.Content{Body: "b"}, 200, phone)
	for _, r := range collect(t, t.Context(), tw, call) {
		if r.Class != notify.ClassUnavailable {
			t.Fatalf("%+v", r)
		}
	}
	if n.Load() > 20 {
		t.Errorf("%d calls to a provider in trouble", n.Load())
	}
}

type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *syncWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}
