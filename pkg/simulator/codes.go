package simulator

import (
	"fmt"
	"strconv"

	"github.com/notifyd/notifyd/pkg/notify"
)

// codeStatus returns the HTTP status that belongs to an error code of a provider. It returns false
// for an unknown code.
func codeStatus(p Provider, code string) (int, bool) {
	switch p {
	case APNs:
		s, ok := apnsReasons[code]
		return s, ok
	case FCM:
		e, ok := fcmCodes[code]
		return e.http, ok
	case Twilio:
		n, err := strconv.Atoi(code)
		e, ok := twilioErrors[n]
		return e.status, err == nil && ok
	case OAuth:
		return 400, code == "invalid_grant" || code == "invalid_scope" || code == "unsupported_grant_type" || code == "invalid_request"
	}
	return 0, false
}

// validReceiptCode checks the code of a Receipt rule. It returns an error of notify.KindInvalid if
// the provider has no such receipt.
func validReceiptCode(p Provider, code string) error {
	switch p {
	case Twilio:
		if n, err := strconv.Atoi(code); err != nil || n < 30000 || n > 39999 {
			return notify.Invalid("bad_code", "code", fmt.Sprintf("must be a Twilio error code of a message, from 30000 to 39999, not %q", code))
		}
		return nil
	case SendGrid:
		if _, ok := mailEvents[code]; !ok {
			return notify.Invalid("bad_code", "code", fmt.Sprintf("must be bounce, async_bounce, blocked, dropped, deferred, spamreport or unsubscribe, not %q", code))
		}
		return nil
	}
	return notify.Invalid("no_receipts", "provider", "must be twilio or sendgrid if do is \"receipt\": the other providers send no receipts")
}
