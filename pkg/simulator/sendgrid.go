package simulator

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// mailServer is the server of SendGrid v3: POST /v3/mail/send.
type mailServer struct {
	sim  *Simulator
	sent atomic.Uint64
}

func newMail(s *Simulator) *mailServer {
	return &mailServer{sim: s}
}

func (m *mailServer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v3/mail/send", m.send)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeAnswer(w, mailError(http.StatusNotFound, "not found", ""))
	})
	return mux
}

const (
	mailMaxBody       = 30 << 20
	mailMaxRecipients = 1000
	mailMaxArgs       = 10_000
	mailMaxAhead      = 72 * time.Hour
	mailMaxCategories = 10
	mailMaxPool       = 64
)

// mailRequest has the fields of a request body that the simulator checks.
type mailRequest struct {
	Personalizations []personalization `json:"personalizations"`
	From             *mailbox          `json:"from"`
	Subject          string            `json:"subject"`
	Content          []mailPart        `json:"content"`
	TemplateID       string            `json:"template_id"`
	CustomArgs       map[string]any    `json:"custom_args"`
	Categories       []string          `json:"categories"`
	SendAt           int64             `json:"send_at"`
	IPPool           string            `json:"ip_pool_name"`
	MailSettings     struct {
		SandboxMode struct {
			Enable bool `json:"enable"`
		} `json:"sandbox_mode"`
	} `json:"mail_settings"`
}

type mailPart struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

type personalization struct {
	To            []mailbox         `json:"to"`
	CC            []mailbox         `json:"cc"`
	BCC           []mailbox         `json:"bcc"`
	Subject       string            `json:"subject"`
	Substitutions map[string]string `json:"substitutions"`
	TemplateData  json.RawMessage   `json:"dynamic_template_data"`
	CustomArgs    map[string]any    `json:"custom_args"`
	SendAt        int64             `json:"send_at"`
}

type mailbox struct {
	Email string `json:"email"`
	Name  string `json:"name"`
}

func (p *personalization) recipients() []mailbox { return slices.Concat(p.To, p.CC, p.BCC) }

func (m *mailServer) send(w http.ResponseWriter, r *http.Request) {
	raw, err := readMail(r)
	if err != nil && raw == nil {
		return // the request was incomplete, so the ledger does not count it
	}
	var req mailRequest
	bad := err
	if bad == nil {
		bad = json.Unmarshal(raw, &req)
	}
	id := fmt.Sprintf("%016x%06x", mixHash(m.sim.seed, m.sent.Add(1)), m.sim.now().UnixMicro()&0xffffff)
	c := &providerCall{provider: SendGrid, pool: req.IPPool, fault: m.fault, receivers: req.receivers()}
	c.content = content{title: req.Subject, template: req.TemplateID}
	if len(req.Content) > 0 {
		first := req.Content[0]
		c.content.body, c.content.html = clipText(first.Value, 2*maxClip), first.Type == "text/html"
	}
	c.onTaken = func(rule *Rule) { m.sim.receipts.planMail(&req, id, rule) }

	a := m.answerTo(r, &req, bad, len(raw), id)
	if a.status == http.StatusOK { // sandbox mode: a valid request is not delivered
		c.receivers, c.onTaken = nil, nil
	}
	settleCall(m.sim, w, r, c, a)
}

// readMail returns the body of a request, unpacked. If the body could be read but not unpacked, it
// returns the packed bytes and an error.
func readMail(r *http.Request) ([]byte, error) {
	body := r.Body
	packed := r.Header.Get("Content-Encoding") == "gzip"
	raw, err := io.ReadAll(io.LimitReader(body, mailMaxBody+1))
	if err != nil {
		return nil, err
	}
	if raw == nil {
		raw = []byte{}
	}
	if !packed {
		return raw, nil
	}
	z, err := gzip.NewReader(strings.NewReader(string(raw)))
	if err != nil {
		return raw, err
	}
	out, err := io.ReadAll(io.LimitReader(z, mailMaxBody+1))
	if err != nil {
		return raw, err
	}
	return out, nil
}

// receivers returns the recipients in the "to" fields. The ledger counts only these recipients.
func (q *mailRequest) receivers() []receiver {
	out := make([]receiver, 0, len(q.Personalizations))
	for i := range q.Personalizations {
		p := &q.Personalizations[i]
		arg := func(name string) string {
			v, ok := p.CustomArgs[name]
			if !ok {
				v = q.CustomArgs[name]
			}
			switch v := v.(type) {
			case string:
				return v
			case float64:
				return strconv.FormatFloat(v, 'f', -1, 64)
			}
			return ""
		}
		seq, _ := strconv.ParseUint(arg("seq"), 10, 64) // 0 if the text is not a number
		for _, to := range p.To {
			out = append(out, receiver{address: to.Email, id: arg("ntf"), user: arg("usr"), seq: seq, personal: p})
		}
	}
	return out
}

