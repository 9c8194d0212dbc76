package provider_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// world is the four clients against the simulated providers.
type world struct {
	sim      *simulator.Simulator
	apns     *provider.APNs
	fcm      *provider.FCM
	push     *provider.Push
	twilio   *provider.Twilio
	sendgrid *provider.SendGrid

	mu       sync.Mutex
	receipts []provider.Receipt
	came     chan struct{}
}

func runUntilEnd(t testing.TB, r interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newWorld returns clients that have the simulator's credentials, as change leaves them.
func newWorld(t testing.TB, cfg simulator.Config, timeout time.Duration, change ...func(*simulator.Credentials)) *world {
	t.Helper()
	w := &world{came: make(chan struct{}, 1)}
	w.sim = must[*simulator.Simulator](t)(simulator.New(cfg))
	runUntilEnd(t, w.sim)
	cred, at := w.sim.Credentials(), w.sim.URLs()
	cred.Twilio = slices.Clone(cred.Twilio)
	for _, f := range change {
		f(&cred)
	}
	hook := httptest.NewServer(http.HandlerFunc(w.receive))
	t.Cleanup(hook.Close)
	r := w.sim.Receipts()
	r.SendGridURL = hook.URL + "/v1/receipts/sendgrid"
	if err := w.sim.SetReceipts(r); err != nil {
		t.Fatal(err)
	}
	end := func(u string) provider.Endpoint {
		return provider.Endpoint{BaseURL: u, RootCAs: w.sim.CAPool(), Timeout: timeout, DialTimeout: timeout}
	}
	push := func(u string) provider.PushConfig {
		return provider.PushConfig{Endpoint: end(u), Stagger: time.Millisecond}
	}
	key, err := provider.ParseAPNsKey([]byte(cred.APNs.KeyPEM))
	if err != nil {
		t.Fatal(err)
	}
	apns := must[*provider.APNs](t)(provider.NewAPNs(provider.APNsConfig{PushConfig: push(at.APNs), Confirmed: true, TeamID: cred.APNs.TeamID, KeyID: cred.APNs.KeyID,
		Key: key, Topic: cred.APNs.Topic}))
	account, err := provider.ParseServiceAccount(cred.FCM.ServiceAccountJSON)
	if err != nil {
		t.Fatal(err)
	}
	fcm := must[*provider.FCM](t)(provider.NewFCM(provider.FCMConfig{PushConfig: push(at.FCM), Confirmed: true, Account: account}))
	var accounts []provider.TwilioAccount
	for _, a := range cred.Twilio {
		accounts = append(accounts, provider.TwilioAccount{SID: a.SID, Token: a.Token, From: a.From})
	}
	w.twilio = must[*provider.Twilio](t)(provider.NewTwilio(provider.TwilioConfig{Endpoint: end(at.Twilio), Accounts: accounts, Concurrency: twilioParallel, PublicURL: hook.URL}))
	w.sendgrid = must[*provider.SendGrid](t)(provider.NewSendGrid(provider.SendGridConfig{Endpoint: end(at.SendGrid), APIKey: cred.SendGrid.APIKey,
		From: "Shop <shop@example.com>", Pools: cred.SendGrid.Pools, Rate: 1e6}))
	for _, r := range []interface{ Run(context.Context) error }{apns, fcm, w.twilio, w.sendgrid} {
		runUntilEnd(t, r)
	}
	w.apns, w.fcm, w.push = apns, fcm, provider.NewPush(apns, fcm)
	return w
}

// receive handles receipts as the server does.
func (w *world) receive(rw http.ResponseWriter, r *http.Request) {
	var rs []provider.Receipt
	var err error
	if r.URL.Path == "/v1/receipts/twilio" {
		rs, err = provider.ParseTwilio(r, w.twilio.AuthToken, "http://"+r.Host)
	} else {
		key, kerr := provider.ParseSendGridKey(w.sim.Credentials().SendGrid.WebhookPublicKey)
		if err = kerr; err == nil {
			rs, err = provider.ParseSendGrid(r, key, time.Now())
		}
	}
	if err != nil {
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.mu.Lock()
	w.receipts = append(w.receipts, rs...)
	w.mu.Unlock()
	select {
	case w.came <- struct{}{}:
	default:
	}
}

func call(ch notify.Channel, n int, c notify.Content, address func(i int) string) *notify.Call {
	base := notify.NewBase(time.Now())
	out := &notify.Call{Channel: ch, Category: notify.Transactional, Content: &c, Expires: time.Now().Add(time.Hour).UnixMilli()}
	for i := range n {
		out.Items = append(out.Items, notify.Item{Index: uint32(i), FanOut: true,
			Key: &notify.RowKey{Chunk: notify.Chunk{Base: base, Block: uint32(i / 100)}}, Address: []byte(address(i)),
			Variables: fmt.Appendf(nil, `{"name":"user %d"}`, i)})
	}
	return out
}

func send(t testing.TB, s provider.Sender, c *notify.Call) []notify.Result {
	t.Helper()
	var mu sync.Mutex
	out := make([]notify.Result, len(c.Items))
	n := 0
	s.Send(t.Context(), c, notify.Each(func(i int, r notify.Result) {
		mu.Lock()
		defer mu.Unlock()
		out[i] = r
		n++
	}))
	if n != len(out) {
		t.Fatalf("%d reports of %d", n, len(out))
	}
	return out
}

func device(i int) string {
	if i%4 == 3 {
		return "fcm:" + simulator.RegistrationToken(uint64(i))
	}
	return "apns:" + simulator.DeviceToken(uint64(i))
}

func number(i int) string  { return simulator.Phone(uint64(i)) }
func mailbox(i int) string { return simulator.Mailbox(uint64(i)) }

var hello = notify.Content{Title: "Hello {{name}}", Body: "Dear {{name}}, it works.", HTML: "<p>Dear {{name}}</p>", Data: []byte(`{"k":"v"}`)}

// Everything arrives, once, over the providers' own protocols, and the receipts
// find their way back.
func TestSimulatorDelivers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{APNs: simulator.APNsConfig{Streams: 20}}, 20*time.Second)
	f := func(s provider.Sender, c *notify.Call, confirmed bool) {
		t.Helper()
		for i, r := range send(t, s, c) {
			if r.Class != notify.ClassAccepted || r.Confirmed != confirmed || r.Provider == "" {
				t.Fatalf("%d: %+v", i, r)
			}
		}
		if rep := w.sim.Ledger().Base(c.Items[0].Key.Chunk.Base, uint32(len(c.Items))); rep.IDs != uint64(len(c.Items)) || rep.MissingN != 0 || rep.Duplicates != 0 || rep.Beyond != 0 {
			t.Errorf("%+v", rep)
		}
	}
	f(w.push, call(notify.Push, 3000, hello, device), true)
	f(w.twilio, call(notify.SMS, 400, hello, number), false)
	f(w.sendgrid, call(notify.Email, 2500, hello, mailbox), false)

	want := 400 + 2500
	timeout := time.NewTimer(2 * time.Minute)
	defer timeout.Stop()
	for {
		seen := map[string]bool{}
		w.mu.Lock()
		for _, r := range w.receipts {
			if r.State == notify.Delivered && r.HasRef {
				seen[r.Ref.ID().String()] = true
			}
		}
		w.mu.Unlock()
		if len(seen) == want {
			break
		}
		select {
		case <-w.came:
		case <-timeout.C:
			t.Fatalf("%d of %d receipts came; %+v", len(seen), want, w.sim.ReceiptStats())
		}
	}
}

