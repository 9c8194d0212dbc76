package simulator

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // Twilio's signature is HMAC-SHA1
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// smsReceipt is one status callback for an SMS.
type smsReceipt struct {
	m      *sms
	status string
	code   string      // ErrorCode; empty: no error
	next   *dueReceipt // scheduled when this callback has been sent, so that the callbacks arrive in order
}

// planSMS schedules the callbacks of a message that Twilio accepted: first "sent", then the final
// status.
func (r *receiptSender) planSMS(m *sms, rule *Rule) {
	cfg := r.cfg.Load()
	if cfg.Off || m.callback == "" {
		return
	}
	code := ""
	switch {
	case rule != nil:
		code = rule.Code
	case r.nextRandom() < cfg.Undelivered:
		code = "30003"
	}
	status := "delivered"
	switch code {
	case "":
	case "30001", "30036": // these errors mean that the message never left Twilio
		status = "failed"
	default:
		status = "undelivered"
	}
	now := time.Now()
	delay := cfg.Delay.atQuantile(r.nextRandom())
	final := &dueReceipt{due: now.Add(delay), sms: &smsReceipt{m: m, status: status, code: code}}
	if r.nextRandom() < cfg.Duplicates {
		final.sms.next = &dueReceipt{due: final.due, sms: &smsReceipt{m: m, status: status, code: code}}
	}
	if status == "failed" {
		r.schedule(final)
		return
	}
	r.schedule(&dueReceipt{due: now.Add(delay / 2), sms: &smsReceipt{m: m, status: "sent", next: final}})
}

func (s *smsReceipt) signedPost(token string) signedPost {
	f := url.Values{
		"MessageSid": {s.m.sid}, "SmsSid": {s.m.sid}, "MessageStatus": {s.status}, "SmsStatus": {s.status},
		"To": {s.m.to}, "AccountSid": {s.m.account}, "ApiVersion": {"2010-04-01"},
	}
	if s.m.from != "" {
		f.Set("From", s.m.from)
	}
	if s.m.service != "" {
		f.Set("MessagingServiceSid", s.m.service)
	}
	if s.code != "" {
		f.Set("ErrorCode", s.code)
	}
	h := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "User-Agent": {"TwilioProxy/1.1"}}
	h.Set("X-Twilio-Signature", TwilioSignature(token, s.m.callback, f))
	return signedPost{url: s.m.callback, header: h, body: []byte(f.Encode())}
}

// TwilioSignature returns the X-Twilio-Signature of a form that is posted to rawURL. It is base64
// of the HMAC-SHA1 over the URL and the sorted fields.
func TwilioSignature(token, rawURL string, form url.Values) string {
	m := hmac.New(sha1.New, []byte(token))
	m.Write([]byte(rawURL))
	for _, k := range slices.Sorted(maps.Keys(form)) {
		for _, v := range form[k] {
			m.Write([]byte(k + v))
		}
	}
	return base64.StdEncoding.EncodeToString(m.Sum(nil))
}

// mailEvent holds the JSON fields of one event of the webhook.
type mailEvent map[string]any

// mailEvents maps the code of a Receipt rule to the event that a mail gets.
var mailEvents = map[string]mailEvent{
	"bounce": {
		"event": "bounce", "type": "bounce", "status": "5.1.1", "bounce_classification": "Invalid Address",
		"reason": "550 5.1.1 The email account that you tried to reach does not exist.",
	},
	"async_bounce": { // the receiving server reports this bounce later, without sg_message_id
		"event": "bounce", "type": "bounce", "status": "5.0.0", "bounce_classification": "Invalid Address",
		"reason": "The recipient's server returned the message.",
	},
	"blocked": {
		"event": "bounce", "type": "blocked", "status": "5.7.1", "bounce_classification": "Reputation",
		"reason": "554 5.7.1 The message has been blocked.",
	},
	"dropped":     {"event": "dropped", "reason": "Bounced Address"},
	"deferred":    {"event": "deferred", "response": "451 4.2.1 The mailbox is busy, try again later.", "attempt": "1"},
	"spamreport":  {"event": "spamreport"},
	"unsubscribe": {"event": "unsubscribe"},
}

