package provider

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// twilioReceipts lists the error codes in Twilio's receipts that mean that the number is dead or
// opted out. All other codes concern only this message, for example 30004 (blocked) and 30005
// (unknown handset). These two can end when a phone is switched on again or a carrier changes its
// decision.
var twilioReceipts = map[int]struct{ dead, optedOut bool }{
	21610: {optedOut: true},
	21211: {dead: true},
	21614: {dead: true},
	30006: {dead: true}, // landline or unreachable carrier
}

// ParseTwilio parses a status callback. authToken returns the token of an account, or "" for an
// account that is not ours (see Twilio.AuthToken). publicURL is TwilioConfig.PublicURL. Twilio signs
// the URL that notifyd gave it. ParseTwilio makes this URL from publicURL, because proxies may have
// changed the URL in r. It returns errSignature if the signature does not match.
func ParseTwilio(r *http.Request, authToken func(account string) string, publicURL string) ([]Receipt, error) {
	body, err := readReceipt(r, maxTwilioReceipt)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, notify.Invalid("bad_body", "", "the body must be a URL-encoded form")
	}
	token := authToken(form.Get("AccountSid"))
	full := strings.TrimSuffix(publicURL, "/") + r.URL.RequestURI()
	if token == "" || !twilioSigned(token, full, form, r.Header.Get(TwilioSignature)) {
		return nil, errSignature
	}
	rc := Receipt{
		Provider: "twilio:" + form.Get("AccountSid"), ProviderID: form.Get("MessageSid"),
		Address: form.Get("To"), At: time.Now(),
	}
	rc.setRef(r.URL.Query().Get("ref"))
	status := form.Get("MessageStatus")
	switch status {
	case "delivered", "read":
		rc.State = notify.Delivered
	case "undelivered", "failed", "canceled":
		rc.State = notify.Failed
		rc.Code = "twilio_" + status
	}
	if code, err := strconv.Atoi(form.Get("ErrorCode")); err == nil && code != 0 {
		rc.Code = twilioCode(code)
		what := twilioReceipts[code]
		rc.DeadAddress, rc.OptedOut = what.dead, what.optedOut
	}
	return []Receipt{rc}, nil
}

// twilioSigned verifies the signature: HMAC-SHA1 over the URL and the sorted parameters. Twilio
// signs the URL with or without the port, so twilioSigned accepts both forms.
func twilioSigned(token, full string, form url.Values, signature string) bool {
	got, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || len(got) != sha1.Size {
		return false
	}
	ok := false
	for _, u := range portVariants(full) {
		ok = hmac.Equal(got, twilioMAC(token, u, form)) || ok
	}
	return ok
}

func twilioMAC(token, full string, form url.Values) []byte {
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	sort.Strings(names)
	m := hmac.New(sha1.New, []byte(token))
	m.Write([]byte(full))
	for _, name := range names {
		for _, v := range form[name] {
			m.Write([]byte(name))
			m.Write([]byte(v))
		}
	}
	return m.Sum(nil)
}

func portVariants(full string) []string {
	u, err := url.Parse(full)
	if err != nil {
		return []string{full}
	}
	host, other := u.Host, net.JoinHostPort(u.Hostname(), "443")
	switch {
	case u.Port() != "":
		other = u.Hostname()
	case u.Scheme == "http":
		other = net.JoinHostPort(u.Hostname(), "80")
	}
	return []string{full, strings.Replace(full, "//"+host, "//"+other, 1)}
}
