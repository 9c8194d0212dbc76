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

// Trigger is the body of POST /v1/triggers, and one item of its batch. It is a callback at a future
// time. Either DelaySeconds or FireAt must be set.
type Trigger struct {
	CallbackURL string `json:"callback_url"` // under one of the caller's base URLs
	// Payload is a string, object or array of at most 4,096 bytes. It is delivered byte for byte.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 string          `json:"payload_base64,omitempty"` // any bytes, instead of Payload
	DelaySeconds  *float64        `json:"delay_seconds,omitempty"`
	FireAt        *time.Time      `json:"fire_at,omitempty"`
	// JitterSeconds is the largest random delay that is added. nil: the server's default.
	JitterSeconds        *float64  `json:"jitter_seconds,omitempty"`
	Exact                bool      `json:"exact,omitempty"` // no jitter
	RetryScheduleSeconds []float64 `json:"retry_schedule_seconds,omitempty"`
	MaxLatenessSeconds   *float64  `json:"max_lateness_seconds,omitempty"`
	LatePolicy           string    `json:"late_policy,omitempty"` // fire, drop, dead_letter
}

// MarshalJSON does not change the bytes of Payload, because they are delivered byte for byte.
func (t Trigger) MarshalJSON() ([]byte, error) {
	type plain Trigger // a type without this method
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
	return append(append(out, ','), b[1:]...), nil // b always contains callback_url
}

// TriggerAccepted is the answer to a trigger. FireAt includes the jitter.
type TriggerAccepted struct {
	TriggerID string    `json:"trigger_id"`
	FireAt    time.Time `json:"fire_at"`
}

// TriggerItem is the answer to one item of a batch: an id, or an error.
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

// TriggerAttempt is one call of a trigger's URL, or a call that could not be made.
type TriggerAttempt struct {
	N       int       `json:"n"` // 1 for the first attempt
	At      time.Time `json:"at"`
	TookMS  float64   `json:"took_ms"`
	Status  int       `json:"status,omitempty"` // HTTP status; 0: no answer arrived
	Class   string    `json:"class"`
	Detail  string    `json:"detail,omitempty"`
	Body    string    `json:"body,omitempty"` // first 512 bytes of the answer
	Address string    `json:"address,omitempty"`
}

// TriggerStatus is the state of a trigger.
type TriggerStatus struct {
	TriggerID     string     `json:"trigger_id"`
	Status        string     `json:"status"` // PENDING, IN_FLIGHT, FIRED, FAILED, CANCELLED, EXPIRED
	Caller        string     `json:"caller"`
	CallbackURL   string     `json:"callback_url"`
	PayloadBytes  int        `json:"payload_bytes"`
	CreatedAt     time.Time  `json:"created_at"`
	FireAt        time.Time  `json:"fire_at"` // time of the first attempt, jitter included
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	EndedAt       *time.Time `json:"ended_at,omitempty"`
	Attempts      int        `json:"attempts"`  // calls that count as attempts
	Deferrals     int        `json:"deferrals"` // waits that do not count as attempts
	// Claims is how often dispatchers claimed the trigger. Each claim after the first may have
	// repeated a call.
	Claims             uint32           `json:"claims"`
	Reason             string           `json:"reason,omitempty"`
	Generation         uint32           `json:"generation"` // 0 until it is rescheduled
	MaxLatenessSeconds float64          `json:"max_lateness_seconds,omitempty"`
	LatePolicy         string           `json:"late_policy,omitempty"`
	TraceID            string           `json:"trace_id,omitempty"`
	Log                []TriggerAttempt `json:"log,omitempty"` // the latest calls, oldest first
	Next               string           `json:"next"`          // one sentence: what happens next, and when
}

// TriggerPage is one page of triggers, newest first.
type TriggerPage = List[TriggerStatus]

