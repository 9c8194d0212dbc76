package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Trigger is the body of POST /v1/triggers and one item of its batch: a
// callback at a future time. DelaySeconds or FireAt says when.
type Trigger struct {
	CallbackURL          string          `json:"callback_url"`             // under one of the caller's base URLs
	Payload              json.RawMessage `json:"payload,omitempty"`        // a string, object or array; at most 4,096 bytes, delivered byte for byte
	PayloadBase64        string          `json:"payload_base64,omitempty"` // any bytes, instead of Payload
	DelaySeconds         *float64        `json:"delay_seconds,omitempty"`
	FireAt               *time.Time      `json:"fire_at,omitempty"`
	JitterSeconds        *float64        `json:"jitter_seconds,omitempty"` // later only; nil: the server's default
	Exact                bool            `json:"exact,omitempty"`          // no jitter
	RetryScheduleSeconds []float64       `json:"retry_schedule_seconds,omitempty"`
	MaxLatenessSeconds   *float64        `json:"max_lateness_seconds,omitempty"`
	LatePolicy           string          `json:"late_policy,omitempty"` // fire, drop, dead_letter
}

// MarshalJSON keeps the bytes of Payload as they are: they are what is delivered.
func (t Trigger) MarshalJSON() ([]byte, error) {
	type plain Trigger // without this method
	raw := bytes.TrimSpace(t.Payload)
	t.Payload = nil
	b, err := json.Marshal(plain(t))
	if err != nil || len(raw) == 0 {
		return b, err
	}
	if !json.Valid(raw) {
		return nil, notify.Invalid("bad_payload", "payload", "is not JSON")
	}
	out := append([]byte(`{"payload":`), raw...)
	return append(append(out, ','), b[1:]...), nil // callback_url is always there
}

// TriggerAccepted is the answer to a trigger; jitter is in FireAt.
type TriggerAccepted struct {
	TriggerID string    `json:"trigger_id"`
	FireAt    time.Time `json:"fire_at"`
}

// TriggerItem is the answer to one item of a batch: an id, or what was wrong.
type TriggerItem struct {
	TriggerID string     `json:"trigger_id,omitempty"`
	FireAt    *time.Time `json:"fire_at,omitempty"`
	Error     *ItemError `json:"error,omitempty"`
}

// TriggerBatchResult is the answer to a batch, in the order of its items.
type TriggerBatchResult struct {
	Results  []TriggerItem `json:"results"`
	Accepted int           `json:"accepted"`
	Rejected int           `json:"rejected"`
}

// TriggerAttempt is one call of a trigger's URL, or one that could not be made.
type TriggerAttempt struct {
	N       int       `json:"n"` // 1 for the first
	At      time.Time `json:"at"`
	TookMS  float64   `json:"took_ms"`
	Status  int       `json:"status,omitempty"` // HTTP; 0: there was no answer
	Class   string    `json:"class"`
	Detail  string    `json:"detail,omitempty"`
	Body    string    `json:"body,omitempty"` // the answer's first 512 bytes
	Address string    `json:"address,omitempty"`
}

// TriggerStatus is where a trigger stands.
type TriggerStatus struct {
	TriggerID          string           `json:"trigger_id"`
	Status             string           `json:"status"` // PENDING, IN_FLIGHT, FIRED, FAILED, CANCELLED, EXPIRED
	Caller             string           `json:"caller"`
	CallbackURL        string           `json:"callback_url"`
	PayloadBytes       int              `json:"payload_bytes"`
	CreatedAt          time.Time        `json:"created_at"`
	FireAt             time.Time        `json:"fire_at"` // of the first attempt, jitter included
	NextAttemptAt      *time.Time       `json:"next_attempt_at,omitempty"`
	EndedAt            *time.Time       `json:"ended_at,omitempty"`
	Attempts           int              `json:"attempts"`  // calls that counted
	Deferrals          int              `json:"deferrals"` // waits that were no attempt
	Claims             uint32           `json:"claims"`    // by dispatchers; each one beyond the first may have repeated a call
	Reason             string           `json:"reason,omitempty"`
	Generation         uint32           `json:"generation"` // 0 until it is rescheduled
	MaxLatenessSeconds float64          `json:"max_lateness_seconds,omitempty"`
	LatePolicy         string           `json:"late_policy,omitempty"`
	TraceID            string           `json:"trace_id,omitempty"`
	Log                []TriggerAttempt `json:"log,omitempty"` // the last calls, oldest first
	Next               string           `json:"next"`          // one sentence: what happens next, and when
}

// TriggerPage is one page of triggers, newest first.
type TriggerPage = List[TriggerStatus]

