package simulator

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// apnsServer is the provider API of APNs: POST /3/device/{token}.
type apnsServer struct {
	sim    *Simulator
	tokens *tokenChecker
}

func newAPNs(s *Simulator) *apnsServer {
	return &apnsServer{sim: s, tokens: newTokenChecker(s)}
}

// apnsReasons maps the reasons of errors to their HTTP statuses.
var apnsReasons = map[string]int{
	"BadCollapseId": 400, "BadDeviceToken": 400, "BadExpirationDate": 400, "BadMessageId": 400, "BadPriority": 400,
	"BadTopic": 400, "DeviceTokenNotForTopic": 400, "DuplicateHeaders": 400, "IdleTimeout": 400, "InvalidPushType": 400,
	"MissingDeviceToken": 400, "MissingTopic": 400, "PayloadEmpty": 400, "TopicDisallowed": 400,
	"BadCertificate": 403, "BadCertificateEnvironment": 403, "ExpiredProviderToken": 403, "Forbidden": 403,
	"InvalidProviderToken": 403, "MissingProviderToken": 403, "UnrelatedKeyIdInToken": 403, "BadEnvironmentKeyIdInToken": 403,
	"BadPath": 404, "MethodNotAllowed": 405, "ExpiredToken": 410, "Unregistered": 410, "PayloadTooLarge": 413,
	"TooManyProviderTokenUpdates": 429, "TooManyRequests": 429,
	"InternalServerError": 500, "ServiceUnavailable": 503, "Shutdown": 503,
}

// apnsDefault maps a status to the reason that is used if a rule gives only the status.
var apnsDefault = map[int]string{
	400: "BadDeviceToken", 403: "InvalidProviderToken", 404: "BadPath", 405: "MethodNotAllowed", 410: "Unregistered",
	413: "PayloadTooLarge", 429: "TooManyRequests", 500: "InternalServerError", 503: "ServiceUnavailable",
}

// pushTypes maps the values of apns-push-type to the suffix that the topic must have. If the suffix
// is anySuffix, the topic is not checked.
var pushTypes = map[string]string{
	"alert": "", "background": "", "controls": anySuffix, "mdm": anySuffix, "widgets": anySuffix, "location": ".location-query",
	"voip": ".voip", "complication": ".complication", "fileprovider": ".pushkit.fileprovider",
	"liveactivity": ".push-type.liveactivity", "pushtotalk": ".voip-ptt",
}

const (
	apnsMaxPayload = 4096
	voipMaxPayload = 5120
	maxCollapseID  = 64
	anySuffix      = "*"
)

func (a *apnsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, voipMaxPayload+1))
	if err != nil {
		return // the request was incomplete, so the ledger does not count it
	}
	c := &providerCall{provider: APNs, fault: a.fault}
	attempt := r.Header.Get("Apns-Id")
	token, reason := a.checkRequest(r, body)
	c.receivers = []receiver{a.receiver(token, attempt, body)}
	c.content = content{push: body}

	id := attempt
	if !isUUID(id) {
		id = newUUID()
	}
	c.fault = func(rule *Rule, now time.Time) providerAnswer { return withAPNsID(a.fault(rule, now), id) }
	if reason != "" {
		settleCall(a.sim, w, r, c, withAPNsID(apnsError(reason, 0, time.Time{}), id))
		return
	}
	settleCall(a.sim, w, r, c, withAPNsID(providerAnswer{status: http.StatusOK}, id))
}

// checkRequest returns the device token and the reason to refuse the request. The reason is "" if
// the request is good.
func (a *apnsServer) checkRequest(r *http.Request, body []byte) (token, reason string) {
	token, ok := strings.CutPrefix(r.URL.Path, "/3/device/")
	switch {
	case !ok && r.URL.Path != "/3/device" || strings.Contains(token, "/"):
		return "", "BadPath"
	case r.Method != http.MethodPost:
		return token, "MethodNotAllowed"
	}
	for _, h := range []string{"Apns-Topic", "Apns-Push-Type", "Apns-Priority", "Apns-Expiration", "Apns-Id", "Apns-Collapse-Id", "Authorization"} {
		if len(r.Header.Values(h)) > 1 {
			return token, "DuplicateHeaders"
		}
	}
	if reason := a.tokens.checkToken(r, a.sim.now()); reason != "" {
		return token, reason
	}
	if reason := a.checkHeaders(r); reason != "" {
		return token, reason
	}
	switch limit := payloadLimit(r); {
	case len(body) == 0:
		return token, "PayloadEmpty"
	case len(body) > limit:
		return token, "PayloadTooLarge"
	case !hasAPS(body):
		return token, "PayloadEmpty"
	case !ok || token == "":
		return token, "MissingDeviceToken"
	case !isDeviceToken(token):
		return token, "BadDeviceToken"
	}
	return token, ""
}