// Circuit is the circuit breaker of a provider's route, or of a caller's callbacks. Each process
// has its own breakers.
type Circuit struct {
	Name     string     `json:"name"`              // "provider:apns", "caller:shop"
	Process  string     `json:"process,omitempty"` // the process of the breaker; empty: there is only one process
	State    string     `json:"state"`             // closed, open, half-open
	Pinned   bool       `json:"pinned,omitempty"`  // held open or closed by an operator until it is reset
	Reason   string     `json:"reason,omitempty"`  // why a provider's breaker is not closed: errors, config, throttled
	Code     string     `json:"code,omitempty"`    // error code of the provider's last bad answer
	Since    *time.Time `json:"since,omitempty"`   // since when a provider's breaker is not closed
	Until    *time.Time `json:"until,omitempty"`   // if open: when the first probes pass
	InFlight int        `json:"in_flight"`
	Limit    int        `json:"limit,omitempty"`
	Queued   int        `json:"queued"` // calls that wait in memory for a place
}

// Why returns the reason why the breaker is not closed, for example "errors, apns_http_503".
func (c *Circuit) Why() string {
	if c.Reason == "" || c.Code == "" {
		return c.Reason + c.Code
	}
	return c.Reason + ", " + c.Code
}

// Circuits is the answer to GET /v1/ops/circuits.
type Circuits = List[Circuit]

// Caller contains the settings of a service that uses the API. The secrets themselves are never
// shown. The field Secrets only shows when each secret was made and when it ends.
type Caller struct {
	ID           string   `json:"id"`
	Rate         float64  `json:"rate,omitempty"`  // requests per second; 0: the server's default
	Burst        int      `json:"burst,omitempty"` // requests; 0: the server's default
	Disabled     bool     `json:"disabled,omitempty"`
	CallbackURLs []string `json:"callback_urls,omitempty"` // base URLs that its triggers may call
	MaxInFlight  int      `json:"max_in_flight,omitempty"` // callbacks in progress at the same time; 0: the server's default
	MaxPending   int      `json:"max_pending,omitempty"`   // waiting triggers; 0: the server's default
	// FinalStatuses are HTTP statuses, 300 to 599, that end a trigger without a retry, as 410 does.
	// All other answers except 2xx are retried.
	FinalStatuses []int          `json:"final_statuses,omitempty"`
	OutcomesURL   string         `json:"outcomes_url,omitempty"` // URL that gets the outcomes of its notifications; empty: no URL
	OutcomesOf    string         `json:"outcomes_of,omitempty"`  // which outcomes: "failed" (the default) or "all"
	Secrets       []CallerSecret `json:"secrets,omitempty"`      // must be empty in a PUT
	Version       uint64         `json:"version,omitempty"`      // 0: PUT replaces any version
}