// Circuit is a breaker that stands before a provider's route or a caller's
// callbacks. Each process has breakers of its own.
type Circuit struct {
	Name     string     `json:"name"`              // "provider:apns", "caller:shop"
	Process  string     `json:"process,omitempty"` // whose it is; empty: there is one process
	State    string     `json:"state"`             // closed, open, half-open
	Pinned   bool       `json:"pinned,omitempty"`  // held by an operator until it is reset
	Reason   string     `json:"reason,omitempty"`  // of a provider's that is not closed: errors, config, throttled
	Code     string     `json:"code,omitempty"`    // of the provider's last answer that spoke against it
	Since    *time.Time `json:"since,omitempty"`   // a provider's: since when it is not closed
	Until    *time.Time `json:"until,omitempty"`   // open: when the first probes pass
	InFlight int        `json:"in_flight"`
	Limit    int        `json:"limit,omitempty"`
	Queued   int        `json:"queued"` // waits in memory for a place
}

// Why is what keeps a circuit from being closed: "errors, apns_http_503".
func (c *Circuit) Why() string {
	if c.Reason == "" || c.Code == "" {
		return c.Reason + c.Code
	}
	return c.Reason + ", " + c.Code
}

// Circuits is the answer to GET /v1/ops/circuits.
type Circuits = List[Circuit]

// Caller is what an operator sets for a service that uses the API. Secrets are
// never shown: only when each was made and when it ends.
type Caller struct {
	ID           string   `json:"id"`
	Rate         float64  `json:"rate,omitempty"`  // requests per second; 0: the server's default
	Burst        int      `json:"burst,omitempty"` // requests; 0: the server's default
	Disabled     bool     `json:"disabled,omitempty"`
	CallbackURLs []string `json:"callback_urls,omitempty"` // base URLs its triggers may call
	MaxInFlight  int      `json:"max_in_flight,omitempty"` // callbacks at a time; 0: the server's default
	MaxPending   int      `json:"max_pending,omitempty"`   // triggers waiting; 0: the server's default
	// FinalStatuses are answers to its triggers, 300 to 599, that end one at once
	// beside 410; other answers but 2xx are tried again.
	FinalStatuses []int          `json:"final_statuses,omitempty"`
	OutcomesURL   string         `json:"outcomes_url,omitempty"` // where its notifications that ended are told of; empty: nowhere
	OutcomesOf    string         `json:"outcomes_of,omitempty"`  // which: "failed" (the default) or "all"
	Secrets       []CallerSecret `json:"secrets,omitempty"`      // not taken by PUT
	Version       uint64         `json:"version,omitempty"`      // 0: whatever is stored is replaced
}

// CallerSecret says that a signing secret exists.
type CallerSecret struct {
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Callers is the answer to GET /v1/ops/callers.
type Callers = List[Caller]

// RotatedSecret is the only place where a signing secret is shown.
type RotatedSecret struct {
	Caller    string     `json:"caller"`
	Secret    string     `json:"secret"`              // whsec_...
	OldUntil  *time.Time `json:"old_until,omitempty"` // until then the one before signs too
	RotatedAt time.Time  `json:"rotated_at"`
}

// URLVerdict says whether a callback URL may be called, address by address.
type URLVerdict struct {
	URL       string           `json:"url"` // as it would be called
	Host      string           `json:"host"`
	Port      int              `json:"port"`
	Allowed   bool             `json:"allowed"` // at least one address may be connected to
	Addresses []AddressVerdict `json:"addresses"`
}

// AddressVerdict is about one address that a host resolves to.
type AddressVerdict struct {
	Address string `json:"address"`
	Allowed bool   `json:"allowed"`
	Why     string `json:"why,omitempty"` // it may not
}

// Trigger registers a trigger. key is its Idempotency-Key; empty: none.
func (cl *Client) Trigger(ctx context.Context, t Trigger, key string) (out TriggerAccepted, err error) {
	body, err := t.MarshalJSON() // json.Marshal would compact it
	if err != nil {
		return out, err
	}
	_, err = cl.do(ctx, call{method: http.MethodPost, path: "/v1/triggers", contentType: TypeJSON, body: body, key: key, repeatable: key != ""}, &out)
	return out, err
}

// TriggerBatch registers triggers in one request; what is wrong with an item
// stands in its place in the result.
func (cl *Client) TriggerBatch(ctx context.Context, ts []Trigger, key string) (out TriggerBatchResult, err error) {
	body := []byte("[")
	for i, t := range ts {
		b, err := t.MarshalJSON()
		if err != nil {
			return out, err
		}
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, b...)
	}
	_, err = cl.do(ctx, call{method: http.MethodPost, path: "/v1/triggers:batch", contentType: TypeJSON, body: append(body, ']'), key: key, repeatable: key != ""}, &out)
	return out, err
}

// TriggerStatus returns where a trigger stands, and its calls.
func (cl *Client) TriggerStatus(ctx context.Context, id string) (TriggerStatus, error) {
	return fetch[TriggerStatus](ctx, cl, "/v1/triggers/"+url.PathEscape(id), nil)
}

// CancelTrigger cancels a trigger for good; notify.KindConflict where a call is
// under way or it has ended.
func (cl *Client) CancelTrigger(ctx context.Context, id string) (TriggerStatus, error) {
	return send[TriggerStatus](ctx, cl, http.MethodDelete, "/v1/triggers/"+url.PathEscape(id), nil, true)
}