// A call's trace context stands in every request of it, and in none of a call
// without one.
func TestSimulatorSeesTheTrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{}, time.Minute)
	const parent, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=x"
	f := func(p simulator.Provider, s provider.Sender, c *notify.Call, parent, state string) {
		t.Helper()
		c.Trace, c.TraceState = parent, state
		if r := send(t, s, c)[0]; r.Class != notify.ClassAccepted {
			t.Fatalf("%+v", r)
		}
		m := w.sim.Inbox()[0]
		if m.Provider != p || m.Traceparent != parent || m.Tracestate != state {
			t.Errorf("%s: %+v", p, m)
		}
	}
	for _, c := range [][2]string{{parent, state}, {parent, ""}, {"", ""}} {
		f(simulator.APNs, w.push, call(notify.Push, 1, hello, apnsDevice(1)), c[0], c[1])
		f(simulator.FCM, w.push, call(notify.Push, 1, hello, fcmDevice(1)), c[0], c[1])
		f(simulator.Twilio, w.twilio, call(notify.SMS, 1, hello, number), c[0], c[1])
		f(simulator.SendGrid, w.sendgrid, call(notify.Email, 1, hello, mailbox), c[0], c[1])
	}
}

// apnsDevice and fcmDevice are push addresses.
func apnsDevice(n int) func(int) string {
	return func(int) string { return "apns:" + simulator.DeviceToken(uint64(n)) }
}

