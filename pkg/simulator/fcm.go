package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// fcmServer is the server of FCM HTTP v1 and of FCM's token endpoint.
type fcmServer struct {
	sim     *Simulator
	tokens  *oauthServer
	quota   *quotaWindow // nil: no limit
	devices *quotaWindow // nil: no limit
	sent    atomic.Uint64
}

func newFCM(s *Simulator) *fcmServer {
	f := &fcmServer{sim: s, tokens: newOAuth(s)}
	if s.cfg.FCM.Quota > 0 {
		// The quota of a project is per minute. These minutes do not begin together with the
		// minutes of the clock.
		f.quota = newWindow(uint64(s.cfg.FCM.Quota), time.Minute, time.Duration(mixHash(s.seed, 6)%uint64(time.Minute)))
	}
	if s.cfg.FCM.PerDevice > 0 {
		f.devices = newWindow(uint64(s.cfg.FCM.PerDevice), time.Minute, 0)
	}
	return f
}

func (f *fcmServer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", f.tokens.token)
	mux.HandleFunc("POST /v1/projects/{project}/{send}", f.send)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, googleError(http.StatusNotFound, "NOT_FOUND", "Requested URL was not found on this server.", ""))
	})
	return mux
}

// fcmCodes maps the error codes to their HTTP status, google.rpc status and message.
var fcmCodes = map[string]struct {
	http            int
	status, message string
}{
	"INVALID_ARGUMENT":       {400, "INVALID_ARGUMENT", "The registration token is not a valid FCM registration token"},
	"UNAUTHENTICATED":        {401, "UNAUTHENTICATED", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential."},
	"THIRD_PARTY_AUTH_ERROR": {401, "UNAUTHENTICATED", "Auth error from APNS or Web Push Service"},
	"SENDER_ID_MISMATCH":     {403, "PERMISSION_DENIED", "SenderId mismatch"},
	"UNREGISTERED":           {404, "NOT_FOUND", "Requested entity was not found."},
	"QUOTA_EXCEEDED":         {429, "RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Messages sent' and limit 'Messages sent per minute' of service 'fcm.googleapis.com'."},
	"INTERNAL":               {500, "INTERNAL", "Internal error encountered."},
	"UNAVAILABLE":            {503, "UNAVAILABLE", "The service is currently unavailable."},
}

var fcmDefault = map[int]string{
	400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "SENDER_ID_MISMATCH", 404: "UNREGISTERED",
	429: "QUOTA_EXCEEDED", 500: "INTERNAL", 503: "UNAVAILABLE",
}

const (
	fcmMaxPayload = 4096
	fcmMaxBody    = 64 << 10
)

// fcmRequest is the body of a request. Fields that the simulator does not check stay raw JSON.
type fcmRequest struct {
	ValidateOnly bool       `json:"validate_only"`
	Message      fcmMessage `json:"message"`
}

type fcmMessage struct {
	Name         string            `json:"name"`
	Token        string            `json:"token"`
	Topic        string            `json:"topic"`
	Condition    string            `json:"condition"`
	Data         map[string]string `json:"data"`
	Notification *struct {
		Title string `json:"title"`
		Body  string `json:"body"`
		Image string `json:"image"`
	} `json:"notification"`
	Android    *fcmAndroid     `json:"android"`
	Webpush    json.RawMessage `json:"webpush"`
	APNs       json.RawMessage `json:"apns"`
	FCMOptions json.RawMessage `json:"fcm_options"`
}

type fcmAndroid struct {
	CollapseKey           string            `json:"collapse_key"`
	Priority              string            `json:"priority"`
	TTL                   string            `json:"ttl"`
	RestrictedPackageName string            `json:"restricted_package_name"`
	Data                  map[string]string `json:"data"`
	Notification          json.RawMessage   `json:"notification"`
	FCMOptions            json.RawMessage   `json:"fcm_options"`
	DirectBootOK          bool              `json:"direct_boot_ok"`
}

func (f *fcmServer) send(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("send") != "messages:send" {
		writeAnswer(w, googleError(http.StatusNotFound, "NOT_FOUND", "Method not found.", ""))
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, fcmMaxBody+1))
	if err != nil {
		return // the request was incomplete, so the ledger does not count it
	}
	var req fcmRequest
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	bad := dec.Decode(&req)
	if bad == nil && dec.More() {
		bad = errors.New("unexpected data after the message")
	}
	m := &req.Message
	seq, _ := strconv.ParseUint(m.Data["seq"], 10, 64) // 0 if the text is not a number
	to := m.Token
	if to == "" && m.Topic != "" {
		to = "/topics/" + m.Topic
	}
	c := &providerCall{
		provider: FCM, fault: f.fault,
		receivers: []receiver{{address: to, id: m.Data["ntf"], user: m.Data["usr"], seq: seq}},
	}
	if m.Notification != nil {
		c.content = content{title: m.Notification.Title, body: m.Notification.Body}
	}
	a := f.checkRequest(r, m, bad, len(body))
	if a.ok() && req.ValidateOnly { // a valid message is not delivered; fault rules still apply
		a, c.receivers = fcmName(r.PathValue("project"), "fake_message_id"), nil
	}
	settleCall(f.sim, w, r, c, a)
}