// RescheduleTrigger makes a trigger due at another time; jitter is not added.
func (cl *Client) RescheduleTrigger(ctx context.Context, id string, at time.Time) (TriggerStatus, error) {
	return send[TriggerStatus](ctx, cl, http.MethodPatch, "/v1/triggers/"+url.PathEscape(id), struct {
		FireAt time.Time `json:"fire_at"`
		Exact  bool      `json:"exact"`
	}{at.UTC(), true}, true)
}

// TriggerQuery selects triggers; empty fields select all. Caller is for
// operators.
type TriggerQuery struct {
	Status, Caller, Cursor string
	Limit                  int
}

// Triggers returns one page of triggers, newest first.
func (cl *Client) Triggers(ctx context.Context, f TriggerQuery) (TriggerPage, error) {
	q := url.Values{}
	set(q, "status", f.Status)
	set(q, "caller", f.Caller)
	set(q, "cursor", f.Cursor)
	setInt(q, "limit", int64(f.Limit))
	return fetch[TriggerPage](ctx, cl, "/v1/triggers", q)
}

// Circuits returns the breakers of all processes, by name and process.
func (cl *Client) Circuits(ctx context.Context) (Circuits, error) {
	return fetch[Circuits](ctx, cl, "/v1/ops/circuits", nil)
}

// CircuitChange is the body of PUT /v1/ops/circuits/{name}: what a circuit is set to.
type CircuitChange struct {
	To string `json:"to"` // open, closed or reset
}

// SetCircuit pins a circuit "open" or "closed", or resets it ("reset") to what
// its calls say.
func (cl *Client) SetCircuit(ctx context.Context, name, to string) (Circuit, error) {
	return send[Circuit](ctx, cl, http.MethodPut, "/v1/ops/circuits/"+url.PathEscape(name), CircuitChange{to}, true)
}

// Callers returns the callers that differ from the defaults.
func (cl *Client) Callers(ctx context.Context) (Callers, error) {
	return fetch[Callers](ctx, cl, "/v1/ops/callers", nil)
}

// Caller returns one caller's settings.
func (cl *Client) Caller(ctx context.Context, id string) (Caller, error) {
	return fetch[Caller](ctx, cl, "/v1/ops/callers/"+url.PathEscape(id), nil)
}

// PutCaller stores a caller's settings, all of them but its secrets. c.Version
// other than 0 must be the stored one, else the result is notify.KindConflict.
func (cl *Client) PutCaller(ctx context.Context, c Caller) (Caller, error) {
	c.Secrets = nil
	return send[Caller](ctx, cl, http.MethodPut, "/v1/ops/callers/"+url.PathEscape(c.ID), c, c.Version == 0)
}

// RotateSecret gives a caller a fresh signing secret; the one before signs too
// until overlap from now. The answer alone shows it.
func (cl *Client) RotateSecret(ctx context.Context, id string, overlap time.Duration) (RotatedSecret, error) {
	return send[RotatedSecret](ctx, cl, http.MethodPost, "/v1/ops/callers/"+url.PathEscape(id)+"/secrets", struct {
		OverlapSeconds float64 `json:"overlap_seconds"`
	}{overlap.Seconds()}, false)
}

// ReconcileReport is what a reconcile found: Plan.Reconcile. It is applied as it
// is: its digest is over all of it.
type ReconcileReport struct {
	ID            string             `json:"report_id"`
	Made          int64              `json:"made_ms"`
	Since         int64              `json:"since_ms,omitempty"`
	Took          time.Duration      `json:"took_ns"`
	Rows          int                `json:"rows"`
	Index         int                `json:"index"`
	Notifications int64              `json:"notifications"`
	Counts        map[string]int     `json:"counts"`
	Findings      []ReconcileFinding `json:"findings"`
	Truncated     bool               `json:"truncated"`
	Digest        string             `json:"digest"`
}

// ReconcileFinding is one thing found.
type ReconcileFinding struct {
	Kind       string `json:"kind"` // notification or trigger
	Class      string `json:"class"`
	ID         string `json:"id,omitempty"`
	Caller     string `json:"caller,omitempty"`
	State      string `json:"state,omitempty"`
	Version    uint64 `json:"version,omitempty"`
	Gen        uint32 `json:"generation,omitempty"`
	NextAt     int64  `json:"next_at_ms,omitempty"`
	LeaseUntil int64  `json:"lease_until_ms,omitempty"`
	Shard      uint16 `json:"shard,omitempty"`
	Minute     int64  `json:"minute,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Closed     int64  `json:"closed,omitempty"`
	Updated    int64  `json:"updated_ms,omitempty"`
	Detail     string `json:"detail,omitempty"`
}

// CheckURL says whether a callback URL may be called.
func (cl *Client) CheckURL(ctx context.Context, raw string) (URLVerdict, error) {
	return fetch[URLVerdict](ctx, cl, "/v1/ops/url-check", url.Values{"url": {raw}})
}