func fcmDevice(n int) func(int) string {
	return func(int) string { return "fcm:" + simulator.RegistrationToken(uint64(n)) }
}

func rule(p simulator.Provider, do simulator.Action, code string) simulator.Rule {
	return simulator.Rule{Provider: p, Do: do, Code: code}
}

// under sends one item under a rule and returns its result, and whether the
// simulator applied the rule to it.
func (w *world) under(t *testing.T, rule simulator.Rule, s provider.Sender, ch notify.Channel, address string) (r notify.Result, met bool) {
	t.Helper()
	rule.Prefix = address
	if ch == notify.Push {
		_, rule.Prefix, _ = cut(rule.Prefix)
	}
	added, err := w.sim.AddRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	r = send(t, s, call(ch, 1, hello, func(int) string { return address }))[0]
	for _, x := range w.sim.Rules() {
		met = met || x.Number == added.Number && x.Picked > 0
	}
	w.sim.RemoveRule(added.Number)
	return r, met
}

// scripted returns a function that sends one item under a rule.
func (w *world) scripted(t *testing.T) func(rule simulator.Rule, s provider.Sender, ch notify.Channel, address func(int) string, class notify.Class, code string) {
	return func(rule simulator.Rule, s provider.Sender, ch notify.Channel, address func(int) string, class notify.Class, code string) {
		t.Helper()
		if r, _ := w.under(t, rule, s, ch, address(0)); r.Class != class || r.Code != code {
			t.Errorf("%+v: %+v", rule, r)
		}
	}
}

// Each scripted error is understood.
func TestSimulatorFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{}, time.Minute)
	f := w.scripted(t)
	for _, device := range []func(int) string{apnsDevice(0), fcmDevice(0)} { // before a success no token is given up
		if r := send(t, w.push, call(notify.Push, 1, hello, device))[0]; r.Class != notify.ClassAccepted {
			t.Fatalf("%+v", r)
		}
	}
	f(rule(simulator.APNs, simulator.Fail, "Unregistered"), w.push, notify.Push, apnsDevice(1), notify.ClassDeadAddress, "apns_unregistered")
	f(rule(simulator.APNs, simulator.Fail, "TooManyRequests"), w.push, notify.Push, apnsDevice(2), notify.ClassRetry, "apns_too_many_requests")
	f(rule(simulator.APNs, simulator.Outage, ""), w.push, notify.Push, apnsDevice(3), notify.ClassUnavailable, "apns_service_unavailable")
	f(rule(simulator.APNs, simulator.Fail, "Shutdown"), w.push, notify.Push, apnsDevice(4), notify.ClassUnavailable, "apns_shutdown")
	f(rule(simulator.APNs, simulator.Deny, ""), w.push, notify.Push, apnsDevice(5), notify.ClassConfig, "apns_invalid_provider_token")
	f(rule(simulator.APNs, simulator.Reset, ""), w.push, notify.Push, apnsDevice(6), notify.ClassAmbiguous, "connection_lost")
	f(rule(simulator.APNs, simulator.ResetStream, ""), w.push, notify.Push, apnsDevice(7), notify.ClassAmbiguous, "connection_lost")
	f(rule(simulator.FCM, simulator.Fail, "UNREGISTERED"), w.push, notify.Push, fcmDevice(1), notify.ClassDeadAddress, "fcm_unregistered")
	f(rule(simulator.FCM, simulator.Fail, "SENDER_ID_MISMATCH"), w.push, notify.Push, fcmDevice(2), notify.ClassDeadAddress, "fcm_sender_id_mismatch")
	f(rule(simulator.FCM, simulator.Fail, "INVALID_ARGUMENT"), w.push, notify.Push, fcmDevice(3), notify.ClassDeadAddress, "fcm_invalid_token")
	f(rule(simulator.FCM, simulator.Fail, "THIRD_PARTY_AUTH_ERROR"), w.push, notify.Push, fcmDevice(4), notify.ClassConfig, "fcm_third_party_auth_error")
	f(rule(simulator.FCM, simulator.Fail, "UNAVAILABLE"), w.push, notify.Push, fcmDevice(5), notify.ClassUnavailable, "fcm_unavailable")
	f(rule(simulator.FCM, simulator.Fail, "QUOTA_EXCEEDED"), w.push, notify.Push, fcmDevice(7), notify.ClassThrottled, "fcm_quota_exceeded")
	f(rule(simulator.Twilio, simulator.Fail, "21610"), w.twilio, notify.SMS, number, notify.ClassOptedOut, "twilio_21610")
	f(rule(simulator.Twilio, simulator.Fail, "21211"), w.twilio, notify.SMS, number, notify.ClassDeadAddress, "twilio_21211")
	f(rule(simulator.Twilio, simulator.Fail, "21611"), w.twilio, notify.SMS, number, notify.ClassRetry, "twilio_21611")
	f(rule(simulator.Twilio, simulator.Outage, ""), w.twilio, notify.SMS, number, notify.ClassUnavailable, "twilio_20503")
	f(rule(simulator.Twilio, simulator.Gateway, ""), w.twilio, notify.SMS, number, notify.ClassAmbiguous, "twilio_20500")
	f(rule(simulator.Twilio, simulator.Reset, ""), w.twilio, notify.SMS, number, notify.ClassAmbiguous, "connection_lost")
	f(rule(simulator.SendGrid, simulator.Outage, ""), w.sendgrid, notify.Email, mailbox, notify.ClassUnavailable, "http_503")
	f(rule(simulator.SendGrid, simulator.Gateway, ""), w.sendgrid, notify.Email, mailbox, notify.ClassAmbiguous, "http_502")
	f(rule(simulator.SendGrid, simulator.Reset, ""), w.sendgrid, notify.Email, mailbox, notify.ClassAmbiguous, "connection_lost")
	f(rule(simulator.SendGrid, simulator.Deny, ""), w.sendgrid, notify.Email, mailbox, notify.ClassConfig, "http_401")

	w.sim.OptOut(number(77))
	if r := send(t, w.twilio, call(notify.SMS, 1, hello, func(int) string { return number(77) }))[0]; r.Class != notify.ClassOptedOut {
		t.Errorf("%+v", r)
	}
}