// checkRequest returns the answer to a request if no rule applies to it.
func (f *fcmServer) checkRequest(r *http.Request, m *fcmMessage, bad error, size int) providerAnswer {
	now := f.sim.now()
	project := r.PathValue("project")
	if !f.tokens.valid(r.Header.Get("Authorization"), now) {
		return fcmError("UNAUTHENTICATED", 0)
	}
	if project != f.sim.cfg.FCM.Project {
		return googleError(http.StatusForbidden, "PERMISSION_DENIED",
			"Permission 'cloudmessaging.messages.create' denied on resource '//cloudresourcemanager.googleapis.com/projects/"+project+"' (or it may not exist).", "")
	}
	// Count the request in the quota before its content is checked. At FCM a request that gets a
	// client error uses quota, too. Only a request that gets 429 uses none.
	if f.quota != nil && !f.quota.take(project, 1, now) {
		_, end := f.quota.left(project, now)
		a := fcmError("QUOTA_EXCEEDED", 0)
		setRetryAfter(a.header, end.Sub(now))
		return a
	}
	switch {
	case bad != nil || size > fcmMaxBody:
		return badRequest("message", "Invalid JSON payload received. "+errorText(bad, "It is too large."))
	case b2u(m.Token != "")+b2u(m.Topic != "")+b2u(m.Condition != "") != 1:
		return badRequest("message", "Exactly one of token, topic or condition is required")
	case m.Token != "" && !isRegistrationToken(m.Token):
		return fcmError("INVALID_ARGUMENT", 0)
	}
	if a := checkMessage(m); !a.ok() {
		return a
	}
	if m.Token != "" && f.devices != nil && !f.devices.take(m.Token, 1, now) {
		return fcmError("QUOTA_EXCEEDED", 0)
	}
	return fcmName(project, fmt.Sprintf("0:%d%%%016x", now.UnixMicro(), mixHash(f.sim.seed, f.sent.Add(1))))
}

func checkMessage(m *fcmMessage) providerAnswer {
	size := 0
	for k, v := range m.Data {
		if k == "from" || k == "message_type" || strings.HasPrefix(k, "google.") || strings.HasPrefix(k, "gcm.") {
			return badRequest("message.data", "Invalid data payload key: "+k)
		}
		size += len(k) + len(v)
	}
	if n := m.Notification; n != nil {
		size += len(n.Title) + len(n.Body) + len(n.Image)
	}
	if size > fcmMaxPayload {
		return badRequest("message", "Message is too big")
	}
	if a := m.Android; a != nil {
		if _, err := time.ParseDuration(a.TTL); a.TTL != "" && (err != nil || !strings.HasSuffix(a.TTL, "s") || strings.HasPrefix(a.TTL, "-")) {
			return badRequest("message.android.ttl", "Illegal duration format; duration must end with 's'")
		}
		if p := strings.ToLower(a.Priority); p != "" && p != "normal" && p != "high" {
			return badRequest("message.android.priority", "Invalid value at 'message.android.priority'")
		}
	}
	return providerAnswer{status: http.StatusOK}
}

func (f *fcmServer) fault(r *Rule, now time.Time) providerAnswer {
	code := stringOr(r.Code, fcmDefault[r.Status])
	if code == "" {
		code = "INTERNAL"
	}
	a := fcmError(code, r.Status)
	setRetryAfter(a.header, r.retryAfter(now))
	return a
}

func fcmName(project, id string) providerAnswer {
	return providerAnswer{status: http.StatusOK, header: jsonHeader(), body: fmt.Appendf(nil, "{\n  \"name\": \"projects/%s/messages/%s\"\n}\n", project, id)}
}

// fcmError returns an error answer with FcmError details. If status is 0, it uses the status that
// belongs to the error code.
func fcmError(code string, status int) providerAnswer {
	e, ok := fcmCodes[code]
	if !ok {
		e.status, e.message = "UNKNOWN", code
	}
	// Google refuses such a request before FCM gets it. So the answer has no FcmError.
	if code == "UNAUTHENTICATED" {
		return googleError(intOr(status, e.http), e.status, e.message, "")
	}
	return googleError(intOr(status, e.http), e.status, e.message, code)
}

type googleStatus struct {
	Error struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Status  string `json:"status"`
		Details []any  `json:"details,omitempty"`
	} `json:"error"`
}

func googleError(code int, status, message, fcm string) providerAnswer {
	var e googleStatus
	e.Error.Code, e.Error.Status, e.Error.Message = code, status, message
	if fcm != "" {
		e.Error.Details = []any{map[string]string{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": fcm}}
	}
	return providerAnswer{status: code, header: jsonHeader(), body: mustJSON(e)}
}

// badRequest returns the answer to a request with an invalid field.
func badRequest(field, description string) providerAnswer {
	var e googleStatus
	e.Error.Code, e.Error.Status, e.Error.Message = http.StatusBadRequest, "INVALID_ARGUMENT", description
	e.Error.Details = []any{map[string]any{
		"@type":           "type.googleapis.com/google.rpc.BadRequest",
		"fieldViolations": []map[string]string{{"field": field, "description": description}},
	}}
	return providerAnswer{status: http.StatusBadRequest, header: jsonHeader(), body: mustJSON(e)}
}

// isRegistrationToken accepts texts of 8 to 4,096 characters in the alphabet of registration
// tokens.
func isRegistrationToken(s string) bool {
	if len(s) < 8 || len(s) > 4096 {
		return false
	}
	return strings.IndexFunc(s, func(c rune) bool {
		return !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-' || c == ':')
	}) < 0
}

func errorText(err error, def string) string {
	if err == nil {
		return def
	}
	return err.Error()
}

// writeAnswer writes an answer without settleCall. It is for requests that do not send a message.
func writeAnswer(w http.ResponseWriter, a providerAnswer) {
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// mustJSON marshals values of types in this package. Marshalling these values cannot fail.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
