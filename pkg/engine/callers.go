package engine

import (
	"context"
	"strings"
)

// Caller is a service that uses the API.
type Caller struct {
	ID       string  `json:"id"`                 // the token's sub
	Rate     float64 `json:"rate,omitempty"`     // requests per second; 0: the configured default
	Burst    int     `json:"burst,omitempty"`    // requests; 0: the configured default
	Disabled bool    `json:"disabled,omitempty"` // every request is refused

	// CallbackURLs are the base URLs its triggers may call: scheme, host, port
	// and a path prefix that ends at a slash. None: it may register no trigger.
	CallbackURLs []string `json:"callback_urls,omitempty"`
	// Secrets sign its callbacks, the newest first; a rotation keeps the old one
	// until it expires. Never shown by the API after it was made.
	Secrets []CallerSecret `json:"secrets,omitempty"`
	// MaxInFlight is how many of its callbacks run at a time; 0: the configured
	// default.
	MaxInFlight int `json:"max_in_flight,omitempty"`
	// FinalStatuses are answers of its receivers, 300 to 599, that end a trigger at
	// once as FAILED, beside 410. Other answers but 2xx are tried again.
	FinalStatuses []int `json:"final_statuses,omitempty"`
	// MaxPending is how many triggers it may have waiting; 0: the configured
	// default.
	MaxPending int `json:"max_pending,omitempty"`
	// OutcomesURL is where its notifications that ended are told of; empty:
	// nowhere. OutcomesOf says which: OutcomesFailed (the same as empty) or
	// OutcomesAll. OutcomesSince is when the URL was set, ms since 1970: what ended
	// before is not told.
	OutcomesURL   string `json:"outcomes_url,omitempty"`
	OutcomesOf    string `json:"outcomes_of,omitempty"`
	OutcomesSince int64  `json:"outcomes_since,omitempty"`
	// Version is raised by each Put. Callers that were never stored have 0.
	Version uint64 `json:"version,omitempty"`
}

// What a caller is told of, of its notifications that ended.
const (
	OutcomesFailed = "failed" // those that failed
	OutcomesAll    = "all"    // each, and each receipt that changes it
)

// CallerSecret is one signing key.
type CallerSecret struct {
	// Secret is whsec_ and 24 to 64 bytes in base64. In a store it is sealed
	// (users.SealedCallers), and it stays so where the key that opens it is not there.
	Secret  string `json:"secret"`
	Created int64  `json:"created"`           // ms since 1970
	Expires int64  `json:"expires,omitempty"` // ms since 1970; 0: not
}

// Sealed reports whether the secret is sealed: it signs nothing.
func (s CallerSecret) Sealed() bool { return strings.HasPrefix(s.Secret, SealedPrefix) }

// SealedPrefix begins every sealed secret, whatever the version of its form.
const SealedPrefix = "sealed:"

// Callers keeps callers that differ from the defaults.
type Callers interface {
	Get(ctx context.Context, id string) (c Caller, ok bool, err error)
	// Put stores c with Version c.Version+1 if the stored version is c.Version
	// (0: there is none); else notify.KindConflict.
	Put(ctx context.Context, c Caller) error
	List(ctx context.Context) ([]Caller, error)
}
