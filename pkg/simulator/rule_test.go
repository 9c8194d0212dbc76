package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

func sortedWords(s string) []string {
	w := strings.Fields(s)
	slices.Sort(w)
	return w
}

// picks shows n calls to one rule and returns which of them it picked.
func picks(t *testing.T, seed uint64, r Rule, n int) []int {
	rs := newRules(seed, time.Now)
	if _, err := rs.add(r); err != nil {
		t.Fatal(err)
	}
	var out []int
	for i := range n {
		if rs.decide(&providerCall{provider: APNs}).fault != nil {
			out = append(out, i)
		}
	}
	return out
}

func TestRuleRate(t *testing.T) {
	t.Parallel()
	r := Rule{Do: Outage, Rate: 0.1}
	a, b, c := picks(t, 1, r, 20_000), picks(t, 1, r, 20_000), picks(t, 2, r, 20_000)
	if !slices.Equal(a, b) {
		t.Error("one seed picked two sets")
	}
	if slices.Equal(a, c) {
		t.Error("two seeds picked the same")
	}
	if n := len(a); n < 1850 || n > 2150 { // 2000, 3.5 standard deviations
		t.Errorf("%d of 20000 at a rate of 0.1", n)
	}
	if got := picks(t, 1, Rule{Do: Outage, Count: 3}, 10); fmt.Sprint(got) != "[0 1 2]" {
		t.Errorf("the next three: %v", got)
	}
	if got := picks(t, 1, Rule{Do: Outage, Rate: 0.1, Count: 3}, 20_000); !slices.Equal(got, a[:3]) {
		t.Errorf("the first three of a tenth: %v, want %v", got, a[:3])
	}
}

// TestRuleCount checks that a rule with count 1 picks one request, even if several requests come at
// the same time.
func TestRuleCount(t *testing.T) {
	t.Parallel()
	a := &activeRule{Rule: Rule{Count: 1, Rate: 1}}
	if got := fmt.Sprint(a.pickNext(1), a.pickNext(1), a.pickNext(1)); got != "true false false" {
		t.Error(got)
	}
}

func TestRuleMatch(t *testing.T) {
	t.Parallel()
	c := &providerCall{provider: Twilio, account: "AC1", pool: "", receivers: []receiver{{address: "+4911", id: "ntf_1"}, {address: "+4922", id: "ntf_2"}}}
	for _, tc := range []struct {
		r    Rule
		want bool
	}{
		{Rule{}, true}, {Rule{Provider: Twilio}, true}, {Rule{Provider: FCM}, false}, {Rule{Account: "AC1"}, true}, {Rule{Account: "AC2"}, false},
		{Rule{Pool: "p"}, false}, {Rule{Prefix: "+492"}, true}, {Rule{Prefix: "+493"}, false}, {Rule{ID: "ntf_2"}, true},
		{Rule{ID: "ntf_2", Prefix: "+4911"}, false},
	} {
		if got := (&activeRule{Rule: tc.r}).matches(c); got != tc.want {
			t.Errorf("%+v: %v", tc.r, got)
		}
	}
}