func payloadLimit(r *http.Request) int {
	if r.Header.Get("Apns-Push-Type") == "voip" {
		return voipMaxPayload
	}
	return apnsMaxPayload
}

func (a *apnsServer) checkHeaders(r *http.Request) string {
	h := r.Header
	pushType := h.Get("Apns-Push-Type")
	suffix, known := pushTypes[pushType]
	topic, bundle := h.Get("Apns-Topic"), a.sim.cfg.APNs.Topic
	priority := h.Get("Apns-Priority")
	switch {
	case h.Get("Apns-Id") != "" && !isUUID(h.Get("Apns-Id")):
		return "BadMessageId"
	case pushType != "" && !known:
		return "InvalidPushType"
	case topic == "":
		return "MissingTopic"
	case topic != bundle && !strings.HasPrefix(topic, bundle+"."):
		return "TopicDisallowed"
	case topic != bundle+suffix && pushType != "" && suffix != anySuffix:
		return "BadTopic"
	case priority != "" && priority != "1" && priority != "5" && priority != "10",
		priority == "10" && pushType == "background":
		return "BadPriority"
	case len(h.Get("Apns-Collapse-Id")) > maxCollapseID:
		return "BadCollapseId"
	}
	if exp := h.Get("Apns-Expiration"); exp != "" {
		if _, err := strconv.ParseUint(exp, 10, 63); err != nil {
			return "BadExpirationDate"
		}
	}
	return ""
}

// apnsPayload holds the fields of a payload that the simulator reads. The fields ntf, usr and seq
// of the sender are at the top level, beside aps. The field seq may be a number or a text.
type apnsPayload struct {
	APS json.RawMessage `json:"aps"`
	ID  string          `json:"ntf"`
	Usr string          `json:"usr"`
	Seq lenientNumber   `json:"seq"`
}

func hasAPS(body []byte) bool {
	var p struct {
		APS map[string]json.RawMessage `json:"aps"`
	}
	return json.Unmarshal(body, &p) == nil && p.APS != nil
}

func (a *apnsServer) receiver(token, attempt string, body []byte) receiver {
	var p apnsPayload
	_ = json.Unmarshal(body, &p) // a bad payload is refused later; record the fields that could be read
	return receiver{address: token, attempt: attempt, id: p.ID, user: p.Usr, seq: uint64(p.Seq)}
}

func (a *apnsServer) fault(r *Rule, now time.Time) providerAnswer {
	reason := stringOr(r.Code, apnsDefault[r.Status])
	if reason == "" {
		reason = "InternalServerError"
	}
	ans := apnsError(reason, r.Status, now)
	setRetryAfter(ans.header, r.retryAfter(now))
	return ans
}

// apnsError returns an error answer. If status is 0, it uses the status that belongs to the reason.
// An answer with the status 410 also contains a time, the parameter since.
func apnsError(reason string, status int, since time.Time) providerAnswer {
	status = intOr(status, apnsReasons[reason])
	body := fmt.Appendf(nil, `{"reason":%q}`, reason)
	if status == http.StatusGone {
		body = fmt.Appendf(nil, `{"reason":%q,"timestamp":%d}`, reason, since.UnixMilli())
	}
	return providerAnswer{status: status, header: jsonHeader(), body: body}
}

func withAPNsID(a providerAnswer, id string) providerAnswer {
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set("Apns-Id", id)
	return a
}

// isDeviceToken accepts hexadecimal tokens of 32 to 200 bytes. Apple says that clients must not
// assume a length, so the range is wide. The upper limit keeps the path of the request short.
func isDeviceToken(s string) bool {
	if len(s) < 64 || len(s)%2 != 0 || len(s) > 400 {
		return false
	}
	for i := range len(s) {
		if !isHex(s[i]) {
			return false
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) {
				return false
			}
		}
	}
	return true
}

func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails since Go 1.24
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// lenientNumber is a number that JSON contains as a number or as text. Any other value gives 0.
type lenientNumber uint64

// UnmarshalJSON never fails, because user data may contain any value in this field.
func (n *lenientNumber) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 64)
	if err == nil {
		*n = lenientNumber(v)
	}
	return nil
}
