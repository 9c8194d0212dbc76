package simulator

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// twilioServer is the server of Twilio Programmable Messaging:
// POST /2010-04-01/Accounts/{sid}/Messages.json.
type twilioServer struct {
	sim    *Simulator
	active map[string]*atomic.Int64 // number of requests under way, by account SID
	sent   atomic.Uint64
}

func newTwilio(s *Simulator) *twilioServer {
	t := &twilioServer{sim: s, active: map[string]*atomic.Int64{}}
	for sid := range s.keys.accounts {
		t.active[sid] = new(atomic.Int64)
	}
	return t
}

func (t *twilioServer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /2010-04-01/Accounts/{sid}/{file}", t.send)
	mux.HandleFunc("GET /2010-04-01/Accounts/{file}", t.account)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeAnswer(w, twilioError(20404, 0, r.URL.Path))
	})
	return mux
}

// twilioErrors maps the error codes to their HTTP status and message. In a message, %s stands for
// the value that was wrong.
var twilioErrors = map[int]struct {
	status  int
	message string
}{
	20001: {400, "Invalid parameter: %s"},
	20003: {401, "Authenticate"},
	20404: {404, "The requested resource %s was not found"},
	20429: {429, "Too Many Requests"},
	20500: {500, "An internal server error has occurred"},
	20503: {503, "Service Unavailable"},
	21211: {400, "Invalid 'To' Phone Number: %s"},
	21212: {400, "Invalid From Number (caller ID): %s"},
	21217: {400, "Phone number does not appear to be valid: %s"},
	21408: {400, "Permission to send an SMS has not been enabled for the region indicated by the 'To' number: %s"},
	21602: {400, "Message body is required."},
	21603: {400, "A 'From' phone number is required."},
	21604: {400, "A 'To' phone number is required."},
	21606: {400, "The 'From' phone number provided (%s) is not a valid message-capable Twilio phone number for this destination/account"},
	21608: {400, "The number %s is unverified. Trial accounts cannot send messages to unverified numbers"},
	21609: {400, "The 'StatusCallback' URL %s is not a valid URL."},
	21610: {400, "Attempt to send to unsubscribed recipient"},
	21611: {429, "This 'From' number has exceeded the maximum number of queued messages"},
	21612: {400, "The 'To' phone number: %s, is not currently reachable using the 'From' phone number"},
	21614: {400, "'To' number is not a valid mobile number: %s"},
	21617: {400, "The concatenated message body exceeds the 1600 character limit"},
	21624: {400, "Invalid validity period value: %s"},
	21635: {400, "'To' number cannot be a landline: %s"},
	21701: {400, "The Messaging Service %s does not exist"},
	30002: {403, "Account suspended"},
}

var twilioDefault = map[int]int{400: 20001, 401: 20003, 403: 30002, 404: 20404, 429: 20429, 500: 20500, 503: 20503}

// twilioFields holds the form fields of the Messages resource.
var twilioFields = fieldSet(`To From MessagingServiceSid Body MediaUrl StatusCallback ApplicationSid MaxPrice ProvideFeedback Attempt
	ValidityPeriod ForceDelivery ContentRetention AddressRetention SmartEncoded PersistentAction TrafficType ShortenUrls
	ScheduleType SendAt SendAsMms ContentSid ContentVariables RiskCheck FallbackFrom`)

func fieldSet(names string) map[string]bool {
	m := map[string]bool{}
	for n := range strings.FieldsSeq(names) {
		m[n] = true
	}
	return m
}

const (
	twilioMaxBody     = 1600 // characters
	twilioMaxValidity = 36000
	twilioMaxURL      = 4000
	twilioMaxForm     = 64 << 10
)

var e164 = regexp.MustCompile(`^\+[1-9][0-9]{6,14}$`)

func (t *twilioServer) send(w http.ResponseWriter, r *http.Request) {
	sid := r.PathValue("sid")
	raw, err := io.ReadAll(io.LimitReader(r.Body, twilioMaxForm))
	if err != nil {
		return // the request was incomplete, so the ledger does not count it
	}
	if r.PathValue("file") != "Messages.json" {
		writeAnswer(w, twilioError(20404, 0, r.URL.Path))
		return
	}
	m := newSMS(t, sid, raw)
	c := &providerCall{
		provider: Twilio, account: sid, fault: t.fault, content: content{
			body: m.form.Get("Body"), template: m.form.Get("ContentSid"), data: clipText(m.form.Get("ContentVariables"), maxClip),
		},
		receivers: []receiver{{address: m.form.Get("To"), id: m.id, user: m.user, seq: m.seq}},
		onTaken:   func(rule *Rule) { t.sim.receipts.planSMS(m, rule) },
	}
	a := t.answerTo(r, m)
	if running := t.active[sid]; running != nil {
		n := running.Add(1)
		defer running.Add(-1)
		c.fault = func(rule *Rule, now time.Time) providerAnswer { return withConcurrency(t.fault(rule, now), n) }
		if a.status != http.StatusUnauthorized && n > int64(t.sim.cfg.Twilio.Concurrency) {
			a = twilioError(20429, 0, "")
			setRetryAfter(a.header, t.sim.cfg.Twilio.RetryAfter)
		}
		a = withConcurrency(a, n)
	}
	settleCall(t.sim, w, r, c, a)
}