func TestRuleTime(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	rs := newRules(1, func() time.Time { return now })
	if _, err := rs.add(Rule{Do: Throttle, For: Duration(10 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(4 * time.Second)
	f := rs.decide(&providerCall{provider: Twilio}).fault
	if f == nil || f.Status != 429 || f.retryAfter(now) != 6*time.Second {
		t.Fatalf("%+v", f)
	}
	now = now.Add(6 * time.Second)
	if rs.decide(&providerCall{provider: Twilio}).fault != nil {
		t.Error("the rule outlived its time")
	}
	if _, err := rs.add(Rule{Do: Reset}); err != nil {
		t.Fatal(err)
	}
	if n := len(rs.all()); n != 1 {
		t.Errorf("%d rules: those that are over are swept", n)
	}
}

func TestRuleRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r     Rule
		field string
	}{
		{Rule{}, "do"}, {Rule{Do: "explode"}, "do"}, {Rule{Do: Fail}, "status"}, {Rule{Do: Fail, Status: 200}, "status"},
		{Rule{Do: Fail, Code: "Unregistered"}, "code"}, {Rule{Do: Fail, Provider: APNs, Code: "Nope"}, "code"},
		{Rule{Do: Outage, Rate: 1.5}, "rate"}, {Rule{Do: Outage, Rate: math.NaN()}, "rate"}, {Rule{Do: Delay}, "latency"},
		{Rule{Do: Receipt, Provider: APNs}, "provider"}, {Rule{Do: Receipt, Provider: Twilio, Code: "21610"}, "code"},
		{Rule{Do: Receipt, Provider: SendGrid, Code: "lost"}, "code"}, {Rule{Do: Outage, Provider: 9}, "provider"},
	} {
		_, err := newRules(1, time.Now).add(tc.r)
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Field != tc.field {
			t.Errorf("%+v: %v, want %s", tc.r, err, tc.field)
		}
	}
}

// sender sends one notification through a provider.
type sender struct {
	provider Provider
	protocol string
	send     func(id string) *http.Request
	accepted int
}

func senders(t testing.TB, s *Simulator) []sender {
	auth := accessToken(t, s, client(t, s, "h2"))
	a := s.Credentials().Twilio[0]
	return []sender{
		{APNs, "h2", func(id string) *http.Request { return push(t, s, DeviceToken(1), id) }, 200},
		{FCM, "h2", func(id string) *http.Request { return fcmSend(t, s, auth, fcmMessageFor(RegistrationToken(1), id)) }, 200},
		{Twilio, "h1", func(id string) *http.Request {
			return smsSend(t, s, a, smsForm(a, Phone(1), "https://example.invalid/?id="+id))
		}, 201},
		{SendGrid, "h1", func(id string) *http.Request { return mailSend(t, s, mailBody(1, id)) }, 202},
	}
}

// TestScriptedErrors sees every error of every provider's table on the wire.
func TestScriptedErrors(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}, APNs: APNsConfig{TokenFloor: -1}, FCM: FCMConfig{PerDevice: -1}})
	type want struct {
		code   string
		status int
	}
	table := map[Provider][]want{SendGrid: {{"", 400}, {"", 401}, {"", 403}, {"", 413}, {"", 500}, {"", 503}}}
	for reason, status := range apnsReasons {
		table[APNs] = append(table[APNs], want{reason, status})
	}
	for code, e := range fcmCodes {
		table[FCM] = append(table[FCM], want{code, e.http})
	}
	for code, e := range twilioErrors {
		table[Twilio] = append(table[Twilio], want{fmt.Sprint(code), e.status})
	}
	where := map[Provider]string{APNs: "reason", FCM: "error.details.0.errorCode", Twilio: "code", SendGrid: "errors.0.message"}
	for _, v := range senders(t, s) {
		c := client(t, s, v.protocol)
		for _, w := range table[v.provider] {
			r := Rule{Provider: v.provider, Do: Fail, Code: w.code, Count: 1, RetryAfter: Duration(1500 * time.Millisecond)}
			if w.code == "" {
				r.Status = w.status
			}
			rule(t, s, r)
			id := newID().String()
			got := do(t, c, v.send(id))
			code := field(t, got.body, where[v.provider])
			if code == nil && w.code == "UNAUTHENTICATED" {
				code = field(t, got.body, "error.status")
			}
			if got.status != w.status || (w.code != "" && fmt.Sprint(code) != w.code) || code == nil || got.header.Get("Retry-After") != "2" {
				t.Errorf("%s %s: %d %s %v", v.provider, w.code, got.status, got.body, got.header)
			}
			if v.provider == APNs && (field(t, got.body, "timestamp") != nil) != (w.status == 410) {
				t.Errorf("timestamp in %s", got.body)
			}
			delivered(t, s, id, 0)
			if got := do(t, c, v.send(id)); got.status != v.accepted {
				t.Errorf("%s: after the rule: %+v", v.provider, got)
			}
			delivered(t, s, id, 1)
		}
	}
}

// TestAmbiguous checks that a request counts as delivered if it was reset or never answered after
// its body was read, and does not if it was dropped.
func TestAmbiguous(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}, APNs: APNsConfig{TokenFloor: -1}})
	for _, v := range senders(t, s) {
		for _, tc := range []struct {
			do      Action
			count   int
			outcome string
		}{{Reset, 1, "ambiguous"}, {ResetStream, 1, "ambiguous"}, {Hang, 1, "ambiguous"}, {Drop, 0, "rejected"}} {
			c := client(t, s, v.protocol)
			rule(t, s, Rule{Provider: v.provider, Do: tc.do, Count: 1})
			id := newID().String()
			r := v.send(id)
			r.GetBody = nil    // or net/http would send it again by itself
			if tc.do == Hang { // the caller gives up once it is there
				ctx, cancel := context.WithCancel(t.Context())
				r = r.WithContext(ctx)
				go func() {
					defer cancel()
					waitFor(t, func() bool { return len(s.Ledger().Lookup(id)) > 0 })
				}()
			}
			if got, err := try(c, r); err == nil {
				t.Errorf("%s %s: answered %+v", v.provider, tc.do, got)
			} else if tc.do == Reset && v.protocol == "h1" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s %s: %v", v.provider, tc.do, err)
			}
			delivered(t, s, id, tc.count)
			if d := s.Ledger().Lookup(id); len(d) != 1 || d[0].Status != 0 || d[0].Attempts != 1 {
				t.Errorf("%s %s: %+v", v.provider, tc.do, d)
			}
			// The inbox is written behind the ledger.
			waitFor(t, func() bool { in := s.Inbox(); return len(in) > 0 && in[0].ID == id })
			if m := s.Inbox()[0]; m.Outcome != tc.outcome {
				t.Errorf("%s %s: %+v", v.provider, tc.do, m)
			}
			// The caller does not know and sends again: a duplicate only if the first was taken.
			before := s.Ledger().Summary().Duplicates
			if got := do(t, c, v.send(id)); got.status != v.accepted {
				t.Errorf("%s after %s: %+v", v.provider, tc.do, got)
			}
			if d := s.Ledger().Summary().Duplicates - before; d != uint64(tc.count) {
				t.Errorf("%s after %s: %d duplicates", v.provider, tc.do, d)
			}
		}
	}
}

