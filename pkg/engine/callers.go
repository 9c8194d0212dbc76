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
	Disabled bool    `json:"disabled,omitempty"` // the API refuses every request of the caller

	// CallbackURLs are the base URLs that the caller's triggers may call: scheme, host,
	// port and a path prefix that ends at a slash. A caller without a URL cannot register
	// triggers.
	CallbackURLs []string `json:"callback_urls,omitempty"`
	// Secrets sign the caller's callbacks. The newest secret is first. A rotation adds a
	// new secret and keeps the old secret until it expires. The API shows a secret only
	// when the secret is created.
	Secrets []CallerSecret `json:"secrets,omitempty"`
	// MaxInFlight is how many of the caller's callbacks may run at a time; 0: the
	// configured default.
	MaxInFlight int `json:"max_in_flight,omitempty"`
	// FinalStatuses are HTTP statuses, 300 to 599. If a callback URL answers with a status
	// of this list, the trigger becomes FAILED at once. The status 410 has this effect even
	// if it is not in the list. All other statuses outside 2xx are retried.
	FinalStatuses []int `json:"final_statuses,omitempty"`
	// MaxPending is how many open triggers the caller may have; 0: the configured default.
	MaxPending int `json:"max_pending,omitempty"`
	// OutcomesURL is the URL that is called when notifications of the caller have ended;
	// empty: no calls. OutcomesOf selects the notifications: OutcomesFailed (the same as
	// empty) or OutcomesAll. OutcomesSince is when the URL was set, ms since 1970. There is
	// no call about a notification that ended before OutcomesSince.
	OutcomesURL   string `json:"outcomes_url,omitempty"`
	OutcomesOf    string `json:"outcomes_of,omitempty"`
	OutcomesSince int64  `json:"outcomes_since,omitempty"`
	// Version is raised by each Put. It is 0 in a caller that was never stored.
	Version uint64 `json:"version,omitempty"`
}

// Values of Caller.OutcomesOf. They say for which ended notifications the OutcomesURL is called.
const (
	OutcomesFailed = "failed" // only failed notifications
	OutcomesAll    = "all"    // all ended notifications, and receipts that change one of them
)

// CallerSecret is one signing key.
type CallerSecret struct {
	// Secret is "whsec_" and 24 to 64 bytes in base64. The store contains it in encrypted (sealed)
	// form; see users.SealedCallers. If a process does not have the sealing key, Secret has the
	// sealed form.
	Secret  string `json:"secret"`
	Created int64  `json:"created"`           // ms since 1970
	Expires int64  `json:"expires,omitempty"` // ms since 1970; 0: never
}

// Sealed reports whether the secret is sealed. A sealed secret cannot sign.
func (s CallerSecret) Sealed() bool { return strings.HasPrefix(s.Secret, SealedPrefix) }

// SealedPrefix is the first part of every sealed secret, in every version of the sealed
// form.
const SealedPrefix = "sealed:"

// Callers stores the callers whose settings differ from the defaults.
type Callers interface {
	Get(ctx context.Context, id string) (c Caller, ok bool, err error)
	// Put stores c with Version c.Version+1 if the stored version is c.Version. Version 0
	// means that no row is stored. If the stored version differs, Put returns
	// notify.KindConflict.
	Put(ctx context.Context, c Caller) error
	List(ctx context.Context) ([]Caller, error)
}