// CallerSecret describes a signing secret, without the secret.
type CallerSecret struct {
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Callers is the answer to GET /v1/ops/callers.
type Callers = List[Caller]

// RotatedSecret is the answer to RotateSecret. No other answer contains a signing secret.
type RotatedSecret struct {
	Caller    string     `json:"caller"`
	Secret    string     `json:"secret"`              // whsec_...
	OldUntil  *time.Time `json:"old_until,omitempty"` // the old secret also signs until this time
	RotatedAt time.Time  `json:"rotated_at"`
}

// URLVerdict says whether a callback URL may be called, with a verdict for each address.
type URLVerdict struct {
	URL       string           `json:"url"` // the form in which it would be called
	Host      string           `json:"host"`
	Port      int              `json:"port"`
	Allowed   bool             `json:"allowed"` // at least one address may be called
	Addresses []AddressVerdict `json:"addresses"`
}

// AddressVerdict is the verdict on one address that a host resolves to.
type AddressVerdict struct {
	Address string `json:"address"`
	Allowed bool   `json:"allowed"`
	Why     string `json:"why,omitempty"` // why it may not be called
}

// Trigger registers a trigger. The parameter key is its Idempotency-Key. If key is empty, the
// request has no Idempotency-Key.
func (cl *Client) Trigger(ctx context.Context, t Trigger, key string) (out TriggerAccepted, err error) {
	body, err := t.MarshalJSON() // json.Marshal would change the bytes of the payload
	if err != nil {
		return out, err
	}
	_, err = cl.do(ctx, call{method: http.MethodPost, path: "/v1/triggers", contentType: TypeJSON, body: body, key: key, repeatable: key != ""}, &out)
	return out, err
}

// TriggerBatch registers triggers in one request. The error of an item is at its place in the
// result.
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

// TriggerStatus returns the state of a trigger, and its calls.
func (cl *Client) TriggerStatus(ctx context.Context, id string) (TriggerStatus, error) {
	return getJSON[TriggerStatus](ctx, cl, "/v1/triggers/"+url.PathEscape(id), nil)
}

// CancelTrigger cancels a trigger for good. It returns notify.KindConflict if a call is in progress
// or the trigger has ended.
func (cl *Client) CancelTrigger(ctx context.Context, id string) (TriggerStatus, error) {
	return sendJSON[TriggerStatus](ctx, cl, http.MethodDelete, "/v1/triggers/"+url.PathEscape(id), nil, true)
}

// RescheduleTrigger moves a trigger to another time, without jitter.
func (cl *Client) RescheduleTrigger(ctx context.Context, id string, at time.Time) (TriggerStatus, error) {
	return sendJSON[TriggerStatus](ctx, cl, http.MethodPatch, "/v1/triggers/"+url.PathEscape(id), struct {
		FireAt time.Time `json:"fire_at"`
		Exact  bool      `json:"exact"`
	}{at.UTC(), true}, true)
}

// TriggerQuery selects triggers. An empty field selects all. Only operators may set Caller.
type TriggerQuery struct {
	Status, Caller, Cursor string
	Limit                  int
}

// Triggers returns one page of triggers, newest first.
func (cl *Client) Triggers(ctx context.Context, f TriggerQuery) (TriggerPage, error) {
	q := url.Values{}
	setText(q, "status", f.Status)
	setText(q, "caller", f.Caller)
	setText(q, "cursor", f.Cursor)
	setInt(q, "limit", int64(f.Limit))
	return getJSON[TriggerPage](ctx, cl, "/v1/triggers", q)
}

// Circuits returns the breakers of all processes, ordered by name and process.
func (cl *Client) Circuits(ctx context.Context) (Circuits, error) {
	return getJSON[Circuits](ctx, cl, "/v1/ops/circuits", nil)
}

// CircuitChange is the body of PUT /v1/ops/circuits/{name}.
type CircuitChange struct {
	To string `json:"to"` // open, closed or reset
}

// SetCircuit holds a circuit open or closed, or ends the hold. The parameter state is "open",
// "closed" or "reset".
func (cl *Client) SetCircuit(ctx context.Context, name, state string) (Circuit, error) {
	return sendJSON[Circuit](ctx, cl, http.MethodPut, "/v1/ops/circuits/"+url.PathEscape(name), CircuitChange{state}, true)
}

// Callers returns the callers whose settings differ from the defaults.
func (cl *Client) Callers(ctx context.Context) (Callers, error) {
	return getJSON[Callers](ctx, cl, "/v1/ops/callers", nil)
}

// Caller returns one caller's settings.
func (cl *Client) Caller(ctx context.Context, id string) (Caller, error) {
	return getJSON[Caller](ctx, cl, "/v1/ops/callers/"+url.PathEscape(id), nil)
}

// PutCaller stores a caller's settings, except its secrets. If c.Version is not 0, it must equal
// the stored version; otherwise PutCaller returns notify.KindConflict.
func (cl *Client) PutCaller(ctx context.Context, c Caller) (Caller, error) {
	c.Secrets = nil
	return sendJSON[Caller](ctx, cl, http.MethodPut, "/v1/ops/callers/"+url.PathEscape(c.ID), c, c.Version == 0)
}

// RotateSecret gives a caller a new signing secret. Only this answer contains the secret. For the
// duration overlap after this call, notifyd signs with the old secret too.
func (cl *Client) RotateSecret(ctx context.Context, id string, overlap time.Duration) (RotatedSecret, error) {
	return sendJSON[RotatedSecret](ctx, cl, http.MethodPost, "/v1/ops/callers/"+url.PathEscape(id)+"/secrets", struct {
		OverlapSeconds float64 `json:"overlap_seconds"`
	}{overlap.Seconds()}, false)
}

// ReconcileReport is the report of a reconcile (Plan.Reconcile). It must be applied unchanged,
// because its digest covers the whole report.
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

// ReconcileFinding is one finding of a reconcile.
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

// CheckURL returns whether a callback URL may be called.
func (cl *Client) CheckURL(ctx context.Context, raw string) (URLVerdict, error) {
	return getJSON[URLVerdict](ctx, cl, "/v1/ops/url-check", url.Values{"url": {raw}})
}
