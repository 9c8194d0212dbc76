package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// callbackServer receives the calls of triggers, with any method on any path. The header
// X-Trigger-Id names the trigger. If there is no such header, webhook-id names it.
type callbackServer struct {
	s      *Simulator
	secret atomic.Pointer[[]byte] // nil: signatures are not checked
	strict atomic.Bool            // true: calls without a good signature are refused
	ledger *callLedger
}

const (
	maxCallback     = 1 << 20 // most bytes of a body
	hugeAnswer      = 64 << 20
	signatureWindow = 5 * time.Minute // if the timestamp of a call differs from the clock by more than this, its signature is bad
)

func newCallbacks(s *Simulator) *callbackServer {
	c := &callbackServer{s: s, ledger: newCallLedger(s.cfg.Callback.Keep)}
	_ = c.setSecret(s.keys.creds.CallbackSecret) // newKeyring made the secret, so it is valid
	c.strict.Store(false)
	return c
}

// parseSecret parses a signing secret. For an empty text it returns nil, which means that
// signatures are not checked. It returns an error of notify.KindInvalid for a wrong secret.
func parseSecret(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	raw, ok := strings.CutPrefix(text, "whsec_")
	key, err := base64.StdEncoding.DecodeString(raw)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, notify.Invalid("bad_secret", "secret", "must be whsec_ followed by 24 to 64 bytes in base64")
	}
	return key, nil
}

func (c *callbackServer) setSecret(text string) error {
	key, err := parseSecret(text)
	switch {
	case err != nil:
		return err
	case key == nil:
		c.secret.Store(nil)
		c.strict.Store(false)
	default:
		c.secret.Store(&key)
		c.strict.Store(true)
	}
	return nil
}

func (c *callbackServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCallback))
	if err != nil {
		status := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the body could not be read: "+err.Error(), status)
		return
	}
	now := c.s.now()
	got := Call{
		At: now, ID: r.Header.Get("X-Trigger-Id"), Status: http.StatusOK, Path: r.URL.Path,
		Signature: c.checkSignature(r.Header, body, now), Bytes: len(body),
		Traceparent: r.Header.Get("Traceparent"), Tracestate: r.Header.Get("Tracestate"),
		Content: contentOf(r, body),
	}
	if got.ID == "" {
		got.ID = r.Header.Get("webhook-id")
	}
	got.Attempt, _ = strconv.Atoi(r.Header.Get("X-Trigger-Attempt"))
	if due, err := strconv.ParseInt(r.URL.Query().Get("due"), 10, 64); err == nil {
		got.Due = due
	}
	a := providerAnswer{status: http.StatusOK, header: jsonHeader(), body: []byte(`{"ok":true}` + "\n")}
	if got.Signature == SignatureBad && c.strict.Load() {
		a.status, a.body = http.StatusUnauthorized, []byte(`{"error":"bad signature"}`+"\n")
	}
	// A Rule for callbacks compares its field Account with the path of the URL, and its fields
	// Prefix and ID with the id of the trigger.
	p := c.s.rules.decide(&providerCall{provider: Callback, account: r.URL.Path, receivers: []receiver{{address: got.ID, id: got.ID}}})
	silent := false
	if f := p.fault; f != nil {
		switch f.Do {
		case Fail:
			a.status, a.body = f.Status, []byte(`{"error":"`+http.StatusText(f.Status)+`"}`+"\n")
			setRetryAfter(a.header, f.retryAfter(now))
		case Redirect:
			a.status, a.body = http.StatusFound, nil
			a.header.Set("Location", f.Location)
		case Drop, Reset, ResetStream, Hang:
			silent = true
		}
	}
	got.Taken = a.ok() && (p.fault == nil || p.fault.Do != Drop)
	got.Status = a.status
	if silent {
		got.Status = 0
	}
	c.ledger.add(got)
	if p.fault != nil && p.fault.Do == Huge {
		c.sendHuge(w, r)
		return
	}
	sendAnswer(c.s, w, r, &providerCall{provider: Callback}, a, p)
}

// sendHuge answers with a body that is larger than any caller should read.
func (c *callbackServer) sendHuge(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	chunk := make([]byte, 64<<10)
	for n := 0; n < hugeAnswer && r.Context().Err() == nil; n += len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return // the caller has closed the connection, which is the correct reaction
		}
	}
}

// checkSignature checks a signature as the Standard Webhooks specification says. The header
// contains signatures, separated by spaces. At least one v1 signature of "id.timestamp.body" must
// be good.
func (c *callbackServer) checkSignature(h http.Header, body []byte, now time.Time) Signature {
	key := c.secret.Load()
	given := h.Get("webhook-signature")
	switch {
	case given == "" && !c.strict.Load():
		return SignatureNone
	case key == nil:
		return SignatureUnchecked
	}
	seconds, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > signatureWindow {
		return SignatureBad
	}
	mac := hmac.New(sha256.New, *key)
	mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "."))
	mac.Write(body)
	want := mac.Sum(nil)
	for one := range strings.FieldsSeq(given) {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, "v1,"))
		if err == nil && strings.HasPrefix(one, "v1,") && hmac.Equal(sum, want) {
			return SignatureGood
		}
	}
	return SignatureBad
}

func (c *callbackServer) controlRoutes(mux *http.ServeMux) {
	serveValue(mux, "/callbacks/totals", func() any { return c.ledger.totals() })
	mux.HandleFunc("GET /callbacks", func(w http.ResponseWriter, r *http.Request) {
		calls := c.ledger.callsOf(r.URL.Query().Get("id"))
		if len(calls) == 0 {
			writeError(w, notify.NotFound("trigger"))
			return
		}
		writeJSON(w, http.StatusOK, calls)
	})
	mux.HandleFunc("GET /callbacks/dump", c.ledger.writeDump)
	serveSetting(mux, "PUT /callbacks/secret", func(v struct {
		Secret string `json:"secret"`
	},
	) error {
		return c.setSecret(v.Secret)
	})
	serveAction(mux, "DELETE /callbacks", func(*http.Request) error { c.ledger.reset(); return nil })
}

// Callbacks returns the counts of the calls of triggers.
func (s *Simulator) Callbacks() CallTotals { return s.calls.ledger.totals() }

// CallsOf returns the calls of a trigger, in the order in which they came.
func (s *Simulator) CallsOf(id string) []Call { return s.calls.ledger.callsOf(id) }