func TestLatencyAndDrip(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}, APNs: APNsConfig{TokenFloor: -1}, Twilio: TwilioConfig{Latency: Constant(60 * time.Millisecond)}})
	all := senders(t, s)
	apns, twilio := all[0], all[2]
	timed := func(v sender) time.Duration {
		r, c := v.send(newID().String()), client(t, s, v.protocol)
		t0 := time.Now()
		if got := do(t, c, r); got.status != v.accepted {
			t.Errorf("%+v", got)
		}
		return time.Since(t0)
	}
	if d := timed(twilio); d < 60*time.Millisecond {
		t.Errorf("configured: %v", d)
	}
	if err := s.SetLatency(APNs, Constant(40*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if d := timed(apns); d < 40*time.Millisecond {
		t.Errorf("set: %v", d)
	}
	rule(t, s, Rule{Provider: Twilio, Prefix: Phone(1), Do: Delay, Latency: Constant(90 * time.Millisecond), Count: 1})
	if d := timed(twilio); d < 90*time.Millisecond {
		t.Errorf("by rule: %v", d)
	}
	for _, v := range []sender{apns, twilio} { // with a body and without
		rule(t, s, Rule{Provider: v.provider, Do: Drip, Latency: Constant(80 * time.Millisecond), Count: 1})
		if d := timed(v); d < 80*time.Millisecond {
			t.Errorf("drip: %v", d)
		}
	}
}

func TestLatencyShape(t *testing.T) {
	t.Parallel()
	l := Lognormal(50*time.Millisecond, 200*time.Millisecond)
	near := func(got, want time.Duration) bool { return math.Abs(float64(got-want)) < 0.001*float64(want) }
	if !near(l.atQuantile(0.5), 50*time.Millisecond) || !near(l.atQuantile(0.99), 200*time.Millisecond) || !near(l.atQuantile(0.01), 12500*time.Microsecond) {
		t.Errorf("%v %v %v", l.atQuantile(0.5), l.atQuantile(0.99), l.atQuantile(0.01))
	}
	if (Latency{}).atQuantile(0.999) != 0 || Constant(time.Second).atQuantile(0.001) != time.Second {
		t.Error("constant")
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	w := newWindow(2, time.Minute, 10*time.Second)
	at := func(sec int64) time.Time { return time.Unix(6000+sec, 0) } // a full minute of the clock
	take := func(key string, sec int64) bool { return w.take(key, 1, at(sec)) }
	got := fmt.Sprint(take("a", 0), take("a", 9), take("a", 9), take("b", 9), take("a", 10), take("a", 69), take("a", 69), take("a", 70))
	if got != "true true false true true true false true" {
		t.Error(got)
	}
	if left, end := w.left("a", at(71)); left != 1 || !end.Equal(at(130)) {
		t.Errorf("%d %v", left, end)
	}
}

// A rule is what the control API reads, so its JSON is an interface.
func TestRuleJSON(t *testing.T) {
	t.Parallel()
	var r Rule
	text := `{"provider":"twilio","account":"AC1","prefix":"+49","rate":0.5,"count":3,"for":"10s","do":"error","status":429,"code":"20429","retry_after":"1m30s","latency":{"median":"50ms","p99":"2s"}}`
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	want := Rule{Provider: Twilio, Account: "AC1", Prefix: "+49", Rate: 0.5, Count: 3, For: Duration(10 * time.Second), Do: Fail, Status: 429, Code: "20429",
		RetryAfter: Duration(90 * time.Second), Latency: Lognormal(50*time.Millisecond, 2*time.Second)}
	if r != want {
		t.Errorf("%+v", r)
	}
	for _, bad := range []string{`{"provider":"fax"}`, `{"for":"soon"}`, `{"for":"-1s"}`} {
		if json.Unmarshal([]byte(bad), &r) == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
