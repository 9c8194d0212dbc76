package provider

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// tokenOf gives every account one token.
func tokenOf(token string) func(string) string { return func(string) string { return token } }

func TestParseTwilio(t *testing.T) {
	t.Parallel()
	const token, public = "secret", "https://notify.example.com"
	item := &testCall(notify.SMS, notify.Content{}, 3, phone).Items[2]
	target := strings.TrimPrefix(TwilioCallback(public, item), public)
	post := func(form url.Values, signedURL, signedWith string) *http.Request {
		r := httptest.NewRequest("POST", target, strings.NewReader(form.Encode()))
		r.Host = "10.0.0.7:8080" // what a proxy made of it
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(twilioMAC(signedWith, signedURL, form)))
		return r
	}
	form := func(status, code string) url.Values {
		return url.Values{"AccountSid": {"AC1"}, "MessageSid": {"SM1"}, "MessageStatus": {status}, "ErrorCode": {code}, "To": {phone(2)}, "From": {"x"}}
	}
	f := func(status, code string, state notify.State, want string, dead, out bool) {
		t.Helper()
		rs, err := ParseTwilio(post(form(status, code), public+target, token), tokenOf(token), public+"/")
		if err != nil || len(rs) != 1 {
			t.Fatal(err)
		}
		r := rs[0]
		if r.State != state || r.Code != want || r.DeadAddress != dead || r.OptedOut != out || !r.HasRef || r.Ref != RefOf(item) ||
			r.ProviderID != "SM1" || r.Provider != "twilio:AC1" || r.Address != phone(2) {
			t.Errorf("%s %s: %+v", status, code, r)
		}
	}
	f("delivered", "", notify.Delivered, "", false, false)
	f("read", "0", notify.Delivered, "", false, false)
	f("queued", "", notify.None, "", false, false)
	f("sending", "", notify.None, "", false, false)
	f("sent", "", notify.None, "", false, false)
	f("canceled", "", notify.Failed, "twilio_canceled", false, false)
	f("failed", "", notify.Failed, "twilio_failed", false, false)
	f("undelivered", "30003", notify.Failed, "twilio_30003", false, false)
	f("undelivered", "30004", notify.Failed, "twilio_30004", false, false)
	f("undelivered", "30005", notify.Failed, "twilio_30005", false, false)
	f("undelivered", "30006", notify.Failed, "twilio_30006", true, false)
	f("undelivered", "30007", notify.Failed, "twilio_30007", false, false)
	f("undelivered", "30008", notify.Failed, "twilio_30008", false, false)
	f("failed", "21211", notify.Failed, "twilio_21211", true, false)
	f("failed", "21614", notify.Failed, "twilio_21614", true, false)
	f("failed", "21610", notify.Failed, "twilio_21610", false, true)

	good := form("delivered", "")
	// signed with the port
	if _, err := ParseTwilio(post(good, "https://notify.example.com:443"+target, token), tokenOf(token), public); err != nil {
		t.Error(err)
	}
	refused := func(what string, r *http.Request, token, public string) {
		t.Helper()
		if rs, err := ParseTwilio(r, tokenOf(token), public); notify.KindOf(err) != notify.KindUnauthorized || rs != nil {
			t.Errorf("%s: %v %v", what, rs, err)
		}
	}
	refused("another token", post(good, public+target, "other"), token, public)
	refused("another URL", post(good, "https://evil.example.com"+target, token), token, public)
	refused("another query", post(good, public+target+"x", token), token, public)
	refused("no token", post(good, public+target, ""), "", public)
	r := post(good, public+target, token)
	r.Body = http.NoBody
	refused("a body taken away", r, token, public)
	r = post(good, public+target, token)
	changed := form("failed", "21610")
	r.Body = post(changed, "", "").Body
	refused("another body", r, token, public)
	r = post(good, public+target, token)
	r.Header.Del("X-Twilio-Signature")
	refused("no signature", r, token, public)
	r = post(good, public+target, token)
	r.Header.Set("X-Twilio-Signature", "%%%")
	refused("no base64", r, token, public)
	r = post(good, public+target, token)
	if _, err := ParseTwilio(r, func(a string) string { return map[string]string{"AC2": token}[a] }, public); notify.KindOf(err) != notify.KindUnauthorized {
		t.Errorf("another account: %v", err)
	}
	big := form("delivered", "")
	big.Set("Body", strings.Repeat("x", maxTwilioReceipt))
	if _, err := ParseTwilio(post(big, public+target, token), tokenOf(token), public); notify.KindOf(err) != notify.KindTooLarge {
		t.Errorf("too large: %v", err)
	}
}

// The example Twilio documents, to hold the algorithm against something that is
// not ours.
func TestTwilioSignature(t *testing.T) {
	t.Parallel()
	form := url.Values{"CallSid": {"CA1234567890ABCDE"}, "Caller": {"+14158675309"}, "Digits": {"1234"}, "From": {"+14158675309"}, "To": {"+18005551212"}}
	const u = "https://mycompany.com/myapp.php?foo=1&bar=2"
	if !twilioSigned("12345", u, form, "RSOYDt4T1cUTdK1PDd93/VVr8B8=") {
		t.Errorf("got %s", base64.StdEncoding.EncodeToString(twilioMAC("12345", u, form)))
	}
}

