package simulator

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

func smsForm(a TwilioAccount, to, callback string, fields ...string) url.Values {
	f := url.Values{"To": {to}, "From": {a.From}, "Body": {"Your code is 1234"}}
	if callback != "" {
		f.Set("StatusCallback", callback)
	}
	for i := 0; i < len(fields); i += 2 {
		f.Set(fields[i], fields[i+1])
		if fields[i+1] == "" {
			f.Del(fields[i])
		}
	}
	return f
}

func smsSend(t testing.TB, s *Simulator, a TwilioAccount, f url.Values) *http.Request {
	r := request(t, "POST", s.URLs().Twilio+"/2010-04-01/Accounts/"+a.SID+"/Messages.json", []byte(f.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	r.SetBasicAuth(a.SID, a.Token)
	return r
}

func TestTwilioAccepts(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}})
	a := s.Credentials().Twilio[1]
	c := client(t, s, "h1")
	id := newID().String()
	got := do(t, c, smsSend(t, s, a, smsForm(a, Phone(1), "https://example.invalid/cb?id="+id, "ValidityPeriod", "60", "Body", strings.Repeat("ü", 161)+" #u1:5")))
	if got.status != 201 || got.header.Get("Twilio-Concurrent-Requests") != "1" {
		t.Fatalf("%+v", got)
	}
	for path, want := range map[string]any{
		"account_sid": a.SID, "to": Phone(1), "from": a.From, "status": "queued", "num_segments": "2", "api_version": "2010-04-01",
		"error_code": nil, "price": nil, "messaging_service_sid": nil, "direction": "outbound-api",
	} {
		if v := field(t, got.body, path); v != want {
			t.Errorf("%s: %v", path, v)
		}
	}
	sid := field(t, got.body, "sid").(string)
	if len(sid) != 34 || !strings.HasPrefix(sid, "SM") {
		t.Errorf("sid %q", sid)
	}
	if _, err := time.Parse(time.RFC1123Z, field(t, got.body, "date_created").(string)); err != nil {
		t.Error(err)
	}
	delivered(t, s, id, 1)

	ref := newID().String() // the id may also be called ref; with a service the status is another
	got = do(t, c, smsSend(t, s, a, smsForm(a, Phone(1), "https://example.invalid/cb?ref="+ref, "From", "", "MessagingServiceSid", a.MessagingServiceSID)))
	if got.status != 201 || field(t, got.body, "status") != "accepted" || field(t, got.body, "num_segments") != "0" {
		t.Errorf("%+v", got)
	}
	delivered(t, s, ref, 1)
	if o := s.Ledger().Order(); o.Users != 1 {
		t.Errorf("%+v", o)
	}
}