var mailDelivered = mailEvent{"event": "delivered", "response": "250 OK"}

// planMail schedules the events of a request that SendGrid accepted.
func (r *receiptSender) planMail(q *mailRequest, id string, rule *Rule) {
	cfg := r.cfg.Load()
	if cfg.Off || cfg.SendGridURL == "" {
		return
	}
	now := time.Now()
	n := 0
	for i := range q.Personalizations {
		p := &q.Personalizations[i]
		for _, to := range p.To {
			code := ""
			switch {
			case rule != nil && (rule.Prefix == "" || strings.HasPrefix(to.Email, rule.Prefix)) && rule.ID == "":
				code = rule.Code
			case rule != nil && rule.ID != "" && (p.CustomArgs["ntf"] == rule.ID || q.CustomArgs["ntf"] == rule.ID):
				code = rule.Code
			case r.nextRandom() < cfg.Undelivered:
				code = "bounce"
			}
			r.planMailEvents(q, p, to.Email, fmt.Sprintf("%s.filter-sim-%d", id, n), code, cfg, now)
			n++
		}
	}
}

func (r *receiptSender) planMailEvents(q *mailRequest, p *personalization, to, msgID, code string, cfg *Receipts, now time.Time) {
	delay := cfg.Delay.atQuantile(r.nextRandom())
	step := 0
	at := func(e mailEvent, d time.Duration) {
		ev := mailEvent{}
		maps.Copy(ev, q.CustomArgs)
		maps.Copy(ev, p.CustomArgs)
		maps.Copy(ev, e)
		ev["email"], ev["timestamp"] = to, r.sim.now().Add(d).Unix()
		ev["smtp-id"] = "<" + msgID + "@simulator.invalid>"
		sum := sha256.Sum256([]byte(msgID + strconv.Itoa(step)))
		step++
		ev["sg_event_id"] = base64.RawURLEncoding.EncodeToString(sum[:16])
		if code != "async_bounce" || e["event"] != "bounce" {
			ev["sg_message_id"] = msgID
		}
		if len(q.Categories) > 0 {
			ev["category"] = q.Categories
		}
		if q.IPPool != "" {
			ev["pool"] = map[string]any{"name": q.IPPool}
		}
		r.schedule(&dueReceipt{due: now.Add(d), event: &ev})
		if r.nextRandom() < cfg.Duplicates {
			r.schedule(&dueReceipt{due: now.Add(d), event: &ev})
		}
	}
	if code == "dropped" { // SendGrid drops such a mail before it processes the mail
		at(mailEvents[code], delay)
		return
	}
	at(mailEvent{"event": "processed"}, delay/2)
	switch code {
	case "":
		at(mailDelivered, delay)
	case "deferred":
		at(mailEvents[code], delay)
		at(mailDelivered, 2*delay)
	case "spamreport", "unsubscribe", "async_bounce":
		at(mailDelivered, delay)
		at(mailEvents[code], 2*delay)
	default:
		at(mailEvents[code], delay)
	}
}

// signedEvents returns a signed webhook call with a batch of events. The parameter target is the URL
// of the call; it may be empty.
func (k *keyring) signedEvents(batch []*mailEvent, target string, now time.Time) (signedPost, error) {
	body, err := json.Marshal(batch)
	if err != nil {
		return signedPost{}, err
	}
	ts := strconv.FormatInt(now.Unix(), 10)
	sum := sha256.Sum256(append([]byte(ts), body...))
	sig, err := k.webhook.Sign(rand.Reader, sum[:], nil)
	if err != nil {
		return signedPost{}, err
	}
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"SendGrid Event API"}}
	h.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(sig))
	h.Set("X-Twilio-Email-Event-Webhook-Timestamp", ts)
	return signedPost{url: target, header: h, body: body}, nil
}
