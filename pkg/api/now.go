package api

import (
	"context"
	"time"
)

// Rates is how much the answering process does now.
type Rates struct {
	OverSeconds float64     `json:"over_seconds"` // the rates and lateness are of this long; 0: it has just started
	Rates       []Rate      `json:"rates"`
	Late        []Lateness  `json:"late"`
	Series      []RatePoint `json:"series"` // oldest first
}

// Rate is what became of receivers, or of triggers, per second.
type Rate struct {
	What     string  `json:"what"`     // push, sms, email, trigger
	Accepted float64 `json:"accepted"` // made durable
	Reached  float64 `json:"reached"`  // SENT or DELIVERED; FIRED
	Failed   float64 `json:"failed"`
	Other    float64 `json:"other"` // other outcomes: deferred, suppressed, expired, cancelled, unknown
}

// Lateness is how late what was due came. The quantiles are upper bounds, of the
// buckets of a histogram; 0 where nothing came.
type Lateness struct {
	What string  `json:"what"` // timer, trigger
	N    float64 `json:"n"`
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
}

// RatePoint is the sums of Rates at one time.
type RatePoint struct {
	At       time.Time `json:"at"` // the end of its span
	Accepted float64   `json:"accepted"`
	Ended    float64   `json:"ended"` // reached and failed
}

// Account is one of the accounts, or IP pools, a provider is reached through, as
// the answering process sees it.
type Account struct {
	Provider     string     `json:"provider"`
	Account      string     `json:"account"`
	State        string     `json:"state"` // closed, open or half-open of its circuit; blocked: the provider asked to wait
	BlockedUntil *time.Time `json:"blocked_until,omitempty"`
	ProbeAt      *time.Time `json:"probe_at,omitempty"` // open: when the first call passes
	Reason       string     `json:"reason,omitempty"`
	Room         float64    `json:"room"` // messages it takes at once now
}

// Accounts is the answer to GET /v1/ops/accounts.
type Accounts = List[Account]

// Rates returns how much the answering process does now.
func (cl *Client) Rates(ctx context.Context) (Rates, error) {
	return fetch[Rates](ctx, cl, "/v1/ops/rates", nil)
}

// Accounts returns the accounts of providers, of the process that answers.
func (cl *Client) Accounts(ctx context.Context) (Accounts, error) {
	return fetch[Accounts](ctx, cl, "/v1/ops/accounts", nil)
}
