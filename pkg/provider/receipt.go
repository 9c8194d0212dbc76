package provider

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Receipt is news of a message a provider accepted earlier. Providers repeat
// them, and send them in any order.
type Receipt struct {
	// Ref is where it belongs. HasRef is false for news of a message that
	// carries none of ours; its address may still be dead.
	Ref    Ref
	HasRef bool
	// State is Delivered or Failed, or None where it says neither.
	State       notify.State
	DeadAddress bool // the address is dead for good
	OptedOut    bool // the receiver wants no more newsletters and the like
	Code        string
	Provider    string // "twilio:AC…", "sendgrid"
	ProviderID  string
	// Address it was sent to. Never log it.
	Address string
	At      time.Time // when it happened; zero: not said
}

// Headers that carry the signature of a receipt.
const (
	TwilioSignature   = "X-Twilio-Signature"
	SendGridSignature = "X-Twilio-Email-Event-Webhook-Signature"
)

// Limits of what a provider may post, in bytes.
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
		return nil, &notify.Error{Kind: notify.KindTooLarge, Code: "body_too_large", Msg: "the body is too large"}
	}
	return nil, notify.Invalid("bad_body", "", "the body could not be read")
}

// errSignature says nothing of what would have been right.
var errSignature = &notify.Error{Kind: notify.KindUnauthorized, Code: "bad_signature", Msg: "the signature does not fit"}

// errReceiptTime is about a receipt with a signature that fits.
var errReceiptTime = &notify.Error{Kind: notify.KindUnauthorized, Code: "receipt_too_old", Msg: "the signed time lies more than 10 minutes from the clock of this server"}

func (r *Receipt) setRef(s string) {
	if ref, err := DecodeRef(s); err == nil {
		r.Ref, r.HasRef = ref, true
	}
}
