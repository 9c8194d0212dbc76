package provider

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Receipt is a provider's report about a message that the provider accepted earlier. Providers may
// repeat receipts and may send them in any order.
type Receipt struct {
	// Ref identifies the notification that the receipt belongs to. HasRef is false if the message
	// has no reference of notifyd. Even then its address may be reported as dead.
	Ref    Ref
	HasRef bool
	// State is Delivered or Failed, or None if the receipt says neither.
	State       notify.State
	DeadAddress bool // the address will never work again
	OptedOut    bool // the receiver wants no more marketing and digest messages
	Code        string
	Provider    string // "twilio:AC…", "sendgrid"
	ProviderID  string
	// Address is the address that the message was sent to. Never log it.
	Address string
	At      time.Time // when the reported event happened; zero: unknown
}

// Headers that contain the signature of a receipt.
const (
	TwilioSignature   = "X-Twilio-Signature"
	SendGridSignature = "X-Twilio-Email-Event-Webhook-Signature"
)

// Size limits of the body that a provider may post, in bytes.
const (
	maxTwilioReceipt   = 64 << 10
	maxSendGridReceipt = 4 << 20
)

func readReceipt(r *http.Request, limit int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	if err == nil {
		return b, nil
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &notify.Error{Kind: notify.KindTooLarge, Code: "body_too_large", Msg: "the body is larger than " + strconv.FormatInt(limit, 10) + " bytes"}
	}
	return nil, notify.Invalid("bad_body", "", "cannot read the body of the request")
}

// errSignature contains nothing about the expected signature.
var errSignature = &notify.Error{Kind: notify.KindUnauthorized, Code: "bad_signature", Msg: "the signature does not match the receipt"}

// errReceiptTime is returned for a receipt with a correct signature but a wrong time.
var errReceiptTime = &notify.Error{Kind: notify.KindUnauthorized, Code: "receipt_too_old", Msg: "the signed time differs from this server's clock by more than 10 minutes"}

func (r *Receipt) setRef(s string) {
	if ref, err := DecodeRef(s); err == nil {
		r.Ref, r.HasRef = ref, true
	}
}