func TestTwilioRefuses(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	a, b := s.Credentials().Twilio[0], s.Credentials().Twilio[1]
	c := client(t, s, "h1")
	s.OptOut(Phone(9))
	form := func(fields ...string) url.Values { return smsForm(a, Phone(1), "", fields...) }
	wrong := a
	wrong.Token = b.Token
	for name, tc := range map[string]struct {
		r            *http.Request
		status, code int
	}{
		"token":           {smsSend(t, s, wrong, form()), 401, 20003},
		"unknown account": {smsSend(t, s, TwilioAccount{SID: "ACx"}, form()), 401, 20003},
		"other's account": {func() *http.Request { r := smsSend(t, s, a, form()); r.SetBasicAuth(b.SID, b.Token); return r }(), 401, 20003},
		"no to":           {smsSend(t, s, a, form("To", "")), 400, 21604},
		"to":              {smsSend(t, s, a, form("To", "0171")), 400, 21211},
		"no from":         {smsSend(t, s, a, form("From", "")), 400, 21603},
		"other's from":    {smsSend(t, s, a, form("From", b.From)), 400, 21606},
		"other's service": {smsSend(t, s, a, form("From", "", "MessagingServiceSid", b.MessagingServiceSID)), 400, 21701},
		"no body":         {smsSend(t, s, a, form("Body", "")), 400, 21602},
		"1601":            {smsSend(t, s, a, form("Body", strings.Repeat("é", 1601))), 400, 21617},
		"callback":        {smsSend(t, s, a, form("StatusCallback", "ftp://x/y")), 400, 21609},
		"underscore":      {smsSend(t, s, a, form("StatusCallback", "https://a_b.example/y")), 400, 21609},
		"validity 0":      {smsSend(t, s, a, form("ValidityPeriod", "0")), 400, 21624},
		"validity":        {smsSend(t, s, a, form("ValidityPeriod", "36001")), 400, 21624},
		"unknown field":   {smsSend(t, s, a, form("Foo", "1")), 400, 20001},
		"stopped":         {smsSend(t, s, a, form("To", Phone(9))), 400, 21610},
		"json": {func() *http.Request {
			r := smsSend(t, s, a, form())
			r.Header.Set("Content-Type", "application/json")
			return r
		}(), 400, 20001},
		"path": {request(t, "POST", s.URLs().Twilio+"/2010-04-01/Accounts/"+a.SID+"/Calls.json", nil), 404, 20404},
	} {
		got := do(t, c, tc.r)
		if got.status != tc.status || field(t, got.body, "code") != float64(tc.code) || field(t, got.body, "status") != float64(tc.status) ||
			field(t, got.body, "more_info") != fmt.Sprint("https://www.twilio.com/docs/errors/", tc.code) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	s.OptIn(Phone(9))
	if got := do(t, c, smsSend(t, s, a, form("To", Phone(9), "Body", strings.Repeat("é", 1600)))); got.status != 201 {
		t.Errorf("%+v", got)
	}
}

// TestTwilioConcurrency holds one request and sees the next refused, on this
// account alone.
func TestTwilioConcurrency(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Twilio: TwilioConfig{Concurrency: 1, RetryAfter: 1500 * time.Millisecond}})
	accounts := s.Credentials().Twilio
	hang := rule(t, s, Rule{Provider: Twilio, Account: accounts[0].SID, Do: Hang, Count: 1})
	c := client(t, s, "h1")

	held := smsSend(t, s, accounts[0], smsForm(accounts[0], Phone(1), ""))
	left := make(chan error, 1)
	go func() {
		_, err := try(c, held)
		left <- err
	}()
	waitFor(t, func() bool { return s.Ledger().Summary().Ambiguous == 1 })
	got := do(t, c, smsSend(t, s, accounts[0], smsForm(accounts[0], Phone(2), "")))
	if got.status != 429 || field(t, got.body, "code") != 20429.0 || got.header.Get("Twilio-Concurrent-Requests") != "2" || got.header.Get("Retry-After") != "2" {
		t.Errorf("%+v", got)
	}
	if got := do(t, c, smsSend(t, s, accounts[1], smsForm(accounts[1], Phone(2), ""))); got.status != 201 {
		t.Errorf("another account: %+v", got)
	}
	s.RemoveRule(hang.Number)
	select {
	case err := <-left:
		t.Errorf("the held request ended: %v", err)
	default:
	}
	c.CloseIdleConnections()
}

func TestSegments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body string
		want int
	}{
		{"", 1}, {strings.Repeat("a", 160), 1}, {strings.Repeat("a", 161), 2}, {strings.Repeat("a", 307), 3},
		{strings.Repeat("€", 80), 1}, {strings.Repeat("€", 81), 2}, {strings.Repeat("я", 70), 1}, {strings.Repeat("я", 71), 2}, {strings.Repeat("😀", 36), 2},
	} {
		if got := segments(tc.body); got != tc.want {
			t.Errorf("%.5q x %d: %d, want %d", tc.body, len([]rune(tc.body)), got, tc.want)
		}
	}
}

func TestUserSuffix(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"hello #u1:7": "u1 7", "a #b #tenant:u1:12": "tenant:u1 12", "hello": " 0", "#u1:7": " 0", "x #u1": " 0", "x #:1": " 0", "x #u1:y": " 0", "x #a b:1": " 0",
	} {
		if u, n := userSuffix(body); fmt.Sprint(u, " ", n) != want {
			t.Errorf("%q: %q %d", body, u, n)
		}
	}
}

