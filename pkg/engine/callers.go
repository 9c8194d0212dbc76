package engine

import "context"

// Caller is a service that uses the API.
type Caller struct {
	ID       string  `json:"id"`                 // the token's sub
	Rate     float64 `json:"rate,omitempty"`     // requests per second; 0: the configured default
	Burst    int     `json:"burst,omitempty"`    // requests; 0: the configured default
	Disabled bool    `json:"disabled,omitempty"` // every request is refused
}

// Callers keeps callers that differ from the defaults.
type Callers interface {
	Get(ctx context.Context, id string) (c Caller, ok bool, err error)
	Put(ctx context.Context, c Caller) error
	List(ctx context.Context) ([]Caller, error)
}