// A provider that takes a request and never answers leaves us in the dark. On a
// crowded machine the time may be over before the provider has the request: then
// it is tried again with more.
func TestSimulatorHangs(t *testing.T) {
	t.Parallel()
	for p, x := range map[simulator.Provider]struct {
		sender  func(w *world) provider.Sender
		channel notify.Channel
		address string
	}{
		simulator.APNs:   {func(w *world) provider.Sender { return w.push }, notify.Push, apnsDevice(8)(0)},
		simulator.FCM:    {func(w *world) provider.Sender { return w.push }, notify.Push, fcmDevice(6)(0)},
		simulator.Twilio: {func(w *world) provider.Sender { return w.twilio }, notify.SMS, number(0)},
	} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			for timeout := time.Second; timeout < 5*time.Minute; timeout *= 4 {
				w := newWorld(t, simulator.Config{}, timeout)
				r, met := w.under(t, rule(p, simulator.Hang, ""), x.sender(w), x.channel, x.address)
				if !met {
					continue
				}
				if r.Class != notify.ClassAmbiguous || r.Code != "timeout" {
					t.Errorf("%+v", r)
				}
				return
			}
			t.Error("the provider never had the request")
		})
	}
}

func cut(address string) (scheme, rest string, ok bool) {
	for i := range address {
		if address[i] == ':' {
			return address[:i], address[i+1:], true
		}
	}
	return "", address, false
}

// One bad address in a batch of mail fails alone.
func TestSimulatorBadMailbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{}, time.Minute)
	c := call(notify.Email, 200, hello, func(i int) string {
		if i == 123 {
			return "not an address"
		}
		return mailbox(i)
	})
	for i, r := range send(t, w.sendgrid, c) {
		want := notify.ClassAccepted
		if i == 123 {
			want = notify.ClassDeadAddress
		}
		if r.Class != want {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// twilioParallel is how many requests at once an account of the tests makes.
const twilioParallel = 80

// Throttled accounts are left alone, and nothing is lost.
func TestSimulatorTwilioConcurrency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, simulator.Config{Twilio: simulator.TwilioConfig{N: 3, Latency: simulator.Latency{Median: simulator.Duration(5 * time.Millisecond)}}}, 20*time.Second)
	throttled := w.sim.Credentials().Twilio[0].SID
	rule, err := w.sim.AddRule(simulator.Rule{Provider: simulator.Twilio, Account: throttled, Do: simulator.Throttle, RetryAfter: simulator.Duration(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range send(t, w.twilio, call(notify.SMS, 400, hello, number)) {
		if r.Class != notify.ClassAccepted || r.Provider == "twilio:"+throttled {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	for _, r := range w.sim.Rules() {
		if r.Number == rule.Number && r.Picked > twilioParallel {
			t.Errorf("%d calls to a blocked account", r.Picked)
		}
	}
}