// callbacks is a receiver of callbacks; those it answers well come on the channel.
func callbacks(t testing.TB, answer func(r *http.Request) int) (string, <-chan *http.Request) {
	got := make(chan *http.Request, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(strings.Builder)
		buf := make([]byte, 4096)
		for {
			n, err := r.Body.Read(buf)
			body.Write(buf[:n])
			if err != nil {
				break
			}
		}
		r.Form = url.Values{"raw": {body.String()}}
		status := answer(r)
		w.WriteHeader(status)
		if status < 300 {
			got <- r
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, got
}

func TestTwilioReceipts(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	url0, got := callbacks(t, func(*http.Request) int { return 204 })
	a := s.Credentials().Twilio[0]
	c := client(t, s, "h1")
	send := func(to string) (string, string) {
		cb := url0 + "/twilio?id=" + newID().String() + "&x=1"
		r := do(t, c, smsSend(t, s, a, smsForm(a, to, cb)))
		if r.status != 201 {
			t.Fatalf("%+v", r)
		}
		return field(t, r.body, "sid").(string), cb
	}
	expect := func(sid, cb, status, code string) {
		t.Helper()
		r := <-got
		f, err := url.ParseQuery(r.Form.Get("raw"))
		if err != nil {
			t.Fatal(err)
		}
		if f.Get("MessageSid") != sid || f.Get("MessageStatus") != status || f.Get("ErrorCode") != code || f.Get("AccountSid") != a.SID || f.Get("ApiVersion") != "2010-04-01" {
			t.Errorf("%v, want %s %s", f, status, code)
		}
		if sig := TwilioSignature(a.Token, cb, f); r.Header.Get("X-Twilio-Signature") != sig || url0+r.RequestURI != cb {
			t.Errorf("signature %q of %s, want %q", r.Header.Get("X-Twilio-Signature"), r.RequestURI, sig)
		}
	}
	sid, cb := send(Phone(1))
	expect(sid, cb, "sent", "")
	expect(sid, cb, "delivered", "")

	rule(t, s, Rule{Provider: Twilio, Prefix: Phone(2), Do: Receipt, Code: "30005"})
	sid, cb = send(Phone(2))
	expect(sid, cb, "sent", "")
	expect(sid, cb, "undelivered", "30005")

	if err := s.SetReceipts(Receipts{Undelivered: 1, Duplicates: 1, Delay: Constant(2 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	sid, cb = send(Phone(3))
	expect(sid, cb, "sent", "")
	expect(sid, cb, "undelivered", "30003")
	expect(sid, cb, "undelivered", "30003")

	if err := s.SetReceipts(Receipts{Off: true}); err != nil {
		t.Fatal(err)
	}
	send(Phone(4))
	waitFor(t, func() bool { return s.ReceiptStats().Sent == 7 })
	if st := s.ReceiptStats(); st.Pending != 0 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
}

// The example of Twilio's documentation on request validation.
func TestTwilioSignatureExample(t *testing.T) {
	t.Parallel()
	f := url.Values{"CallSid": {"CA1234567890ABCDE"}, "Caller": {"+14158675309"}, "Digits": {"1234"}, "From": {"+14158675309"}, "To": {"+18005551212"}}
	if got := TwilioSignature("12345", "https://mycompany.com/myapp.php?foo=1&bar=2", f); got != "RSOYDt4T1cUTdK1PDd93/VVr8B8=" {
		t.Error(got)
	}
}

// A GET of an account with its token says that it is active, and sends nothing.
func TestTwilioAccountIsShown(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	a := s.Credentials().Twilio[0]
	c := client(t, s, "h1")
	f := func(sid, token string, status int) response {
		t.Helper()
		r := request(t, "GET", s.URLs().Twilio+"/2010-04-01/Accounts/"+sid+".json", nil)
		r.SetBasicAuth(a.SID, token)
		got := do(t, c, r)
		if got.status != status {
			t.Errorf("%+v, want %d", got, status)
		}
		return got
	}
	if got := f(a.SID, a.Token, 200); field(t, got.body, "status") != "active" || field(t, got.body, "sid") != a.SID {
		t.Errorf("%s", got.body)
	}
	f(a.SID, "wrong", 401)
	f("AC0", a.Token, 401)
	if n := s.Ledger().Summary().Providers["twilio"]; n.Receivers != 0 {
		t.Errorf("%+v", n)
	}
}