// answerTo returns the answer to a request if no rule applies to it.
func (m *mailServer) answerTo(r *http.Request, q *mailRequest, bad error, size int, id string) providerAnswer {
	now := m.sim.now()
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	ct, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch {
	case r.Method != http.MethodPost:
		return mailError(http.StatusMethodNotAllowed, "method not allowed", "")
	case !strings.EqualFold(scheme, "bearer") || key != m.sim.keys.creds.SendGrid.APIKey:
		return mailError(http.StatusUnauthorized, "The provided authorization grant is invalid, expired, or revoked", "")
	case ct != "application/json":
		return mailError(http.StatusUnsupportedMediaType, "Content-Type should be application/json.", "")
	case size > mailMaxBody:
		return mailError(http.StatusRequestEntityTooLarge, "The JSON payload you have included in your request is too large.", "")
	}
	a := providerAnswer{status: http.StatusAccepted, header: http.Header{"X-Message-Id": {id}}}
	if bad != nil {
		a = mailError(http.StatusBadRequest, "Bad Request", "")
	} else if field, msg := m.brokenRule(q, now); msg != "" {
		a = mailError(http.StatusBadRequest, msg, field)
	} else if q.MailSettings.SandboxMode.Enable {
		a = providerAnswer{status: http.StatusOK, header: http.Header{}}
	}
	return a
}

// brokenRule returns the field and the message of the first rule of SendGrid that the request
// violates.
func (m *mailServer) brokenRule(q *mailRequest, now time.Time) (field, msg string) {
	switch {
	case len(q.Personalizations) == 0:
		return "personalizations", "The personalizations field is required and must have at least one personalization."
	case len(q.Personalizations) > mailMaxRecipients:
		return "personalizations", fmt.Sprintf("The personalization block is limited to %d personalizations per API request. You have provided %d personalizations. Please consider splitting this into multiple requests and resending your request.", mailMaxRecipients, len(q.Personalizations))
	case q.From == nil || !isMailbox(q.From.Email):
		return "from.email", "The from email does not contain a valid address."
	case len(q.Content) == 0 && q.TemplateID == "":
		return "content", "Unless a valid template_id is provided, the content parameter is required. There must be at least one defined content block."
	case len(q.Categories) > mailMaxCategories:
		return "categories", fmt.Sprintf("There is a limit of %d categories per request.", mailMaxCategories)
	case len(q.IPPool) > mailMaxPool || q.IPPool != "" && !slices.Contains(m.sim.cfg.SendGrid.Pools, q.IPPool):
		return "ip_pool_name", "The ip pool name is invalid or does not belong to this account."
	}
	for i, p := range q.Content {
		if p.Type == "" || p.Value == "" {
			return fmt.Sprintf("content.%d.value", i), "The content value must be a string at least one character in length."
		}
	}
	return checkPersonalizations(q, now)
}

func checkPersonalizations(q *mailRequest, now time.Time) (field, msg string) {
	seen := make(map[string]struct{}, len(q.Personalizations))
	for i := range q.Personalizations {
		p := &q.Personalizations[i]
		at := func(f string) string { return fmt.Sprintf("personalizations.%d.%s", i, f) }
		if len(p.To) == 0 {
			return at("to"), "The to array is required for all personalization objects, and must have at least one email object with a valid email address."
		}
		for _, b := range p.recipients() {
			if !isMailbox(b.Email) {
				return at("to"), "Does not contain a valid address."
			}
			key := strings.ToLower(b.Email)
			if _, dup := seen[key]; dup {
				return at("to"), fmt.Sprintf("Each unique email address in the personalizations array should only be included once. You have included [%s] more than once.", b.Email)
			}
			seen[key] = struct{}{}
		}
		if q.Subject == "" && p.Subject == "" && q.TemplateID == "" {
			return at("subject"), "The subject is required. You can get around this requirement if you use a template with a subject defined or if every personalization has a subject defined."
		}
		if len(p.CustomArgs)+len(q.CustomArgs) > 0 && len(mustJSON(p.CustomArgs))+len(mustJSON(q.CustomArgs)) > mailMaxArgs {
			return at("custom_args"), fmt.Sprintf("The total length of custom_args may not exceed %d bytes.", mailMaxArgs)
		}
		if time.Unix(max(p.SendAt, q.SendAt), 0).Sub(now) > mailMaxAhead {
			return at("send_at"), "Scheduling more than 72 hours in advance is forbidden."
		}
	}
	if len(seen) > mailMaxRecipients {
		return "personalizations", fmt.Sprintf("There is a limit of %d total recipients (to + cc + bcc) per request.", mailMaxRecipients)
	}
	return "", ""
}

func isMailbox(s string) bool {
	a, err := mail.ParseAddress(s)
	return err == nil && a.Address == s
}

func (m *mailServer) fault(r *Rule, now time.Time) providerAnswer {
	msg := r.Code
	if msg == "" {
		msg = strings.ToLower(http.StatusText(r.Status))
	}
	a := mailError(r.Status, msg, "")
	if d := r.retryAfter(now); r.Status == http.StatusTooManyRequests && d > 0 {
		// Spell these headers like SendGrid does. Go's canonical form is different, and an HTTP/1.1
		// client sees the difference.
		a.header["X-RateLimit-Limit"], a.header["X-RateLimit-Remaining"] = []string{"1"}, []string{"0"}
		a.header["X-RateLimit-Reset"] = []string{strconv.FormatInt(now.Add(d+time.Second-1).Unix(), 10)}
	} else {
		setRetryAfter(a.header, d)
	}
	return a
}

func mailError(status int, msg, field string) providerAnswer {
	type item struct {
		Message string  `json:"message"`
		Field   *string `json:"field"`
		Help    *string `json:"help"`
	}
	it := item{Message: msg}
	if field != "" {
		help := "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#message." + field
		it.Field, it.Help = &field, &help
	}
	return providerAnswer{status: status, header: jsonHeader(), body: mustJSON(struct {
		Errors []item `json:"errors"`
	}{[]item{it}})}
}
