package provider

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// ParseSendGridKey parses the verification key of the event webhook: base64 of its DER form, as
// SendGrid shows it.
func ParseSendGridKey(s string) (*ecdsa.PublicKey, error) {
	bad := notify.Invalid("bad_key", "sendgrid.public_key", "must be the verification key of the event webhook, an ECDSA key in base64")
	der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s))
	if err != nil {
		return nil, bad
	}
	k, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, bad
	}
	key, ok := k.(*ecdsa.PublicKey)
	if !ok {
		return nil, bad
	}
	return key, nil
}

type sendGridEvent struct {
	Event     string `json:"event"`
	Type      string `json:"type"` // for a bounce: "bounce" or "blocked"
	Reason    string `json:"reason"`
	Email     string `json:"email"`
	MessageID string `json:"sg_message_id"`
	Timestamp int64  `json:"timestamp"`
	Ref       string `json:"ref"`
}

// sendGridSkew is the largest allowed difference between the time that SendGrid has signed and the
// server's clock. It prevents an attacker from sending old intercepted events again.
const sendGridSkew = 10 * time.Minute

// ParseSendGrid parses a batch of events. The parameter posted is the time at which the batch
// arrived. Events that do not concern delivery or the address (processed, deferred, open, click)
// are omitted.
//
// It returns a notify.KindUnauthorized error with the code "bad_signature" if the signature does
// not match. The code is "receipt_too_old" if the signed time and the time of arrival differ by
// more than sendGridSkew.
func ParseSendGrid(r *http.Request, key *ecdsa.PublicKey, posted time.Time) ([]Receipt, error) {
	body, err := readReceipt(r, maxSendGridReceipt)
	if err != nil {
		return nil, err
	}
	if !sendGridSigned(key, r.Header, body) {
		return nil, errSignature
	}
	signed, err := strconv.ParseInt(r.Header.Get(sendGridTime), 10, 64)
	if err != nil || posted.Sub(time.Unix(signed, 0)).Abs() > sendGridSkew {
		return nil, errReceiptTime
	}
	var events []sendGridEvent
	if err := json.Unmarshal(body, &events); err != nil {
		return nil, notify.Invalid("bad_body", "", "the body must be a JSON array of events")
	}
	rcs := make([]Receipt, 0, len(events))
	for i := range events {
		if rc, ok := events[i].receipt(); ok {
			rcs = append(rcs, rc)
		}
	}
	return rcs, nil
}

// sendGridTime is the header with the signed time, in seconds since 1970.
const sendGridTime = "X-Twilio-Email-Event-Webhook-Timestamp"

// sendGridSigned verifies the signature: ECDSA over the SHA-256 of the timestamp and the body.
func sendGridSigned(key *ecdsa.PublicKey, h http.Header, body []byte) bool {
	sig, err := base64.StdEncoding.DecodeString(h.Get(SendGridSignature))
	if err != nil || key == nil {
		return false
	}
	d := sha256.New()
	d.Write([]byte(h.Get(sendGridTime)))
	d.Write(body)
	return ecdsa.VerifyASN1(key, d.Sum(nil), sig)
}

func (e *sendGridEvent) receipt() (Receipt, bool) {
	rc := Receipt{Provider: "sendgrid", Address: e.Email, Code: "sendgrid_" + e.Event}
	rc.ProviderID, _, _ = strings.Cut(e.MessageID, ".") // X-Message-Id, then the id of the filter
	if e.Timestamp > 0 {
		rc.At = time.Unix(e.Timestamp, 0)
	}
	rc.setRef(e.Ref)
	switch e.Event {
	case "delivered":
		rc.State, rc.Code = notify.Delivered, ""
	case "bounce":
		rc.State = notify.Failed
		if e.Type == "blocked" { // a soft bounce concerns this message, not the address
			rc.Code = "sendgrid_blocked"
		} else {
			rc.DeadAddress = true
		}
	case "dropped":
		rc.State = notify.Failed
		switch reason := strings.ToLower(e.Reason); {
		case strings.Contains(reason, "unsubscribed"), strings.Contains(reason, "spam report"):
			rc.OptedOut = true
		case strings.Contains(reason, "bounced"), reason == "invalid":
			rc.DeadAddress = true
		}
	case "spamreport", "unsubscribe", "group_unsubscribe":
		rc.OptedOut = true // the message was delivered earlier, so its state does not change
	default:
		return rc, false
	}
	return rc, true
}
