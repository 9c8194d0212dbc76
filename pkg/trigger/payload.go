package trigger

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/engine"
)

// MaxPayload is the largest payload, in delivered bytes: the bytes of the text, of the JSON as the
// caller wrote it, or of the decoded base64.
const MaxPayload = 4096

// callbackBody returns the body to post: {"trigger_id":…,"payload":…}. The payload has the same form
// as in the request:
//
//	text    "payload" is a JSON string; decoded, it equals the accepted bytes
//	JSON    "payload" is the object or array, with exactly the same bytes
//	base64  "payload_base64" is a string; decoded, it equals the accepted bytes
func callbackBody(t *engine.Trigger) []byte {
	b := make([]byte, 0, len(t.Payload)+len(t.Payload)/2+80)
	b = append(b, `{"trigger_id":"`...)
	b = append(b, t.ID...)
	switch {
	case t.Form == engine.PayloadJSON:
		b = append(b, `","payload":`...)
		b = append(b, t.Payload...)
	case t.Form == engine.PayloadText && utf8.Valid(t.Payload):
		b = append(b, `","payload":`...)
		b, _ = jsontext.AppendQuote(b, t.Payload)
	default:
		b = append(b, `","payload_base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, t.Payload)
		b = append(b, '"')
	}
	return append(b, '}')
}

func tooLarge(n int) string { return "has " + strconv.Itoa(n) + " bytes; the maximum is 4,096 bytes" }