// account answers a GET of an account. With the right credentials, the answer says that the account
// is active. Fault rules apply to this request, too.
func (t *twilioServer) account(w http.ResponseWriter, r *http.Request) {
	sid, _ := strings.CutSuffix(r.PathValue("file"), ".json")
	account := t.sim.keys.accounts[sid]
	user, pass, _ := r.BasicAuth()
	a := twilioError(20003, 0, "")
	if account != nil && user == account.SID && pass == account.Token {
		a = providerAnswer{status: http.StatusOK, header: jsonHeader(), body: mustJSON(map[string]string{"sid": sid, "status": "active", "type": "Full", "friendly_name": "notifyd"})}
	}
	settleCall(t.sim, w, r, &providerCall{provider: Twilio, account: sid, fault: t.fault}, a)
}

func withConcurrency(a providerAnswer, n int64) providerAnswer {
	a.header.Set("Twilio-Concurrent-Requests", strconv.FormatInt(n, 10))
	return a
}

// answerTo returns the provider's answer to a request. Rules and the limit of concurrent requests
// are checked elsewhere.
func (t *twilioServer) answerTo(r *http.Request, m *sms) providerAnswer {
	account := t.sim.keys.accounts[m.account]
	user, pass, _ := r.BasicAuth()
	if account == nil || user != account.SID || pass != account.Token {
		return twilioError(20003, 0, "")
	}
	if ct, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); ct != "application/x-www-form-urlencoded" || m.bad != nil {
		return twilioError(20001, 0, "the body is not a form")
	}
	if code, value := t.checkFields(m, account); code != 0 {
		return twilioError(code, 0, value)
	}
	if _, out := t.sim.optedOut.Load(m.to); out {
		return twilioError(21610, 0, "")
	}
	return providerAnswer{status: http.StatusCreated, header: jsonHeader(), body: m.created(t.sim.now())}
}

func (t *twilioServer) checkFields(m *sms, account *TwilioAccount) (code int, value string) {
	for name := range m.form {
		if !twilioFields[name] {
			return 20001, name
		}
	}
	body := m.form.Get("Body")
	switch {
	case m.to == "":
		return 21604, ""
	case !e164.MatchString(m.to):
		return 21211, m.to
	case m.service == "" && m.from == "":
		return 21603, ""
	case m.service != "" && m.service != account.MessagingServiceSID:
		return 21701, m.service
	case m.from != "" && m.from != account.From:
		return 21606, m.from
	case body == "" && m.form.Get("MediaUrl") == "" && m.form.Get("ContentSid") == "":
		return 21602, ""
	case utf8.RuneCountInString(body) > twilioMaxBody:
		return 21617, ""
	case m.callback != "" && !validCallback(m.callback):
		return 21609, m.callback
	}
	if v := m.form.Get("ValidityPeriod"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > twilioMaxValidity {
			return 21624, v
		}
	}
	return 0, ""
}

func validCallback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && len(raw) <= twilioMaxURL && (u.Scheme == "http" || u.Scheme == "https") &&
		u.Hostname() != "" && !strings.Contains(u.Hostname(), "_")
}

func (t *twilioServer) fault(r *Rule, now time.Time) providerAnswer {
	code, err := strconv.Atoi(r.Code)
	if err != nil {
		code = twilioDefault[r.Status]
	}
	if code == 0 {
		code = 20500
	}
	a := twilioError(code, r.Status, "")
	setRetryAfter(a.header, r.retryAfter(now))
	return a
}

// twilioError returns an error answer. If status is 0, it uses the status that belongs to the error
// code.
func twilioError(code, status int, value string) providerAnswer {
	e := twilioErrors[code]
	msg := stringOr(e.message, "Error")
	if strings.Contains(msg, "%s") {
		msg = fmt.Sprintf(msg, value)
	}
	status = intOr(status, e.status)
	return providerAnswer{status: status, header: jsonHeader(), body: mustJSON(struct {
		Code     int    `json:"code"`
		Message  string `json:"message"`
		MoreInfo string `json:"more_info"`
		Status   int    `json:"status"`
	}{code, msg, fmt.Sprint("https://www.twilio.com/docs/errors/", code), status})}
}
