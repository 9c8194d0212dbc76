package simulator

import (
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// sms is one message of the Messages resource.
type sms struct {
	form                        url.Values
	bad                         error // error of parsing the form; nil: the form is good
	sid, account                string
	to, from, service, callback string
	id                          string // notification id, from the query of the callback URL
	user                        string
	seq                         uint64
}

func newSMS(t *twilioServer, account string, raw []byte) *sms {
	m := &sms{account: account}
	m.form, m.bad = url.ParseQuery(string(raw))
	m.to, m.from = m.form.Get("To"), m.form.Get("From")
	m.service, m.callback = m.form.Get("MessagingServiceSid"), m.form.Get("StatusCallback")
	if u, err := url.Parse(m.callback); err == nil {
		q := u.Query()
		m.id = stringOr(q.Get("id"), q.Get("ref"))
	}
	m.user, m.seq = userSuffix(m.form.Get("Body"))
	n := t.sent.Add(1)
	b := strconv.AppendUint([]byte("SM"), mixHash(t.sim.seed, n)|1<<63, 16)
	b = strconv.AppendUint(b, mixHash(n, uint64(t.sim.now().UnixNano()))|1<<63, 16)
	m.sid = string(b)
	return m
}

// userSuffix parses the text " #usr:seq" at the end of a body. Without such a text it returns ""
// and 0.
func userSuffix(body string) (user string, seq uint64) {
	i := strings.LastIndex(body, " #")
	if i < 0 {
		return "", 0
	}
	tail := body[i+2:]
	j := strings.LastIndexByte(tail, ':')
	if j < 1 {
		return "", 0
	}
	seq, err := strconv.ParseUint(tail[j+1:], 10, 64)
	if err != nil || strings.ContainsAny(tail[:j], " \n") {
		return "", 0
	}
	return tail[:j], seq
}

// created returns the body of Twilio's answer to an accepted message: the new message resource as
// JSON.
func (m *sms) created(now time.Time) []byte {
	status, count := "queued", strconv.Itoa(segments(m.form.Get("Body")))
	if m.service != "" {
		status, count = "accepted", "0" // Twilio chooses the sender later, and then also the encoding
	}
	date := now.UTC().Format(time.RFC1123Z)
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	uri := "/2010-04-01/Accounts/" + m.account + "/Messages/" + m.sid
	return mustJSON(map[string]any{
		"sid": m.sid, "account_sid": m.account, "api_version": "2010-04-01", "body": m.form.Get("Body"),
		"to": m.to, "from": null(m.from), "messaging_service_sid": null(m.service),
		"status": status, "direction": "outbound-api", "num_segments": count, "num_media": strconv.Itoa(len(m.form["MediaUrl"])),
		"price": nil, "price_unit": "USD", "error_code": nil, "error_message": nil,
		"date_created": date, "date_updated": date, "date_sent": nil,
		"uri": uri + ".json", "subresource_uris": map[string]string{"media": uri + "/Media.json"},
	})
}

// gsm7 is the basic alphabet of GSM 03.38. A character of gsm7Extra needs two septets.
const (
	gsm7      = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
	gsm7Extra = "^{}\\[~]|€\f"
)

// segments returns the number of SMS segments of a body. In the GSM 7-bit alphabet a single segment
// has up to 160 septets. If there are several segments, each has up to 153. If the body has a
// character that is not in this alphabet, the limits are 70 and 67 UTF-16 units.
func segments(body string) int {
	septets := 0
	for _, c := range body {
		switch {
		case strings.ContainsRune(gsm7, c):
			septets++
		case strings.ContainsRune(gsm7Extra, c):
			septets += 2
		default:
			return partsOf(len(utf16.Encode([]rune(body))), 70, 67)
		}
	}
	return partsOf(septets, 160, 153)
}

func partsOf(n, single, each int) int {
	if n <= single {
		return 1
	}
	return (n + each - 1) / each
}