func TestParseSendGrid(t *testing.T) {
	t.Parallel()
	der, _ := x509.MarshalPKIXPublicKey(&testECKey.PublicKey)
	key, err := ParseSendGridKey(base64.StdEncoding.EncodeToString(der) + "\n")
	if err != nil {
		t.Fatal(err)
	}
	item := &testCall(notify.Email, notify.Content{}, 3, mailbox).Items[2]
	now := time.Unix(1600000000, 0)
	postAt := func(at, body string) *http.Request {
		r := httptest.NewRequest("POST", "/v1/receipts/sendgrid", strings.NewReader(body))
		sum := sha256.Sum256([]byte(at + body))
		sig, _ := ecdsa.SignASN1(rand.Reader, testECKey, sum[:])
		r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", at)
		r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(sig))
		return r
	}
	post := func(body string) *http.Request { return postAt("1600000000", body) }
	event := func(fields string) string {
		return fmt.Sprintf(`{"email":%q,"timestamp":1700000000,"sg_message_id":"abc.filter0001.1","ntf":%q,"ref":%q,%s}`,
			mailbox(2), item.ID(), EncodeRef(RefOf(item)), fields)
	}
	f := func(fields string, n int, state notify.State, code string, dead, out bool) {
		t.Helper()
		rs, err := ParseSendGrid(post("["+event(fields)+"]"), key, now)
		if err != nil || len(rs) != n {
			t.Fatalf("%s: %v %v", fields, rs, err)
		}
		if n == 0 {
			return
		}
		r := rs[0]
		if r.State != state || r.Code != code || r.DeadAddress != dead || r.OptedOut != out || !r.HasRef || r.Ref != RefOf(item) ||
			r.ProviderID != "abc" || r.Address != mailbox(2) || !r.At.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("%s: %+v", fields, r)
		}
	}
	f(`"event":"delivered"`, 1, notify.Delivered, "", false, false)
	f(`"event":"bounce","type":"bounce","status":"5.1.1"`, 1, notify.Failed, "sendgrid_bounce", true, false)
	f(`"event":"bounce","type":"blocked"`, 1, notify.Failed, "sendgrid_blocked", false, false)
	f(`"event":"dropped","reason":"Bounced Address"`, 1, notify.Failed, "sendgrid_dropped", true, false)
	f(`"event":"dropped","reason":"Spam Reporting Address"`, 1, notify.Failed, "sendgrid_dropped", false, true)
	f(`"event":"dropped","reason":"Unsubscribed Address"`, 1, notify.Failed, "sendgrid_dropped", false, true)
	f(`"event":"dropped","reason":"Invalid"`, 1, notify.Failed, "sendgrid_dropped", true, false)
	f(`"event":"dropped","reason":"Invalid SMTPAPI header"`, 1, notify.Failed, "sendgrid_dropped", false, false)
	f(`"event":"spamreport"`, 1, notify.None, "sendgrid_spamreport", false, true)
	f(`"event":"unsubscribe"`, 1, notify.None, "sendgrid_unsubscribe", false, true)
	f(`"event":"group_unsubscribe"`, 1, notify.None, "sendgrid_group_unsubscribe", false, true)
	for _, e := range []string{"processed", "deferred", "open", "click", "group_resubscribe", "novel"} {
		f(`"event":"`+e+`"`, 0, 0, "", false, false)
	}

	batch := "[" + event(`"event":"delivered"`) + `,{"event":"bounce","email":"x@y.example"},` + event(`"event":"open"`) + "]"
	rs, err := ParseSendGrid(post(batch), key, now)
	if err != nil || len(rs) != 2 || rs[1].HasRef || !rs[1].DeadAddress {
		t.Errorf("%+v %v", rs, err)
	}

	refused := func(what string, r *http.Request, key *ecdsa.PublicKey) {
		t.Helper()
		if rs, err := ParseSendGrid(r, key, now); notify.KindOf(err) != notify.KindUnauthorized || rs != nil {
			t.Errorf("%s: %v %v", what, rs, err)
		}
	}
	other := post(batch)
	other.Body = post(strings.Replace(batch, "delivered", "bounce", 1)).Body
	refused("another body", other, key)
	later := post(batch)
	later.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", "1600000001")
	refused("another time", later, key)
	unsigned := post(batch)
	unsigned.Header.Del("X-Twilio-Email-Event-Webhook-Signature")
	refused("no signature", unsigned, key)
	refused("no key", post(batch), nil)
	// Signed, but of another time: somebody posts again what was caught on its way.
	for at, ok := range map[string]bool{
		"1599999400": true, "1600000600": true, "1599999399": false, "1600000601": false,
		"0": false, "": false, "abc": false, "-1": false, "9223372036854775807": false, "-9223372036854775808": false,
	} {
		rs, err := ParseSendGrid(postAt(at, batch), key, now)
		if e, _ := errors.AsType[*notify.Error](err); ok && (err != nil || len(rs) != 2) || !ok && (e == nil || e.Code != "receipt_too_old" || e.Kind != notify.KindUnauthorized || rs != nil) {
			t.Errorf("signed at %q: %v %v", at, rs, err)
		}
	}
	if _, err := ParseSendGrid(post(`{"event":"delivered"}`), key, now); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("no array: %v", err)
	}
	for _, bad := range []string{"", "x", base64.StdEncoding.EncodeToString([]byte("x"))} {
		if _, err := ParseSendGridKey(bad); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
